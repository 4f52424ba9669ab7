"""What no schema can say: names that must exist, values that must fit together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from validator.model.pattern import narrow_groups
from validator.model.phases import PhaseBase
from validator.model.resolve import LAST_GO
from validator.model.runbook import Runbook, Setting, TrainingPhase
from validator.model.schemas import SCHEMAS
from validator.model.settings import PLACEHOLDERS, flat_name, nproc_of, unknown_placeholders
from validator.runbook.asking import check_observing
from validator.runbook.build import Built
from validator.runbook.criteria import check_choose, check_criteria
from validator.runbook.document import Path, YamlNode, leaves, mark_at, node_at, position
from validator.runbook.mistakes import fixed_folder
from validator.runbook.nodes import check_nodes
from validator.runbook.problems import Problem
from validator.runbook.starting import check_starting
from validator.text import nearest


def check_meaning(built: Built, runbook: Runbook) -> Iterator[Problem]:
    """Every problem of meaning in what could be built."""
    yield from _duplicate_ids(built, runbook)
    yield from _needs(built, runbook)
    yield from _launch(built, runbook)
    yield from check_nodes(built, runbook)
    for index, _ in enumerate(runbook.phases):
        yield from check_criteria(built, runbook, index)
        yield from check_choose(built, runbook, index)
        yield from check_observing(built, runbook, index)


# What is passed to processes: placeholders exist, settings reach the runs that they are meant for, GPUs suffice.

LAUNCHER_VARIABLES = (
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "VALIDATOR_RUN_TOKEN",
    "WORLD_SIZE",
)
"""Set by the launcher for each process, whatever the runbook says."""


def _launch(built: Built, runbook: Runbook) -> Iterator[Problem]:
    """Problems of commands, arguments, environment and process counts."""
    yield from _placeholders(built)
    yield from _trainer(built, runbook)
    yield from check_starting(built, runbook)
    for index, phase in enumerate(runbook.phases):
        if isinstance(phase, TrainingPhase):
            yield from _processes(built, runbook, index, phase)
            yield from _length(built, runbook, index, phase)
            yield from _fixed_args(built, runbook, ("phases", index, "args"), phase.args)
            yield from _log_texts(built, index, phase)
    yield from _fixed_args(built, runbook, ("defaults", "args"), runbook.defaults.args)
    yield from _fixed_args(built, runbook, ("trainer", "trial_args"), runbook.trainer.trial_args)


def _placeholders(built: Built) -> Iterator[Problem]:
    for path, node in _texts(built.root):
        for name, column in unknown_placeholders(str(node.value)):
            fix = nearest(
                name,
                PLACEHOLDERS,
                f"write {{{{{name}}}}} for literal braces; placeholders: {', '.join(PLACEHOLDERS)}",
            )
            yield Problem.at(position(node, column), f"there is no placeholder {{{name}}}", fix)
        schema = _schema_at(built.root, path[1]) if path[0] == "phases" else None
        if schema is not None and not issubclass(schema[1], TrainingPhase) and "{steps}" in str(node.value):
            message = f"{{steps}} has no value in a phase of kind {schema[0]}"
            yield Problem.at(position(node, str(node.value).index("{steps}")), message, "write the number itself")


def _schema_at(root: YamlNode, index: int | str) -> tuple[str, type[PhaseBase]] | None:
    """The kind of the phase at `index`, and its model."""
    node = node_at(root, ("phases", index, "kind"))
    kind = "" if node is None else str(node.value)
    return (kind, SCHEMAS[kind]) if kind in SCHEMAS else None


def _texts(root: YamlNode) -> Iterator[tuple[Path, YamlNode]]:
    """Every text in which placeholders are filled in."""
    wanted: list[Path] = [("trainer", "command"), ("trainer", "args"), ("trainer", "trial_args")]
    wanted += [("trainer", "launcher_args"), ("trainer", "workdir"), ("trainer", "cwd")]
    wanted += [("defaults", "env"), ("defaults", "args")]
    phases = node_at(root, ("phases",))
    for index, _ in enumerate(phases.value if phases is not None and isinstance(phases.value, list) else []):
        schema = _schema_at(root, index)
        wanted += [("phases", index, key) for key in (() if schema is None else schema[1].filled_keys())]
    for path in wanted:
        node = node_at(root, path)
        if node is not None:
            yield from ((path, leaf) for path, leaf in leaves(path, node) if isinstance(leaf.value, str))


def _trainer(built: Built, runbook: Runbook) -> Iterator[Problem]:
    trainer = runbook.trainer
    if not trainer.command and built.sound("trainer"):
        fix = "write trainer: {command: [train.py]}"
        yield built.problem(("trainer", "command"), "trainer.command is empty", fix)
    heartbeat = trainer.metrics.heartbeat
    if heartbeat is not None and "{rank}" not in heartbeat:
        message = f"trainer.metrics.heartbeat is {heartbeat!r} without {{rank}}, so every rank would share one file"
        fix = 'write heartbeat: "heartbeat_rank{rank}.jsonl"'
        yield built.problem(("trainer", "metrics", "heartbeat"), message, fix)
    if trainer.bundled or not built.sound("trainer"):
        return
    metrics = trainer.metrics
    files = [path for path in (metrics.csv, metrics.heartbeat, metrics.env, metrics.metrics) if path is not None]
    files += [metrics.log] if metrics.log is not None and metrics.log == metrics.log_below else []
    files += [metrics.files.get(one.name, one.files[0].glob) for one in metrics.readers if one.files_alone]
    named = [str(node.value) for _, node in _texts(built.root)]
    if files and runbook.trainer.command and not any("{out}" in text or "{run_dir}" in text for text in named):
        if any("{out}" in str(value) for value in trainer.args.values()):
            return  # as the default arguments do
        message = f"the trainer is never given its output folder, so {files[0]} can never be read"
        fix = 'pass "{out}" in trainer.args, trainer.command or the environment'
        fixed = fixed_folder(built, runbook)
        if fixed is not None:
            yield fixed._replace(message=f"{fixed.message}, and {files[0]} can never be read")
            return
        yield built.problem(("trainer", "args"), message, fix)


def _processes(built: Built, runbook: Runbook, index: int, phase: TrainingPhase) -> Iterator[Problem]:
    nproc, gpus = nproc_of(runbook, phase), runbook.hardware.gpus
    if 0 < gpus < nproc and built.sound("hardware"):
        own = phase.nproc is not None
        path: Path = ("phases", index, "nproc") if own else ("defaults", "nproc")
        message = f"phase {phase.id} starts {nproc} processes, but hardware.gpus is {gpus}"
        yield built.problem(path, message, f"lower nproc to {gpus}, or raise hardware.gpus")


def _length(built: Built, runbook: Runbook, index: int, phase: TrainingPhase) -> Iterator[Problem]:
    most = runbook.trainer.max_steps
    if most is not None and phase.steps > most and built.sound("trainer"):
        message = f"phase {phase.id} has {phase.steps} steps, and the trainer does {most} at most"
        fix = f"lower steps to {most}, or give the trainer more and correct trainer.max_steps"
        yield built.problem(("phases", index, "steps"), message, fix)


def _fixed_args(built: Built, runbook: Runbook, path: Path, args: Mapping[str, Setting]) -> Iterator[Problem]:
    """The bundled trainer's steps and folder come from the phase; a second source would be ignored in silence."""
    if not runbook.trainer.bundled:
        return
    for key, value in args.items():
        name = flat_name(key)
        if name in ("steps", "out") and value != f"{{{name}}}":
            fix = "set `steps` of the phase" if name == "steps" else "remove it; every run gets a folder of its own"
            message = f"args.{key} would be ignored: {name} is set for each run"
            yield built.problem((*path, key), message, fix, key=True)


