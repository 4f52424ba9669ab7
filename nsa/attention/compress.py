"""Average compression: the mean of each block of ``l`` tokens, one block every ``d`` tokens.

The learned variants of the compression function live in :mod:`nsa.attention.phi`; this one has no parameters and is
the one that the functional API applies.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Compress", "average_compress", "compute_dtype"]

Compress = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Keys ``[B, S, G, Dk]`` and values ``[B, S, G, Dv]`` to ``[B, C, G, .]``, one entry for each of C complete blocks."""


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Type in which scores, softmax and sums are computed: float64 for float64 inputs, float32 for all others."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def average_compress(x_BSGD: Tensor, *, l: int, d: int) -> Tensor:  # noqa: E741 - the paper's symbols
    """Average every complete block of ``l`` tokens with stride ``d``.

    Sums each chunk of ``d`` tokens once and adds ``l/d`` shifted chunk sums, so no token is copied ``l/d`` times.

    Args:
        x_BSGD: ``[B, S, G, D]``.

    Returns:
        ``[B, C, G, D]`` in :func:`compute_dtype`, with C = 0 if S < l, else ``(S - l) // d + 1``. It stays
        connected to the graph when C = 0, so that the projection that made ``x`` receives a (zero) gradient.
    """
    B, S, G, D = x_BSGD.shape
    n_cmp = max((S - l) // d + 1, 0)
    per_block = l // d
    n_chunks = n_cmp + per_block - 1 if n_cmp else 0
    chunks = x_BSGD[:, : n_chunks * d].to(compute_dtype(x_BSGD.dtype)).reshape(B, n_chunks, d, G, D).sum(2)
    out = chunks[:, :n_cmp]
    # Block c is the sum of chunks c to c + l/d - 1.
    for i in range(1, per_block):
        out = out + chunks[:, i : i + n_cmp]
    return out / l
