"""Runs the cases, a few at a time, and prints their outcomes."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from validator.report.terminal.lines import paint, wrap
from validator.selftest.case import Case, CaseOutcome, Sandbox, judge
from validator.text import listed, one_line, plural


@dataclass(frozen=True)
class Selftest:
    """All outcomes in the order of the cases. `folder` is where files were kept; None when all were removed."""

    outcomes: tuple[CaseOutcome, ...]
    duration_s: float
    folder: Path | None = None

    @property
    def ok(self) -> bool:
        """Whether there were cases and all of them passed."""
        return bool(self.outcomes) and all(outcome.ok for outcome in self.outcomes)


def default_jobs() -> int:
    """Cases at a time: most of them wait more than they compute."""
    return max(2, min(8, len(os.sched_getaffinity(0)) + 1))


def run_selftest(
    cases: Sequence[Case],
    *,
    jobs: int | None = None,
    keep: Path | None = None,
    on_outcome: Callable[[CaseOutcome, int, int], None] | None = None,
) -> Selftest:
    """Run the cases and judge each.

    Args:
        jobs: how many at a time.
        keep: a folder for the files of all cases; without one, only those of failed cases are kept, in a temporary one.
        on_outcome: called from this thread after each case with its outcome, how many have ended, and how many there
            are.

    Raises:
        OSError: when no folder can be created.
    """
    began = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="validator-selftest-")) if keep is None else keep
    root.mkdir(parents=True, exist_ok=True)
    order = sorted(cases, key=lambda case: -case.about_s)
    outcomes: dict[str, CaseOutcome] = {}
    with ThreadPoolExecutor(jobs or default_jobs(), thread_name_prefix="selftest") as pool:
        waiting: set[Future[CaseOutcome]] = {
            pool.submit(_run_case, case, root / case.name, keep is not None) for case in order
        }
        try:
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    outcome = future.result()
                    outcomes[outcome.case.name] = outcome
                    if on_outcome is not None:
                        on_outcome(outcome, len(outcomes), len(order))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    kept = keep is not None or any(not outcome.ok for outcome in outcomes.values())
    if not kept:
        shutil.rmtree(root, ignore_errors=True)
    ordered = tuple(outcomes[case.name] for case in cases)
    return Selftest(ordered, round(time.monotonic() - began, 2), root if kept else None)


def has_torch() -> bool:
    """Whether cases that start torchrun can run: validator itself needs no torch."""
    return importlib.util.find_spec("torch") is not None


def _run_case(case: Case, folder: Path, keep: bool) -> CaseOutcome:
    if case.torch and not has_torch():
        message = "torch is not installed, and this case needs torchrun: pip install torch"
        return CaseOutcome(case, None, (), (message,), 0.0)
    if folder.exists():
        shutil.rmtree(folder)
    began, sandbox = time.monotonic(), Sandbox(folder, secrets.token_hex(8))
    try:
        outcome = judge(case, sandbox, case.run(sandbox), duration_s=time.monotonic() - began)
    except Exception as error:  # noqa: BLE001 - one broken case fails alone; the others still run
        message = f"the case could not be run: {type(error).__name__}: {error}"
        outcome = CaseOutcome(case, None, (), (message,), round(time.monotonic() - began, 2))
    finally:
        sandbox.close()
    if outcome.ok and not keep:
        shutil.rmtree(folder, ignore_errors=True)
        return outcome
    return replace(outcome, folder=folder)


# For the terminal, 80 columns wide: the list of cases, progress, and the table at the end.

_NAME, _VERDICT, _CODES = 37, 13, 21
_VERDICTS = {"NO_GO": "NO-GO", "UNABLE": "exit 4"}
_GROUPS = {
    "processes": "Processes that die, hang, flood or stay",
    "files": "Evidence that is damaged, missing, or of another run",
    "settings": "Settings that were ignored or mean nothing",
    "learning": "Training that does not learn",
    "pace": "Rates that mislead",
    "machine": "Machines that lack something, or are unhealthy",
    "healthy": "Nothing wrong, so nothing may be found",
}


def _verdict_text(decision: str | None) -> str:
    return _VERDICTS.get(decision or "none", decision or "none")


def _fitted(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


class CaseProgress:
    """Reports finished cases on stderr: one line that changes on a terminal, a line for each elsewhere."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._out = stream or sys.stderr
        self._terminal = self._out.isatty()

    def report(self, outcome: CaseOutcome, done: int, total: int) -> None:
        """A case has ended."""
        word = "passed" if outcome.ok else "FAILED"
        line = f"{done}/{total}  {outcome.case.name}: {word} ({outcome.duration_s:.1f} s)"
        end = "\n" if not self._terminal or not outcome.ok else ""
        start = "\r\x1b[K" if self._terminal else ""
        self._out.write(f"{start}{_fitted(line, 79)}{end}")
        self._out.flush()

    def close(self) -> None:
        """Clear the line that changes."""
        if self._terminal:
            self._out.write("\r\x1b[K")
            self._out.flush()


