"""Attention of each query to its own blocks, block by block instead of query by query.

Reading the chosen keys for every query moves n_sel * l_sel * (Dk + Dv) numbers per query and group. Here the (query,
block) pairs of a chunk are sorted by block and cut into tiles of a few pairs that share one block: a tile reads its
block once and multiplies all heads of all its queries with it. Scores then return to the order of the queries for
one ordinary softmax. Same arithmetic, larger products, a fraction of the traffic.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["BlockPairs", "group_pairs", "paired_backward", "paired_forward"]

_TILE_ROWS = 48  # rows (pairs times heads) that a tile should have at least, to be a product and not a stream


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
    block_of_tile: Tensor
    """``[tiles]``: which block, counted through batch and groups."""

    def to_slots(self, x: Tensor) -> Tensor:
        """Values of rows ``[rows, R, D]`` copied to the slots: ``[tiles, per_tile * R, D]``."""
        _, R, D = x.shape
        return x.reshape(-1, R * D).index_select(0, self.row_of_slot).view(-1, self.per_tile * R, D)

    def place(self, x: Tensor) -> Tensor:
        """Values of pairs ``[rows * n, R, D]`` put into slots, zero in idle ones: ``[tiles, per_tile * R, D]``."""
        _, R, D = x.shape
        slots = x.new_zeros(self.row_of_slot.shape[0], R * D)
        return slots.index_copy_(0, self.slot_of_pair, x.reshape(-1, R * D)).view(-1, self.per_tile * R, D)

    def take(self, x: Tensor, heads: int) -> Tensor:
        """Values of slots ``[tiles, per_tile * R, D]`` back in the order of the pairs: ``[rows, n, R, D]``."""
        D = x.shape[-1]
        return x.reshape(-1, heads * D).index_select(0, self.slot_of_pair).view(-1, self.n, heads, D)

    def tiles_of(self, blocks: Tensor) -> Tensor:
        """The block of every tile: ``[all blocks, l_sel, D]`` to ``[tiles, l_sel, D]``."""
        return blocks.flatten(1).index_select(0, self.block_of_tile).view(-1, *blocks.shape[1:])


def group_pairs(block_of_pair: Tensor, *, n: int, n_blocks: int, heads: int) -> BlockPairs:
    """Sort pairs by block and cut them into tiles.

    Args:
        block_of_pair: ``[rows * n]`` int64, each in ``[0, n_blocks)``.
        n: pairs per row; n_blocks: blocks in all; heads: heads per group, R.
    """
    per_tile = max(-(-_TILE_ROWS // heads), 8)
    n_pairs, device = block_of_pair.shape[0], block_of_pair.device
    order = torch.argsort(block_of_pair)
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
    return BlockPairs(n, per_tile, slot_of_pair, row_of_slot, block_of_tile)


def _probabilities(pairs: BlockPairs, q_slots: Tensor, k_tiles: Tensor, bias: Tensor, heads: int) -> Tensor:
    """Softmax over all keys of a row: ``[rows, R, n * l_sel]``."""
    scores = pairs.take(q_slots @ k_tiles.transpose(-1, -2), heads)
    return torch.softmax(scores.transpose(1, 2).flatten(2).add_(bias[:, None]), dim=-1)


def _as_pairs(x: Tensor, n: int) -> Tensor:
    """``[rows, R, n * l_sel]`` to ``[rows * n, R, l_sel]``."""
    return x.unflatten(-1, (n, -1)).transpose(1, 2).flatten(0, 1)  # type: ignore[no-untyped-call,no-any-return]


def paired_forward(q: Tensor, k: Tensor, v: Tensor, pairs: BlockPairs, bias: Tensor) -> Tensor:
    """Attention of every row to its blocks.

    Args:
        q: ``[rows, R, Dk]``, scaled.
        k: ``[all blocks, l_sel, Dk]``; v: ``[all blocks, l_sel, Dv]``.
        bias: ``[rows, n * l_sel]``, -inf on keys that a row must not see, else 0.

    Returns:
        ``[rows, R, Dv]``.
    """
    heads = q.shape[1]
    p = _probabilities(pairs, pairs.to_slots(q), pairs.tiles_of(k), bias, heads)
    o_slots = pairs.place(_as_pairs(p, pairs.n)) @ pairs.tiles_of(v)
    return pairs.take(o_slots, heads).sum(1)


def paired_backward(
    q: Tensor, k: Tensor, v: Tensor, pairs: BlockPairs, bias: Tensor, do: Tensor, dk: Tensor, dv: Tensor
) -> Tensor:
    """Gradient of ``q``, given that of the output, ``do [rows, R, Dv]``; those of k and v are added to dk and dv."""
    heads, n = q.shape[1], pairs.n
    q_slots, k_tiles, do_slots = pairs.to_slots(q), pairs.tiles_of(k), pairs.to_slots(do)
    p = _probabilities(pairs, q_slots, k_tiles, bias, heads)
    dv.index_add_(0, pairs.block_of_tile, pairs.place(_as_pairs(p, n)).transpose(-1, -2) @ do_slots)
    dp = pairs.take(do_slots @ pairs.tiles_of(v).transpose(-1, -2), heads).transpose(1, 2).flatten(2)
    ds = torch.ops.aten._softmax_backward_data(dp, p, -1, p.dtype)
    ds_slots = pairs.place(_as_pairs(ds, n))
    dk.index_add_(0, pairs.block_of_tile, ds_slots.transpose(-1, -2) @ q_slots)
    return pairs.take(ds_slots @ k_tiles, heads).sum(1)