def _log_texts(built: Built, index: int, phase: TrainingPhase) -> Iterator[Problem]:
    for number, text in enumerate(phase.log_contains):
        if not text.strip():
            path = ("phases", index, "log_contains", number)
            message = "log_contains has an empty text, which every log contains"
            yield built.problem(path, message, "write the text to find")


def check_groups(built: Built, runbook: Runbook) -> Iterator[Problem]:
    """Groups of the trainer's pattern that miss some numbers: they are read all the same, but what they say is not what
    is meant."""
    for name, missed in narrow_groups(runbook.trainer.metrics.stdout or "").items():
        message = f"the group {name} of stdout does not match {missed}; it is widened when a log is read"
        fix = f"write {{{name}}}, which matches any number"
        yield built.problem(("trainer", "metrics", "stdout"), message, fix)


def check_reaches(built: Built, runbook: Runbook, phase: TrainingPhase, path: Path, key: str) -> Iterator[Problem]:
    """A setting that something stronger overrides reaches no run: all arms would be alike."""
    family, name = key.split(".", 1)
    if family == "env" and name in LAUNCHER_VARIABLES:
        message, fix = f"{key} reaches no run: the launcher sets {name} itself", "remove it"
    elif runbook.trainer.bundled and family == "args" and flat_name(name) in ("steps", "out"):
        message, fix = f"{key} reaches no run: {name} is set for each run", "remove it"
    elif runbook.trainer.bundled and family == "env" and name.startswith("NSA_"):
        field = name.removeprefix("NSA_").lower()
        layers = (runbook.trainer.args, runbook.trainer.trial_args, runbook.defaults.args, phase.args)
        if all(flat_name(given) != field for layer in layers for given in layer):
            return
        message = f"{key} reaches no run: {field} is also given in args, and the command line wins"
        fix = f"write args.{field} here, or remove {field} from args"
    else:
        return
    yield built.problem(path, message, fix, key=True)


