"""The same steps on each GPU alone, twice: losses that are not equal in every digit come from a GPU or the trainer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from validator.kinds.base import (
    Found,
    ImplicitCriterion,
    JudgedRun,
    PlannedArm,
    Planner,
    Rule,
    Seen,
    Site,
    TrainingKind,
)
from validator.model.repeated_phases import DeterminismPhase
from validator.model.runbook import Runbook
from validator.model.settings import args_of, repeats_of
from validator.runbook.problems import Problem
from validator.text import listed, plural, quoted

if TYPE_CHECKING:
    from validator.model.plan import RunSpec
    from validator.model.record import PhaseRecord, RunRecord, ValidationRecord

Losses = tuple[tuple[int, float], ...]
"""Step and loss."""

_BUNDLED = {"deterministic": True}


class Determinism(TrainingKind[DeterminismPhase]):
    """An arm for each GPU, at least two runs of each."""

    schema = DeterminismPhase
    asks_unwritten = (("same",), "the losses of every GPU are equal digit by digit")

    def check(self, phase: DeterminismPhase, site: Site) -> Iterator[Problem]:
        """A trainer of one's own has a seed, or its runs differ by right."""
        yield from super().check(phase, site)
        names = {*args_of(site.runbook, phase), *phase.env, *site.runbook.defaults.env}
        words = " ".join((*names, *site.runbook.trainer.command)).lower()
        if not site.runbook.trainer.bundled and "seed" not in words:
            message = f"no seed is declared for phase {phase.id}, so its runs may differ by right"
            yield site.problem(message, "give the trainer its seed in args, such as args: {seed: 1}", "id")

    def asks(self, phase: DeterminismPhase, runbook: Runbook) -> bool:
        """Losses can differ."""
        return True

    def runs(self, phase: DeterminismPhase, planner: Planner) -> Iterator[RunSpec]:
        """One GPU after the other, and all of them again."""
        runbook = planner.runbook
        args = dict(_BUNDLED) if runbook.trainer.bundled else {}
        gpus = [str(gpu) for gpu in range(runbook.hardware.gpus)]
        arms = [PlannedArm(f"gpu{one}", {"CUDA_VISIBLE_DEVICES": one}, args) for one in gpus]
        for repeat in range(1, max(2, repeats_of(runbook, phase)) + 1):
            for arm in arms or [PlannedArm(args=args)]:
                yield planner.training(phase, arm, repeat=repeat)

    def measured_criteria(self, record: PhaseRecord, validation: ValidationRecord) -> Iterator[ImplicitCriterion]:
        """Every run against every other."""
        rule = _same(record.measured)
        yield ImplicitCriterion("same", "the losses of all runs are equal digit by digit", rule, whole=True)


def _losses(run: RunRecord) -> Losses:
    loss = None if run.result is None else run.result.series.get("loss")
    return () if loss is None else tuple(zip(loss.steps.tolist(), loss.values.tolist(), strict=True))


def _same(runs: Sequence[RunRecord]) -> Rule:
    """About all runs, whichever is asked for."""
    by_device: dict[str, list[Losses]] = {}
    for run in runs:
        by_device.setdefault(_device(run), []).append(_losses(run))

    def rule(run: JudgedRun) -> Found:
        if not all(losses for every in by_device.values() for losses in every) or len(runs) < 2:
            return Found("INCONCLUSIVE", "A run reported no loss, so nothing can be compared.")
        return _compared(by_device, _source(run))

    return rule


def _device(run: RunRecord) -> str:
    return "the CPU" if run.spec.arm is None else f"GPU {run.spec.arm.removeprefix('gpu')}"


def _source(run: JudgedRun) -> str | None:
    loss = None if run.result is None else run.result.series.get("loss")
    return None if loss is None else loss.source.path


def _compared(by_device: Mapping[str, list[Losses]], source: str | None) -> Found:
    every = [losses for each in by_device.values() for losses in each]
    distinct = len(set(every))
    steps = len(every[0])
    if distinct == 1:
        message = (
            f"{plural(steps, 'loss', 'losses')} of {plural(len(every), 'run')}, on {_names(by_device)}: all equal."
        )
        return Found("PASS", message, 1, 1, (Seen(f"last loss {quoted(every[0][-1][1])}", source),))
    unsteady = [name for name, each in by_device.items() if len(set(each)) > 1]
    if len(unsteady) == len(by_device):
        message = (
            f"Runs differ from each other on {_names(by_device)}: {_first(by_device[unsteady[0]])}. The trainer is not "
            "deterministic, or every device is faulty: let it use deterministic algorithms and a fixed seed."
        )
        return Found("INCONCLUSIVE", message, distinct, 1)
    if unsteady:
        texts = [f"{name} differs from itself, {_first(by_device[name])}" for name in unsteady]
        return Found("FAIL", f"{listed(texts)}; the others do not.", distinct, 1, _seen(unsteady, source))
    first = {name: each[0] for name, each in by_device.items()}
    (most, count), (_, second) = Counter(first.values()).most_common(2)
    if count == second:
        message = (
            f"Devices agree with themselves and not with each other, and nothing shows which is right: {_names(first)}."
        )
        return Found("FAIL", message, distinct, 1, _seen(list(first), source))
    odd = [name for name, losses in first.items() if losses != most]
    texts = [f"{name} differs from the others, {_first([most, first[name]])}" for name in odd]
    return Found("FAIL", f"{listed(texts)}: its arithmetic is not to be trusted.", distinct, 1, _seen(odd, source))


def _names(devices: Mapping[str, object]) -> str:
    return listed(list(devices), most=8)


def _seen(names: Sequence[str], source: str | None) -> tuple[Seen, ...]:
    return tuple(Seen(name, source) for name in names)


def _first(runs: Sequence[Losses]) -> str:
    """Where two runs part: `at step 12, 5.4912 and 5.4913`."""
    one = runs[0]
    other = next(each for each in runs if each != one)
    for (step, loss), (_, otherwise) in zip(one, other, strict=False):
        if loss != otherwise:
            return f"at step {step}, {loss!r} and {otherwise!r}"  # every digit, for the last one may be the difference
    return f"after {min(len(one), len(other))} steps, where one ends"
