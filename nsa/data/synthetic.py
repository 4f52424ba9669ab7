"""Samples made from the seed: `synthetic` can be learned and its entropy is known; `uniform` is for speed alone.

`synthetic` draws a Markov chain over 256 symbols and repeats its first half: a model first learns the chain (four
successors per symbol, with fixed odds) and then that the second half is a copy of the first, which takes attention
over S/2 tokens. Both steps have an exact entropy, so a loss can be judged: ln 256 is no learning at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nsa.config import DataConfig
from nsa.data.source import Sources, sample_rng

__all__ = ["MarkovCopySource", "UniformSource", "markov_copy_floor_nats", "open_synthetic"]

N_SYMBOLS = 256
ODDS = (0.5, 0.25, 0.15, 0.1)
_TRAIN, _VAL, _RULES = 2, 3, 4  # streams of the seed, so that no two uses share random numbers


def _chain_entropy_nats() -> float:
    return -sum(p * math.log(p) for p in ODDS)


def markov_copy_floor_nats(seq_len: int) -> tuple[float, float]:
    """Least mean loss over S targets, in nats per token: (with the copy understood, by the chain alone).

    The first token of a sample is given, the next S/2 − 1 carry the chain's entropy, the rest repeat.
    """
    period = max(seq_len // 2, 1)
    chain = _chain_entropy_nats()
    return chain * min(period - 1, seq_len) / seq_len, chain


class MarkovCopySource:
    """The learnable source. Symbols walk a ring by one of four steps and are then renamed by a fixed permutation,
    which makes a chain of exactly four successors per symbol that is generated without a loop over time.
    """

    def __init__(self, *, seq_len: int, seed: int, stream: int = _TRAIN) -> None:
        self._seq_len, self._seed, self._stream = seq_len, seed, stream
        self._period = max(seq_len // 2, 1)
        rules = sample_rng(seed, _RULES, 0)
        self._names = rules.permutation(N_SYMBOLS)
        self._hops = rules.choice(np.arange(1, N_SYMBOLS), size=len(ODDS), replace=False)
        self._cumulative = np.cumsum(ODDS)[:-1]

    def batch(self, indices: Sequence[int]) -> np.ndarray:
        """See SampleSource.batch."""
        walk = np.empty((len(indices), self._period), np.int64)
        for row, index in enumerate(indices):
            rng = sample_rng(self._seed, self._stream, index)
            walk[row, 0] = rng.integers(N_SYMBOLS)
            walk[row, 1:] = self._hops[np.searchsorted(self._cumulative, rng.random(self._period - 1), "right")]
        segment = self._names[np.cumsum(walk, axis=1) % N_SYMBOLS]
        copies = -(-(self._seq_len + 1) // self._period)
        return np.tile(segment, (1, copies))[:, : self._seq_len + 1]


class UniformSource:
    """Independent uniform symbols: nothing to learn; the loss stays at ln 256 = 5.545."""

    def __init__(self, *, seq_len: int, seed: int, stream: int = _TRAIN) -> None:
        self._seq_len, self._seed, self._stream = seq_len, seed, stream

    def batch(self, indices: Sequence[int]) -> np.ndarray:
        """See SampleSource.batch."""
        rows = [sample_rng(self._seed, self._stream, i).integers(N_SYMBOLS, size=self._seq_len + 1) for i in indices]
        return np.stack(rows)


def open_synthetic(config: DataConfig, *, seed: int) -> Sources:
    """Sources for data=synthetic and data=uniform; the held-out samples come from another stream of the seed."""
    info: dict[str, float | str] = {"uniform_loss_nats": math.log(N_SYMBOLS)}
    if config.data == "uniform":
        info["loss_floor_nats"] = math.log(N_SYMBOLS)
        make: type[UniformSource] | type[MarkovCopySource] = UniformSource
    else:
        info["loss_floor_nats"], info["loss_floor_bigram_nats"] = markov_copy_floor_nats(config.seq_len)
        make = MarkovCopySource
    return Sources(
        train=make(seq_len=config.seq_len, seed=seed),
        val=make(seq_len=config.seq_len, seed=seed, stream=_VAL),
        info=info,
    )
