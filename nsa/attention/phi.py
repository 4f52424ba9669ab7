"""The compression functions: each turns a block of ``l`` keys (or values) into one.

``avg`` is the mean; ``conv`` a depthwise convolution that starts as the mean and learns the weights; ``mlp`` the
paper's, an MLP over the whole block with a learned encoding of the place within it (arXiv 2502.11089, eq. 7).
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsa.attention.compress import average_compress
from nsa.attention.gate import UnsetLinear

__all__ = ["AverageCompress", "ConvCompress", "MLPCompress", "Phi", "build_phi"]

Phi = Literal["avg", "conv", "mlp"]


def _n_compressed(seq_len: int, l: int, d: int) -> int:  # noqa: E741
    return max((seq_len - l) // d + 1, 0)


class AverageCompress(nn.Module):
    """Mean of each block; no parameters."""

    def __init__(self, *, l: int, d: int) -> None:  # noqa: E741
        super().__init__()
        self.l, self.d = l, d

    def forward(self, x_BSGD: Tensor) -> Tensor:
        """``[B, S, G, D]`` to ``[B, C, G, D]``, C complete blocks."""
        return average_compress(x_BSGD, l=self.l, d=self.d)

    def reset_parameters(self, std: float, generator: torch.Generator | None = None) -> None:
        """Nothing to reset."""


class ConvCompress(nn.Module):
    """One weight per place in the block, group and channel; starts as the mean.

    Args:
        n_kv_groups: G; dim: D of the stream it compresses; l, d: block length and stride in tokens.
    """

    def __init__(self, *, n_kv_groups: int, dim: int, l: int, d: int) -> None:  # noqa: E741
        super().__init__()
        self.l, self.d = l, d
        self.weight = nn.Parameter(torch.empty(n_kv_groups * dim, 1, l))
        self.reset_parameters(0.0)

    def forward(self, x_BSGD: Tensor) -> Tensor:
        """``[B, S, G, D]`` to ``[B, C, G, D]``, C complete blocks."""
        B, S, G, D = x_BSGD.shape
        channels_first = x_BSGD.reshape(B, S, G * D).transpose(1, 2)
        # A convolution refuses an input shorter than its kernel; padding gives it one block, which is cut off again.
        channels_first = F.pad(channels_first, (0, max(self.l - S, 0)))
        out = F.conv1d(channels_first, self.weight.to(x_BSGD.dtype), stride=self.d, groups=G * D)
        n_cmp = _n_compressed(S, self.l, self.d)
        return out[..., :n_cmp].transpose(1, 2).reshape(B, n_cmp, G, D)

    def reset_parameters(self, std: float, generator: torch.Generator | None = None) -> None:
        """Back to the mean; nothing is drawn here."""
        nn.init.constant_(self.weight, 1.0 / self.l)


class MLPCompress(nn.Module):
    """An MLP over the block plus its place encoding, shared by all groups: l x D, then hidden, then D.

    The first layer is applied to chunks of ``d`` tokens and added shifted, so overlapping blocks are never copied out.
    """

    def __init__(
        self,
        *,
        dim: int,
        l: int,  # noqa: E741
        d: int,
        hidden: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.l, self.d = l, d
        self.place = nn.Parameter(torch.empty(l, dim))
        self.up = UnsetLinear(l * dim, hidden or 2 * dim)
        self.down = UnsetLinear(hidden or 2 * dim, dim)
        self.reset_parameters(0.02, generator)

    def forward(self, x_BSGD: Tensor) -> Tensor:
        """``[B, S, G, D]`` to ``[B, C, G, D]``, C complete blocks."""
        B, S, G, D = x_BSGD.shape
        n_cmp, per_block = _n_compressed(S, self.l, self.d), self.l // self.d
        n_chunks = n_cmp + per_block - 1 if n_cmp else 0
        chunks = x_BSGD[:, : n_chunks * self.d].reshape(B, n_chunks, self.d, G, D).transpose(2, 3).flatten(3)
        weights = self.up.weight.view(-1, per_block, self.d * D).unbind(1)
        # The encoding enters before a linear layer, so its whole contribution is one more bias.
        hidden = F.linear(self.place.flatten(), self.up.weight, self.up.bias)
        for i, weight in enumerate(weights):
            hidden = hidden + F.linear(chunks[:, i : i + n_cmp], weight)
        out: Tensor = self.down(F.silu(hidden))
        return out

    def reset_parameters(self, std: float, generator: torch.Generator | None = None) -> None:
        """Normal weights of the given deviation, zero biases."""
        for weight in (self.place, self.up.weight, self.down.weight):
            nn.init.normal_(weight, std=std, generator=generator)
        for bias in (self.up.bias, self.down.bias):
            nn.init.zeros_(bias)


def build_phi(
    kind: Phi,
    *,
    n_kv_groups: int,
    dim: int,
    l: int,  # noqa: E741
    d: int,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """The compression module for one stream of ``dim`` channels; its first weights are drawn by ``generator``.

    Raises:
        ValueError: ``kind`` is not ``avg``, ``conv`` or ``mlp``.
    """
    if kind == "avg":
        return AverageCompress(l=l, d=d)
    if kind == "conv":
        return ConvCompress(n_kv_groups=n_kv_groups, dim=dim, l=l, d=d)
    if kind == "mlp":
        return MLPCompress(dim=dim, l=l, d=d, generator=generator)
    raise ValueError(f"phi={kind!r}: must be avg, conv or mlp")