def case_lines(cases: Sequence[Case], *, width: int = 80, color: bool = False) -> list[str]:
    """The list of cases with what each must end in."""
    lines: list[str] = []
    for group, title in _GROUPS.items():
        own = [case for case in cases if case.group == group]
        if not own:
            continue
        lines += ["", paint(title, "bold", color=color)] if lines else [paint(title, "bold", color=color)]
        for case in own:
            ends = ", ".join((_verdict_text(case.expect), *case.codes))
            needs = "; needs torch" if case.torch else ""
            lines.append(f"  {paint(case.name, 'info', color=color)}  {ends}{needs}")
            lines += wrap(f"{case.title}.", width=width, indent="      ")
    faults = sum(not case.healthy for case in cases)
    return [*lines, "", f"{faults} faults, {len(cases) - faults} healthy runs"]


def selftest_lines(
    selftest: Selftest, left_out: Sequence[str] = (), *, width: int = 80, color: bool = False
) -> list[str]:
    """The table at the end: each case, its verdict, the causes found, and every expectation that was not met.

    `left_out` names the cases that were not run because torch is not installed.
    """
    head = f"  {'case':<{_NAME}}{'verdict':<{_VERDICT}}{'causes found':<{_CODES}}{'s':>6}"
    lines = [paint(head, "bold", color=color)]
    for group, title in _GROUPS.items():
        own = [outcome for outcome in selftest.outcomes if outcome.case.group == group]
        lines += [paint(title, "muted", color=color)] if own else []
        for outcome in own:
            lines += _case_row(outcome, color=color, width=width)
    passed = sum(outcome.ok for outcome in selftest.outcomes)
    total = len(selftest.outcomes)
    healthy = sum(outcome.case.healthy for outcome in selftest.outcomes)
    sign, style = ("✓", "good") if selftest.ok else ("✕", "bad")
    summary = f"{passed} of {total} cases passed: {total - healthy} faults, {healthy} healthy runs"
    lines += ["", f"{paint(sign, style, color=color)} {summary}; {selftest.duration_s:.0f} s"]
    if left_out:
        text = (
            f"{plural(len(left_out), 'case')} of torchrun left out, since torch is not installed: {listed([*left_out])}"
        )
        lines += wrap(text, width=width)
    if selftest.folder is not None:
        lines += wrap(f"Files kept in {one_line(str(selftest.folder))}", width=width)
    if not selftest.ok:
        first = next((outcome.case.name for outcome in selftest.outcomes if not outcome.ok), None)
        again = f" --only {first}" if first else ""
        lines += [f"Next    validator selftest{again} --keep DIR"]
    else:
        lines += ["Next    validator doctor"]
    return lines


def _case_row(outcome: CaseOutcome, *, color: bool, width: int) -> list[str]:
    sign, style = ("✓", "good") if outcome.ok else ("✕", "bad")
    case = outcome.case
    codes = _fitted(", ".join(outcome.codes) or "–", _CODES - 1)
    row = (
        f"{paint(sign, style, color=color)} {_fitted(case.name, _NAME - 1):<{_NAME}}"
        f"{_verdict_text(outcome.decision):<{_VERDICT}}{codes:<{_CODES}}{outcome.duration_s:>6.1f}"
    )
    wrong = [line for sentence in outcome.wrong for line in wrap(one_line(sentence), width=width, indent="      ")]
    return [row, *wrong]