# The order of phases: ids are unique, and what a phase needs exists and runs before it.


def _duplicate_ids(built: Built, runbook: Runbook) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for index, phase in enumerate(runbook.phases):
        if phase.id == LAST_GO:
            message = f"phase id {LAST_GO} is reserved: in criteria it means the last GO"
            yield built.problem(("phases", index, "id"), message, f"rename the phase, such as {LAST_GO}_1")
        if phase.id in seen:
            first = mark_at(built.root, ("phases", seen[phase.id], "id"))
            where = f", first in line {first.line}" if first.line else ""
            message = f"two phases are called {phase.id}{where}"
            yield built.problem(("phases", index, "id"), message, f"rename one, such as {phase.id}_2")
        else:
            seen[phase.id] = index


def _needs(built: Built, runbook: Runbook) -> Iterator[Problem]:
    order = {phase.id: index for index, phase in reversed(list(enumerate(runbook.phases)))}
    reported: set[frozenset[str]] = set()
    for index, phase in enumerate(runbook.phases):
        for number, need in enumerate(phase.needs):
            path = ("phases", index, "needs", number)
            if need in built.lost:
                continue
            if need not in order:
                others = [other for other in order if order[other] < index]
                fix = nearest(need, others, f"earlier phases: {', '.join(others)}" if others else "remove it")
                yield built.problem(path, f"phase {phase.id} needs {need}, which does not exist", fix)
            elif order[need] >= index:
                cycle = _cycle(runbook, phase.id, need)
                if cycle is None:
                    fix = f"move phase {need} in front of {phase.id}"
                    yield built.problem(path, f"phase {phase.id} needs {need}, which runs after it", fix)
                elif frozenset(cycle) not in reported:
                    reported.add(frozenset(cycle))
                    text = " → ".join((*cycle, cycle[0]))
                    fix = f"remove {need} from the needs of {phase.id}"
                    yield built.problem(path, f"the needs of phases form a cycle: {text}", fix)


def _cycle(runbook: Runbook, start: str, first: str) -> tuple[str, ...] | None:
    """The shortest cycle of phase ids from `start` over its need `first` back to `start`; None without one."""
    needs = {phase.id: phase.needs for phase in runbook.phases}
    if first == start:
        return (start,)
    paths: list[tuple[str, ...]] = [(start, first)]
    seen = {first}
    while paths:
        path = paths.pop(0)
        for need in needs.get(path[-1], ()):
            if need == start:
                return path
            if need not in seen:
                seen.add(need)
                paths.append((*path, need))
    return None
