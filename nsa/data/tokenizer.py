"""Text to token ids. The byte tokenizer needs nothing; GPT-2's vocabulary comes from the tiktoken package."""

from __future__ import annotations

import base64
import hashlib
import queue
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from nsa.config import UnreachableError
from nsa.data.ending import THREAD_NAME
from nsa.data.failures import is_transient
from nsa.data.source import DataError

__all__ = ["ByteTokenizer", "Gpt2Tokenizer", "Tokenizer", "open_tokenizer"]

END_OF_TEXT = "<|endoftext|>"
VOCABULARY_TIMEOUT_S = 60.0


class Tokenizer(Protocol):
    """`vocab_size` ids are in use; the embedding gets `padded_vocab_size` rows, a multiple that suits tensor cores.

    Equal `vocabulary` means equal ids, wherever the tokenizer came from.
    """

    name: str
    vocabulary: str
    vocab_size: int
    padded_vocab_size: int
    eos_id: int

    def encode(self, text: str) -> np.ndarray:
        """Token ids of `text`, uint16 `[n]`, without an end mark."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; end marks and unused ids give nothing."""
        ...


class ByteTokenizer:
    """One token per UTF-8 byte (0–255) and 256 as the end of a document."""

    name = "byte"
    vocabulary = "bytes"
    eos_id = 256
    vocab_size = 257
    padded_vocab_size = 264

    def encode(self, text: str) -> np.ndarray:
        """See Tokenizer.encode. Unpaired surrogates become question marks."""
        return np.frombuffer(text.encode("utf-8", "replace"), np.uint8).astype(np.uint16)

    def decode(self, ids: Sequence[int]) -> str:
        """See Tokenizer.decode. Bytes that form no character become U+FFFD."""
        return bytes(i for i in ids if i < 256).decode("utf-8", "replace")


class Gpt2Tokenizer:
    """GPT-2's byte-pair encoding, with `<|endoftext|>` behind its tokens (50256) as the end of a document.

    The vocabulary is tiktoken's own, fetched once and cached, or that of `file`: a line for each token, its bytes in
    base64 and its rank, as in tiktoken's `.tiktoken` files.
    """

    name = "gpt2"

    def __init__(self, file: Path | None = None, *, timeout_s: float = VOCABULARY_TIMEOUT_S) -> None:
        try:
            import tiktoken
        except ImportError:
            raise DataError(
                "tokenizer=gpt2 needs the tiktoken package: pip install 'training-validator-nsa[data]', or set "
                "tokenizer=byte"
            ) from None
        if file is None:
            self._encoding = _fetched(tiktoken, timeout_s)
        else:
            from tiktoken_ext.openai_public import r50k_pat_str

            ranks = _read_ranks(file)
            self._encoding = tiktoken.Encoding(
                self.name, pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={END_OF_TEXT: len(ranks)}
            )
        self.vocabulary = _digest(self._encoding._mergeable_ranks)
        self.eos_id = self._encoding._special_tokens[END_OF_TEXT]
        self.vocab_size = self._encoding.n_vocab
        self.padded_vocab_size = -(-self.vocab_size // 64) * 64

    def encode(self, text: str) -> np.ndarray:
        """See Tokenizer.encode. Text that looks like a special token is encoded as ordinary text."""
        return np.array(self._encoding.encode_ordinary(text), np.uint16)

    def decode(self, ids: Sequence[int]) -> str:
        """See Tokenizer.decode."""
        return str(self._encoding.decode([i for i in ids if i < self.eos_id]))


def _fetched(tiktoken: Any, timeout_s: float) -> Any:
    """tiktoken's encoding `gpt2`. It is waited for in a thread, because tiktoken's own download has no time limit.

    Raises UnreachableError when it cannot be fetched in time, DataError when what is there is no vocabulary.
    """
    outcome: queue.Queue[Any] = queue.Queue()

    def fetch() -> None:
        try:
            outcome.put(tiktoken.get_encoding("gpt2"))
        except Exception as error:  # noqa: BLE001 - raised by the waiting thread
            outcome.put(error)

    threading.Thread(target=fetch, name=f"{THREAD_NAME}-vocabulary", daemon=True).start()
    fix = (
        "it is fetched once and cached in TIKTOKEN_CACHE_DIR: connect, fill the cache, name a file as tokenizer_file, "
        "or set tokenizer=byte"
    )
    try:
        found = outcome.get(timeout=timeout_s)
    except queue.Empty:
        raise UnreachableError(f"tokenizer=gpt2: no vocabulary within {timeout_s:g} s; {fix}") from None
    if isinstance(found, Exception):
        kind = UnreachableError if is_transient(found) else DataError
        raise kind(f"tokenizer=gpt2: tiktoken could not load its vocabulary ({found}); {fix}") from found
    return found


def _read_ranks(file: Path) -> dict[bytes, int]:
    """Tokens and their ranks. Raises DataError when the file is missing or is no vocabulary that uint16 can count."""
    ranks: dict[bytes, int] = {}
    number = 0
    try:
        for line in file.read_bytes().splitlines():
            number += 1
            if line.strip():
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
    except OSError as error:
        raise DataError(f"tokenizer_file={file} cannot be read: {error}") from None
    except ValueError as error:
        raise DataError(f"tokenizer_file={file}, line {number}: expected base64 and a rank ({error})") from None
    if sorted(ranks.values()) != list(range(len(ranks))) or len(ranks) >= 2**16:
        raise DataError(
            f"tokenizer_file={file}: {len(ranks)} tokens whose ranks are not 0, 1, 2, … or more than {2**16 - 1}: is "
            "it a whole .tiktoken file of a vocabulary of GPT-2's kind?"
        )
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise DataError(
            f"tokenizer_file={file}: no token for {len(missing)} of the 256 bytes, the first is {missing[0]}"
        )
    return ranks


def _digest(ranks: Mapping[bytes, int]) -> str:
    return hashlib.sha256(b"".join(token + b"\0" for token in sorted(ranks, key=ranks.__getitem__))).hexdigest()[:12]


def open_tokenizer(name: str, *, file: str | None = None) -> Tokenizer:
    """The tokenizer called `name`, for gpt2 with the vocabulary of `file`.

    Raises DataError when its package or vocabulary is missing, UnreachableError when that cannot be fetched.
    """
    return Gpt2Tokenizer(Path(file) if file else None) if name == "gpt2" else ByteTokenizer()
