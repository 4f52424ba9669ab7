"""One decode step: append the new position, look at what is fixed, score, look at what was chosen, merge.

A decode step reads few keys from a long cache, so it is bound by latency and by how many processors take part. Every
kernel here is spread over the chip and short. ``split_kernel`` takes everything that does not depend on the selection
(compressed tokens, window, forced blocks), ``score_kernel`` adds up the importance of the selection blocks, in
``chosen_kernel`` a program per rank finds its block and attends to it, and ``merge_kernel`` adds the partial results.

Lengths are read on the device: a captured graph can be replayed step after step, and the rows of a batch may be of
different length.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nsa.kernels.tiles import visible_count

__all__ = ["append_kernel", "chosen_kernel", "merge_kernel", "score_kernel", "split_kernel"]


@triton.jit
def _copy(new, cache, row_new, row_cache, DIM: tl.constexpr, DIMP: tl.constexpr):
    c = tl.arange(0, DIMP)
    x = tl.load(new + row_new + c, mask=c < DIM, other=0.0)
    tl.store(cache + row_cache + c, x.to(cache.dtype.element_ty), mask=c < DIM)


@triton.jit
def _append_pair(
    new_raw, raw, cmp, new_sel, sel, new_win, win, s_raw, s_sel, s_win, b, g, t, N, RW, NC,
    G: tl.constexpr, L: tl.constexpr, D: tl.constexpr, LP: tl.constexpr, DIM: tl.constexpr, DIMP: tl.constexpr,
):  # fmt: skip
    """Keys or values of one group. The new tensors are ``[B, 1, G, DIM]``, dense but for their batch strides."""
    c = tl.arange(0, DIMP)
    _copy(new_sel, sel, b * s_sel + g * DIM, ((b * N + t) * G + g) * DIM, DIM, DIMP)
    _copy(new_win, win, b * s_win + g * DIM, ((b * RW + t % RW) * G + g) * DIM, DIM, DIMP)
    x = tl.load(new_raw + b * s_raw + g * DIM + c, mask=c < DIM, other=0.0).to(raw.dtype.element_ty)
    i = (t + 1 - L) // D
    if (t + 1 >= L) & ((t + 1 - L) % D == 0) & (i < NC):
        # The ring holds the last L positions; the newest is added by hand, for its store is not waited for.
        slot = tl.arange(0, LP)
        kept = (slot < L) & (slot != t % L)
        ring = raw + ((b * L + slot) * G + g)[:, None] * DIM + c[None, :]
        old = tl.load(ring, mask=kept[:, None] & (c < DIM)[None, :], other=0.0).to(tl.float32)
        mean = (tl.sum(old, 0) + x.to(tl.float32)) / L
        tl.store(cmp + ((b * NC + i) * G + g) * DIM + c, mean.to(cmp.dtype.element_ty), mask=c < DIM)
    tl.store(raw + ((b * L + t % L) * G + g) * DIM + c, x, mask=c < DIM)


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
    _append_pair(
        nk_raw, k_raw, k_cmp, nk_sel, k_sel, nk_win, k_win, skr, sks, skw, b, g, t, N, RW, NC, G, L, D, LP, DK, DKP
    )  # fmt: skip
    _append_pair(
        nv_raw, v_raw, v_cmp, nv_sel, v_sel, nv_win, v_win, svr, svs, svw, b, g, t, N, RW, NC, G, L, D, LP, DV, DVP
    )  # fmt: skip
    tl.store(lengths + bg, t + 1)


@triton.jit
def _query(q, b, g, sqb, sqh, HPG: tl.constexpr, HP: tl.constexpr, DK0: tl.constexpr, DK1: tl.constexpr):
    h = tl.arange(0, HP)
    row = q + b * sqb + (g * HPG + h)[:, None] * sqh
    ok = (h < HPG)[:, None]
    q0 = tl.load(row + tl.arange(0, DK0)[None, :], mask=ok, other=0.0)
    q1 = tl.load(row + DK0 + tl.arange(0, DK1)[None, :], mask=ok, other=0.0) if DK1 > 0 else q0
    return q0, q1


@triton.jit
def _step(
    acc, m, total, q0, q1, k, v, row, ok, scale2,
    DK0: tl.constexpr, DK1: tl.constexpr, DV: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Online softmax over one tile of cache rows ``row [BN]`` where ``ok``; also returns the weights ``[HP, BN]``."""
    # All loads before the first product: one wait for memory instead of two.
    k0 = tl.load(k + row[:, None] * (DK0 + DK1) + tl.arange(0, DK0)[None, :], mask=ok[:, None], other=0.0)
    vv = tl.load(v + row[:, None] * DV + tl.arange(0, DV)[None, :], mask=ok[:, None], other=0.0)
    if DK1 > 0:
        c1 = DK0 + tl.arange(0, DK1)
        k1 = tl.load(k + row[:, None] * (DK0 + DK1) + c1[None, :], mask=ok[:, None], other=0.0)
        s = tl.dot(q1, tl.trans(k1), input_precision=PREC)
        s = tl.dot(q0, tl.trans(k0), s, input_precision=PREC)
    else:
        s = tl.dot(q0, tl.trans(k0), input_precision=PREC)
    s = tl.where(ok[None, :], s * scale2, float("-inf"))
    m_new = tl.maximum(m, tl.max(s, 1))
    p = tl.math.exp2(s - m_new[:, None])
    alpha = tl.math.exp2(m - m_new)
    total = total * alpha + tl.sum(p, 1)
    acc = tl.dot(p.to(vv.dtype), vv, acc * alpha[:, None], input_precision=PREC)
    return acc, m_new, total, p


