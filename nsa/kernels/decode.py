"""The parts of a decode step: append, compressed tokens and window, importance, chosen blocks, merge.

A decode step reads few keys from a long cache, so it is bound by latency and by how many processors take part. The
work of a batch row and group is shared by ``P`` programs; each part of the step is a function of the share ``p``, and
what one share needs from the others passes through memory between two parts. There are two ways to run the parts: the
kernels below are one launch each, and :mod:`nsa.kernels.resident` runs all of them in one launch whose programs wait
for each other.

A share takes a run of the compressed tokens with the selection blocks that begin there, a run of the window's ring, and
every ``P``-th of the ``NTOP + 3`` selected blocks. It leaves one partial result per branch: ``part_o [B*G, 3, P, HP,
DV]`` with its maximum and sum of weights ``[B*G, 3, P, HP]`` in float32, branches in the order of the gates; an empty
one has weight 0.

Lengths are read on the device: a captured graph can be replayed step after step, and the rows of a batch may be of
different length.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nsa.kernels.tiles import visible_count

__all__ = [
    "SEL",
    "append_kernel",
    "attend_tile",
    "chosen_kernel",
    "chosen_part",
    "compressed_part",
    "forced_part",
    "load_new",
    "load_part",
    "load_query",
    "load_tile",
    "merge_kernel",
    "merge_part",
    "score_kernel",
    "score_part",
    "split_kernel",
    "store_part",
    "store_raw",
    "store_row",
    "window_part",
    "window_rows",
]

# Branches, in the order of the gates.
CMP = tl.constexpr(0)
SEL = tl.constexpr(1)
WIN = tl.constexpr(2)


@triton.jit
def load_new(new, sb, b, g, DIM: tl.constexpr, DIMP: tl.constexpr):
    """The new key or value ``[DIMP]`` of a group, from ``new [B, 1, G, DIM]``."""
    c = tl.arange(0, DIMP)
    return tl.load(new + b * sb + g * DIM + c, mask=c < DIM, other=0.0)


@triton.jit
def store_row(x, cache, row, g, G: tl.constexpr, DIM: tl.constexpr, DIMP: tl.constexpr):
    """Store ``x [DIMP]`` at cache row ``row``, batch included."""
    c = tl.arange(0, DIMP)
    tl.store(cache + (row * G + g) * DIM + c, x.to(cache.dtype.element_ty), mask=c < DIM)


@triton.jit
def store_raw(
    x, raw, cmp, b, g, t, NC,
    G: tl.constexpr, L: tl.constexpr, D: tl.constexpr, LP: tl.constexpr, DIM: tl.constexpr, DIMP: tl.constexpr,
):  # fmt: skip
    """Store a raw key or value ``x [DIMP]`` in its ring, and the compressed token that becomes complete with it."""
    c = tl.arange(0, DIMP)
    i = (t + 1 - L) // D
    if (t + 1 >= L) & ((t + 1 - L) % D == 0) & (i < NC):
        # The ring holds the last L positions; the newest is added by hand, for its store is not waited for.
        slot = tl.arange(0, LP)
        kept = (slot < L) & (slot != t % L)
        ring = raw + ((b * L + slot) * G + g)[:, None] * DIM + c[None, :]
        old = tl.load(ring, mask=kept[:, None] & (c < DIM)[None, :], other=0.0).to(tl.float32)
        mean = (tl.sum(old, 0) + x.to(raw.dtype.element_ty).to(tl.float32)) / L
        tl.store(cmp + ((b * NC + i) * G + g) * DIM + c, mean.to(cmp.dtype.element_ty), mask=c < DIM)
    store_row(x, raw, b * L + t % L, g, G, DIM, DIMP)


@triton.jit(do_not_specialize=["N", "RW", "NC"])
def append_kernel(
    nk_raw, nv_raw, nk_sel, nv_sel, nk_win, nv_win, k_raw, v_raw, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, lengths,
    skr, svr, sks, svs, skw, svw, N, RW, NC,
    G: tl.constexpr, L: tl.constexpr, D: tl.constexpr, LP: tl.constexpr, DK: tl.constexpr, DKP: tl.constexpr,
    DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """Store one position per batch row in all caches, complete a compressed token where one is due, and count it in
    ``lengths [B, G]``, one per program, so that none changes what another reads. A full row stays as it is. Grid (B *
    G,)."""
    bg = tl.program_id(0)
    b = (bg // G).to(tl.int64)
    g = bg % G
    t = tl.load(lengths + bg)
    if t >= N:
        return
    tl.debug_barrier()
    store_raw(load_new(nk_raw, skr, b, g, DK, DKP), k_raw, k_cmp, b, g, t, NC, G, L, D, LP, DK, DKP)
    store_raw(load_new(nv_raw, svr, b, g, DV, DVP), v_raw, v_cmp, b, g, t, NC, G, L, D, LP, DV, DVP)
    store_row(load_new(nk_sel, sks, b, g, DK, DKP), k_sel, b * N + t, g, G, DK, DKP)
    store_row(load_new(nv_sel, svs, b, g, DV, DVP), v_sel, b * N + t, g, G, DV, DVP)
    store_row(load_new(nk_win, skw, b, g, DK, DKP), k_win, b * RW + t % RW, g, G, DK, DKP)
    store_row(load_new(nv_win, svw, b, g, DV, DVP), v_win, b * RW + t % RW, g, G, DV, DVP)
    tl.store(lengths + bg, t + 1)


@triton.jit
def load_query(q, b, g, sqb, sqh, HPG: tl.constexpr, HP: tl.constexpr, DK0: tl.constexpr, DK1: tl.constexpr):
    """The heads of a group, ``[HP, DK0]`` and ``[HP, DK1]``; idle rows are zero."""
    h = tl.arange(0, HP)
    row = q + b * sqb + (g * HPG + h)[:, None] * sqh
    ok = (h < HPG)[:, None]
    q0 = tl.load(row + tl.arange(0, DK0)[None, :], mask=ok, other=0.0)
    q1 = tl.load(row + DK0 + tl.arange(0, DK1)[None, :], mask=ok, other=0.0) if DK1 > 0 else q0
    return q0, q1


@triton.jit
def _nothing(HP: tl.constexpr, DV: tl.constexpr):
    return tl.zeros([HP, DV], tl.float32), tl.full([HP], -1e30, tl.float32), tl.zeros([HP], tl.float32)


@triton.jit
def load_tile(k, v, row, ok, DK0: tl.constexpr, DK1: tl.constexpr, DV: tl.constexpr):
    """Keys in two parts and values of the cache rows ``row [BN]`` where ``ok``."""
    k0 = tl.load(k + row[:, None] * (DK0 + DK1) + tl.arange(0, DK0)[None, :], mask=ok[:, None], other=0.0)
    vv = tl.load(v + row[:, None] * DV + tl.arange(0, DV)[None, :], mask=ok[:, None], other=0.0)
    if DK1 > 0:
        c1 = DK0 + tl.arange(0, DK1)
        k1 = tl.load(k + row[:, None] * (DK0 + DK1) + c1[None, :], mask=ok[:, None], other=0.0)
    else:
        k1 = k0
    return k0, k1, vv


@triton.jit
def _tile_scores(q0, q1, k0, k1, ok, scale2, hidden, DK1: tl.constexpr, PREC: tl.constexpr):
    """Scores ``[HP, BN]`` in base 2, ``hidden`` where not ``ok``."""
    if DK1 > 0:
        s = tl.dot(q1, tl.trans(k1), input_precision=PREC)
        s = tl.dot(q0, tl.trans(k0), s, input_precision=PREC)
    else:
        s = tl.dot(q0, tl.trans(k0), input_precision=PREC)
    return tl.where(ok[None, :], s * scale2, hidden)


@triton.jit
def attend_tile(acc, m, total, q0, q1, k0, k1, vv, ok, scale2, DK1: tl.constexpr, PREC: tl.constexpr):
    """Online softmax over one tile of keys where ``ok``; also returns the weights ``[HP, BN]``."""
    s = _tile_scores(q0, q1, k0, k1, ok, scale2, float("-inf"), DK1, PREC)
    m_new = tl.maximum(m, tl.max(s, 1))
    p = tl.math.exp2(s - m_new[:, None])
    alpha = tl.math.exp2(m - m_new)
    total = total * alpha + tl.sum(p, 1)
    acc = tl.dot(p.to(vv.dtype), vv, acc * alpha[:, None], input_precision=PREC)
    return acc, m_new, total, p


@triton.jit
def _step(
    acc, m, total, q0, q1, k, v, row, ok, scale2,
    DK0: tl.constexpr, DK1: tl.constexpr, DV: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Load a tile and attend to it; all loads stand before the first product, so that there is one wait for memory."""
    k0, k1, vv = load_tile(k, v, row, ok, DK0, DK1, DV)
    return attend_tile(acc, m, total, q0, q1, k0, k1, vv, ok, scale2, DK1, PREC)


