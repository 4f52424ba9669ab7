"""The logs of a run: where they are, and their lines as a terminal shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from validator.files import Tree, is_file, open_file, stat_file
from validator.ingest.read_log import SMALL_BYTES, Digest, blocks, document_lines, printable
from validator.model.columns import without_colors

MAX_LINE = 8192
TAIL_BYTES = 64 * 2**10
MAX_FILES = 256
_LOOKED_AT = 4096


@dataclass(frozen=True)
class LogFiles:
    """Logs of a run. `rank_out` and `rank_err` map ranks to files; `launcher` are the rest, `others` those of the nodes
    beside the one with rank 0. `logged` are the parts of the text file that is read in place of what rank 0 prints."""

    rank_out: Mapping[int, Path]
    rank_err: Mapping[int, Path]
    rank_error: Mapping[int, Path]
    launcher: tuple[Path, ...]
    others: tuple[Path, ...] = ()
    logged: tuple[Path, ...] = ()

    @property
    def main(self) -> Path | None:
        """What rank 0 printed: its own log, else the launcher's."""
        return (
            self.rank_out.get(0)
            or next((p for p in self.launcher if p.name == "stdout.log"), None)
            or (self.launcher[0] if self.launcher else None)
        )

    @property
    def printed(self) -> tuple[Path, ...]:
        """What rank 0 printed, on standard output and, where loggers write, on standard error."""
        beside = self.main.with_name("stderr.log") if self.main is not None and self.main.name == "stdout.log" else None
        return tuple(path for path in (self.main, beside) if path is not None and (path == self.main or is_file(path)))

    @property
    def all(self) -> tuple[Path, ...]:
        """Every log once, rank by rank, then the launcher's and those of other nodes."""
        ranks = sorted({*self.rank_out, *self.rank_err})
        files = [f for r in ranks for f in (self.rank_out.get(r), self.rank_err.get(r)) if f is not None]
        return tuple(dict.fromkeys([*files, *self.launcher, *self.logged, *self.others]))[:MAX_FILES]


def find_logs(out: Path) -> LogFiles:
    """Find logs below an output folder: torchrun's per-rank folders, the supervisor's files, and any other `*.log`.

    torchrun writes `ranks/<job>/attempt_<n>/<rank>/{stdout.log,stderr.log,error.json}`; of several attempts the last
    one counts for each rank. On a cluster the folder of each further node is `nodes/NAME`.
    """
    ranks: dict[str, dict[int, Path]] = {"stdout.log": {}, "stderr.log": {}, "error.json": {}}
    try:
        with Tree(out / "logs" / "ranks") as tree:
            files = (tree.given / one.path for one in tree.walk() if one.kind == "file")
            found = sorted(filter(is_file, files), key=_attempt)
    except OSError:
        found = []
    for path in found[: 64 * MAX_FILES]:
        if path.name in ranks and path.parent.name.isascii() and path.parent.name.isdigit():
            ranks[path.name][int(path.parent.name)] = path
    launcher = [p for p in (out / "logs" / "stdout.log", out / "logs" / "stderr.log") if is_file(p)]
    for folder in (out, out / "logs"):
        try:
            launcher += sorted(p for p in folder.glob("*.log") if is_file(p) and p not in launcher)
        except OSError:
            continue
    others = [path for folder in sorted(out.glob("nodes/*/logs")) for path in find_logs(folder.parent).all]
    return LogFiles(
        ranks["stdout.log"], ranks["stderr.log"], ranks["error.json"], tuple(launcher), tuple(others[:MAX_FILES])
    )


def _attempt(path: Path) -> tuple[tuple[int, ...], str]:
    numbers = tuple(int(m) for m in re.findall(r"attempt_(\d{1,9})", path.as_posix()))
    return numbers, path.as_posix()


def digested_lines(path: Path, digest: Digest) -> Iterator[tuple[int, str]]:
    """Numbered lines as a terminal shows them: without colors, and a carriage return also ends one, since progress bars
    redraw theirs. Long ones are cut. Of a file that is one JSON document, its records. Zero bytes are left out: they
    stand where a log was cut while its writer continued at the place where it was, and between letters in UTF-16."""
    number = 0
    if path.suffix == ".json" and stat_file(path).st_size <= SMALL_BYTES:
        with open_file(path) as file:
            data = file.read(SMALL_BYTES)
        records = list(document_lines(data.decode("utf-8-sig", "replace")))
        if records:
            digest.update(data)
            yield from records
            return
    for block in blocks(path, digest):
        for raw in block.split(b"\n") if not block.endswith(b"\n") else block[:-1].split(b"\n"):
            number += 1
            for part in raw.split(b"\r") if b"\r" in raw else (raw,):
                part = part.replace(b"\0", b"") if b"\0" in part else part
                yield number, without_colors(part[: 2 * MAX_LINE])[:MAX_LINE].decode("utf-8", "replace")


def log_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a log, numbered, as patterns see them.

    Raises:
        OSError: when it cannot be read.
    """
    return digested_lines(path, Digest())


_OF_TEXT = bytes({0, *b"\t\n\f\r\x08\x1b", *range(0x20, 0x7F), *range(0x80, 0x100)})
_FEW_OTHERS = 0.01
"""Bytes of text in ASCII, UTF-8 or UTF-16, with zeros, and the share of others that a text may hold."""


def is_binary(path: Path) -> bool:
    """Whether a file holds zero bytes near its start and other bytes beside them that no text has; to search its long
    lines would take hours."""
    with open_file(path) as file:
        start = file.read(_LOOKED_AT)
        while start and not start.strip(b"\0"):
            start = file.read(_LOOKED_AT)
    others = start.translate(None, _OF_TEXT)
    return b"\0" in start and len(others) > _FEW_OTHERS * len(start)


def texts_of(folder: Path, found: LogFiles) -> tuple[Path, ...]:
    """Every file of a folder that may hold what rank 0 printed, the likely ones first."""
    suffixes = (".txt", ".out", ".jsonl", ".json")
    try:
        others = sorted(p for p in folder.iterdir() if p.suffix in suffixes and is_file(p))
    except OSError:
        others = []
    return tuple(dict.fromkeys((*found.printed, *found.all, *others)))[:MAX_FILES]


def tail(path: Path, *, lines: int = 40) -> tuple[str, ...]:
    """The last lines of a log, fit to be shown; empty when it cannot be read."""
    try:
        with open_file(path) as handle:
            size = handle.seek(0, 2)
            handle.seek(max(0, size - TAIL_BYTES))
            data = handle.read(TAIL_BYTES)
    except OSError:
        return ()
    if size > TAIL_BYTES:
        data = data[data.find(b"\n") + 1 :]
    shown = [printable(line, limit=500) for line in data.decode("utf-8", "replace").replace("\r", "\n").split("\n")]
    return tuple(line for line in shown if line)[-lines:]
