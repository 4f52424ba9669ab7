"""Logs that a command under watch writes outside its output folder: open in its processes, new in the working folder,
or named in what it prints."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from validator.files import Tree
from validator.ingest.log_files import find_logs, log_lines
from validator.init.reading import TEXT_SUFFIXES, grown_files
from validator.system import processes

_PATH = re.compile(r"(?<![\w/.:])/[\w.@+=~/-]*[\w]")
_MAX_LINES = 2000
_END_BYTES = 1 << 20
"""Of a log whose size at the start is not known: what is read of its end."""

_LATELY_S = 30.0
"""Age up to which a file that a trainer prints may be one that it writes."""


def logs_elsewhere(token: str, out: Path, before: Mapping[str, tuple[int, int]]) -> Iterator[tuple[str, int]]:
    """Text files that are written outside the folder `out`, by absolute path, each with the byte from which it counts.

    Args:
        token: the mark of its processes.
        before: files of the working folder at the start, with their sizes.
    """
    here, found = Path.cwd(), dict[str, int]()
    for path in grown_files(here, before):
        if path not in before:  # one that was there may be of another program
            found[str(here / path)] = 0
    for written in (*_open_files(token), *_printed_files(out)):
        if written.is_relative_to(here):
            found.setdefault(str(written), before.get(str(written.relative_to(here)), (0, 0))[0])
            continue
        with suppress(OSError):  # gone meanwhile
            found.setdefault(str(written), max(0, written.stat().st_size - _END_BYTES))
    for path, size in found.items():
        is_text = Path(path).suffix in TEXT_SUFFIXES and not Path(path).is_relative_to(out)
        if is_text and _begins_as_text(Path(path)):
            yield path, size


def _open_files(token: str) -> Iterator[Path]:
    """Regular files that processes of the command have open for writing."""
    needle = processes.variable_needle(processes.TOKEN_VARIABLE, token)
    for process in processes.all_stats():
        if not processes.has_variable(process.pid, needle):
            continue
        for _, path in processes.written_files(process.pid):
            with suppress(OSError):
                if path.startswith("/") and Path(path).is_file():
                    yield Path(path)


def _printed_files(out: Path) -> Iterator[Path]:
    """Files that the command names in what it prints, and those in a folder that it names, if they grew lately."""
    named: dict[str, None] = {}
    for log in find_logs(out).printed:
        for number, text in log_lines(log):
            if number > _MAX_LINES:
                break
            named |= dict.fromkeys(_PATH.findall(text[:1000]))
    for path in map(Path, named):
        with suppress(OSError):
            if path.is_dir() and len(path.parts) > 2 and not out.is_relative_to(path):
                yield from (one for one in path.iterdir() if one.is_file() and _lately(one))
            elif path.is_file() and _lately(path):
                yield path


def _lately(path: Path) -> bool:
    return time.time() - path.stat().st_mtime < _LATELY_S


def _begins_as_text(path: Path) -> bool:
    try:
        with Tree(path.parent) as tree, tree.open(path.name) as file:
            start = file.read(4096)
    except OSError:
        return False
    return bool(start) and b"\0" not in start
