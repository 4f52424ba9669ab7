"""What a case of the self-proof is: how it is brought about, and what must come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from validator.selftest.stage import Stage

__all__ = ["Case", "Expected", "Group", "Played"]

Expected = Literal["GO", "NO_GO", "INCONCLUSIVE", "UNABLE"]
"""`UNABLE`: the runner itself could not go on and ends with exit code 4, without a decision."""

Group = Literal["processes", "files", "settings", "learning", "pace", "machine", "healthy"]


@dataclass(frozen=True)
class Played:
    """What a case led to: the last command's exit code and words, its run folder, and the result in it.

    `amiss` says what went otherwise on the way, where a case checks more than its end.
    """

    rc: int
    stderr: str
    folder: Path | None
    result: Mapping[str, Any] | None
    amiss: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One fault, or one healthy run.

    `codes` must all be among the findings; a healthy run must have no finding at all. `rc` is the exit code where it
    is not the decision's own. `evidence` are patterns below the run folder, each of which must match a file that is
    not empty. `about_s` is how long it takes on two cores: the longest are started first.
    """

    name: str
    title: str
    group: Group
    expect: Expected
    play: Callable[[Stage], Played]
    codes: tuple[str, ...] = ()
    rc: int | None = None
    evidence: tuple[str, ...] = ()
    torch: bool = False
    about_s: float = 3.0

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong, so that nothing may be found."""
        return self.group == "healthy"
