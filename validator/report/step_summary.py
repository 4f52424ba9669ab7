"""The Markdown on the page of a GitHub Actions job: appended to the file that the job names for its step's summary.

GitHub drops a summary above 1 MiB with an error, so what does not fit is cut, at a paragraph, and the cut is said. See
https://docs.github.com/actions/reference/workflow-commands-for-github-actions (adding a job summary).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

__all__ = ["LIMIT_BYTES", "VARIABLE", "append_step_summary", "cut"]

VARIABLE = "GITHUB_STEP_SUMMARY"
"""Names the file; unset outside of a job."""

LIMIT_BYTES = 2**20
"""What one step may write, everything in the file together."""

_CUT = "_The rest is left out: a step's summary may hold 1 MiB. report.html in the run folder has all of it._\n"


def append_step_summary(markdown: str, environment: Mapping[str, str], *, limit: int = LIMIT_BYTES) -> Path | None:
    """Append a report to the step's summary, as much of it as there is room for.

    Returns the file; None where there is no summary to write, or no room in it.

    Raises:
        OSError: when the file cannot be written.
    """
    named = environment.get(VARIABLE)
    if not named:
        return None
    path = Path(named)
    before = path.read_bytes() if path.is_file() else b""
    gap = "" if not before else "\n" if before.endswith(b"\n") else "\n\n"
    text = cut(markdown, limit - len(before) - len(gap))
    if not text:
        return None
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(gap + text)
    return path


def cut(markdown: str, limit: int) -> str:
    """At most `limit` bytes of a report: whole paragraphs, folded parts closed, and a sentence that says so.

    Empty when not even the first paragraph has room.
    """
    if len(markdown.encode(errors="backslashreplace")) <= limit:
        return markdown
    kept, room, folded, closed_at = [], limit - len(_CUT.encode()), 0, 0
    for block in _blocks(markdown):
        room -= len(block.encode(errors="backslashreplace"))
        folded += block.count("<details>") - block.count("</details>")
        if room < folded * len("</details>\n\n"):
            break
        kept.append(block)
        closed_at = folded
    if not kept:
        return ""
    return "".join(kept).rstrip("\n") + "\n\n" + "</details>\n\n" * closed_at + _CUT


def _blocks(markdown: str) -> list[str]:
    """The text in pieces that can be parted: paragraphs, tables, blocks of code, each with its blank line."""
    pieces, open_fence = [""], ""
    for line in markdown.splitlines(keepends=True):
        pieces[-1] += line
        fence = re.match(r"`{3,}", line)
        if fence and not open_fence:
            open_fence = fence[0]
        elif open_fence and line.strip() == open_fence:
            open_fence = ""
        if not open_fence and not line.strip():
            pieces.append("")
    return [piece for piece in pieces if piece]
