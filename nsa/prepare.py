"""`python -m nsa.prepare SOURCE DEST`: tokenize files once into shards that training reads by memory map.

Documents are read in order and cut into parts of about the same amount of text, wherever files begin and end, so that
one huge file is prepared in little memory too. Each finished part is recorded with the position after it: an
interrupted run, started again, continues there, and its shards are bit for bit those of an uninterrupted one. The
manifest that makes the folder usable is written last.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsa.interrupt import answer_ctrl_c, leave_at_ctrl_c

if __name__ == "__main__":
    leave_at_ctrl_c()

import numpy as np

from nsa.argument_types import positive, share
from nsa.config import SetupError, UnreachableError
from nsa.data.ending import leave
from nsa.data.local import find_files, is_held_out, read_documents
from nsa.data.shards import MANIFEST, PARTS, SCHEMA_VERSION
from nsa.data.source import DataError
from nsa.data.tokenizer import Tokenizer, open_tokenizer
from nsa.outdir import hold_folder
from nsa.telemetry.files import write_json

__all__ = ["main", "prepare"]

BAR_WIDTH, REDRAW_S = 30, 0.5


@dataclass(frozen=True)
class _Place:
    """The document to read next: its file, and its number within it. Ordered as documents are."""

    file: int = 0
    document: int = 0


@dataclass
class _Part:
    """The tokens of one part, growing."""

    train: list[np.ndarray]
    val: list[np.ndarray]
    documents: int = 0
    text_bytes: int = 0


def _documents(files: Sequence[Path], text_field: str, start: _Place) -> Iterator[tuple[_Place, str]]:
    """The documents from `start` on, each with the position after it."""
    for number in range(start.file, len(files)):
        first = start.document if number == start.file else 0
        numbered = enumerate(read_documents(files[number], text_field))
        for document, text in itertools.islice(numbered, first, None):
            yield _Place(number, document + 1), text


def _write_tokens(path: Path, rows: Sequence[np.ndarray]) -> dict[str, Any]:
    temp = path.with_suffix(".tmp")
    content = np.concatenate(rows).astype("<u2").tobytes()
    with temp.open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    temp.replace(path)
    return {"file": path.name, "tokens": len(content) // 2, "sha256": hashlib.sha256(content).hexdigest()}


def _fingerprint(files: Sequence[Path], settings: dict[str, Any]) -> str:
    """Changes with the settings and with the name, size or time of any source file."""
    stats = [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    return hashlib.sha256(json.dumps([settings, stats]).encode()).hexdigest()


def _is_whole(dest: Path, entry: dict[str, Any]) -> bool:
    shards = [entry[split] for split in ("train", "val") if split in entry]
    return all((dest / s["file"]).is_file() and (dest / s["file"]).stat().st_size == 2 * s["tokens"] for s in shards)


def _finished_parts(dest: Path, fingerprint: str) -> list[dict[str, Any]]:
    """The records of the parts that are done, up to the first whose files are not all there.

    Raises DataError when they are of another corpus.
    """
    try:
        record = json.loads((dest / PARTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if record.get("fingerprint") != fingerprint:
        raise DataError(
            f"{dest} holds parts of another corpus or of other settings: remove it, or choose another folder"
        )
    return list(itertools.takewhile(lambda entry: _is_whole(dest, entry), record["parts"]))


def _remove_leftovers(dest: Path) -> None:
    """Delete what a killed run was writing; no other process writes here."""
    for pattern in ("*.tmp", f"{PARTS}.tmp*", f"{MANIFEST}.tmp*"):
        for path in dest.glob(pattern):
            path.unlink(missing_ok=True)


class _Writer:
    """Collects documents and writes a part whenever enough text has come together."""

    def __init__(self, dest: Path, tokenizer: Tokenizer, *, part_bytes: int, val_fraction: float) -> None:
        self._dest, self._tokenizer = dest, tokenizer
        self._part_bytes, self._val_fraction = part_bytes, val_fraction
        self._end = np.array([tokenizer.eos_id], np.uint16)
        self._part = _Part([], [])

    def add(self, text: str) -> bool:
        """Take a document; whether the part is full."""
        part = self._part
        if text:
            tokens = self._tokenizer.encode(text)
            (part.val if is_held_out(text, self._val_fraction) else part.train).extend((tokens, self._end))
            part.documents += 1
            part.text_bytes += len(text.encode("utf-8", "replace"))
        return part.text_bytes >= self._part_bytes

    def write(self, number: int, place: _Place) -> dict[str, Any] | None:
        """Write the part as number `number`; its record, or None if it is empty."""
        part, self._part = self._part, _Part([], [])
        if not part.documents:
            return None
        entry: dict[str, Any] = {"documents": part.documents, "next": [place.file, place.document]}
        for split, rows in (("train", part.train), ("val", part.val)):
            if rows:
                entry[split] = _write_tokens(self._dest / f"{split}_{number:05d}.bin", rows)
        return entry


def prepare(
    source: str,
    dest: Path,
    *,
    tokenizer: str = "byte",
    tokenizer_file: str | None = None,
    data_glob: str | None = None,
    text_field: str = "text",
    val_fraction: float = 0.02,
    part_mib: float = 64.0,
    progress: bool = False,
) -> dict[str, Any]:
    """Tokenize every document of `source` into `dest`; returns the manifest, which is also written there.

    Raises SetupError for missing or broken sources, when `dest` belongs to another corpus or another process writes to
    it, and when it cannot be written.
    """
    dest_files = dest.resolve()
    files = [path for path in find_files(source, data_glob) if dest_files not in path.resolve().parents]
    opened = open_tokenizer(tokenizer, file=tokenizer_file)
    settings: dict[str, Any] = {
        "tokenizer": opened.name,
        "vocabulary": opened.vocabulary,
        "text_field": text_field,
        "val_fraction": val_fraction,
        "part_mib": part_mib,
    }
    try:
        dest.mkdir(parents=True, exist_ok=True)
        with hold_folder(dest, name="dest"):
            return _prepare_into(dest, files, opened, settings, progress=progress)
    except OSError as error:
        raise DataError(
            f"{dest} cannot be written: {error.strerror or error}; fix that, then run the same command again; "
            "it continues after the last whole shard"
        ) from error


def _prepare_into(
    dest: Path, files: Sequence[Path], tokenizer: Tokenizer, settings: dict[str, Any], *, progress: bool
) -> dict[str, Any]:
    """The work of `prepare`, in a folder that no other process writes to."""
    fingerprint = _fingerprint(files, settings)
    done = _finished_parts(dest, fingerprint)
    _remove_leftovers(dest)
    part_bytes = max(int(settings["part_mib"] * 2**20), 1)
    writer = _Writer(dest, tokenizer, part_bytes=part_bytes, val_fraction=settings["val_fraction"])
    start = place = _Place(*done[-1]["next"]) if done else _Place()
    bar = _Bar(files, shown=progress, done=done)

    def finish_part() -> None:
        entry = writer.write(len(done), place)
        if entry is not None:
            done.append(entry)
            write_json(dest / PARTS, {"fingerprint": fingerprint, "parts": done})
            bar.part_done(entry)

    for place, text in _documents(files, settings["text_field"], start):
        bar.read(place, text)
        if writer.add(text):
            finish_part()
    finish_part()
    bar.close()
    if not done:
        raise DataError(f"none of the {len(files)} files holds any text: check the source, the glob and text_field")
    manifest = {
        "schema_version": SCHEMA_VERSION,
        **settings,
        "eos_id": tokenizer.eos_id,
        "vocab_size": tokenizer.vocab_size,
        "documents": sum(e["documents"] for e in done),
        "train": [e["train"] for e in done if "train" in e],
        "val": [e["val"] for e in done if "val" in e],
    }
    write_json(dest / MANIFEST, manifest)
    return manifest


class _Bar:
    """How far it is and how long it will take: redrawn on a terminal, a line per part elsewhere (stderr).

    The share done is that of source bytes. Within a file it is estimated by the text read until now, which in
    compressed files is more than their bytes; the estimate never passes the file's end.
    """

    def __init__(self, files: Sequence[Path], *, shown: bool, done: Sequence[dict[str, Any]]) -> None:
        sizes = [path.stat().st_size for path in files]
        self._before = [0, *itertools.accumulate(sizes)]
        self._shown, self._on_terminal = shown, sys.stderr.isatty()
        self._parts, self._tokens = len(done), sum(self._tokens_of(e) for e in done)
        self._file, self._text_bytes = 0, 0
        self._began_s = self._drawn_s = time.monotonic()
        self._share_at_start: float | None = None

    @staticmethod
    def _tokens_of(entry: dict[str, Any]) -> int:
        return sum(entry[split]["tokens"] for split in ("train", "val") if split in entry)

    def read(self, place: _Place, text: str) -> None:
        """A document was read."""
        if place.file != self._file:
            self._file, self._text_bytes = place.file, 0
        self._text_bytes += len(text)
        if self._share_at_start is None:
            self._share_at_start = self._share()
        if self._on_terminal and time.monotonic() - self._drawn_s > REDRAW_S:
            self._draw(end="\r")

    def part_done(self, entry: dict[str, Any]) -> None:
        """A part was written."""
        self._parts += 1
        self._tokens += self._tokens_of(entry)
        self._draw(end="\r" if self._on_terminal else "\n")

    def close(self) -> None:
        """All documents were read."""
        self._file, self._text_bytes = len(self._before) - 1, 0
        if self._on_terminal or not self._parts:
            self._draw(end="\n")

    def _share(self) -> float:
        total = self._before[-1]
        if self._file >= len(self._before) - 1 or not total:
            return 1.0
        size = self._before[self._file + 1] - self._before[self._file]
        return (self._before[self._file] + min(self._text_bytes, size)) / total

    def _draw(self, *, end: str) -> None:
        if not self._shown:
            return
        self._drawn_s, share = time.monotonic(), self._share()
        filled = int(BAR_WIDTH * share)
        gained = share - (self._share_at_start or 0.0)
        left_s = (self._drawn_s - self._began_s) * (1 - share) / gained if gained > 0 else None
        rest = "" if left_s is None or share >= 1 else f", about {left_s:,.0f} s left"
        bar = "#" * filled + "." * (BAR_WIDTH - filled)
        text = f"[{bar}] {share:4.0%}, {self._parts} shards, {self._tokens:,} tokens{rest}"
        print(f"{text:<100}" if end == "\r" else text, end=end, file=sys.stderr, flush=True)  # noqa: T201


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nsa.prepare",
        description="Tokenize text, JSONL or parquet once, into shards that training reads. Started again after an "
        "interruption, it continues where it stopped.",
    )
    parser.add_argument("source", help="file, folder or glob pattern of text, JSONL or parquet")
    parser.add_argument("dest", type=Path, help="folder for the shards; give it to training as --data-path")
    parser.add_argument("--tokenizer", choices=["byte", "gpt2"], default="byte", help="byte if not given")
    parser.add_argument("--tokenizer-file", help="vocabulary for --tokenizer gpt2, a .tiktoken file")
    parser.add_argument("--glob", dest="data_glob", help="pattern below a source folder")
    parser.add_argument("--text-field", default="text", help="key of the text in records")
    parser.add_argument("--val-fraction", type=share, default=0.02, help="share of documents held out")
    parser.add_argument("--part-mib", type=positive, default=64.0, help="text per shard, MiB")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Prepare and print what was made; 0, 2 if source or folder cannot be used, 5 if the vocabulary cannot be had, 130
    if interrupted."""
    args = vars(_parser().parse_args(argv))
    try:
        manifest = prepare(args.pop("source"), args.pop("dest"), progress=True, **args)
    except KeyboardInterrupt:
        print("\nnsa.prepare: interrupted; the same command continues after the last whole shard", file=sys.stderr)  # noqa: T201
        return 130
    except SetupError as error:
        print(f"nsa.prepare: {error}", file=sys.stderr)  # noqa: T201
        return 5 if isinstance(error, UnreachableError) else 2
    train, val = (sum(e["tokens"] for e in manifest[split]) for split in ("train", "val"))
    print(f"{manifest['documents']:,} documents, {train:,} training and {val:,} held-out tokens")  # noqa: T201
    return 0


if __name__ == "__main__":
    answer_ctrl_c()
    leave(main())
