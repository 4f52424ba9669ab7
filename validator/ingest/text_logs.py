"""The text file in which a trainer logs what others print: which files below its output folder are it.

Handlers rotate a file (`train.log.1`, `train.2026-11-23_05-00-00.log`), and each rank may have one of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from validator.files import Tree
from validator.ingest.clock import ARRIVALS_FILE
from validator.model.readers import matcher

_MAX_ENTRIES = 50_000
_OURS = re.compile(rf"logs/(?:stdout|stderr)\.log|logs/ranks/.*|nodes/.*|dump/.*|{re.escape(ARRIVALS_FILE)}")

_PART = re.compile(r"\.(?:(\d{1,4})|\d{4}-\d\d-\d\d[\d_T.-]*)(?=\.(?:log|txt|out)$|$)")
"""What a handler adds to the name of a part that it has closed: a number, or when it did."""

_RANK = re.compile(r"(?i)(?<![a-z])(?:local_rank|rank|process|proc|worker|gpu|device|r)[-_.=]?(\d{1,5})(?!\d)")


@dataclass(frozen=True)
class TextLog:
    """The parts of one log, the oldest first, relative to the folder; `others` are logs of which it may be any."""

    parts: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def whole_name(path: str) -> str:
    """The path of the log that a file is a part of."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}{_PART.sub('', name)}"


def find_text_log(out: Path, glob: str) -> TextLog:
    """The log below a folder that `glob` names. Of logs that differ in the rank alone it is the lowest one's."""
    fits = matcher(glob).fullmatch
    logs: dict[str, list[str]] = {}
    try:
        with Tree(out) as tree:
            for number, entry in enumerate(tree.walk()):
                if number >= _MAX_ENTRIES:
                    break
                own = whole_name(entry.path)
                if entry.kind == "file" and (fits(entry.path) or fits(own)) and not _OURS.fullmatch(entry.path):
                    logs.setdefault(own, []).append(entry.path)
    except OSError:
        return TextLog()
    first = of_lowest_ranks(logs)
    if len(first) != 1:
        return TextLog(others=tuple(sorted(first)))
    return TextLog(tuple(sorted(logs[first[0]], key=lambda path: _age(path, first[0]))))


def of_lowest_ranks(paths: Iterable[str]) -> list[str]:
    """Of logs whose paths differ in the rank alone the one of the lowest rank."""
    ranks: dict[str, list[str]] = {}
    for path in paths:
        ranks.setdefault(_RANK.sub("", path), []).append(path)
    return [min(alike, key=_rank) for alike in ranks.values()]


def _rank(path: str) -> tuple[int, str]:
    found = _RANK.search(PurePosixPath(path).name) or _RANK.search(path)
    return (-1 if found is None else int(found[1])), path


def _age(path: str, own: str) -> tuple[bool, int, str]:
    """Sorts older parts first: by date, or by numbers that fall. The file without either is the newest."""
    found = _PART.search(path)
    return path == own, -int(found[1]) if found is not None and found[1] else 0, path
