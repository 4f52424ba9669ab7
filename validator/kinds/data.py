"""Does the loader keep up with real data? First the data-loader smoke test, then a run of the trainer on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from validator.kinds.base import Found, ImplicitCriterion, JudgedRun, Planner, Seen, Site, TrainingKind
from validator.model.runbook import Runbook
from validator.model.settings import args_of, fill, flat_name
from validator.model.training_phases import DataPhase
from validator.runbook.problems import Problem
from validator.text import format_number

if TYPE_CHECKING:
    from validator.ingest.result_builder import ResultBuilder
    from validator.model.plan import RunSpec


@dataclass(frozen=True)
class LoaderTrial:
    """Why the loader's trial failed, by what it printed; `error` is None where it did not."""

    error: str | None
    message: str | None


_SMOKE = {
    "first_batch_s": "smoke.first_batch_s",
    "toks_per_s": "smoke.toks_per_s",
    "fetch_p95_ms": "smoke.fetch_p95_ms",
}
"""What the loader's trial prints, and the scalars that it becomes."""


class Data(TrainingKind[DataPhase]):
    """The loader's trial, and a run of the trainer."""

    schema = DataPhase
    must_ask = True
    asks_unwritten = (
        ("smoke", "first_batch"),
        "the data-loader smoke test, and every rank, has its first batch in time",
    )

    def check(self, phase: DataPhase, site: Site) -> Iterator[Problem]:
        """The bundled trainer reads data at all."""
        yield from super().check(phase, site)
        if site.runbook.trainer.bundled:
            given = {flat_name(key): value for key, value in args_of(site.runbook, phase).items()}
            source = given.get("data")
            if source in ("synthetic", "uniform"):
                message = f"phase {phase.id} of kind data trains on data: {source}, which no loader reads"
                yield site.problem(message, "add args: {data: local, data-path: TEXTS}, or args: {data: fineweb_edu}")

    def asks(self, phase: DataPhase, runbook: Runbook) -> bool:
        """A first batch could come late, where anything shows when it comes."""
        shown = runbook.trainer.metrics.heartbeat is not None or bool(phase.smoke_words(runbook.trainer))
        return shown or super().asks(phase, runbook)

    def runs(self, phase: DataPhase, planner: Planner) -> Iterator[RunSpec]:
        """The trial is one process; it is given what the trainer is given, apart from steps and folder."""
        words = phase.smoke_words(planner.runbook.trainer)
        if words:
            values = planner.values(phase, "smoke")
            flags = planner.flags(phase, values, without=("steps", "out")) if phase.smoke is None else ()
            argv = (planner.python, *(fill(word, values) for word in words), *flags)
            yield planner.process(phase, argv, part="smoke", role="smoke", retries=0)
        yield from super().runs(phase, planner)

    def read(self, spec: RunSpec, gathered: ResultBuilder, log: Path | None) -> None:
        """What the trial printed."""
        if spec.role != "smoke":
            return
        path = gathered.out / "logs" / "stdout.log"
        printed = gathered.printed_object(path, what="the loader's trial")
        if printed is None:
            return
        error, message = printed.get("error"), printed.get("message")
        gathered.evidence.own = LoaderTrial(str(error) if error else None, str(message) if message else None)
        for key, name in _SMOKE.items():
            value = printed.get(key)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                gathered.add_scalar(name, float(value), gathered.read_log.name(path))

    def criteria(self, phase: DataPhase, runbook: Runbook) -> Iterator[ImplicitCriterion]:
        """The first batch comes in time, alone and in the run."""
        limit_s = phase.first_batch
        limit = f"{format_number(limit_s)} s"
        yield ImplicitCriterion(
            "smoke",
            f"the data-loader smoke test delivers its first batch within {limit}",
            lambda run: _smoke(run, limit_s),
            role="smoke",
        )
        yield ImplicitCriterion(
            "first_batch",
            f"every rank has its first batch within {limit}",
            lambda run: _first_batch(run, limit_s),
            required=lambda runs: runbook.trainer.metrics.heartbeat is not None,
        )

    def out_of_reach(self, runs: Sequence[JudgedRun]) -> str | None:
        """In the words of the loader that says so, alone or in the run."""
        said = next(filter(None, map(_unreachable, runs)), None)
        unproven = "That these data can be read, tokenized and fed in time is not proven"
        return None if said is None else f"{said.rstrip('.')}. {unproven}"


def _unreachable(run: JudgedRun) -> str | None:
    smoke, error = run.own(LoaderTrial), run.evidence.loader_error
    if smoke is not None and smoke.error == "unreachable":
        return smoke.message or "the loader says no more"
    return error.error if error is not None and error.unreachable else None


def _smoke(run: JudgedRun, limit_s: float) -> Found:
    smoke = run.own(LoaderTrial)
    if smoke is None:
        return Found(
            "INCONCLUSIVE", "The loader's trial printed no JSON, so nothing is known of the loader.", None, limit_s
        )
    path = None if run.result is None else run.result.log_path
    if smoke.error is not None:
        why = (smoke.message or "no reason was given").rstrip(".")
        message = f"The loader's trial failed ({smoke.error}): {why}."
        return Found("FAIL", message, smoke.error, limit_s, (Seen(why, path),))
    wait_s = run.number("smoke.first_batch_s")
    if wait_s is None:
        return Found("INCONCLUSIVE", "The loader's trial does not report when its first batch came.", None, limit_s)
    return _within(run, wait_s, limit_s, "The data-loader smoke test had its first batch", path)


def _first_batch(run: JudgedRun, limit_s: float) -> Found:
    failed = run.evidence.loader_error
    if failed is not None:
        where = (Seen(failed.error, failed.path),)
        return Found("FAIL", f"Rank {failed.rank} got no batch: {failed.error}.", "none", limit_s, where)
    wait_s = run.number("startup.first_batch_s")
    if wait_s is None:
        return Found("INCONCLUSIVE", "No heartbeat reports when the first batch came.", None, limit_s)
    source = run.scalar_source("startup.first_batch_s")
    return _within(run, wait_s, limit_s, "The slowest rank had its first batch", source)


def _within(run: JudgedRun, wait_s: float, limit_s: float, what: str, path: str | None) -> Found:
    message = f"{what} after {format_number(wait_s)} s" + (
        "." if wait_s <= limit_s else f", not within {format_number(limit_s)} s."
    )
    where = (Seen(message, path, run.spec.id),)
    return Found("PASS" if wait_s <= limit_s else "FAIL", message, wait_s, limit_s, where)
