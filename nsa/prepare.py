"""`python -m nsa.prepare SOURCE DEST`: tokenize files once into shards that training reads by memory map.

Work is cut into parts of whole source files. Each finished part is recorded, so an interrupted run started again
goes on where it stopped; the manifest that makes the folder usable is written last.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nsa.data.local import find_files, is_held_out, read_documents
from nsa.data.shards import MANIFEST, SCHEMA_VERSION
from nsa.data.source import DataError
from nsa.data.tokenizer import Tokenizer, open_tokenizer
from nsa.telemetry.files import write_json

__all__ = ["main", "prepare"]

PARTS = ".parts.json"  # hidden: a reader of text files must not take it for one


def _parts(files: Sequence[Path], part_bytes: int) -> Iterator[list[Path]]:
    """Consecutive files of about `part_bytes` together."""
    part: list[Path] = []
    size = 0
    for path in files:
        part.append(path)
        size += path.stat().st_size
        if size >= part_bytes:
            yield part
            part, size = [], 0
    if part:
        yield part


def _tokenize(
    files: Sequence[Path], tokenizer: Tokenizer, text_field: str, val_fraction: float
) -> tuple[dict[str, np.ndarray], int]:
    end = np.array([tokenizer.eos_id], np.uint16)
    splits: dict[str, list[np.ndarray]] = {"train": [], "val": []}
    documents = 0
    for path in files:
        for text in read_documents(path, text_field):
            if text:
                splits["val" if is_held_out(text, val_fraction) else "train"] += [tokenizer.encode(text), end]
                documents += 1
    empty = np.empty(0, np.uint16)
    return {name: np.concatenate(t) if t else empty for name, t in splits.items()}, documents


def _write_tokens(path: Path, tokens: np.ndarray) -> dict[str, Any]:
    temp = path.with_suffix(".tmp")
    content = tokens.astype("<u2").tobytes()
    temp.write_bytes(content)
    temp.replace(path)
    return {"file": path.name, "tokens": len(tokens), "sha256": hashlib.sha256(content).hexdigest()}


def _fingerprint(files: Sequence[Path], settings: dict[str, Any]) -> str:
    """Changes with the settings and with the name, size or time of any source file."""
    stats = [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    return hashlib.sha256(json.dumps([settings, stats]).encode()).hexdigest()


def _finished_parts(dest: Path, fingerprint: str) -> list[dict[str, Any]]:
    try:
        record = json.loads((dest / PARTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if record.get("fingerprint") != fingerprint:
        raise DataError(
            f"{dest} holds parts of another corpus or of other settings: remove it, or choose another folder"
        )
    return list(record["parts"])


def prepare(
    source: str,
    dest: Path,
    *,
    tokenizer: str = "byte",
    data_glob: str | None = None,
    text_field: str = "text",
    val_fraction: float = 0.02,
    part_mib: float = 64.0,
    progress: bool = False,
) -> dict[str, Any]:
    """Tokenize every document of `source` into `dest`; returns the manifest, which is also written there.

    Raises DataError for missing or broken sources, and when `dest` belongs to another corpus.
    """
    files = find_files(source, data_glob)
    settings = {"tokenizer": tokenizer, "text_field": text_field, "val_fraction": val_fraction, "part_mib": part_mib}
    fingerprint = _fingerprint(files, settings)
    dest.mkdir(parents=True, exist_ok=True)
    done = _finished_parts(dest, fingerprint)
    opened = open_tokenizer(tokenizer)
    parts = list(_parts(files, max(int(part_mib * 2**20), 1)))
    for number, part in enumerate(parts):
        if number >= len(done):
            tokens, documents = _tokenize(part, opened, text_field, val_fraction)
            entry: dict[str, Any] = {"documents": documents}
            for split, row in tokens.items():
                if len(row):
                    entry[split] = _write_tokens(dest / f"{split}_{number:05d}.bin", row)
            done.append(entry)
            write_json(dest / PARTS, {"fingerprint": fingerprint, "parts": done})
        if progress:
            _show(number + 1, len(parts), sum(e.get("train", {}).get("tokens", 0) for e in done[: number + 1]))
    manifest = {
        "schema_version": SCHEMA_VERSION,
        **settings,
        "eos_id": opened.eos_id,
        "vocab_size": opened.vocab_size,
        "documents": sum(e["documents"] for e in done),
        "train": [e["train"] for e in done if "train" in e],
        "val": [e["val"] for e in done if "val" in e],
    }
    write_json(dest / MANIFEST, manifest)
    return manifest


def _show(done: int, total: int, tokens: int) -> None:
    """A bar that redraws on a terminal, and a line per part elsewhere."""
    filled = 30 * done // total
    text = f"[{'#' * filled}{'.' * (30 - filled)}] part {done}/{total}, {tokens:,} training tokens"
    end = "\r" if sys.stderr.isatty() and done < total else "\n"
    print(text, end=end, file=sys.stderr, flush=True)  # noqa: T201


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m nsa.prepare", description=__doc__.split("\n\n")[0])
    parser.add_argument("source", help="file, folder or glob pattern of text, JSONL or parquet")
    parser.add_argument("dest", type=Path, help="folder for the shards; give it to training as --data-path")
    parser.add_argument("--tokenizer", choices=["byte", "gpt2"], default="byte")
    parser.add_argument("--glob", dest="data_glob", help="pattern below a source folder")
    parser.add_argument("--text-field", default="text", help="key of the text in records")
    parser.add_argument("--val-fraction", type=float, default=0.02, help="share of documents held out")
    parser.add_argument("--part-mib", type=float, default=64.0, help="source text per shard, MiB")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Prepare and print what was made; 0, or 2 when the source or the folder cannot be used."""
    args = vars(_parser().parse_args(argv))
    try:
        manifest = prepare(args.pop("source"), args.pop("dest"), progress=True, **args)
    except DataError as error:
        print(f"nsa.prepare: {error}", file=sys.stderr)  # noqa: T201
        return 2
    train, val = (sum(e["tokens"] for e in manifest[split]) for split in ("train", "val"))
    print(f"{manifest['documents']:,} documents, {train:,} training and {val:,} held-out tokens")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
