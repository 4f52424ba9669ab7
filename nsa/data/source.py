"""What every data source offers, and the source over one long row of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from nsa.config import SetupError

__all__ = ["DataError", "SampleSource", "Sources", "StreamSource", "TokenWindows", "sample_rng"]


class DataError(SetupError):
    """The data cannot be read or used; the message names the path or setting and the fix."""


class SampleSource(Protocol):
    """Samples by number. The same number always gives the same sample, on every rank."""

    def batch(self, indices: Sequence[int]) -> np.ndarray:
        """Token ids, int64 `[len(indices), seq_len + 1]`: inputs are columns 0…S−1, targets 1…S."""
        ...


@runtime_checkable
class StreamSource(SampleSource, Protocol):
    """Samples that can only be asked for in order, so that a checkpoint has to keep the place.

    Calls come from the loader's thread, but for `waiting_for`, and `close`, which comes last.
    """

    @property
    def waiting_for(self) -> str | None:
        """What this source waits for, if another machine's answer is outstanding."""
        ...

    def position(self) -> dict[int, dict[str, Any]]:
        """The place of each part that this process reads, as tensors and plain values."""
        ...

    def seek(self, position: Mapping[int, Mapping[str, Any]]) -> None:
        """Go on from the places of all parts, to be called before the first batch."""
        ...

    def close(self) -> None:
        """Stop waiting and let go of what is open."""
        ...


@dataclass(frozen=True)
class Sources:
    """Training and held-out samples, and what is known of them (for env.json). No held-out set: `val` is None."""

    train: SampleSource
    val: SampleSource | None
    info: dict[str, Any] = field(default_factory=dict)

    def close(self) -> None:
        """Let go of what is open. For the end of a run, behind the loader's."""
        for source in (self.train, self.val):
            if close := getattr(source, "close", None):
                close()


def sample_rng(seed: int, stream: int, index: int) -> np.random.Generator:
    """A separate generator for one sample: counter-based, so that any sample can be made without the others."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, stream], np.uint64), counter=[0, 0, 0, index]))


class TokenWindows:
    """Windows of S+1 tokens over one sequence of tokens, in a new random order every epoch.

    Windows start S tokens apart, so each token but the first is a target exactly once per epoch.
    `tokens` may be a memory map. Raises DataError when it holds not even one window.
    """

    def __init__(self, tokens: np.ndarray, *, seq_len: int, seed: int, what: str) -> None:
        self._tokens, self._seq_len, self._seed = tokens, seq_len, seed
        self.n_windows = (len(tokens) - 1) // seq_len
        if self.n_windows < 1:
            raise DataError(
                f"{what} holds {len(tokens)} tokens, fewer than seq_len + 1 = {seq_len + 1}: "
                "add text or choose a smaller seq_len"
            )
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def _window(self, index: int) -> int:
        epoch, position = divmod(index, self.n_windows)
        if epoch != self._epoch:
            self._order = sample_rng(self._seed, 1, epoch).permutation(self.n_windows)
            self._epoch = epoch
        return int(self._order[position])

    def batch(self, indices: Sequence[int]) -> np.ndarray:
        """See SampleSource.batch."""
        out = np.empty((len(indices), self._seq_len + 1), np.int64)
        for row, index in enumerate(indices):
            start = self._window(index) * self._seq_len
            out[row] = self._tokens[start : start + self._seq_len + 1]
        return out
