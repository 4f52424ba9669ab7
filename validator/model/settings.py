"""Settings of a phase after applying the runbook's defaults, and placeholders.

`check` and `plan` both use this module, so that what is checked is what runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from validator.model.cluster import Groups
from validator.model.launching import Launcher
from validator.model.remedy import Remedy
from validator.model.runbook import (
    PhaseBase,
    ProcessPhase,
    Runbook,
    Setting,
    SoakPhase,
    TrainingPhase,
    TrainPhase,
    Watchdog,
)

PLACEHOLDERS: dict[str, str] = {
    "steps": "optimizer steps of the run",
    "out": "folder of the run, absolute; the trainer writes there",
    "nproc": "number of processes",
    "run_dir": "folder of the whole validation, absolute",
    "python": "the interpreter that starts the trainer",
    "stdlib": "folder of Python's own library sources: real text that is present on every machine",
    "phase": "id of the phase",
    "arm": "name of the arm, empty where the phase has none",
    "repeat": "number of the repeat, counted from 1",
    "nnodes": "number of nodes that run it together",
    "node_rank": "number of the node among them, counted from 0",
    "master_addr": "address at which its nodes meet",
    "port": "a free TCP port at that address, another one for each attempt",
    "container": "name of the container, another one for each attempt",
}
"""Every placeholder and its meaning. `port` and `container` are filled in by the supervisor, the others by the plan."""

_PATTERN = re.compile(  # {{ | }} | ${HOME} | {steps}
    r"\{\{|\}\}|\$\{[^}]*\}?|\{(?P<name>[a-z_][a-z0-9_]*)\}"
)


def unknown_placeholders(text: str) -> Iterator[tuple[str, int]]:
    """Each placeholder of `text` that does not exist, with its 0-based column."""
    for match in _PATTERN.finditer(text):
        if match["name"] is not None and match["name"] not in PLACEHOLDERS:
            yield match["name"], match.start()


def has_placeholder(text: str) -> bool:
    """Whether `text` contains a placeholder, so that it differs between runs."""
    return any(match["name"] is not None for match in _PATTERN.finditer(text))


def sole_placeholder(text: str) -> str | None:
    """The placeholder's name when the whole text is one placeholder, else None."""
    match = _PATTERN.fullmatch(text)
    return match["name"] if match else None


def fill(text: str, values: Mapping[str, object]) -> str:
    """`text` with its placeholders replaced by `values`; `{port}` and `{container}` are left for the supervisor.

    Raises:
        KeyError: for a placeholder that `values` lacks; `check` has reported unknown ones before.
    """

    def replace(match: re.Match[str]) -> str:
        whole, name = match[0], match["name"]
        if whole in ("{{", "}}"):
            return whole[0]
        if name is None:
            return whole
        if name in ("port", "container") and name not in values:
            return whole
        return str(values[name])

    return _PATTERN.sub(replace, text)


# Settings of a phase after applying the runbook's defaults.


def flat_name(key: str) -> str:
    """The name that `--batch-size`, `batch-size` and `batch_size` share: `batch_size`."""
    return key.lstrip("-").replace("-", "_")


_GIVEN = re.compile(r"(?:--?|\+{1,2})?([A-Za-z][\w.-]*)=(.*)", re.DOTALL)  # --batch-size=8 | batch_size=8
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")


def given_numbers(words: Sequence[str]) -> dict[str, str]:
    """The settings of a command that are numbers, by flat name: `--batch-size 8`, `--lr=1e-3`, `max_steps=50`.

    Of a name given twice the last counts; of one in sections (`training.batch_size`) the last part.
    """
    given: dict[str, str] = {}
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        assigned = _GIVEN.fullmatch(word)
        if assigned is not None:
            name, value = assigned[1], assigned[2]
        elif word.startswith("--") and word.strip("-"):
            name, value = word, following
        else:
            continue
        if _NUMBER.fullmatch(value):
            given[flat_name(name.lstrip("-")).rpartition(".")[2].lower()] = value
    return given


