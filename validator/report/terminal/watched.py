"""What `init` understood of a trainer's command, as lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validator.report.terminal.lines import text_table, wrap
from validator.text import format_number, one_line, plural

_DOCS = "docs/own-trainer.md"


def watched_lines(found: Mapping[str, Any], *, width: int = 80, color: bool = False) -> list[str]:
    """The sample of what is read, and how the command was taken. `found` is what `init --json` prints."""
    lines = list(wrap(f"It reads {found['source']}", width=width))
    if found["guessed"]:
        lines += wrap(
            "No known print format: the pattern was made from the numbers. Compare the rows below with the output.",
            width=width,
        )
    rows = found["rows"]
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name), name) for name in names] for row in rows]
    lines += ["", *text_table(names, cells, width=width, numeric=names, color=color), ""]
    lines += _taken(found, width=width)
    return lines


def unrecognized_lines(found: Mapping[str, Any], *, width: int = 80, color: bool = False) -> list[str]:
    """What was seen where nothing is known, and what to write."""
    lines = wrap(
        f"Nothing that it writes in {found['seconds']:.0f} s was recognized as steps of a training", width=width
    )
    if found["lines"]:
        lines += ["", "It prints", *(f"  {one_line(line, limit=width - 2)}" for line in found["lines"])]
    else:
        lines += ["", "It prints nothing"]
    for what, files in (("Files that it writes", found["files"]), ("Files in the working folder", found["outside"])):
        if files:
            more = f", and {len(files) - 5} more" if len(files) > 5 else ""
            lines += ["", *wrap(f"{what}: {', '.join(files[:5])}{more}", width=width)]
    lines += ["", "Write in the runbook how its lines are read, with {step} and what else they hold"]
    lines += ["  metrics: {stdout: 'step {step} .*loss {loss} .*tok/s {toks_per_s}'}"]
    lines += ["or with {row} where they have no number of a step, so that each line is one"]
    lines += ["  metrics: {stdout: '{row}.*loss {loss}'}", "or which table it writes"]
    lines += ["  metrics: {csv: training.csv}", *wrap(f"The page {_DOCS} has more.", width=width)]
    if found["seconds"] < 300 and not found["ended"]:
        lines += wrap("If it was still starting, give it longer: --seconds 5m --force", width=width)
    return [*lines, "", *_taken(found, width=width)]


def _taken(found: Mapping[str, Any], *, width: int) -> Iterator[str]:
    """How it is started, its settings, and what to know of them."""
    started = found["launcher"] + (f", {plural(found['nproc'], 'process', 'processes')}" if found["nproc"] else "")
    yield f"Launch  {started}"
    for one in found["settings"]:
        if "{" in one["written"]:
            was = "added" if one["was"] is None else f"was {one_line(one['was'], limit=40)}"
            yield f"Set     {one_line(one['written'], limit=60)} ({was})"
    if found["step_time_s"]:
        yield f"Pace    about {format_number(found['step_time_s'])} s a step"
    for note in found["notes"]:
        yield from wrap(note, width=width, first="Note    ", indent="        ")


def _cell(value: float | None, name: str) -> str:
    return "" if value is None else f"{value:.0f}" if name == "step" else format_number(value)
