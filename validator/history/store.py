"""The index of runs: a JSON file beside the run folders, which stay the truth.

It holds nothing that could not be read from the folders again: delete it, and the next command builds it anew. Whoever
wrote into the folder may have written it too, so it is read like every foreign file: what is not as this module writes
it is replaced. A database would be no such file, for opening one carries out what it holds.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from validator.files import Tree
from validator.history.read import LARGEST, Entry, Point, read_entry, run_folders, stamp_of

__all__ = ["INDEX", "read_history"]

INDEX = ".history.json"

VERSION = 3
"""Of what the file holds; one of another version is built anew."""

_TEXT, _MAYBE_TEXT, _MAYBE_NUMBER = (str,), (str, type(None)), (float, type(None))
_POINT = (_TEXT, _TEXT, _TEXT, (float,), _MAYBE_TEXT, _MAYBE_NUMBER, _MAYBE_NUMBER, (int,), (int,))
"""Types of the fields of a point, in their order."""

_ENTRY: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("run_id", "runbook", "machine", "host", "decision", "why", "started", "variant"), _TEXT),
    **dict.fromkeys(("title", "finished"), _MAYBE_TEXT),
    **{"duration_s": _MAYBE_NUMBER, "software": (dict,), "points": (list,), "pinned": (bool,), "undecided": (list,)},
}


def read_history(parent: Path, *, rebuild: bool = False) -> tuple[Entry, ...]:
    """Every validation below `parent`, oldest first. Only folders that changed since the last time are read.

    Where the index cannot be written (a read-only file system), the answer is the same.
    """
    known = {} if rebuild else _known(parent)
    found: dict[str, tuple[str, Entry]] = {}
    for folder in run_folders(parent):
        with suppress(OSError):  # gone meanwhile
            stamp = stamp_of(folder)
            before = known.get(folder.name)
            entry = before[1] if before is not None and before[0] == stamp else read_entry(folder)
            if entry is not None:
                found[folder.name] = (stamp, entry)
    if found != known:
        with suppress(OSError), Tree(parent) as tree:
            tree.write(INDEX, _written(found), sync=False)
    return tuple(sorted((entry for _, entry in found.values()), key=lambda one: (one.started, one.folder)))


def _known(parent: Path) -> dict[str, tuple[str, Entry]]:
    """Stamp and entry by folder, as the index has them; nothing where it is not as `_written` writes it."""
    try:
        with Tree(parent) as tree:
            told = tree.json(INDEX)
        if told["version"] != VERSION:
            return {}
        return {folder: (str(stamp), _entry(folder, entry)) for folder, (stamp, entry) in told["runs"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _written(found: dict[str, tuple[str, Entry]]) -> str:
    runs = {folder: (stamp, _plain(entry)) for folder, (stamp, entry) in found.items()}
    return json.dumps({"version": VERSION, "runs": runs}, separators=(",", ":")) + "\n"


def _plain(entry: Entry) -> dict[str, Any]:
    told = {name: getattr(entry, name) for name in _ENTRY}
    points = [[getattr(point, field.name) for field in fields(Point)] for point in entry.points]
    return {**told, "software": dict(entry.software), "points": points}


def _entry(folder: str, told: dict[str, Any]) -> Entry:
    """The entry that `_plain` made this of.

    Raises:
        ValueError: when it is of other types.
    """
    entry = [told[name] for name in _ENTRY]
    rows = [(entry, tuple(_ENTRY.values())), *((point, _POINT) for point in told["points"])]
    texts = [*told["undecided"], *told["software"].values()]
    rows.append((texts, (_TEXT,) * len(texts)))
    if not all(len(row) == len(types) and all(map(_fits, row, types)) for row, types in rows):
        raise ValueError("it is no entry of an index")
    made = {"points": tuple(Point(*point) for point in told["points"]), "undecided": tuple(told["undecided"])}
    return Entry(folder=folder, **{**dict(zip(_ENTRY, entry, strict=True)), **made})


def _fits(value: Any, types: tuple[type, ...]) -> bool:
    """Whether a value is one that `read_entry` could have found: of a type, and no number that cannot be squared."""
    return type(value) in types and (not isinstance(value, float) or abs(value) < LARGEST)
