"""A selection as merged token ranges ``[start, end)``: for people to read, and for gathering keys row by row.

``v1`` is a loop over rows and is the definition. ``v2`` does the same for all rows at once. Both accept any
integers, not only what the selector produces: they skip -1 and blocks outside the sequence, drop duplicates, end at
``t + 1``, drop what that leaves empty, and merge ranges that touch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

__all__ = ["RangesVersion", "merged_ranges", "range_blocks", "range_tokens", "ranges_v1", "ranges_v2", "row_ranges"]

RangesVersion = Literal["v1", "v2"]


def row_ranges(blocks: Sequence[int], t: int, *, l_sel: int, seq_len: int) -> list[tuple[int, int]]:
    """Merged ranges of one row: ascending, disjoint, not touching, within ``[0, min(t + 1, seq_len))``."""
    merged: list[tuple[int, int]] = []
    limit = min(t + 1, seq_len)
    for block in sorted(set(blocks)):
        start, end = block * l_sel, min((block + 1) * l_sel, limit)
        if block < 0 or end <= start:
            continue
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def ranges_v1(blocks_SGN: Tensor, t_S: Tensor, *, l_sel: int, seq_len: int) -> Tensor:
    """Merged ranges, row by row.

    Args:
        blocks_SGN: ``[..., S, G, n]`` integers, any order and content.
        t_S: ``[S]`` position of each row.
        l_sel: selection block length in tokens.
        seq_len: tokens that exist.

    Returns:
        ``[..., S, G, n, 2]`` int32; rows with fewer than n ranges end in ``(0, 0)``.
    """
    n = blocks_SGN.shape[-1]
    out = torch.zeros(*blocks_SGN.shape, 2, dtype=torch.int32)
    flat = out.view(-1, n, 2)
    position = t_S.cpu()[:, None].expand(blocks_SGN.shape[:-1]).reshape(-1).tolist()
    for i, row in enumerate(blocks_SGN.reshape(-1, n).tolist()):
        for j, pair in enumerate(row_ranges(row, position[i], l_sel=l_sel, seq_len=seq_len)):
            flat[i, j, 0], flat[i, j, 1] = pair
    return out.to(blocks_SGN.device)


def ranges_v2(blocks_SGN: Tensor, t_S: Tensor, *, l_sel: int, seq_len: int) -> Tensor:
    """Merged ranges of all rows at once; arguments and result as in :func:`ranges_v1`."""
    n = blocks_SGN.shape[-1]
    limit = (t_S.to(blocks_SGN.device) + 1).clamp(max=seq_len)[:, None, None]
    block = blocks_SGN.to(torch.int64)
    # Everything that yields no token moves to one value past the end, so that sorting puts it last.
    past = -(-seq_len // l_sel)
    # Comparing blocks with limits in blocks keeps block * l_sel from overflowing on absurd indices.
    exists = (block >= 0) & (block < (limit + l_sel - 1) // l_sel)
    block = torch.where(exists, block, past).sort(dim=-1).values
    live = block < past
    before = torch.cat([torch.full_like(block[..., :1], -2), block[..., :-1]], dim=-1)
    opens = live & (block > before + 1)
    closes_at = torch.minimum((block + 1) * l_sel, limit)
    # Range r of a row starts at its r-th opening block and ends where the last of its live blocks ends.
    slot = torch.where(live, opens.cumsum(-1) - 1, n)
    starts = block.new_zeros(*block.shape[:-1], n + 1)
    starts.scatter_(-1, torch.where(opens, slot, n), block * l_sel)
    ends = torch.zeros_like(starts).scatter_reduce_(-1, slot, closes_at, reduce="amax", include_self=True)
    return torch.stack([starts[..., :n], ends[..., :n]], dim=-1).to(torch.int32)


def merged_ranges(
    blocks_SGN: Tensor, t_S: Tensor, *, l_sel: int, seq_len: int, version: RangesVersion = "v2"
) -> Tensor:
    """Merged ranges by the implementation asked for; see :func:`ranges_v1`."""
    if version not in ("v1", "v2"):
        raise ValueError(f"sel_ranges={version!r}: must be v1 or v2")
    convert = ranges_v1 if version == "v1" else ranges_v2
    return convert(blocks_SGN, t_S, l_sel=l_sel, seq_len=seq_len)


def range_tokens(ranges: Tensor) -> Tensor:
    """Tokens covered by each row of merged ranges, ascending.

    Args:
        ranges: ``[..., n, 2]`` as :func:`ranges_v2` gives them; every row must cover equally many tokens, as rows of
            one position do.

    Returns:
        ``[..., N]`` int64 positions.

    Raises:
        ValueError: rows cover different numbers of tokens.
    """
    start, end = ranges.to(torch.int64).unbind(-1)
    covered = (end - start).cumsum(-1)
    totals = covered[..., -1].flatten()
    n_tokens = int(totals[0])
    if bool((totals != n_tokens).any()):
        raise ValueError("ranges: rows cover different numbers of tokens; convert rows of one position at a time")
    place = torch.arange(n_tokens, device=ranges.device).expand(*covered.shape[:-1], n_tokens).contiguous()
    which = torch.searchsorted(covered, place, right=True)
    # Place p of a row is in range r, after the tokens that the ranges before r cover.
    before = (covered - (end - start)).gather(-1, which)
    return start.gather(-1, which) + place - before


def range_blocks(ranges: Tensor, *, n: int, l_sel: int) -> Tensor:
    """The blocks that merged ranges cover, which undoes the merging.

    Args:
        ranges: ``[..., r, 2]`` as :func:`ranges_v2` gives them.
        n: places for blocks; no row may cover more.
        l_sel: selection block length in tokens.

    Returns:
        ``[..., n]`` int32, ascending, then -1.
    """
    start, end = ranges.to(torch.int64).unbind(-1)
    first = start // l_sel
    covered = (torch.where(end > start, (end + l_sel - 1) // l_sel, first) - first).cumsum(-1)
    place = torch.arange(n, device=ranges.device).expand(*covered.shape[:-1], n).contiguous()
    which = torch.searchsorted(covered, place, right=True).clamp(max=covered.shape[-1] - 1)
    before = torch.cat([torch.zeros_like(covered[..., :1]), covered[..., :-1]], dim=-1).gather(-1, which)
    block = first.gather(-1, which) + place - before
    return block.masked_fill(place >= covered[..., -1:], -1).to(torch.int32)