@triton.jit
def _power(k):
    """2 to the ``k``, a whole number of at most 127, exactly; 0 below -126."""
    return ((tl.maximum(k, -127.0).to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _attend_in_powers(
    acc, unit, total, q0, q1, k, v, row, ok, scale2,
    DK0: tl.constexpr, DK1: tl.constexpr, DV: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """:func:`_step` with weights in units of 2 to the ``unit [HP]``, a whole number not below the largest score.

    A score's own power of two is split off before the unit's is, so the weights of equal scores in different units are
    the same number times a power of two, and so are their sums: equal scores stay equal across tiles and shares.
    """
    k0, k1, vv = load_tile(k, v, row, ok, DK0, DK1, DV)
    # A tile holds a visible token, so what is hidden is far below the unit.
    s = _tile_scores(q0, q1, k0, k1, ok, scale2, -1e30, DK1, PREC)
    new = tl.maximum(unit, tl.ceil(tl.max(s, 1)))
    whole = tl.floor(s)
    w = tl.math.exp2(s - whole) * _power(whole - new[:, None])
    alpha = _power(unit - new)
    total = total * alpha + tl.sum(w, 1)
    acc = tl.dot(w.to(vv.dtype), vv, acc * alpha[:, None], input_precision=PREC)
    return acc, new, total, w


@triton.jit
def store_part(
    part_o, part_m, part_l, bg, branch, p, acc, m, total, P: tl.constexpr, HP: tl.constexpr, DV: tl.constexpr
):
    """One share's partial result of one branch."""
    row = ((bg.to(tl.int64) * 3 + branch) * P + p) * HP + tl.arange(0, HP)
    tl.store(part_m + row, m)
    tl.store(part_l + row, total)
    tl.store(part_o + row[:, None] * DV + tl.arange(0, DV)[None, :], acc)


@triton.jit
def load_part(part_o, part_m, part_l, bg, branch, p, P: tl.constexpr, HP: tl.constexpr, DV: tl.constexpr):
    """What :func:`store_part` stored."""
    row = ((bg.to(tl.int64) * 3 + branch) * P + p) * HP + tl.arange(0, HP)
    acc = tl.load(part_o + row[:, None] * DV + tl.arange(0, DV)[None, :])
    return acc, tl.load(part_m + row), tl.load(part_l + row)


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
    acc, m, total = _nothing(HP, DV)
    for i in tl.range(first, last):
        n = (i * BJ + tl.arange(0, BN) // MP) * M + slot
        ok = (slot < M) & (n < n_seen)
        acc, m, total, w = _attend_in_powers(
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
    acc, m, total = _nothing(HP, DV)
    _row, ok = window_rows(b, g, p, t, 0, RW, G, WN, BW)
    acc, m, total, _w = attend_tile(acc, m, total, q0, q1, k0, k1, vv, ok, scale2, DK1, PREC)
    for i in tl.static_range(1, (WN + BW - 1) // BW):
        row, ok = window_rows(b, g, p, t, i, RW, G, WN, BW)
        acc, m, total, _w = _step(acc, m, total, q0, q1, k_win, v_win, row, ok, scale2, DK0, DK1, DV, PREC)
    store_part(part_o, part_m, part_l, bg, WIN, p, acc, m, total, P, HP, DV)


@triton.jit
def forced_part(
    q0, q1, k_sel, v_sel, b, g, p, t, N, scale2,
    G: tl.constexpr, HP: tl.constexpr, P: tl.constexpr, LS: tl.constexpr, LSP: tl.constexpr, DK0: tl.constexpr,
    DK1: tl.constexpr, DV: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """The share's forced blocks: of block 0, the newest block and the one before, every ``P``-th from ``p``."""
    acc, m, total = _nothing(HP, DV)
    own = t // LS
    offset = tl.arange(0, LSP)
    # Beyond the last forced block the range is empty: most shares have none.
    for forced in tl.range(p, tl.minimum(own + 1, 3), P):
        block = tl.where(forced == 0, 0, own + 1 - forced)
        n = block * LS + offset
        acc, m, total, _w = _step(
            acc, m, total, q0, q1, k_sel, v_sel, (b * N + n) * G + g, (offset < LS) & (n <= t), scale2,
            DK0, DK1, DV, PREC,
        )  # fmt: skip
    return acc, m, total


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
            score = own * rest * _power(own_unit - whole[:, None]) + carry * rest * _power(carry_unit - whole[:, None])
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
        acc, m, total, _w = _step(
            acc, m, total, q0, q1, k_sel, v_sel, (b * N + n) * G + g, ok, scale2, DK0, DK1, DV, PREC
        )  # fmt: skip
    return acc, m, total


@triton.jit
def merge_part(
    gates, part_o, part_m, part_l, o, b, g, bg, p,
    G: tl.constexpr, HPG: tl.constexpr, HP: tl.constexpr, P: tl.constexpr, MERGED: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """Merge the shares of every ``P``-th head from ``p`` and gate the branches: ``o [B, 1, H, DV]``; ``MERGED`` heads
    in one tile."""
    r = tl.arange(0, MERGED * 4 * P)
    branch = r // P % 4
    cv = tl.arange(0, DV)
    for i in tl.static_range((HPG + P * MERGED - 1) // (P * MERGED)):
        h = p + (i * MERGED + r // (4 * P)) * P
        ok = (branch < 3) & (h < HPG)
        row = ((bg.to(tl.int64) * 3 + branch) * P + r % P) * HP + h
        m = tl.load(part_m + row, mask=ok, other=-1e30)
        total = tl.load(part_l + row, mask=ok, other=0.0)
        gate = tl.load(gates + ((b * G + g) * HPG + h) * 3 + branch, mask=ok, other=0.0).to(tl.float32)
        x = tl.load(part_o + row[:, None] * DV + cv[None, :], mask=ok[:, None], other=0.0)
        m = tl.reshape(m, [MERGED * 4, P])
        weight = tl.math.exp2(m - tl.max(m, 1)[:, None])
        # A branch that sees nothing has sums of zero and stays zero.
        share = tl.maximum(tl.sum(weight * tl.reshape(total, [MERGED * 4, P]), 1), 1e-30)
        weight = tl.reshape(weight / share[:, None], [MERGED * 4 * P]) * gate
        out = tl.sum(tl.reshape(x * weight[:, None], [MERGED, 4 * P, DV]), 1)
        head = p + (i * MERGED + tl.arange(0, MERGED)) * P
        at = ((b * G + g) * HPG + head)[:, None] * DV + cv[None, :]
        tl.store(o + at, out.to(o.dtype.element_ty), mask=(head < HPG)[:, None])


@triton.jit(do_not_specialize=["N", "RW", "NC", "NT"])
def split_kernel(
    q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, lengths, part_o, part_m, part_l, importance, tile_m,
    sqb, sqh, N, RW, NC, NT, scale2,
    G: tl.constexpr, HPG: tl.constexpr, HP: tl.constexpr, P: tl.constexpr, L: tl.constexpr, D: tl.constexpr,
    LS: tl.constexpr, LSP: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, TILES: tl.constexpr, WN: tl.constexpr,
    BW: tl.constexpr, DK0: tl.constexpr, DK1: tl.constexpr, DV: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Everything that does not wait for the selection. Grid (B * G * P,), as for the kernels that follow."""
    bg = tl.program_id(0) // P
    p = tl.program_id(0) % P
    b = (bg // G).to(tl.int64)
    g = bg % G
    t = tl.load(lengths + bg) - 1
    q0, q1 = load_query(q, b, g, sqb, sqh, HPG, HP, DK0, DK1)
    compressed_part(
        q0, q1, k_cmp, v_cmp, importance, tile_m, part_o, part_m, part_l, b, g, bg, p, t, NC, NT, scale2,
        G, HPG, HP, P, L, D, LS, MP, BN, TILES, DK0, DK1, DV, PREC,
    )  # fmt: skip
    row, ok = window_rows(b, g, p, t, 0, RW, G, WN, BW)
    k0, k1, vv = load_tile(k_win, v_win, row, ok, DK0, DK1, DV)
    window_part(
        q0, q1, k0, k1, vv, k_win, v_win, part_o, part_m, part_l, b, g, bg, p, t, RW, scale2,
        G, HP, P, WN, BW, DK0, DK1, DV, PREC,
    )  # fmt: skip
    acc, m, total = forced_part(
        q0, q1, k_sel, v_sel, b, g, p, t, N, scale2, G, HP, P, LS, LSP, DK0, DK1, DV, PREC
    )  # fmt: skip
    store_part(part_o, part_m, part_l, bg, SEL, p, acc, m, total, P, HP, DV)


@triton.jit(do_not_specialize=["NT"])
def score_kernel(
    lengths, part_m, part_l, importance, tile_m, candidates, NT,
    HPG: tl.constexpr, HP: tl.constexpr, HR: tl.constexpr, P: tl.constexpr, LS: tl.constexpr, BJ: tl.constexpr,
    SB: tl.constexpr, RUNS: tl.constexpr, NTOPP: tl.constexpr,
):  # fmt: skip
    """:func:`score_part` as a launch."""
    bg = tl.program_id(0) // P
    t = tl.load(lengths + bg) - 1
    score_part(
        part_m, part_l, importance, tile_m, candidates, bg, tl.program_id(0) % P, t, NT,
        HPG, HP, HR, P, LS, BJ, SB, RUNS, NTOPP,
    )  # fmt: skip


@triton.jit(do_not_specialize=["N"])
def chosen_kernel(
    q, k_sel, v_sel, candidates, part_o, part_m, part_l, top, sqb, sqh, N, scale2,
    G: tl.constexpr, HPG: tl.constexpr, HP: tl.constexpr, P: tl.constexpr, RUNS: tl.constexpr, NTOP: tl.constexpr,
    NTOPP: tl.constexpr, SLOTS: tl.constexpr, AT_ONCE: tl.constexpr, LS: tl.constexpr, LSP: tl.constexpr,
    DK0: tl.constexpr, DK1: tl.constexpr, DV: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """:func:`chosen_part` as a launch, on top of the share's forced blocks."""
    bg = tl.program_id(0) // P
    p = tl.program_id(0) % P
    b = (bg // G).to(tl.int64)
    g = bg % G
    q0, q1 = load_query(q, b, g, sqb, sqh, HPG, HP, DK0, DK1)
    acc, m, total = load_part(part_o, part_m, part_l, bg, SEL, p, P, HP, DV)
    acc, m, total = chosen_part(
        acc, m, total, q0, q1, k_sel, v_sel, candidates, top, b, g, bg, p, N, scale2,
        G, P, RUNS, NTOP, NTOPP, SLOTS, AT_ONCE, LS, LSP, DK0, DK1, DV, PREC,
    )  # fmt: skip
    # A share's own partial result: every thread has read its values before any is replaced.
    tl.debug_barrier()
    store_part(part_o, part_m, part_l, bg, SEL, p, acc, m, total, P, HP, DV)


@triton.jit
def merge_kernel(
    gates, part_o, part_m, part_l, o,
    G: tl.constexpr, HPG: tl.constexpr, HP: tl.constexpr, P: tl.constexpr, MERGED: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """:func:`merge_part` as a launch."""
    bg = tl.program_id(0) // P
    p = tl.program_id(0) % P
    merge_part(gates, part_o, part_m, part_l, o, (bg // G).to(tl.int64), bg % G, bg, p, G, HPG, HP, P, MERGED, DV)
