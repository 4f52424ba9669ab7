"""Tests as a gate: at least one must pass, none may fail, and a skipped one is not a pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from validator.kinds.base import Found, ImplicitCriterion, JudgedRun, Planner, ProcessKind, Seen
from validator.model.phases import PytestPhase
from validator.model.runbook import Runbook
from validator.model.settings import fill
from validator.text import listed

if TYPE_CHECKING:
    from validator.ingest.result_builder import ResultBuilder
    from validator.model.plan import RunSpec


@dataclass(frozen=True)
class SelectedTests:
    """How many tests were to be run; None where pytest did not say."""

    tests: int | None


class Pytest(ProcessKind[PytestPhase]):
    """One process of pytest, read from its test report."""

    schema = PytestPhase
    relies_on = ("junit.xml",)
    asks_unwritten = (("tests",), "a test passes, none fails, none is skipped")

    def asks(self, phase: PytestPhase, runbook: Runbook) -> bool:
        """Tests can fail."""
        return True

    def runs(self, phase: PytestPhase, planner: Planner) -> Iterator[RunSpec]:
        """Tests run with none of the options of whatever project the user happens to be in."""
        values = planner.values(phase, "r1")
        argv = [planner.python, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml", f"{values['out']}/junit.xml"]
        argv += ["-o", "addopts=", *(fill(word, values) for word in phase.args)]
        argv += ["--pyargs", *(fill(word, values) for word in phase.targets)]
        argv += ["-k", phase.keyword] if phase.keyword is not None else []
        yield planner.process(phase, argv)

    def read(self, spec: RunSpec, gathered: ResultBuilder, log: Path | None) -> None:
        """The report's counts, and how many tests pytest printed that it would run."""
        gathered.read_tests()
        gathered.evidence.own = SelectedTests(gathered.tests_to_run(log))

    def criteria(self, phase: PytestPhase, runbook: Runbook) -> Iterator[ImplicitCriterion]:
        """The tests pass."""
        allowed = "" if phase.allow_skipped else ", none is skipped"
        yield ImplicitCriterion(
            "tests",
            f"at least one test passes, none fails{allowed}",
            lambda run: _tests(run, allow_skipped=phase.allow_skipped),
        )


def _tests(run: JudgedRun, *, allow_skipped: bool) -> Found:
    counts = {name: run.number(f"tests.{name}") for name in ("passed", "failed", "errors", "skipped")}
    if any(count is None for count in counts.values()):
        return Found(
            "INCONCLUSIVE", "No test report was written, so nothing is known of the tests.", None, "≥ 1 passed"
        )
    passed, failed, errors, skipped = (int(count or 0) for count in counts.values())
    observed = f"{passed} passed, {failed} failed, {errors} errors, {skipped} skipped"
    evidence = _evidence(run)
    tests = run.evidence.tests
    if failed or errors:
        names = listed([one.name for one in (*tests.failed, *tests.errors)])
        return Found("FAIL", f"{observed}: {names}." if names else f"{observed}.", observed, "0 failed", evidence)
    to_run, known = run.own(SelectedTests), passed + skipped
    wanted = None if to_run is None else to_run.tests
    if wanted is not None and known < wanted:
        message = (
            f"{observed}, of {wanted} that were to be run; the outcome of {wanted - known} is unknown. A "
            "conftest.py that deselects tests must call pytest_deselected."
        )
        return Found("INCONCLUSIVE", message, observed, f"{wanted} tests", evidence)
    if passed == 0:
        status: Literal["SKIPPED", "FAIL"] = "SKIPPED" if skipped else "FAIL"
        return Found(status, f"No test passed: {observed}.", observed, "≥ 1 passed", evidence)
    if skipped and not allow_skipped:
        names = listed([one.name for one in tests.skipped])
        message = f"{observed}; a skipped test is not a pass" + (f": {names}." if names else ".")
        return Found("SKIPPED", message, observed, "0 skipped", evidence)
    return Found("PASS", f"{observed}.", observed, "≥ 1 passed", evidence)


def _evidence(run: JudgedRun) -> tuple[Seen, ...]:
    path, tests = run.scalar_source("tests.total"), run.evidence.tests
    return tuple(
        Seen((one.message or outcome)[:300], path, one.name)
        for outcome, named in (("failed", tests.failed), ("errors", tests.errors), ("skipped", tests.skipped))
        for one in named[:10]
    )