@triton.jit
def _store_part(part_o, part_m, part_l, row0, acc, m, total, HP: tl.constexpr, DV: tl.constexpr):
    row = row0 * HP + tl.arange(0, HP)
    tl.store(part_m + row, m)
    tl.store(part_l + row, total)
    tl.store(part_o + row[:, None] * DV + tl.arange(0, DV)[None, :], acc)


@triton.jit(do_not_specialize=["N", "RW", "NC", "NT", "P_CMP", "P_WIN", "PARTS"])
def split_kernel(
    q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, lengths, part_o, part_m, part_l, importance, tile_m,
    sqb, sqh, N, RW, NC, NT, P_CMP, P_WIN, PARTS, scale2,
    G: tl.constexpr, HPG: tl.constexpr, HP: tl.constexpr, L: tl.constexpr, D: tl.constexpr, LS: tl.constexpr,
    LSP: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, TILES: tl.constexpr, DK0: tl.constexpr, DK1: tl.constexpr,
    DV: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Partial results of everything that does not wait for the selection. Grid (P_CMP + P_WIN + 3, B * G).

    Parts in order: ``P_CMP`` runs of ``TILES`` tiles of compressed tokens, ``P_WIN`` tiles of the window's ring, and
    block 0, the newest block and the one before. A part beyond the row's length is not written; its readers know which
    are. ``part_o [B*G, PARTS, HP, DV]`` and its maximum and sum of weights are float32; the parts behind these are
    ``chosen_kernel``'s. ``importance [B*G, 2, HPG, NT * BJ]``: what the compressed tokens that start in a selection
    block give to it and to the next one, in units of ``tile_m [B*G, HPG, NT]``, the maximum of their tile.
    """
    M: tl.constexpr = LS // D
    BJ: tl.constexpr = BN // MP
    part = tl.program_id(0)
    bg = tl.program_id(1)
    b = (bg // G).to(tl.int64)
    g = bg % G
    t = tl.load(lengths + bg) - 1
    q0, q1 = _query(q, b, g, sqb, sqh, HPG, HP, DK0, DK1)
    acc = tl.zeros([HP, DV], tl.float32)
    m = tl.full([HP], -1e30, tl.float32)
    total = tl.zeros([HP], tl.float32)
    row0 = bg.to(tl.int64) * PARTS + part
    if part < P_CMP:
        n_seen = visible_count(t, L, D)
        first = part * TILES
        last = tl.minimum(first + TILES, (n_seen + BJ * M - 1) // (BJ * M))
        slot = tl.arange(0, BN) % MP
        own_w = tl.where(slot < M, tl.minimum(L // D, M - slot), 0).to(tl.float32)
        carry_w = tl.where(slot < M, L // D, 0).to(tl.float32) - own_w
        h = tl.arange(0, HP)
        block = tl.arange(0, BJ)
        for i in tl.range(first, last):
            n = (i * BJ + tl.arange(0, BN) // MP) * M + slot
            ok = (slot < M) & (n < n_seen)
            acc, m, total, p = _step(
                acc, m, total, q0, q1, k_cmp, v_cmp, (b * NC + n) * G + g, ok, scale2, DK0, DK1, DV, PREC
            )  # fmt: skip
            own = tl.sum(tl.reshape(p * own_w[None, :], [HP, BJ, MP]), 2)
            carry = tl.sum(tl.reshape(p * carry_w[None, :], [HP, BJ, MP]), 2)
            at = ((bg.to(tl.int64) * 2 * HPG + h) * NT)[:, None] * BJ + i * BJ + block[None, :]
            tl.store(importance + at, own, mask=(h < HPG)[:, None])
            tl.store(importance + at + NT.to(tl.int64) * (HPG * BJ), carry, mask=(h < HPG)[:, None])
            tl.store(tile_m + (bg * HPG + h) * NT + i, m, mask=h < HPG)
        if first < last:
            _store_part(part_o, part_m, part_l, row0, acc, m, total, HP, DV)
    elif part < P_CMP + P_WIN:
        slots = (part - P_CMP) * BN + tl.arange(0, BN)
        held = tl.minimum(t + 1, RW)
        acc, m, total, _w = _step(
            acc, m, total, q0, q1, k_win, v_win, (b * RW + slots) * G + g, slots < held, scale2, DK0, DK1, DV, PREC
        )  # fmt: skip
        if (part - P_CMP) * BN < held:
            _store_part(part_o, part_m, part_l, row0, acc, m, total, HP, DV)
    else:
        forced = part - P_CMP - P_WIN
        block = tl.where(forced == 0, 0, tl.maximum(t // LS + 1 - forced, 0))
        offset = tl.arange(0, LSP)
        n = block * LS + offset
        acc, m, total, _s = _step(
            acc, m, total, q0, q1, k_sel, v_sel, (b * N + n) * G + g, (offset < LS) & (n <= t), scale2,
            DK0, DK1, DV, PREC,
        )  # fmt: skip
        if forced <= t // LS:
            _store_part(part_o, part_m, part_l, row0, acc, m, total, HP, DV)


@triton.jit(do_not_specialize=["NT", "P_CMP", "PARTS"])
def score_kernel(
    lengths, part_m, part_l, importance, tile_m, keys, NT, P_CMP, PARTS,
    G: tl.constexpr, HPG: tl.constexpr, HP: tl.constexpr, L: tl.constexpr, D: tl.constexpr, LS: tl.constexpr,
    MP: tl.constexpr, BN: tl.constexpr, TILES: tl.constexpr, PP: tl.constexpr, NBP: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """``keys [B*G, NBP]`` int64: a sortable key of each selection block, -1 for one that does not compete. Grid
    (NBP / BB, B * G)."""
    M: tl.constexpr = LS // D
    BJ: tl.constexpr = BN // MP
    bg = tl.program_id(1)
    t = tl.load(lengths + bg) - 1
    j = tl.program_id(0) * BB + tl.arange(0, BB)
    limit = t // LS - 1
    competes = (j >= 1) & (j < limit)
    mine = keys + bg.to(tl.int64) * NBP + j
    if tl.program_id(0) * BB >= limit:
        tl.store(mine, tl.full([BB], -1, tl.int64))
        return
    h = tl.arange(0, HP)
    c = tl.arange(0, PP)
    n_cmp = (visible_count(t, L, D) + BJ * M * TILES - 1) // (BJ * M * TILES)
    row = (bg.to(tl.int64) * PARTS + c)[:, None] * HP + h[None, :]
    m_c = tl.load(part_m + row, mask=(c < n_cmp)[:, None], other=-1e30)
    l_c = tl.load(part_l + row, mask=(c < n_cmp)[:, None], other=0.0)
    ok = (h < HPG)[:, None] & competes[None, :]
    at = ((bg.to(tl.int64) * 2 * HPG + h) * NT)[:, None] * BJ + j[None, :]
    own = tl.load(importance + at, mask=ok, other=0.0)
    carry = tl.load(importance + at + NT.to(tl.int64) * (HPG * BJ) - 1, mask=ok, other=0.0)
    max_at = ((bg * HPG + h) * NT)[:, None]
    own_unit = tl.load(tile_m + max_at + (j // BJ)[None, :], mask=ok, other=-1e30)
    carry_unit = tl.load(tile_m + max_at + (tl.maximum(j - 1, 0) // BJ)[None, :], mask=ok, other=-1e30)
    m = tl.max(m_c, 0)
    lse = m + tl.math.log2(tl.maximum(tl.sum(l_c * tl.math.exp2(m_c - m[None, :]), 0), 1e-30))
    score = own * tl.math.exp2(own_unit - lse[:, None]) + carry * tl.math.exp2(carry_unit - lse[:, None])
    # As in prefill: bits of a score that is never negative order like the number, and a tie goes to the lower block.
    bits = tl.sum(score, 0).to(tl.int32, bitcast=True).to(tl.int64)
    key = (bits << 32) | (0x7FFFFFFF - j).to(tl.int64)
    tl.store(mine, tl.where(competes, key, -1))


@triton.jit(do_not_specialize=["N", "FIRST", "PARTS"])
def chosen_kernel(
    q, k_sel, v_sel, lengths, keys, part_o, part_m, part_l, top, sqb, sqh, N, FIRST, PARTS, scale2,
    G: tl.constexpr, HPG: tl.constexpr, HP: tl.constexpr, NTOP: tl.constexpr, LS: tl.constexpr, LSP: tl.constexpr,
    NBP: tl.constexpr, DK0: tl.constexpr, DK1: tl.constexpr, DV: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Find the block of one rank, write it to ``top [B*G, NTOP]`` and attend to it: part ``FIRST + rank``. Grid
    (NTOP, B * G).

    Each program repeats the search up to its own rank: cheaper than a launch in between.
    """
    # The longest searches start first.
    rank = NTOP - 1 - tl.program_id(0)
    bg = tl.program_id(1)
    b = (bg // G).to(tl.int64)
    g = bg % G
    q0, q1 = _query(q, b, g, sqb, sqh, HPG, HP, DK0, DK1)
    key = tl.load(keys + bg.to(tl.int64) * NBP + tl.arange(0, NBP))
    best = tl.max(key, 0)
    for _ in range(rank):
        key = tl.where(key == best, -1, key)
        best = tl.max(key, 0)
    j = 0x7FFFFFFF - (best & 0x7FFFFFFF)
    tl.store(top + bg * NTOP + rank, tl.where(best >= 0, j, -1).to(tl.int32))
    if best < 0:
        return
    offset = tl.arange(0, LSP)
    at = (b * N + j * LS + offset) * G + g
    acc, m, total, _p = _step(
        tl.zeros([HP, DV], tl.float32), tl.full([HP], -1e30, tl.float32), tl.zeros([HP], tl.float32), q0, q1, k_sel,
        v_sel, at, offset < LS, scale2, DK0, DK1, DV, PREC,
    )  # fmt: skip
    _store_part(part_o, part_m, part_l, bg.to(tl.int64) * PARTS + FIRST + rank, acc, m, total, HP, DV)


@triton.jit(do_not_specialize=["RW", "P_CMP", "P_WIN", "PARTS"])
def merge_kernel(
    gates, lengths, part_o, part_m, part_l, o, RW, P_CMP, P_WIN, PARTS,
    G: tl.constexpr, HPG: tl.constexpr, HP: tl.constexpr, NTOP: tl.constexpr, L: tl.constexpr, D: tl.constexpr,
    LS: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, TILES: tl.constexpr, PARTSP: tl.constexpr,
    DV: tl.constexpr,
):  # fmt: skip
    """Merge the parts of one head and gate the branches: ``o [B, 1, H, DV]``. Grid (B * H,).

    All parts are one tile: a part's weight is its share of its branch, times the branch's gate.
    """
    M: tl.constexpr = LS // D
    BJ: tl.constexpr = BN // MP
    H: tl.constexpr = G * HPG
    bh = tl.program_id(0)
    bg = bh // H * G + bh % H // HPG
    t = tl.load(lengths + bg) - 1
    own = t // LS
    gp = gates + bh.to(tl.int64) * 3
    g_cmp, g_sel, g_win = tl.load(gp).to(tl.float32), tl.load(gp + 1).to(tl.float32), tl.load(gp + 2).to(tl.float32)
    n_cmp = (visible_count(t, L, D) + BJ * M * TILES - 1) // (BJ * M * TILES)
    n_win = (tl.minimum(t + 1, RW) + BN - 1) // BN
    # Block 0 is always there; the parts of the chosen blocks follow those of the three forced ones without a gap, or
    # are absent like the last of these.
    n_sel = tl.where(own < 3, own + 1, 3 + tl.minimum(own - 2, NTOP))
    c = tl.arange(0, PARTSP)
    in_cmp = c < n_cmp
    in_win = (c >= P_CMP) & (c < P_CMP + n_win)
    in_sel = (c >= P_CMP + P_WIN) & (c < P_CMP + P_WIN + n_sel) & (c < PARTS)
    ok = in_cmp | in_win | in_sel
    row = (bg.to(tl.int64) * PARTS + c) * HP + bh % HPG
    m = tl.load(part_m + row, mask=ok, other=-1e30)
    total = tl.load(part_l + row, mask=ok, other=0.0)
    x = tl.load(part_o + row[:, None] * DV + tl.arange(0, DV)[None, :], mask=ok[:, None], other=0.0)
    weight = tl.zeros([PARTSP], tl.float32)
    m_b = tl.where(in_cmp, m, -1e30)
    part = tl.where(in_cmp, tl.math.exp2(m_b - tl.max(m_b, 0)), 0.0)
    weight += part * (g_cmp / tl.maximum(tl.sum(part * total, 0), 1e-30))
    m_b = tl.where(in_win, m, -1e30)
    part = tl.where(in_win, tl.math.exp2(m_b - tl.max(m_b, 0)), 0.0)
    weight += part * (g_win / tl.sum(part * total, 0))
    m_b = tl.where(in_sel, m, -1e30)
    part = tl.where(in_sel, tl.math.exp2(m_b - tl.max(m_b, 0)), 0.0)
    weight += part * (g_sel / tl.sum(part * total, 0))
    out = tl.sum(x * weight[:, None], 0)
    tl.store(o + bh.to(tl.int64) * DV + tl.arange(0, DV), out.to(o.dtype.element_ty))
