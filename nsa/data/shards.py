"""Token shards: a corpus tokenized once, read by memory map ever after.

A folder holds `shards.json` and files of raw little-endian uint16 tokens. `shards.json` is written last and names
the tokenizer, so that shards are never read with another one, nor half-made ones at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nsa.config import DataConfig
from nsa.data.source import DataError, SampleSource, Sources, sample_rng
from nsa.data.tokenizer import Tokenizer

__all__ = ["MANIFEST", "PARTS", "ShardWindows", "is_shard_folder", "open_shards", "read_manifest"]

MANIFEST = "shards.json"
PARTS = ".parts.json"  # what a preparation has finished; hidden, for a reader of text files must not take it for one
SCHEMA_VERSION = 1


def is_shard_folder(data_path: str) -> bool:
    """Whether `data_path` is a folder made by `nsa.prepare`, finished or not."""
    return any((Path(data_path) / name).is_file() for name in (MANIFEST, PARTS))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The content of `shards.json`. Raises DataError when it is not there yet, unreadable or of another schema."""
    if not (folder / MANIFEST).exists() and (folder / PARTS).exists():
        raise DataError(
            f"data_path={folder} is a preparation that was not finished: wait for its end, or start the same "
            "nsa.prepare again"
        )
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        version = manifest["schema_version"]
        if missing := {"tokenizer", "documents", "train", "val"} - manifest.keys():
            raise KeyError(*sorted(missing))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{folder / MANIFEST} cannot be read: {error!r}; prepare the corpus again") from None
    if version != SCHEMA_VERSION:
        raise DataError(f"{folder / MANIFEST} has schema {version}, expected {SCHEMA_VERSION}: prepare it again")
    return dict(manifest)


class ShardWindows:
    """Windows of S+1 tokens over memory-mapped shards, in a new random order every epoch.

    A window is within one shard; the few tokens after a shard's last whole window are not used.
    """

    def __init__(self, files: Sequence[Path], *, seq_len: int, seed: int, vocab_size: int) -> None:
        self._files, self._vocab_size = files, vocab_size
        self._maps = [np.memmap(path, dtype="<u2", mode="r") for path in files]
        self._seq_len, self._seed = seq_len, seed
        self._starts = np.cumsum([0, *((len(m) - 1) // seq_len for m in self._maps)])
        self.n_windows = int(self._starts[-1])
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def batch(self, indices: Sequence[int]) -> np.ndarray:
        """See SampleSource.batch. Raises DataError for a token that the tokenizer does not have."""
        out = np.empty((len(indices), self._seq_len + 1), np.int64)
        for row, index in enumerate(indices):
            epoch, position = divmod(index, self.n_windows)
            if epoch != self._epoch:
                self._order = sample_rng(self._seed, 1, epoch).permutation(self.n_windows)
                self._epoch = epoch
            window = int(self._order[position])
            shard = int(np.searchsorted(self._starts, window, "right")) - 1
            start = (window - int(self._starts[shard])) * self._seq_len
            out[row] = self._maps[shard][start : start + self._seq_len + 1]
            if (largest := int(out[row].max())) >= self._vocab_size:
                raise DataError(
                    f"{self._files[shard]}: token {largest} behind number {start}, but the tokenizer has "
                    f"{self._vocab_size}: the file is damaged or of another tokenizer; prepare the corpus again"
                )
        return out


def _open_split(
    folder: Path, entries: list[dict[str, Any]], config: DataConfig, *, seed: int, vocab_size: int
) -> SampleSource | None:
    files = []
    for entry in entries:
        path = folder / entry["file"]
        size = path.stat().st_size if path.is_file() else -1
        if size != 2 * entry["tokens"]:
            raise DataError(
                f"{path} has {max(size, 0)} bytes, {MANIFEST} says {2 * entry['tokens']}: prepare the corpus again"
            )
        if entry["tokens"] > config.seq_len:
            files.append(path)
    return ShardWindows(files, seq_len=config.seq_len, seed=seed, vocab_size=vocab_size) if files else None


def _digest(manifest: dict[str, Any]) -> str:
    """Changes with the content of any shard, by what was noted when it was written."""
    shards = [(entry["tokens"], entry.get("sha256")) for split in ("train", "val") for entry in manifest[split]]
    return hashlib.sha256(json.dumps(shards).encode()).hexdigest()[:8]


def open_shards(config: DataConfig, tokenizer: Tokenizer, *, seed: int) -> Sources:
    """Sources over a prepared folder.

    Raises DataError when another tokenizer made it, a file is missing or truncated, or no window fits.
    """
    assert config.data_path is not None, "checked with the configuration"
    folder = Path(config.data_path)
    manifest = read_manifest(folder)
    if manifest["tokenizer"] != tokenizer.name:
        raise DataError(
            f"{folder} was prepared with tokenizer={manifest['tokenizer']}, not {tokenizer.name}: set tokenizer, or "
            "prepare again"
        )
    if manifest.get("vocabulary", tokenizer.vocabulary) != tokenizer.vocabulary:
        raise DataError(
            f"{folder} was prepared with another vocabulary of tokenizer={tokenizer.name}: set tokenizer_file to the "
            "one of then, or prepare again"
        )
    train = _open_split(folder, manifest["train"], config, seed=seed, vocab_size=tokenizer.vocab_size)
    val = _open_split(folder, manifest["val"], config, seed=seed, vocab_size=tokenizer.vocab_size)
    if train is None:
        raise DataError(f"{folder}: no shard holds seq_len + 1 = {config.seq_len + 1} tokens: choose a smaller seq_len")
    if config.val_every and val is None:
        raise DataError(f"val_every={config.val_every} but {folder} has no validation window: set val_every=0")
    info = {
        "shards": len(manifest["train"]) + len(manifest["val"]),
        "documents": manifest["documents"],
        "train_tokens": sum(e["tokens"] for e in manifest["train"]),
        "val_tokens": sum(e["tokens"] for e in manifest["val"]),
        "val_split": "document",
        "val_fraction": manifest.get("val_fraction"),
        "digest": _digest(manifest),
    }
    return Sources(train=train, val=val, info=info)
