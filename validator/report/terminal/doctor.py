"""The screen of `validator doctor`: what is there, what is missing, which runbooks can run."""

from __future__ import annotations

import sys
from typing import Protocol, TextIO

from validator.report.formats import one_line
from validator.report.terminal.lines import paint, stream_width, wrap
from validator.report.terminal.observer import wants_color

__all__ = ["Examined", "print_examination"]


class _Fact(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> str: ...
    @property
    def ok(self) -> bool | None: ...
    @property
    def fix(self) -> str: ...


class _Fitness(Protocol):
    @property
    def runbook(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def reasons(self) -> tuple[str, ...]: ...


class Examined(Protocol):
    """What is shown: facts about the machine, and the fitness of each runbook."""

    @property
    def facts(self) -> tuple[_Fact, ...]:
        """Line by line."""

    @property
    def runbooks(self) -> tuple[_Fitness, ...]:
        """The bundled ones."""


_SIGNS = {True: ("✓", "good"), None: ("–", "muted"), False: ("✕", "bad")}
_STATES = {
    "ready": ("✓", "good", "can run here"),
    "unfit": ("!", "warn", "its preflight would fail"),
    "impossible": ("✕", "bad", "cannot run here"),
}


def print_examination(examined: Examined, *, stream: TextIO | None = None) -> None:
    """Print the screen, on stdout unless told otherwise."""
    out = stream or sys.stdout
    color, width = wants_color(out), stream_width(out)
    pad = max(len(fact.name) for fact in examined.facts)
    lines = [paint("This machine", "bold", color=color)]
    for fact in examined.facts:
        sign, style = _SIGNS[fact.ok]
        head = f"  {paint(sign, style, color=color)} {fact.name:<{pad}}  "
        told = wrap(fact.value + (f" → {fact.fix}" if fact.fix else ""), width=width - pad - 6)
        lines += [head + told[0], *(" " * (pad + 6) + rest for rest in told[1:])]
    lines += ["", paint("Bundled runbooks", "bold", color=color)]
    for one in examined.runbooks:
        sign, style, words = _STATES[one.state]
        lines.append(f"  {paint(sign, style, color=color)} {one_line(one.runbook)}: {words}")
        for reason in one.reasons:
            lines += wrap(reason, width=width, indent="      ")
    ready = next((one.runbook for one in examined.runbooks if one.state == "ready"), None)
    lines += ["", f"Next    validator run {ready}" if ready else "Next    validator check YOUR_RUNBOOK.yaml"]
    encoding = getattr(out, "encoding", None) or "utf-8"
    out.write(("\n".join(lines) + "\n").encode(encoding, "backslashreplace").decode(encoding))
