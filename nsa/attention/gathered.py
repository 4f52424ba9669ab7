"""Attention of each query to its own blocks, block by block instead of query by query.

Reading the chosen keys for every query moves n_sel * l_sel * (Dk + Dv) numbers per query and group. Here the (query,
block) pairs of a chunk are sorted by block and cut into tiles of a few pairs that share one block: a tile reads its
block once and multiplies all heads of all its queries with it. Each pair gives an output and the logarithm of its sum
of exponentials; a row's output is the mean of its pairs', weighted by these. So scores never leave their tile, and
tiles are taken a cacheful at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nsa.attention.tiles import Scratch

__all__ = ["BlockPairs", "group_pairs", "paired_backward", "paired_forward"]

_TILE_ROWS = 96  # rows (pairs times heads) that a tile should have at least, to be a product and not a stream


@dataclass(frozen=True)
class BlockPairs:
    """The pairs of a chunk, in tiles that share a block.

    A *row* is one query position of one batch row and group; every row has ``n`` pairs. A *slot* is a place in a tile;
    a block's last tile may have idle slots.
    """

    n: int
    per_tile: int
    slot_of_pair: Tensor
    """``[rows * n]``: where each pair sits."""
    row_of_slot: Tensor
    """``[tiles * per_tile]``: the row that each slot reads; idle slots read row 0."""
    idle: Tensor
    """``[tiles * per_tile]`` bool."""
    block_of_tile: Tensor
    """``[tiles]``: which block, counted through batch and groups."""

    def spans(self, heads: int, l_sel: int, budget: int) -> list[tuple[int, int]]:
        """Ranges of tiles whose scores together have at most about ``budget`` elements."""
        step = max(budget // (self.per_tile * heads * l_sel), 1)
        n_tiles = self.block_of_tile.shape[0]
        return [(first, min(first + step, n_tiles)) for first in range(0, n_tiles, step)]

    def rows(self, x: Tensor, first: int, last: int) -> Tensor:
        """Values of rows ``[rows, R, D]`` copied to the slots of some tiles: ``[tiles, per_tile * R, D]``."""
        _, R, D = x.shape
        index = self.row_of_slot[first * self.per_tile : last * self.per_tile]
        return x.flatten(1).index_select(0, index).view(-1, self.per_tile * R, D)

    def blocks(self, x: Tensor, first: int, last: int) -> Tensor:
        """The block of each of some tiles: ``[all blocks, l_sel, D]`` to ``[tiles, l_sel, D]``."""
        return x.flatten(1).index_select(0, self.block_of_tile[first:last]).view(-1, *x.shape[1:])

    def bias(self, last_key: Tensor, l_sel: int, first: int, last: int) -> Tensor:
        """``[tiles, per_tile, 1, l_sel]``: -inf on keys of the tile's block past a slot's own position, else 0.

        ``last_key [rows]`` is the last visible key of each row, counted as keys of ``blocks`` are.
        """
        index = self.row_of_slot[first * self.per_tile : last * self.per_tile]
        start = self.block_of_tile[first:last, None, None] * l_sel
        key = start + torch.arange(l_sel, device=start.device)
        limit = last_key.index_select(0, index).view(-1, self.per_tile, 1)
        # An idle slot reads row 0, which may lie before the block; one visible key keeps its softmax finite.
        hidden = key > torch.maximum(limit, start)
        return torch.zeros_like(hidden, dtype=torch.float32).masked_fill_(hidden, float("-inf"))[:, :, None]

    def sum_of_pairs(self, x: Tensor, heads: int, weight: Tensor | None = None) -> Tensor:
        """Sum over each row's pairs of slot values ``x [slots * R, D]``, weighted by ``weight [rows, R, n]`` if given:
        ``[rows, R, D]``."""
        head = torch.arange(heads, device=x.device)[:, None]
        index = (self.slot_of_pair.view(-1, 1, self.n) * heads + head).flatten(0, 1)
        weights = None if weight is None else weight.flatten(0, 1)
        return F.embedding_bag(index, x, mode="sum", per_sample_weights=weights).view(-1, heads, x.shape[-1])


def group_pairs(block_of_pair: Tensor, *, n: int, n_blocks: int, heads: int) -> BlockPairs:
    """Sort pairs by block and cut them into tiles.

    Args:
        block_of_pair: ``[rows * n]`` int64, each in ``[0, n_blocks)``.
        n: pairs per row; n_blocks: blocks in all; heads: heads per group, R.
    """
    per_tile = max(-(-_TILE_ROWS // heads), 8)
    n_pairs, device = block_of_pair.shape[0], block_of_pair.device
    order = torch.argsort(block_of_pair, stable=True)
    block = block_of_pair[order]
    counts = torch.bincount(block, minlength=n_blocks)
    tiles = (counts + per_tile - 1) // per_tile
    # How far the first pair of each block moves when every block before it is padded to whole tiles.
    shift = (tiles * per_tile).cumsum(0) - tiles * per_tile - (counts.cumsum(0) - counts)
    slot = torch.arange(n_pairs, device=device) + shift[block]
    slot_of_pair = torch.empty_like(slot).index_copy_(0, order, slot)
    block_of_tile = torch.repeat_interleave(tiles)
    row_of_slot = torch.zeros(block_of_tile.shape[0] * per_tile, dtype=torch.int64, device=device)
    row_of_slot[slot] = order // n
    idle = torch.ones_like(row_of_slot, dtype=torch.bool)
    idle[slot] = False
    return BlockPairs(n, per_tile, slot_of_pair, row_of_slot, idle, block_of_tile)


def paired_forward(
    q: Tensor, k: Tensor, v: Tensor, pairs: BlockPairs, last_key: Tensor, *, budget: int, scratch: Scratch
) -> tuple[Tensor, Tensor]:
    """Attention of every row to its blocks.

    Args:
        q: ``[rows, R, Dk]``.
        k: ``[all blocks, l_sel, Dk]``, scaled; v: ``[all blocks, l_sel, Dv]``.
        last_key: ``[rows]`` the last visible key of each row, counted through all blocks.
        budget: elements of scores at a time.

    Returns:
        ``[rows, R, Dv]``, and the logarithm of each row's sum of exponentials, ``[rows, R]``.
    """
    heads, l_sel, Dv = q.shape[1], k.shape[1], v.shape[2]
    M = pairs.per_tile * heads
    n_tiles = pairs.block_of_tile.shape[0]
    o_slots = scratch("slots", n_tiles, M, Dv)
    lse_slots = q.new_empty(n_tiles, M)
    for first, last in pairs.spans(heads, l_sel, budget):
        scores = scratch("scores", last - first, M, l_sel)
        table = scores.view(-1, pairs.per_tile, heads, l_sel)
        table.copy_(pairs.bias(last_key, l_sel, first, last).expand_as(table))
        scores.baddbmm_(pairs.rows(q, first, last), pairs.blocks(k, first, last).transpose(1, 2))
        p = torch.softmax(scores, dim=-1, out=scratch("probabilities", *scores.shape))
        # The largest probability is one over the sum of exponentials past the largest score.
        lse_slots[first:last] = scores.amax(-1) - p.amax(-1).log()
        torch.bmm(p, pairs.blocks(v, first, last), out=o_slots[first:last])
    lse_pairs = lse_slots.view(-1, heads).index_select(0, pairs.slot_of_pair).view(-1, pairs.n, heads).transpose(1, 2)
    lse = torch.logsumexp(lse_pairs, dim=-1)
    weight = torch.exp(lse_pairs - lse[..., None])
    return pairs.sum_of_pairs(o_slots.view(-1, Dv), heads, weight), lse


def paired_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pairs: BlockPairs,
    last_key: Tensor,
    *,
    o: Tensor,
    lse: Tensor,
    do: Tensor,
    dk: Tensor,
    dv: Tensor,
    budget: int,
    scratch: Scratch,
) -> Tensor:
    """Gradient of ``q`` for that of the output, ``do [rows, R, Dv]``, given the results ``o`` and ``lse`` of
    :func:`paired_forward`; the gradients of k and v are added to dk and dv."""
    heads, l_sel = q.shape[1], k.shape[1]
    M = pairs.per_tile * heads
    dq_slots = scratch("slots", pairs.block_of_tile.shape[0], M, q.shape[2])
    # Gradient of a score: p * (do·v - do·o); the second product is the same for all keys of a row.
    delta = (do * o).sum(-1)
    # Probabilities of an idle slot must be zero, so that it adds nothing to the gradients of its block.
    lse_slots = lse.index_select(0, pairs.row_of_slot).masked_fill_(pairs.idle[:, None], float("inf"))
    for first, last in pairs.spans(heads, l_sel, budget):
        q_rows, do_rows = pairs.rows(q, first, last), pairs.rows(do, first, last)
        k_block, v_block = pairs.blocks(k, first, last), pairs.blocks(v, first, last)
        p = scratch("scores", last - first, M, l_sel)
        slots = slice(first * pairs.per_tile, last * pairs.per_tile)
        table = p.view(-1, pairs.per_tile, heads, l_sel)
        rows_lse = lse_slots[slots].view(-1, pairs.per_tile, heads, 1)
        # p = exp(q·k + bias - lse), over all pairs of the row, so no second softmax is needed.
        torch.sub(pairs.bias(last_key, l_sel, first, last), rows_lse, out=table)
        p.baddbmm_(q_rows, k_block.transpose(1, 2)).exp_()
        block = pairs.block_of_tile[first:last]
        dv.index_add_(0, block, p.transpose(1, 2) @ do_rows)
        ds = torch.bmm(do_rows, v_block.transpose(1, 2), out=scratch("score gradient", *p.shape))
        ds.sub_(pairs.rows(delta[..., None], first, last)).mul_(p)
        dk.index_add_(0, block, ds.transpose(1, 2) @ q_rows)
        torch.bmm(ds, k_block, out=dq_slots[first:last])
    return pairs.sum_of_pairs(dq_slots.view(-1, q.shape[2]), heads)
