"""The self-proof for people: the list of its cases, a word after each, and the table at the end. 80 columns wide."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from validator.report.formats import one_line
from validator.report.terminal.lines import paint, stream_width, wrap
from validator.report.terminal.observer import wants_color
from validator.selftest.case import Case
from validator.selftest.outcome import Outcome
from validator.selftest.run import Selftest

__all__ = ["Progress", "print_cases", "print_selftest"]

_NAME, _VERDICT, _CODES = 37, 13, 21
_WORDS = {"NO_GO": "NO-GO", "UNABLE": "exit 4"}
_GROUPS = {
    "processes": "Processes that die, hang, flood or stay",
    "files": "Evidence that is damaged, missing, or of another run",
    "settings": "Settings that were ignored or mean nothing",
    "learning": "Training that does not learn",
    "pace": "Rates that are not what they seem",
    "machine": "Machines that are short of something, or ill",
    "healthy": "Nothing wrong, so nothing may be found",
}


def _verdict(decision: str | None) -> str:
    return _WORDS.get(decision or "none", decision or "none")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


class Progress:
    """Says on stderr which case is over: one line that changes on a terminal, a line for each elsewhere."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._out = stream or sys.stderr
        self._terminal = self._out.isatty()

    def tell(self, outcome: Outcome, done: int, total: int) -> None:
        """A case is over."""
        word = "right" if outcome.ok else "WRONG"
        line = f"{done}/{total}  {outcome.case.name}: {word} ({outcome.duration_s:.1f} s)"
        end = "\n" if not self._terminal or not outcome.ok else ""
        start = "\r\x1b[K" if self._terminal else ""
        self._out.write(f"{start}{_cut(line, 79)}{end}")
        self._out.flush()

    def close(self) -> None:
        """Clear the line that changes."""
        if self._terminal:
            self._out.write("\r\x1b[K")
            self._out.flush()


def print_cases(cases: Sequence[Case], *, stream: TextIO | None = None) -> None:
    """The list of cases with what each must end in."""
    out = stream or sys.stdout
    color, width = wants_color(out), stream_width(out)
    lines: list[str] = []
    for group, title in _GROUPS.items():
        own = [case for case in cases if case.group == group]
        if not own:
            continue
        lines += ["", paint(title, "bold", color=color)] if lines else [paint(title, "bold", color=color)]
        for case in own:
            ends = ", ".join((_verdict(case.expect), *case.codes))
            needs = "; needs torch" if case.torch else ""
            lines.append(f"  {paint(case.name, 'accent', color=color) if color else case.name}  {ends}{needs}")
            lines += wrap(f"{case.title}.", width=width, indent="      ")
    faults = sum(not case.healthy for case in cases)
    _write(out, [*lines, "", f"{faults} faults, {len(cases) - faults} healthy runs"])


def print_selftest(selftest: Selftest, *, stream: TextIO | None = None) -> None:
    """The table at the end: each case, its verdict and causes, and what is wrong with it, if anything."""
    out = stream or sys.stdout
    color, width = wants_color(out), stream_width(out)
    head = f"  {'case':<{_NAME}}{'verdict':<{_VERDICT}}{'causes found':<{_CODES}}{'s':>6}"
    lines = [paint(head, "bold", color=color)]
    for group, title in _GROUPS.items():
        own = [outcome for outcome in selftest.outcomes if outcome.case.group == group]
        lines += [paint(title, "muted", color=color)] if own else []
        for outcome in own:
            lines += _row(outcome, color=color, width=width)
    right = sum(outcome.ok for outcome in selftest.outcomes)
    total = len(selftest.outcomes)
    healthy = sum(outcome.case.healthy for outcome in selftest.outcomes)
    sign, style = ("✓", "good") if selftest.ok else ("✕", "bad")
    told = f"{right} of {total} came out right: {total - healthy} faults, {healthy} healthy runs"
    lines += ["", f"{paint(sign, style, color=color)} {told}; {selftest.duration_s:.0f} s"]
    if selftest.folder is not None:
        lines += wrap(f"Files kept in {one_line(str(selftest.folder))}", width=width)
    if not selftest.ok:
        first = next((outcome.case.name for outcome in selftest.outcomes if not outcome.ok), None)
        again = f" --only {first}" if first else ""
        lines += [f"Next    validator selftest{again} --keep DIR"]
    else:
        lines += ["Next    validator doctor"]
    _write(out, lines)


def _row(outcome: Outcome, *, color: bool, width: int) -> list[str]:
    sign, style = ("✓", "good") if outcome.ok else ("✕", "bad")
    case = outcome.case
    codes = _cut(", ".join(outcome.codes) or "–", _CODES - 1)
    row = (
        f"{paint(sign, style, color=color)} {_cut(case.name, _NAME - 1):<{_NAME}}"
        f"{_verdict(outcome.decision):<{_VERDICT}}{codes:<{_CODES}}{outcome.duration_s:>6.1f}"
    )
    wrong = [line for sentence in outcome.wrong for line in wrap(one_line(sentence), width=width, indent="      ")]
    return [row, *wrong]


def _write(out: TextIO, lines: Sequence[str]) -> None:
    encoding = getattr(out, "encoding", None) or "utf-8"
    out.write(("\n".join(lines) + "\n").encode(encoding, "backslashreplace").decode(encoding))
