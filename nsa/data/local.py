"""Files on disk as training data: plain text, JSONL and parquet records, or shards made by `nsa.prepare`.

Documents are read in the sorted order of their paths, end with the tokenizer's end mark and are laid in one row of
tokens. A document is held out for validation by a hash of its text, so that the choice depends neither on order nor
on the other files, and a duplicate never lands on the other side.
"""

from __future__ import annotations

import glob
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nsa.config import DataConfig
from nsa.data.source import DataError, Sources, TokenWindows
from nsa.data.tokenizer import Tokenizer

__all__ = ["TEXT_SUFFIXES", "find_files", "is_held_out", "open_local", "read_documents"]

RECORD_SUFFIXES = (".jsonl", ".ndjson", ".parquet")
TEXT_SUFFIXES = [
    ".txt",
    ".text",
    ".md",
    ".rst",
    ".tex",
    ".html",
    ".xml",
    ".json",
    ".csv",
    ".py",
    ".pyi",
    ".c",
    ".h",
    ".cc",
    ".cpp",
    ".hpp",
    ".cu",
    ".rs",
    ".go",
    ".java",
    ".js",
    ".ts",
    ".sh",
    ".sql",
]

SNIFFED_BYTES, MOST_ODD = 8192, 0.3
COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")  # gzip, bzip2, xz, zstd, zip


def find_files(data_path: str, data_glob: str | None = None) -> list[Path]:
    """The files named by a file, a folder (searched recursively, hidden ones left out) or a glob pattern, sorted.

    Raises DataError when there are none.
    """
    root = Path(data_path)
    if root.is_file():
        return [root]
    if root.is_dir():
        known = (*TEXT_SUFFIXES, *RECORD_SUFFIXES)
        try:
            found = root.glob(data_glob) if data_glob else (p for p in root.rglob("*") if p.suffix.lower() in known)
            files = sorted(p for p in found if not _hidden(p.relative_to(root)) and p.is_file())
        except (ValueError, NotImplementedError) as error:
            raise DataError(f"data_glob={data_glob}: {error}; give a pattern below {data_path}") from None
        searched = f"{data_glob or 'known text suffixes'} below {data_path}"
    else:
        files = sorted(Path(p) for p in glob.glob(data_path, recursive=True) if Path(p).is_file())  # noqa: PTH207
        searched = data_path
    if not files:
        raise DataError(f"data_path={data_path}: no file matches {searched}; check the path, or set data_glob")
    return files


def _hidden(relative: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in relative.parts)


def read_documents(path: Path, text_field: str) -> Iterator[str]:
    """The documents of one file: each record of JSONL or parquet, or a text file as a whole.

    Single bytes that are not UTF-8 are replaced, and a byte order mark is dropped. Raises DataError naming the file if
    it cannot be read or holds no text, and line and field of a bad record.
    """
    suffix = path.suffix.lower()
    try:
        if suffix == ".parquet":
            yield from _read_parquet(path, text_field)
        elif suffix in RECORD_SUFFIXES:
            yield from _read_jsonl(path, text_field)
        else:
            yield _read_text(path)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read: {error.strerror or error}; it was there when files were listed"
        ) from None


def _read_text(path: Path) -> str:
    content = path.read_bytes()
    # Replacing what is no UTF-8 would turn an archive, or text in another encoding, into pages of replacement
    # characters, and a model would learn those without complaint. A few stray bytes are no reason to stop.
    head = content[:SNIFFED_BYTES].decode("utf-8", "replace")
    odd = head.count("\0") + head.count("\ufffd")
    if content.startswith(COMPRESSED) or odd > MOST_ODD * len(head):
        raise DataError(
            f"{path}: is no text in UTF-8 but compressed, binary or in another encoding: unpack or convert it, name a "
            "folder made by nsa.prepare rather than a file in it, or leave it out by data_glob"
        )
    return content.decode("utf-8-sig", "replace")


