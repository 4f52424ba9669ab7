"""The history of a folder of run folders, and its page."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validator.files import Tree

if TYPE_CHECKING:
    from validator.history.trend import Group

__all__ = ["History", "look_back", "set_pin", "update_index"]


@dataclass(frozen=True)
class History:
    """Past validations in groups that may be compared, and the page that shows all of them (None: not writable)."""

    groups: tuple[Group, ...]
    page: Path | None

    def as_dict(self) -> dict[str, Any]:
        """The JSON that `history --json` prints."""
        return {"schema_version": 1, "groups": [_group(group) for group in self.groups]}


def _group(group: Group) -> dict[str, Any]:
    found = dataclasses.asdict(group)
    for trend, told in zip(group.trends, found["trends"], strict=True):
        told["run_ids"] = [group.entries[place].run_id for place in trend.runs]
        told["regression"] = None if trend.regression is None else dataclasses.asdict(trend.regression)
    return found


def look_back(reports: Path, *, runbook: str | None = None, rebuild: bool = False) -> History:
    """Read the history below `reports` and write its page. `runbook` picks the groups that are returned.

    Raises:
        FolderError: when there is no such folder, or no run of that runbook.
    """
    from validator.history.store import read_history
    from validator.history.trend import group_entries

    if not reports.is_dir():
        raise _folder_error(f"{reports} is no folder; give the one that `validator run --out` wrote to")
    groups = group_entries(read_history(reports, rebuild=rebuild))
    page = _write(reports, groups)
    if runbook is None:
        return History(groups, page)
    picked = tuple(group for group in groups if group.runbook == runbook)
    if not picked:
        names = ", ".join(sorted({group.runbook for group in groups})) or "none"
        raise _folder_error(f"--runbook {runbook}: {reports} has no run of it; it has runs of: {names}")
    return History(picked, page)


def _folder_error(message: str) -> Exception:
    """Imported with what run folders need, which looking back at their results does not."""
    from validator.folder import FolderError

    return FolderError(message)


def _write(reports: Path, groups: tuple[Group, ...]) -> Path | None:
    from validator.history.page import write_index

    try:
        return write_index(reports, groups)
    except OSError:
        return None


def update_index(reports: Path) -> None:
    """Bring the page up to date after a validation. It is a convenience: whatever fails here costs no decision."""
    try:
        look_back(reports)
    except Exception as error:  # noqa: BLE001 -- neighbors are foreign, and the decision is written
        sys.stderr.write(f"{reports / 'index.html'} is not up to date: {type(error).__name__}: {error}\n")


def set_pin(reports: Path, run: str, *, keep: bool) -> None:
    """Pin a run folder, by name or path, so that retention never removes it; or take the pin away.

    Raises:
        FolderError: when there is no such run folder.
    """
    from validator.history.read import PIN

    folder = next((path for path in (reports / run, Path(run)) if (path / "run.json").is_file()), None)
    if folder is None:
        raise _folder_error(f"{run} is no run folder below {reports}; `validator history {reports}` lists them")
    with Tree(folder) as tree:
        if keep:
            tree.write(PIN, b"")
        else:
            tree.remove(PIN)
