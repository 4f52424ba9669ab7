"""The words of a command and the variables beside it, with every placeholder but the port filled in."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from validator.model.cluster import Groups
from validator.model.launching import STARTING_RANKS
from validator.model.plan import RunSpec, Started
from validator.model.runbook import PhaseBase, Runbook, Setting, TrainingPhase
from validator.model.settings import args_of, fill, flat_name, launcher_of, setting_text, sole_placeholder
from validator.plan.launchers import typed

FLIGHT_RECORDER = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
}
"""Keep the last collectives of each rank, so that a stall names the one that hangs. Older torch reads the second."""


def values_of(
    phase: PhaseBase,
    *,
    run_dir: Path,
    python: str,
    place: str,
    arm: str | None = None,
    repeat: int = 1,
    nproc: int = 0,
    groups: Groups = (),
) -> dict[str, object]:
    """The value of each placeholder in one run; what only an agent of `groups` of nodes knows is left for it."""
    folder = Path(os.path.abspath(run_dir))  # noqa: PTH100 - resolve() would follow links that people chose
    return {
        "steps": "",
        "out": folder / "runs" / place / ("{group}" if len(groups) > 1 else ""),
        "nproc": nproc,
        "nnodes": "{nnodes}" if groups else 1,
        "node_rank": "{node_rank}" if groups else 0,
        "master_addr": "{master_addr}" if groups else "127.0.0.1",
        "run_dir": folder,
        "python": python,
        "stdlib": sysconfig.get_path("stdlib"),
        "phase": phase.id,
        "arm": arm or "",
        "repeat": repeat,
    }


def filled(value: Setting, values: Mapping[str, object]) -> Setting:
    """A setting with its placeholders filled in; a number that stands alone stays a number."""
    if not isinstance(value, str):
        return value
    name = sole_placeholder(value)
    if name is not None and isinstance(number := values.get(name), int):
        return number
    return fill(value, values)


def flags(arguments: Mapping[str, Setting]) -> Iterator[str]:
    """`--key value`; true is `--key` alone, false is left out. A key that brings its own dashes keeps them."""
    for key, value in arguments.items():
        flag = key if key.startswith("-") else f"--{key}"
        if value is True:
            yield flag
        elif value is not False:
            yield flag
            yield setting_text(value)


def environment(
    env: Mapping[str, Setting], values: Mapping[str, object], *, launcher: Started, nodes: int = 0
) -> dict[str, str]:
    """What is added to the environment. The flight recorder is on unless the user set its variables already."""
    added = {"PYTHONUNBUFFERED": "1"}
    if launcher in STARTING_RANKS:
        added.update((name, value) for name, value in FLIGHT_RECORDER.items() if name not in os.environ)
    if launcher == "mpirun":  # it gives a rank its number, and torch where to meet is not its business
        added |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}"}
    if nodes and launcher in ("plain", "python"):  # it starts its ranks itself, and asks the environment where
        added |= {"MASTER_ADDR": "{master_addr}", "MASTER_PORT": "{port}"}
        added |= {"NNODES": "{nnodes}", "NODE_RANK": "{node_rank}"}
    added.update((name, fill(setting_text(value), values)) for name, value in env.items())
    return added


def launch_words(runbook: Runbook, phase: TrainingPhase, spec: RunSpec) -> tuple[str, ...]:
    """The command that a person would type to train with the settings of `spec`, on and on.

    What only the validation needs is left out: its log folder, the trial's arguments, and those that hold `{steps}` or
    `{out}`. In the trainer's own command these become STEPS and OUT, to be filled in.
    """
    declared = args_of(runbook, phase)
    spelled = {flat_name(key): key for key in declared}
    ours = {flat_name(key) for key, value in declared.items() if "{steps}" in str(value) or "{out}" in str(value)}
    ours |= {flat_name(key) for key in runbook.trainer.trial_args}
    arguments = {spelled.get(name, name): value for name, value in spec.requested.items() if name not in ours}
    command = [re.sub(r"\{(steps|out)\}", lambda name: name[1].upper(), word) for word in runbook.trainer.command]
    launcher = launcher_of(runbook, spec.nproc)
    return (*typed(runbook.trainer, launcher, command, nproc=spec.nproc), *flags(arguments))