def _read_jsonl(path: Path, text_field: str) -> Iterator[str]:
    with path.open(encoding="utf-8-sig", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"{path}:{number}: not a JSON record: {error}") from None
            text = record.get(text_field) if isinstance(record, dict) else None
            if not isinstance(text, str):
                raise DataError(f"{path}:{number}: no text under `{text_field}`; set text_field to the right key")
            yield text


def _read_parquet(path: Path, text_field: str) -> Iterator[str]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise DataError(
            f"{path}: parquet files need the pyarrow package: pip install 'training-validator-nsa[data]', or convert "
            "to JSONL"
        ) from None
    try:
        table = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are kinds of ValueError
        raise DataError(f"{path}: cannot be read as parquet: {error}; is it whole?") from None
    if text_field not in table.schema_arrow.names:
        raise DataError(f"{path}: no column `{text_field}` among {table.schema_arrow.names}; set text_field")
    try:
        for batch in table.iter_batches(columns=[text_field]):
            for text in batch.column(0).to_pylist():
                if text is not None and not isinstance(text, str):
                    raise DataError(
                        f"{path}: column `{text_field}` holds {type(text).__name__}, no text; set text_field"
                    )
                if text:
                    yield text
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as parquet: {error}; is it whole?") from None


def is_held_out(text: str, val_fraction: float) -> bool:
    """Whether a document belongs to the validation split; a function of its text alone."""
    return zlib.crc32(text.encode("utf-8", "replace")) < val_fraction * 2**32


def _tokenize(files: list[Path], config: DataConfig, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray, int]:
    """Tokens of the training and of the held-out documents, each document ended, and the number of documents."""
    end = np.array([tokenizer.eos_id], np.uint16)
    splits: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    n_documents = 0
    left = float("inf") if config.data_limit_mib is None else config.data_limit_mib * 2**20
    for path in files:
        if left <= 0:
            break
        left -= path.stat().st_size
        for text in read_documents(path, config.text_field):
            if text:
                splits[is_held_out(text, config.val_fraction)].extend((tokenizer.encode(text), end))
                n_documents += 1
    train, val = (np.concatenate(parts) if parts else np.empty(0, np.uint16) for parts in splits)
    return train, val, n_documents


def _split_by_position(tokens: np.ndarray, val_fraction: float) -> tuple[np.ndarray, np.ndarray]:
    cut = len(tokens) - int(len(tokens) * val_fraction)
    return tokens[:cut], tokens[cut:]


def open_local(config: DataConfig, tokenizer: Tokenizer, *, seed: int) -> Sources:
    """Sources over the files of `config.data_path`.

    Where whole documents do not fill a validation window (one long file, say), the split is by position instead:
    the last `val_fraction` of the tokens. Raises DataError when the files are missing, broken or too small.
    """
    assert config.data_path is not None, "checked with the configuration"
    files = find_files(config.data_path, config.data_glob)
    train, val, n_documents = _tokenize(files, config, tokenizer)
    split = "document"
    if config.val_fraction and min(len(train), len(val)) <= config.seq_len:
        split = "position"
        train, val = _split_by_position(np.concatenate((train, val)), config.val_fraction)
    has_val = len(val) > config.seq_len
    if config.val_every and not has_val:
        raise DataError(
            f"val_every={config.val_every} but the held-out split of {config.data_path} has {len(val)} tokens, fewer "
            f"than seq_len + 1: raise val_fraction={config.val_fraction}, add text, or set val_every=0"
        )
    info = {
        "files": len(files),
        "documents": n_documents,
        "train_tokens": len(train),
        "val_tokens": len(val),
        "val_split": split if has_val else "none",
        # Text of the same length is other text: a resumed run has to notice.
        "digest": f"{zlib.crc32(val.tobytes(), zlib.crc32(train.tobytes())):08x}",
    }
    return Sources(
        train=TokenWindows(train, seq_len=config.seq_len, seed=seed, what=f"training split of {config.data_path}"),
        val=TokenWindows(val, seq_len=config.seq_len, seed=seed, what="held-out split") if has_val else None,
        info=info,
    )
