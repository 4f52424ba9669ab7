"""Inverse index of a selection: for each span of tokens and each block, the (token, slot) pairs that chose it.

A counting sort: the counts come from the selection kernel, this file turns them into offsets and work tiles and
scatters the pairs. A pair is stored as ``token * NTOP + slot``. A work tile is at most ``TT`` pairs of one
block, so that blocks which many queries chose spread over many programs. Lists are ordered by span, then by block:
programs that run side by side then read the same queries.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["offsets_kernel", "scatter_kernel", "tile_map_kernel"]


@triton.jit(do_not_specialize=["NB"])
def offsets_kernel(counts, offsets, cursor, tile_offsets, NB, TT: tl.constexpr, CHUNK: tl.constexpr):
    """Exclusive sums over the blocks of one (batch, group): of ``counts`` and of their tiles. Grid (B * G,).

    ``offsets`` and ``tile_offsets`` are ``[B*G, NB + 1]``; ``cursor [B*G, NB]`` starts as a copy of ``offsets``.
    """
    bg = tl.program_id(0)
    pairs = bg * 0
    tiles = bg * 0
    for start in range(0, NB, CHUNK):
        j = start + tl.arange(0, CHUNK)
        ok = j < NB
        count = tl.load(counts + bg * NB + j, mask=ok, other=0)
        n_tiles = (count + TT - 1) // TT
        pair_end = pairs + tl.cumsum(count, 0)
        tile_end = tiles + tl.cumsum(n_tiles, 0)
        tl.store(offsets + bg * (NB + 1) + j, pair_end - count, mask=ok)
        tl.store(cursor + bg * NB + j, pair_end - count, mask=ok)
        tl.store(tile_offsets + bg * (NB + 1) + j, tile_end - n_tiles, mask=ok)
        pairs += tl.sum(count, 0)
        tiles += tl.sum(n_tiles, 0)
    tl.store(offsets + bg * (NB + 1) + NB, pairs)
    tl.store(tile_offsets + bg * (NB + 1) + NB, tiles)


@triton.jit(do_not_specialize=["NB", "MAX_TILES"])
def tile_map_kernel(tile_offsets, tile_block, NB, MAX_TILES, STEPS: tl.constexpr, CHUNK: tl.constexpr):
    """``tile_block [B*G, MAX_TILES]``: the block of each work tile, -1 past the last. Grid (chunks, B * G)."""
    bg = tl.program_id(1)
    tile = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    base = tile_offsets + bg * (NB + 1)
    low = tl.zeros([CHUNK], tl.int32)
    high = low + NB
    # Largest block whose first tile is not after this one.
    for _ in range(STEPS):
        mid = (low + high + 1) // 2
        go_up = tl.load(base + mid) <= tile
        low = tl.where(go_up, mid, low)
        high = tl.where(go_up, high, mid - 1)
    tl.store(tile_block + bg * MAX_TILES + tile, tl.where(low < NB, low, -1), mask=tile < MAX_TILES)


@triton.jit(do_not_specialize=["N_PAIRS", "NB", "NL", "SPAN_PAIRS"])
def scatter_kernel(top, cursor, pairs, N_PAIRS, NB, NL, SPAN_PAIRS, CHUNK: tl.constexpr):
    """``pairs [B*G, N_PAIRS]``: the pairs by list; their order within one is that of arrival. Grid (chunks, B * G)."""
    bg = tl.program_id(1)
    e = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    ok = e < N_PAIRS
    base = bg.to(tl.int64) * N_PAIRS
    j = tl.load(top + base + e, mask=ok, other=-1)
    ok = ok & (j >= 0)
    at = tl.atomic_add(cursor + bg * NL + e // SPAN_PAIRS * NB + j, 1, mask=ok, sem="relaxed")
    tl.store(pairs + base + at, e, mask=ok)
