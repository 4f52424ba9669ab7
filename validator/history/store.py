"""The index of runs: a JSON file beside the run folders, which stay the truth.

It holds nothing that could not be read from the folders again: delete it, and the next command makes it again. A file
that is damaged, of another version, or holds values of other types is replaced. It is no database, because it may come
with a folder from somebody else: opening an SQLite file runs its views, and deletes the files that its journal names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from validator.files import Tree
from validator.history.read import Entry, Point, finite_number, read_entry, run_folders, stamp_of

__all__ = ["INDEX", "read_history"]

INDEX = ".history.json"

VERSION = 3
"""Of the index; a file with another is made again."""

_POINT = tuple(field.name for field in fields(Point))
_ENTRY = tuple(field.name for field in fields(Entry) if field.name != "points")
_LARGEST_COUNT = 2**53


def read_history(parent: Path, *, rebuild: bool = False) -> tuple[Entry, ...]:
    """Every validation below `parent`, oldest first. Only folders that changed since the last time are read.

    Where the index cannot be written (a read-only file system), every call reads all folders; the answer is the same.
    """
    if not parent.is_dir():
        return ()
    with Tree(parent) as tree:
        known = {} if rebuild else _known(tree)
        found: dict[str, tuple[str, Entry]] = {}
        for folder in run_folders(parent):
            stamp = stamp_of(folder)
            kept = known.get(folder.name)
            entry = kept[1] if kept is not None and kept[0] == stamp else read_entry(folder)
            if entry is not None:
                found[folder.name] = (stamp, entry)
        if found != known:
            with suppress(OSError):
                tree.write(INDEX, _text(found), sync=False)
    return tuple(sorted((entry for _, entry in found.values()), key=lambda entry: (entry.started, entry.folder)))


def _known(tree: Tree) -> dict[str, tuple[str, Entry]]:
    """The stamp and the entry of each folder, by its name; empty where the file is none that this version wrote."""
    try:
        index = tree.json(INDEX)
        if index["version"] != VERSION:
            return {}
        return {name: (str(one["stamp"]), _entry(name, one)) for name, one in index["runs"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _text(found: Mapping[str, tuple[str, Entry]]) -> str:
    runs = {name: {"stamp": stamp, **_record(entry)} for name, (stamp, entry) in found.items()}
    return json.dumps({"version": VERSION, "runs": runs}, separators=(",", ":")) + "\n"


def _record(entry: Entry) -> dict[str, Any]:
    """An entry as JSON; each point is the list of its values, since there are many."""
    points = [[getattr(point, name) for name in _POINT] for point in entry.points]
    return {**{name: getattr(entry, name) for name in _ENTRY}, "points": points}


def _entry(folder: str, one: Mapping[str, Any]) -> Entry:
    return Entry(
        folder=folder,
        run_id=_word(one["run_id"]),
        runbook=_word(one["runbook"]),
        title=_word_or_none(one["title"]),
        machine=_word(one["machine"]),
        host=_word(one["host"]),
        decision=_word(one["decision"]),
        why=_word(one["why"]),
        started=_word(one["started"]),
        finished=_word_or_none(one["finished"]),
        duration_s=_number_or_none(one["duration_s"]),
        variant=_word(one["variant"]),
        software={name: _word(value) for name, value in one["software"].items()},
        points=tuple(_point(*values) for values in one["points"]),
        pinned=one["pinned"] is True,
        undecided=tuple(_word(name) for name in one["undecided"]),
    )


def _point(
    phase: Any, metric: Any, unit: Any, value: Any, better: Any, ci_low: Any, ci_high: Any, n: Any, version: Any
) -> Point:
    if better not in ("higher", "lower", None):
        raise ValueError(f"{better!r} is no way to be better")
    return Point(
        _word(phase),
        _word(metric),
        _word(unit),
        _number(value),
        better,
        _number_or_none(ci_low),
        _number_or_none(ci_high),
        _count(n),
        _count(version),
    )


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _word_or_none(value: Any) -> str | None:
    return None if value is None else _word(value)


def _number(value: Any) -> float:
    number = finite_number(value)
    if number is None:
        raise ValueError(f"{value!r} is no number that is measured")
    return number


def _number_or_none(value: Any) -> float | None:
    return None if value is None else _number(value)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 < value < _LARGEST_COUNT:
        raise ValueError(f"{value!r} is no count")
    return value