def setting_text(value: Setting) -> str:
    """A setting as an environment variable or argument holds it; true and false become 1 and 0."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return value if isinstance(value, str) else repr(value)


def nproc_of(runbook: Runbook, phase: PhaseBase) -> int:
    """Processes under torchrun; 0 means plain python, which is also what phases without a trainer have."""
    if not isinstance(phase, TrainingPhase):
        return 0
    return runbook.defaults.nproc if phase.nproc is None else phase.nproc


def groups_of(runbook: Runbook, phase: PhaseBase) -> Groups:
    """The nodes of its runs, by index; none without a cluster. `pairs` begins with every node alone, as `each`."""
    cluster = runbook.cluster
    if cluster is None:
        return ()
    on = type(phase).on_cluster if phase.on is None else phase.on
    if on in ("each", "pairs"):
        return tuple((index,) for index in range(cluster.count))
    return (tuple(range(cluster.nodes if on == "all" else int(on))),)


def ranks_of(runbook: Runbook, phase: PhaseBase) -> int:
    """Ranks of one of its runs, on all nodes of a group together; 0 where plain python starts the trainer."""
    groups = groups_of(runbook, phase)
    return nproc_of(runbook, phase) * (len(groups[0]) if groups else 1)


def launcher_of(runbook: Runbook, nproc: int) -> Launcher:
    """What starts the trainer with `nproc` ranks."""
    return runbook.trainer.launcher or ("torchrun" if nproc else "python")


def warmup_of(runbook: Runbook, phase: TrainingPhase) -> int:
    """Steps that never count as steady."""
    return runbook.defaults.warmup_steps if phase.warmup_steps is None else phase.warmup_steps


def tokens_of(runbook: Runbook, phase: TrainingPhase) -> int | None:
    """Tokens of an optimizer step over all ranks, where the runbook declares them."""
    return runbook.trainer.tokens_per_step if phase.tokens_per_step is None else phase.tokens_per_step


def planned_tokens_of(runbook: Runbook, phase: TrainingPhase, *, reported: float | None = None) -> float | None:
    """Tokens of the planned run; `reported` are those of a step by the trainer, where the runbook declares none."""
    trainer = runbook.trainer
    if trainer.planned_steps is None:
        return trainer.planned_tokens
    tokens = tokens_of(runbook, phase) or reported
    return None if tokens is None else trainer.planned_steps * tokens


def pause_every_of(runbook: Runbook, phase: TrainingPhase) -> int | None:
    """Steps from one pause for validation or a checkpoint to the next, where the runbook declares them."""
    return runbook.defaults.pause_every if phase.pause_every is None else phase.pause_every


def repeats_of(runbook: Runbook, phase: TrainingPhase) -> int:
    """Runs of each arm."""
    return runbook.defaults.repeats if phase.repeats is None else phase.repeats


def timeout_of(runbook: Runbook, phase: ProcessPhase) -> float:
    """Longest time of one run, in seconds."""
    return runbook.defaults.timeout if phase.timeout is None else phase.timeout


def extends(runbook: Runbook, phase: PhaseBase) -> bool:
    """Whether the phase gets further runs, once, when a required criterion is inconclusive."""
    if not isinstance(phase, (TrainPhase, SoakPhase)):
        return False
    return runbook.defaults.extend if phase.extend is None else phase.extend


def retries_of(runbook: Runbook, phase: ProcessPhase) -> int:
    """Further attempts after a stall or a failure of the infrastructure."""
    return runbook.defaults.retries if phase.retries is None else phase.retries


def remedies_of(phase: PhaseBase) -> tuple[Remedy, ...]:
    """What is tried when the phase fails; a preflight starts nothing that could be tried again."""
    return phase.on_failure if isinstance(phase, ProcessPhase) else ()


def accepted_at(runbook: Runbook, phase: PhaseBase | None) -> dict[str, str]:
    """Code of each accepted finding to the place in the runbook that accepts it; None asks for the defaults alone."""
    places = dict.fromkeys(runbook.defaults.accept_findings, "defaults")
    return places | (dict.fromkeys(phase.accept_findings, f"phase {phase.id}") if phase is not None else {})


def watchdog_of(runbook: Runbook, phase: TrainingPhase) -> Watchdog:
    """The watchdog's limits: the phase's own where it sets them, else the defaults', key by key.

    The gates of the bundled trainer are those that the limits are about; for another trainer `gates` stays None.
    """
    limits = runbook.defaults.watchdog
    if phase.watchdog is not None:
        own = {key: getattr(phase.watchdog, key) for key in phase.watchdog.model_fields_set}
        limits = limits.model_copy(update=own)
    return limits.model_copy(update={"gates": True}) if limits.gates is None and runbook.trainer.bundled else limits


def min_effect_of(runbook: Runbook, phase: PhaseBase) -> float:
    """Smallest relative difference between arms that is worth a decision."""
    choose = getattr(phase, "choose", None)
    own = choose.min_effect if choose is not None else None
    return runbook.defaults.min_effect if own is None else float(own)


def args_of(
    runbook: Runbook,
    phase: TrainingPhase,
    *,
    adopted: Mapping[str, Setting] | None = None,
    arm: Mapping[str, Setting] | None = None,
) -> dict[str, Setting]:
    """Arguments of the trainer: trainer, its trial's, defaults, adopted (`args.NAME`), phase, arm; later ones win.

    `batch-size` and `batch_size` are one argument; the last spelling is kept. The bundled trainer always gets
    `steps` and `out`, because a run that ignores either would not be the run that was declared.
    """
    won = {key[5:]: value for key, value in (adopted or {}).items() if key.startswith("args.")}
    merged: dict[str, tuple[str, Setting]] = {}
    trainer = runbook.trainer
    for layer in (trainer.args, trainer.trial_args, runbook.defaults.args, won, phase.args, arm or {}):
        for key, value in layer.items():
            merged.pop(flat_name(key), None)
            merged[flat_name(key)] = (key, value)
    if runbook.trainer.bundled:
        for name in ("steps", "out"):
            merged[name] = (name, f"{{{name}}}")
    return dict(merged.values())
