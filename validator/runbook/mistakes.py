"""What newcomers write that no rule forbids: a runbook that can be run, and most likely not as it is meant.

All of it is warned of only: a runbook may be checked on another machine, and a trainer may know of itself what nothing
here can see.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path

from validator.files import open_file, stat_file
from validator.model.runbook import Runbook, TrainingPhase
from validator.model.settings import flat_name, has_placeholder, warmup_of
from validator.runbook.build import Built
from validator.runbook.document import Path as Place
from validator.runbook.document import YamlNode, leaves, node_at, position
from validator.runbook.problems import Mark, Problem

_OUT = (
    "out output save_to dump_folder work_dir workdir default_root_dir "
    "out_dir output_dir out_folder save_dir save_folder save_path log_dir logging_dir checkpoint_dir ckpt_dir "
    "run_dir results_dir result_dir exp_dir experiment_dir"
)
OUT_NAMES = frozenset(_OUT.split())
"""Names by which trainers take the folder that they write to."""

_CONFIGS = (".yaml", ".yml", ".json", ".toml", ".py", ".ini", ".cfg")
_MAX_BYTES = 1 << 18
_ASSIGNED = re.compile(  # out_dir = 'x' | "output_dir": "x", | out_dir: x  # why
    r"""^\s*["']?(?P<name>[A-Za-z_][\w-]*)["']?\s*(?:=|:(?!=))\s*(?P<value>"[^"]*"|'[^']*'|[^\s#,;]+)\s*[,;]?\s*(?:\#.*)?$"""
)


def check_mistakes(built: Built, runbook: Runbook) -> Iterator[Problem]:
    """Warnings of what is probably not meant."""
    yield from _warmups(built, runbook)
    if runbook.trainer.bundled or not built.sound("trainer"):
        return
    yield from _missing_script(built, runbook)
    texts = list(_given(built, runbook))
    if not any("{steps}" in str(node.value) for _, node in texts):
        yield from _unused_steps(built, runbook, [str(node.value) for _, node in texts])
    fixed = list(_fixed_folders(texts))
    yield from fixed
    if not fixed and not any("{out}" in str(node.value) or "{run_dir}" in str(node.value) for _, node in texts):
        yield from _folder_in_config(runbook)


def _given(built: Built, runbook: Runbook) -> Iterator[tuple[Place, YamlNode]]:
    """Every value that is handed to the trainer, default arguments included, with its place."""
    places: list[Place] = [("trainer", "command"), ("trainer", "args"), ("trainer", "trial_args")]
    places += [("defaults", "args"), ("defaults", "env")]
    for index, phase in enumerate(runbook.phases):
        if isinstance(phase, TrainingPhase):
            places += [("phases", index, key) for key in ("args", "env", "arms", "over")]
    for place in places:
        node = node_at(built.root, place)
        if node is not None:
            yield from leaves(place, node)
    if node_at(built.root, ("trainer", "args")) is None:
        mark = built.root.mark
        yield from ((("trainer", "args", key), YamlNode(value, mark)) for key, value in runbook.trainer.args.items())


def _missing_script(built: Built, runbook: Runbook) -> Iterator[Problem]:
    """The first word is a script, looked up where the trainer will be started."""
    trainer = runbook.trainer
    command, cwd = trainer.command, trainer.folder
    if (
        trainer.launcher == "plain"
        or trainer.container is not None
        or not command
        or not command[0].endswith(".py")
        or has_placeholder(command[0])
        or has_placeholder(cwd or "")
    ):
        return
    folder, script = Path.cwd() / (cwd or ""), command[0]
    if (folder / script).exists():
        return
    node = node_at(built.root, ("trainer", "command", 0))
    beside = Path(node.mark.file).resolve().parent if node is not None else folder
    key = "trainer.cwd" if trainer.workdir is None else "trainer.workdir"
    where = key if cwd else "the folder where validator was started"
    fix = f"write its path, or set trainer.workdir to the folder that holds {script}, relative to the runbook"
    if beside != folder.resolve() and (beside / script).is_file():
        fix = f"{script} lies beside the runbook: set trainer.workdir: ., or start validator in {beside}"
    message = f"the trainer's script {script} is not in {where}, which is {folder}"
    yield built.problem(("trainer", "command", 0), message, fix)


def _unused_steps(built: Built, runbook: Runbook, texts: list[str]) -> Iterator[Problem]:
    """Nothing says how long to train: neither the placeholder nor, as a fixed number, the steps of a phase."""
    if runbook.trainer.stop == "at_steps":
        return
    phases = [phase for phase in runbook.phases if isinstance(phase, TrainingPhase)]
    numbers = {number for text in texts for number in re.findall(r"\d+", text.replace("_", ""))}
    missed = [phase for phase in phases if str(phase.steps) not in numbers]
    if missed:
        message = (
            f"the trainer is never given its number of steps, so it may not do the {missed[0].steps} of {missed[0].id}"
        )
        fix = 'pass "{steps}" in trainer.command, such as "--max_steps={steps}", or in trainer.args'
        yield built.problem(("trainer", "command"), message, fix)


def fixed_folder(built: Built, runbook: Runbook) -> Problem | None:
    """The first argument that names one output folder for every run."""
    return next(_fixed_folders(list(_given(built, runbook))), None)


def _fixed_folders(texts: list[tuple[Place, YamlNode]]) -> Iterator[Problem]:
    """Arguments that name one output folder for every run: a key's value, `--out_dir=x`, or `--out_dir` and `x`."""
    before = ""
    for place, node in texts:
        text = str(node.value)
        if not isinstance(place[-1], int):
            name, value, written = place[-1], text, f'{place[-1]}: "{{out}}"'
        elif text.startswith("-"):
            name, _, value = text.partition("=")
            written = f'"{name}={{out}}"'
        else:
            name, value, written = before, text, '"{out}"'
        before = text if isinstance(place[-1], int) and text.startswith("-") else ""
        if not _names_folder(name) or not value or has_placeholder(value) or not isinstance(node.value, str):
            continue
        message = (
            f"{name} is {value} in every run, so runs would share one folder and may resume or overwrite each other"
        )
        mark = position(node, len(text) - len(value))
        yield Problem.at(mark, message, f"write {written}; each run gets a folder of its own")


def _names_folder(name: str) -> bool:
    return flat_name(name).lower().rpartition(".")[2] in OUT_NAMES


def _folder_in_config(runbook: Runbook) -> Iterator[Problem]:
    """A config of the trainer's own, named in its command, that fixes the folder; the command line passes none."""
    cwd = runbook.trainer.folder or ""
    for word in runbook.trainer.command[1:] if not has_placeholder(cwd) else ():
        name = word.rpartition("=")[2]
        if not name.endswith(_CONFIGS) or has_placeholder(name):
            continue
        path = Path.cwd() / cwd / name
        for number, line in enumerate(_lines(path), start=1):
            found = _ASSIGNED.match(line)
            if found is None or not _names_folder(found["name"]) or found["value"].strip("\"'") in _UNSET:
                continue
            mark = Mark(name, number, found.start("name") + 1)
            message = f"{found['name']} is {found['value']} in every run, so runs would share one folder"
            fix = f'pass it in trainer.command, such as "--{found["name"]}={{out}}"; each run gets a folder of its own'
            yield Problem.at(mark, message, fix)


_UNSET = ("", "null", "None", "~", "none")


def _lines(path: Path) -> list[str]:
    """The lines of a small regular file; none where it is anything else or cannot be read."""
    try:
        found = stat_file(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_BYTES:
            return []
        with open_file(path) as source:
            return source.read(_MAX_BYTES).decode("utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _warmups(built: Built, runbook: Runbook) -> Iterator[Problem]:
    """A warm-up that is written down and covers all steps of a phase; criteria on rates are refused before."""
    for index, phase in enumerate(runbook.phases):
        if not isinstance(phase, TrainingPhase) or warmup_of(runbook, phase) < phase.steps:
            continue
        own: Place = ("phases", index, "warmup_steps")
        place = own if node_at(built.root, own) is not None else ("defaults", "warmup_steps")
        if node_at(built.root, place) is not None:
            warmup = warmup_of(runbook, phase)
            message = f"warmup_steps is {warmup}, and phase {phase.id} has {phase.steps} steps: none is left to measure"
            yield built.problem(place, message, f"set it to {phase.steps // 4}, or give {phase.id} {4 * warmup} steps")
