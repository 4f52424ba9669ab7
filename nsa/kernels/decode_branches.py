"""What a share of a decode step reads whatever is selected: compressed tokens, the window, forced blocks."""

from __future__ import annotations

import triton
import triton.language as tl

from nsa.kernels.decode_partial import CMP, WIN, store_part
from nsa.kernels.decode_tiles import attend_rows, attend_rows_in_powers, attend_tile
from nsa.kernels.tiles import nothing_yet, visible_count

__all__ = ["compressed_part", "forced_part", "window_part", "window_rows"]


@triton.jit
def compressed_part(
    q0, q1, k_cmp, v_cmp, importance, tile_m, part_o, part_m, part_l, b, g, bg, p, t, NC, NT, scale2,
    G: tl.constexpr, HPG: tl.constexpr, HP: tl.constexpr, P: tl.constexpr, L: tl.constexpr, D: tl.constexpr,
    LS: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, TILES: tl.constexpr, DK0: tl.constexpr, DK1: tl.constexpr,
    DV: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """``TILES`` tiles of compressed tokens, and what they tell about selection blocks.

    ``importance [B*G, 2, HPG, NT * BJ]``: what the compressed tokens that start in a selection block give to it and to
    the next one, in units of 2 to the ``tile_m [B*G, HPG, NT]``, whole numbers.
    """
    M: tl.constexpr = LS // D
    BJ: tl.constexpr = BN // MP
    n_seen = visible_count(t, L, D)
    first = p * TILES
    last = tl.minimum(first + TILES, (n_seen + BJ * M - 1) // (BJ * M))
    slot = tl.arange(0, BN) % MP
    own_w = tl.where(slot < M, tl.minimum(L // D, M - slot), 0).to(tl.float32)
    carry_w = tl.where(slot < M, L // D, 0).to(tl.float32) - own_w
    h = tl.arange(0, HP)
    block = tl.arange(0, BJ)
    acc, m, total = nothing_yet(HP, DV)
    for i in tl.range(first, last):
        n = (i * BJ + tl.arange(0, BN) // MP) * M + slot
        ok = (slot < M) & (n < n_seen)
        acc, m, total, w = attend_rows_in_powers(
            acc, m, total, q0, q1, k_cmp, v_cmp, (b * NC + n) * G + g, ok, scale2, DK0, DK1, DV, PREC
        )  # fmt: skip
        own = tl.sum(tl.reshape(w * own_w[None, :], [HP, BJ, MP]), 2)
        carry = tl.sum(tl.reshape(w * carry_w[None, :], [HP, BJ, MP]), 2)
        at = ((bg.to(tl.int64) * 2 * HPG + h) * NT)[:, None] * BJ + i * BJ + block[None, :]
        tl.store(importance + at, own, mask=(h < HPG)[:, None])
        tl.store(importance + at + NT.to(tl.int64) * (HPG * BJ), carry, mask=(h < HPG)[:, None])
        tl.store(tile_m + (bg * HPG + h) * NT + i, m, mask=h < HPG)
    store_part(part_o, part_m, part_l, bg, CMP, p, acc, m, total, P, HP, DV)


@triton.jit
def window_rows(b, g, p, t, i, RW, G: tl.constexpr, WN: tl.constexpr, BW: tl.constexpr):
    """Cache rows of the ``i``-th tile of the share's ``WN`` slots in the window's ring, and which of them count."""
    slots = p * WN + i * BW + tl.arange(0, BW)
    return (b * RW + slots) * G + g, slots < tl.minimum(tl.minimum(t + 1, RW), (p + 1) * WN)


@triton.jit
def window_part(
    q0, q1, k0, k1, vv, k_win, v_win, part_o, part_m, part_l, b, g, bg, p, t, RW, scale2,
    G: tl.constexpr, HP: tl.constexpr, P: tl.constexpr, WN: tl.constexpr, BW: tl.constexpr, DK0: tl.constexpr,
    DK1: tl.constexpr, DV: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """The share's slots of the window's ring in tiles of ``BW``; ``k0, k1, vv`` are the first tile, loaded before."""
    acc, m, total = nothing_yet(HP, DV)
    _row, ok = window_rows(b, g, p, t, 0, RW, G, WN, BW)
    acc, m, total, _w = attend_tile(acc, m, total, q0, q1, k0, k1, vv, ok, scale2, DK1, PREC)
    for i in tl.static_range(1, (WN + BW - 1) // BW):
        row, ok = window_rows(b, g, p, t, i, RW, G, WN, BW)
        acc, m, total, _w = attend_rows(acc, m, total, q0, q1, k_win, v_win, row, ok, scale2, DK0, DK1, DV, PREC)
    store_part(part_o, part_m, part_l, bg, WIN, p, acc, m, total, P, HP, DV)


@triton.jit
def forced_part(
    q0, q1, k_sel, v_sel, b, g, p, t, N, scale2,
    G: tl.constexpr, HP: tl.constexpr, P: tl.constexpr, LS: tl.constexpr, LSP: tl.constexpr, DK0: tl.constexpr,
    DK1: tl.constexpr, DV: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """The share's forced blocks: of block 0, the newest block and the one before, every ``P``-th from ``p``."""
    acc, m, total = nothing_yet(HP, DV)
    own = t // LS
    offset = tl.arange(0, LSP)
    # Beyond the last forced block the range is empty: most shares have none.
    for forced in tl.range(p, tl.minimum(own + 1, 3), P):
        block = tl.where(forced == 0, 0, own + 1 - forced)
        n = block * LS + offset
        acc, m, total, _w = attend_rows(
            acc, m, total, q0, q1, k_sel, v_sel, (b * N + n) * G + g, (offset < LS) & (n <= t), scale2,
            DK0, DK1, DV, PREC,
        )  # fmt: skip
    return acc, m, total
