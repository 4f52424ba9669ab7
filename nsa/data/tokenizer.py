"""Text to token ids. The byte tokenizer needs nothing; GPT-2's vocabulary comes from the tiktoken package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from nsa.data.source import DataError

__all__ = ["ByteTokenizer", "Gpt2Tokenizer", "Tokenizer", "open_tokenizer"]


class Tokenizer(Protocol):
    """`vocab_size` ids are in use; the embedding gets `padded_vocab_size` rows, a multiple that suits tensor cores."""

    name: str
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
    """GPT-2's byte-pair encoding, with `<|endoftext|>` (50256) as the end of a document."""

    name = "gpt2"
    eos_id = 50256
    vocab_size = 50257
    padded_vocab_size = 50304

    def __init__(self) -> None:
        try:
            import tiktoken
        except ImportError:
            raise DataError("tokenizer=gpt2 needs the tiktoken package: install it, or set tokenizer=byte") from None
        try:
            self._encoding = tiktoken.get_encoding("gpt2")
        except Exception as error:
            raise DataError(
                f"tokenizer=gpt2: tiktoken could not load its vocabulary ({error}); it is fetched once and cached in "
                "TIKTOKEN_CACHE_DIR: connect, fill the cache, or set tokenizer=byte"
            ) from error

    def encode(self, text: str) -> np.ndarray:
        """See Tokenizer.encode. Text that looks like a special token is encoded as ordinary text."""
        return np.array(self._encoding.encode_ordinary(text), np.uint16)

    def decode(self, ids: Sequence[int]) -> str:
        """See Tokenizer.decode."""
        return str(self._encoding.decode([i for i in ids if i < self.eos_id]))


def open_tokenizer(name: str) -> Tokenizer:
    """The tokenizer called `name`. Raises DataError when its package or vocabulary is missing."""
    return Gpt2Tokenizer() if name == "gpt2" else ByteTokenizer()
