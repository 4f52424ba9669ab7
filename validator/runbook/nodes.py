"""The nodes of a cluster and the phases on them: what is declared fits together."""

from __future__ import annotations

from collections.abc import Iterator

from validator.model.launching import DETACHED
from validator.model.phases import CommandPhase, PreflightPhase
from validator.model.runbook import Runbook, TrainingPhase
from validator.model.settings import groups_of
from validator.model.training_phases import TrainPhase
from validator.runbook.build import Built
from validator.runbook.problems import Problem

_EACH = (PreflightPhase, TrainPhase, CommandPhase)
"""Phases that every node may carry out alone: what the others measure is not read node by node."""

_ONE_MACHINE = frozenset({"deepspeed", "mpirun"})
"""Launchers that reach other machines by themselves, past the agents."""


def check_nodes(built: Built, runbook: Runbook) -> Iterator[Problem]:
    """Problems of `cluster`, and of `on` in the phases."""
    if not built.sound("cluster"):
        return
    for index, phase in enumerate(runbook.phases):
        if phase.on is not None:
            for message, fix in _on(runbook, index):
                yield built.problem(("phases", index, "on"), message, fix)
    yield from _starting(built, runbook)


def _on(runbook: Runbook, index: int) -> Iterator[tuple[str, str]]:
    phase, cluster = runbook.phases[index], runbook.cluster
    if cluster is None:
        yield f"phase {phase.id} has on: {phase.on}, and the runbook has no cluster", "declare cluster, or remove on"
    elif isinstance(phase.on, int) and phase.on > cluster.nodes:
        message = f"phase {phase.id} has on: {phase.on}, and cluster.nodes is {cluster.nodes}"
        yield message, f"write on: {cluster.nodes} or less, or raise cluster.nodes"
    elif phase.on == "pairs" and not isinstance(phase, PreflightPhase):
        message = f"phase {phase.id} is a {phase.kind}, which does not run on pairs"
        yield message, "use a preflight, which measures every link"
    elif phase.on == "pairs" and cluster.count < 2:
        yield f"phase {phase.id} has on: pairs, and there is one node", "raise cluster.nodes, or write on: each"
    elif phase.on == "each" and not isinstance(phase, _EACH):
        message = f"phase {phase.id} is a {phase.kind}, which does not run on each node alone"
        yield message, f"write on: all, or on: {cluster.nodes}; preflight, train and command run on each"
    elif phase.on == "each" and isinstance(phase, CommandPhase) and phase.stdout is not None:
        yield f"stdout of phase {phase.id} is read of one node, and it runs on each", "write on: 1, or remove stdout"


def _starting(built: Built, runbook: Runbook) -> Iterator[Problem]:
    trainer = runbook.trainer
    if runbook.cluster is None or not built.sound("trainer"):
        return
    if trainer.container is not None and trainer.container.engine in DETACHED:
        engine = trainer.container.engine
        message = f"a container of {engine} does not end with the agent that started it"
        fix = "use apptainer or enroot on a cluster"
        yield built.problem(("trainer", "container", "engine"), message, fix)
    several = any(len(group) > 1 for phase in runbook.phases for group in groups_of(runbook, phase))
    if trainer.launcher in _ONE_MACHINE and several and any(isinstance(p, TrainingPhase) for p in runbook.phases):
        message = (
            f"launcher: {trainer.launcher} would start ranks of other nodes itself, and validator starts each node"
        )
        fix = "write launcher: torchrun or accelerate, which the trainer starts with as well"
        yield built.problem(("trainer", "launcher"), message, fix)
