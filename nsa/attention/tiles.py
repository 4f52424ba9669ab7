"""Masked softmax attention of one chunk of queries, in buffers that every chunk uses again.

A chunk's scores are a few megabytes. Fresh memory for them costs more than the softmax that fills it, because the
system hands it out page by page; so scores and probabilities live in :class:`Scratch`, and matrix products write into
it. Only the columns in which some query is masked are touched by a mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Mask", "Scratch", "Tile", "staircase"]


class Scratch:
    """Named buffers that grow to the largest use and are handed out again; what they held is lost."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._flat: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """An uninitialized tensor of the given shape that shares memory with every other of its name."""
        wanted = math.prod(shape)
        held = self._flat.get(name)
        if held is None or held.numel() < wanted:
            self._flat.pop(name, None)
            held = self._flat[name] = self._like.new_empty(wanted)
        return held[:wanted].view(shape)


@dataclass(frozen=True)
class Mask:
    """Zero or -inf, added to the scores of the keys ``start`` to ``start + n``."""

    start: int
    bias: Tensor
    """``[T, 1, n]``, or ``[B, G, T, 1, n]``: the same for all heads of a group."""


def staircase(like: Tensor, rows: int, columns: int, *, offset: int, below: bool) -> Tensor:
    """Bias ``[rows, 1, columns]`` that hides column j of row i if ``j > i + offset``, or if ``j <= i + offset`` where
    ``below``. One bias serves every chunk that has the same place on the diagonal."""
    reach = torch.arange(rows, device=like.device)[:, None] + offset
    column = torch.arange(columns, device=like.device)
    hidden = column <= reach if below else column > reach
    bias = like.new_zeros(rows, columns).masked_fill_(hidden, float("-inf"))
    return bias[:, None]


@dataclass(frozen=True)
class Tile:
    """Queries ``q [B * G, T * R, Dk]``, R heads of a group side by side, against ``k [B * G, N, Dk]`` and ``v [B * G,
    N, Dv]``. Every query sees at least one key."""

    q: Tensor
    k: Tensor
    v: Tensor
    shape: tuple[int, int, int, int]
    """B, G, T, R."""
    masks: tuple[Mask, ...]
    block_bias: Tensor | None = None
    """``[B, G, T, 1, J, 1]``: zero or -inf for J blocks of equally many keys, which cover all N."""

    def probabilities(self, scratch: Scratch) -> Tensor:
        """``[B * G, T * R, N]`` in scratch memory."""
        n_keys = self.k.shape[1]
        scores = scratch("scores", *self.q.shape[:2], n_keys)
        torch.bmm(self.q, self.k.transpose(1, 2), out=scores)
        table = scores.view(*self.shape, n_keys)
        if self.block_bias is not None:
            n_blocks = self.block_bias.shape[-2]
            table.view(*self.shape, n_blocks, n_keys // n_blocks).add_(self.block_bias)
        for mask in self.masks:
            table[..., mask.start : mask.start + mask.bias.shape[-1]].add_(mask.bias)
        p = scratch("probabilities", *scores.shape)
        return torch.softmax(scores, dim=-1, out=p)

    def attend(self, out: Tensor, scratch: Scratch) -> Tensor:
        """Write the output into ``out [B * G, T * R, Dv]``; returns the probabilities, in scratch memory."""
        p = self.probabilities(scratch)
        torch.bmm(p, self.v, out=out)
        return p

    def backward(self, do: Tensor, dq: Tensor, dk: Tensor, dv: Tensor, scratch: Scratch) -> None:
        """For the output gradient ``do [B * G, T * R, Dv]``, add the gradients of q, k and v to ``dq``, ``dk`` and
        ``dv``, which are shaped like them."""
        # Computed again rather than kept: stored probabilities would need S x S memory.
        p = self.probabilities(scratch)
        dv.baddbmm_(p.transpose(1, 2), do)
        dp = torch.bmm(do, self.v.transpose(1, 2), out=scratch("scores", *p.shape))
        ds = scratch("score gradient", *p.shape)
        torch.ops.aten._softmax_backward_data.out(dp, p, -1, p.dtype, grad_input=ds)
        dk.baddbmm_(ds.transpose(1, 2), self.q)
        dq.baddbmm_(ds, self.k)
