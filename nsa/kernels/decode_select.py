"""Which blocks a decode step selects, and attention to them.

Each run of blocks names its best; the best of those are the selection, which every share finds for itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nsa.kernels.decode_tiles import attend_rows, pow2

__all__ = ["chosen_part", "score_part"]


@triton.jit
def _places(key, COUNT: tl.constexpr, NTOPP: tl.constexpr):
    """Each key's place in descending order ``[COUNT]``, where it is below ``NTOPP``; keys differ."""
    if COUNT <= 256:
        # How many are larger: one pass over all pairs, in registers, instead of a search for each place.
        place = tl.sum((key[:, None] > key[None, :]).to(tl.int32), 0)
    else:
        place = tl.full([COUNT], NTOPP, tl.int32)
        for rank in range(NTOPP):
            largest = tl.max(tl.where(place == NTOPP, key, -(2**62)), 0)
            place = tl.where((place == NTOPP) & (key == largest), rank, place)
    return place


@triton.jit
def score_part(
    part_m, part_l, importance, tile_m, candidates, bg, p, t, NT,
    HPG: tl.constexpr, HP: tl.constexpr, HR: tl.constexpr, P: tl.constexpr, LS: tl.constexpr, BJ: tl.constexpr,
    SB: tl.constexpr, RUNS: tl.constexpr, NTOPP: tl.constexpr,
):  # fmt: skip
    """``candidates [B*G, RUNS, NTOPP]`` int64: sortable keys of the best of each run of ``SB`` selection blocks, best
    first; the share does every ``P``-th run from ``p``. A key is negative if its block does not compete."""
    h = tl.arange(0, HR)
    for i in tl.static_range((RUNS + P - 1) // P):
        run = p + i * P
        if run < RUNS:
            j = run * SB + tl.arange(0, SB)
            competes = (j >= 1) & (j < t // LS - 1)
            ok = (h < HPG)[:, None] & competes[None, :]
            at = ((bg.to(tl.int64) * 2 * HPG + h) * NT)[:, None] * BJ + j[None, :]
            max_at = ((bg * HPG + h) * NT)[:, None]
            row = ((bg.to(tl.int64) * 3) * P + tl.arange(0, P))[:, None] * HP + h[None, :]
            # All loads before the first use.
            own = tl.load(importance + at, mask=ok, other=0.0)
            carry = tl.load(importance + at + NT.to(tl.int64) * (HPG * BJ) - 1, mask=ok, other=0.0)
            own_unit = tl.load(tile_m + max_at + (j // BJ)[None, :], mask=ok, other=-1e30)
            carry_unit = tl.load(tile_m + max_at + (tl.maximum(j - 1, 0) // BJ)[None, :], mask=ok, other=-1e30)
            m_c = tl.load(part_m + row)
            l_c = tl.load(part_l + row)
            m = tl.max(m_c, 0)
            lse = m + tl.math.log2(tl.maximum(tl.sum(l_c * tl.math.exp2(m_c - m[None, :]), 0), 1e-30))
            # What depends on the unit is a power of two: equal scores in different units stay equal.
            whole = tl.floor(lse)
            rest = tl.math.exp2(whole - lse)[:, None]
            score = own * rest * pow2(own_unit - whole[:, None]) + carry * rest * pow2(carry_unit - whole[:, None])
            # As in prefill: bits of a score that is never negative order like the number, and a tie goes to the lower
            # block.
            bits = tl.sum(tl.where(ok, score, 0.0), 0).to(tl.int32, bitcast=True).to(tl.int64)
            key = tl.where(competes, (bits << 32) | (0x7FFFFFFF - j).to(tl.int64), -1 - j.to(tl.int64))
            place = _places(key, SB, NTOPP)
            mine = candidates + (bg.to(tl.int64) * RUNS + run) * NTOPP
            tl.store(mine + place, key, mask=place < NTOPP)


@triton.jit
def chosen_part(
    acc, m, total, q0, q1, k_sel, v_sel, candidates, top, b, g, bg, p, N, scale2,
    G: tl.constexpr, P: tl.constexpr, RUNS: tl.constexpr, NTOP: tl.constexpr, NTOPP: tl.constexpr,
    SLOTS: tl.constexpr, AT_ONCE: tl.constexpr, LS: tl.constexpr, LSP: tl.constexpr, DK0: tl.constexpr,
    DK1: tl.constexpr, DV: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Add the share's chosen blocks to ``acc, m, total``: at most ``SLOTS``, ``AT_ONCE`` in one tile.

    Every share finds the whole selection, the first one writes it to ``top [B*G, NTOP]`` int32, best first.
    """
    COUNT: tl.constexpr = RUNS * NTOPP
    key = tl.load(candidates + bg.to(tl.int64) * COUNT + tl.arange(0, COUNT))
    place = _places(key, COUNT, NTOPP)
    candidate = tl.where(key >= 0, 0x7FFFFFFF - (key & 0x7FFFFFFF), -1).to(tl.int32)
    if p == 0:
        tl.store(top + bg * NTOP + place, candidate, mask=place < NTOP)
    # Blocks are dealt to shares in turn, the three forced ones first.
    first = (p + 3 * P - 3) % P
    offset = tl.arange(0, LSP)
    for i in tl.static_range(SLOTS // AT_ONCE):
        rank = first + (i * AT_ONCE + tl.arange(0, AT_ONCE)) * P
        mine = (place[:, None] == rank[None, :]) & (rank < NTOP)[None, :]
        block = tl.max(tl.where(mine, candidate[:, None], -1), 0)
        n = tl.reshape(block[:, None] * LS + offset[None, :], [AT_ONCE * LSP])
        ok = tl.reshape((block >= 0)[:, None] & (offset < LS)[None, :], [AT_ONCE * LSP])
        acc, m, total, _w = attend_rows(
            acc, m, total, q0, q1, k_sel, v_sel, (b * N + n) * G + g, ok, scale2, DK0, DK1, DV, PREC
        )  # fmt: skip
    return acc, m, total
