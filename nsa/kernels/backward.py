"""Gradients of the dense parts, and the sums that finish every gradient.

With ``delta_c = dO . o_c`` per branch, which is the gate's gradient as well, the score gradient of branch c is
``g_c p (dO.v - delta_c)``: no gated copy of dO is ever made. Queries collect from all three branches in one
kernel, so their gradient is written once. Nothing is added atomically; a sum over programs goes through partial
buffers that the next kernel reads in fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nsa.kernels.tiles import (
    CMP,
    FORCED,
    LOCAL,
    SINK,
    WIN,
    is_visible,
    key_ranges,
    tile_count,
    tile_start,
    token_ranges,
)

__all__ = ["delta_kernel", "dkv_kernel", "dq_kernel"]

FEW = tl.constexpr(16)  # a row that sees no more keys gets its delta from them, not from its rounded output


@triton.jit
def _from_few_keys(
    to, few, q0, q1, d_o, lse, t, k, v, sk, sv, scale2, MODE: tl.constexpr, L: tl.constexpr, D: tl.constexpr,
    LS: tl.constexpr, W: tl.constexpr, DK0: tl.constexpr, DK1: tl.constexpr, DV: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Write ``sum_n p_n dO.v_n`` of the rows that are ``few``: what they see is among the first ``FEW`` keys."""
    n = tl.arange(0, FEW)
    seen = is_visible(n[None, :], t[:, None], MODE, L, D, LS, W) & few[:, None]
    n_ok = tl.max(seen.to(tl.int32), 0) > 0
    c0 = tl.arange(0, DK0)
    k0 = tl.load(k + n[:, None] * sk + c0[None, :], mask=n_ok[:, None], other=0.0)
    vv = tl.load(v + n[:, None] * sv + tl.arange(0, DV)[None, :], mask=n_ok[:, None], other=0.0)
    s = tl.dot(q0, tl.trans(k0), input_precision=PREC)
    if DK1 > 0:
        k1 = tl.load(k + n[:, None] * sk + (DK0 + tl.arange(0, DK1))[None, :], mask=n_ok[:, None], other=0.0)
        s = tl.dot(q1, tl.trans(k1), s, input_precision=PREC)
    dp = tl.dot(d_o, tl.trans(vv), input_precision=PREC)
    p = tl.where(seen, tl.exp2(s * scale2 - tl.load(lse, mask=few, other=float("inf"))[:, None]), 0.0)
    tl.store(to, tl.sum(p * dp, 1), mask=few)


@triton.jit(do_not_specialize=["S"])
def delta_kernel(
    q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, do, o_cmp, o_sel, o_win, lse_cmp, lse_sel, lse_win, delta,
    sqb, sqs, sqh, skcb, skcn, skcg, svcb, svcn, svcg, sksb, sksn, sksg, svsb, svsn, svsg, skwb, skwn, skwg,
    svwb, svwn, svwg, S, scale2,
    H: tl.constexpr, G: tl.constexpr, HPG: tl.constexpr, L: tl.constexpr, D: tl.constexpr, LS: tl.constexpr,
    W: tl.constexpr, DK0: tl.constexpr, DK1: tl.constexpr, DV: tl.constexpr, BT: tl.constexpr, BM: tl.constexpr,
    PREC: tl.constexpr,
):  # fmt: skip
    """``delta [B, S, H, 3]`` float32: dO . o of each branch. Grid (tokens / BT, B * G).

    Score gradients of a row are products with dO.v - delta and add up to zero. With few keys these differences are
    small beside the rounding of o, and a gradient that comes from such rows alone (the compressed branch of a
    sequence that has two blocks) would be off by percents: there delta comes from the very weights that the score
    gradients use.
    """
    b = (tl.program_id(1) // G).to(tl.int64)
    g = tl.program_id(1) % G
    t0 = tl.program_id(0) * BT
    r = tl.arange(0, BM)
    t = t0 + r // HPG
    ok = (r < BT * HPG) & (t < S)
    row0 = (b * S + t0) * H
    row = (r // HPG) * H + g * HPG + r % HPG
    cols = (row * DV)[:, None] + tl.arange(0, DV)[None, :]
    d_o = tl.load(do + row0 * DV + cols, mask=ok[:, None], other=0.0)
    x_cmp = tl.load(o_cmp + row0 * DV + cols, mask=ok[:, None], other=0.0).to(tl.float32)
    x_sel = tl.load(o_sel + row0 * DV + cols, mask=ok[:, None], other=0.0).to(tl.float32)
    x_win = tl.load(o_win + row0 * DV + cols, mask=ok[:, None], other=0.0).to(tl.float32)
    few_cmp = ok & (t + 1 >= L) & (t + 1 < L + FEW * D)
    few_win = ok & (t < FEW)
    few_sel = few_win & (t < 3 * LS)  # later the first keys may not be seen
    out = delta + row0 * 3 + row * 3
    d_o32 = d_o.to(tl.float32)
    tl.store(out, tl.sum(d_o32 * x_cmp, 1), mask=ok & ~few_cmp)
    tl.store(out + 1, tl.sum(d_o32 * x_sel, 1), mask=ok & ~few_sel)
    tl.store(out + 2, tl.sum(d_o32 * x_win, 1), mask=ok & ~few_win)
    if t0 < tl.maximum(L - 1 + FEW * D, FEW):
        qp = q + b * sqb + t0.to(tl.int64) * sqs + ((r // HPG) * sqs + (g * HPG + r % HPG) * sqh)[:, None]
        q0 = tl.load(qp + tl.arange(0, DK0)[None, :], mask=ok[:, None], other=0.0)
        q1 = tl.load(qp + DK0 + tl.arange(0, DK1)[None, :], mask=ok[:, None], other=0.0) if DK1 > 0 else q0
        _from_few_keys(
            out, few_cmp, q0, q1, d_o, lse_cmp + row0 + row, t, k_cmp + b * skcb + g * skcg,
            v_cmp + b * svcb + g * svcg, skcn, svcn, scale2, CMP, L, D, LS, W, DK0, DK1, DV, PREC,
        )  # fmt: skip
        if t0 < FEW:
            _from_few_keys(
                out + 1, few_sel, q0, q1, d_o, lse_sel + row0 + row, t, k_sel + b * sksb + g * sksg,
                v_sel + b * svsb + g * svsg, sksn, svsn, scale2, FORCED, L, D, LS, W, DK0, DK1, DV, PREC,
            )  # fmt: skip
            _from_few_keys(
                out + 2, few_win, q0, q1, d_o, lse_win + row0 + row, t, k_win + b * skwb + g * skwg,
                v_win + b * svwb + g * svwg, skwn, svwn, scale2, WIN, L, D, LS, W, DK0, DK1, DV, PREC,
            )  # fmt: skip


@triton.jit
def _dq_step(
    acc0, acc1, q0, q1, d_o, lse, gate, delta, k, v, sk, sv, n, ok, n_ok, scale2,
    DK0: tl.constexpr, DK1: tl.constexpr, DV: tl.constexpr, MASKED: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    c0 = tl.arange(0, DK0)
    cv = tl.arange(0, DV)
    if MASKED:
        k0 = tl.load(k + n[:, None] * sk + c0[None, :], mask=n_ok[:, None], other=0.0)
        vv = tl.load(v + n[:, None] * sv + cv[None, :], mask=n_ok[:, None], other=0.0)
    else:
        k0 = tl.load(k + n[:, None] * sk + c0[None, :])
        vv = tl.load(v + n[:, None] * sv + cv[None, :])
    s = tl.dot(q0, tl.trans(k0), input_precision=PREC)
    if DK1 > 0:
        c1 = DK0 + tl.arange(0, DK1)
        if MASKED:
            k1 = tl.load(k + n[:, None] * sk + c1[None, :], mask=n_ok[:, None], other=0.0)
        else:
            k1 = tl.load(k + n[:, None] * sk + c1[None, :])
        s = tl.dot(q1, tl.trans(k1), s, input_precision=PREC)
    dp = tl.dot(d_o, tl.trans(vv), input_precision=PREC)
    p = tl.math.exp2(s * scale2 - lse[:, None])
    if MASKED:
        p = tl.where(ok, p, 0.0)
    ds = (p * gate[:, None] * (dp - delta[:, None])).to(k0.dtype)
    acc0 = tl.dot(ds, k0, acc0, input_precision=PREC)
    if DK1 > 0:
        acc1 = tl.dot(ds, k1, acc1, input_precision=PREC)
    return acc0, acc1


@triton.jit
def _dq_branch(
    acc0, acc1, q0, q1, d_o, lse, gate, delta, k, v, sk, sv, t, t0, t1, scale2,
    MODE: tl.constexpr, L: tl.constexpr, D: tl.constexpr, LS: tl.constexpr, W: tl.constexpr,
    DK0: tl.constexpr, DK1: tl.constexpr, DV: tl.constexpr, BN: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    sink, lo, flo, fhi, hi = key_ranges(t0, t1, MODE, L, D, LS, W, BN)
    for start in tl.range(flo, fhi, BN):
        n = start + tl.arange(0, BN)
        acc0, acc1 = _dq_step(
            acc0, acc1, q0, q1, d_o, lse, gate, delta, k, v, sk, sv, n, n, n, scale2, DK0, DK1, DV, False, PREC
        )  # fmt: skip
    for i in tl.range(0, tile_count(sink, lo, flo, fhi, hi, BN)):
        start, end = tile_start(i, sink, lo, flo, fhi, hi, BN)
        n = start + tl.arange(0, BN)
        ok = is_visible(n[None, :], t[:, None], MODE, L, D, LS, W) & (n < end)[None, :]
        acc0, acc1 = _dq_step(
            acc0, acc1, q0, q1, d_o, lse, gate, delta, k, v, sk, sv, n, ok, n < end, scale2, DK0, DK1, DV, True, PREC
        )  # fmt: skip
    return acc0, acc1


@triton.jit(do_not_specialize=["bg0", "S", "N_PAIRS"])
def dq_kernel(
    q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, do, lse_cmp, lse_sel, lse_win, gates, delta, part_dq, sums, dq,
    sqb, sqs, sqh, skcb, skcn, skcg, svcb, svcn, svcg, sksb, sksn, sksg, svsb, svsn, svsg, skwb, skwn, skwg,
    svwb, svwn, svwg, bg0, S, N_PAIRS, scale, scale2,
    H: tl.constexpr, G: tl.constexpr, HPG: tl.constexpr, NTOP: tl.constexpr, BT: tl.constexpr, L: tl.constexpr,
    D: tl.constexpr, LS: tl.constexpr, W: tl.constexpr, DK0: tl.constexpr, DK1: tl.constexpr, DV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, HAS_CMP: tl.constexpr, SUMS: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """``dq [B, S, H, DK]``: the scored blocks' partial sums, then compressed, window and forced keys. Grid
    (tiles, n). ``SUMS``: ``sums [n, S, HPG, DK]`` float32 hold what other kernels found."""
    DK: tl.constexpr = DK0 + DK1
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    slab = tl.program_id(1)
    bg = bg0 + slab
    b = (bg // G).to(tl.int64)
    g = bg % G
    r = tl.arange(0, BM)
    head = r % HPG
    t0 = tile * BT
    t = t0 + r // HPG
    row_ok = (r < BT * HPG) & (t < S)
    t1 = tl.minimum(t0 + BT, S) - 1
    c0 = tl.arange(0, DK0)
    acc0 = tl.zeros([BM, DK0], tl.float32)
    acc1 = tl.zeros([BM, DK1], tl.float32) if DK1 > 0 else acc0
    n_used = tl.minimum(tl.maximum(t // LS - 2, 0), NTOP)
    part = part_dq + ((slab.to(tl.int64) * N_PAIRS + t.to(tl.int64) * NTOP) * HPG + head)[:, None] * DK
    for slot in tl.static_range(NTOP):
        here = (row_ok & (slot < n_used))[:, None]
        acc0 += tl.load(part + slot * HPG * DK + c0[None, :], mask=here, other=0.0).to(tl.float32)
        if DK1 > 0:
            c1 = DK0 + tl.arange(0, DK1)
            acc1 += tl.load(part + slot * HPG * DK + c1[None, :], mask=here, other=0.0).to(tl.float32)
    qp = q + b * sqb + t0.to(tl.int64) * sqs + ((r // HPG) * sqs + (g * HPG + head) * sqh)[:, None]
    q0 = tl.load(qp + c0[None, :], mask=row_ok[:, None], other=0.0)
    q1 = tl.load(qp + DK0 + tl.arange(0, DK1)[None, :], mask=row_ok[:, None], other=0.0) if DK1 > 0 else q0
    row0 = (b * S + t0) * H
    row = (r // HPG) * H + g * HPG + head
    if SUMS:
        found = sums + (slab.to(tl.int64) * S + t0) * (HPG * DK) + (r * DK)[:, None]
        acc0 += tl.load(found + c0[None, :], mask=row_ok[:, None], other=0.0)
        if DK1 > 0:
            acc1 += tl.load(found + DK0 + tl.arange(0, DK1)[None, :], mask=row_ok[:, None], other=0.0)
    d_o = tl.load(do + row0 * DV + (row * DV)[:, None] + tl.arange(0, DV)[None, :], mask=row_ok[:, None], other=0.0)
    gp = gates + row0 * 3 + row * 3
    dp = delta + row0 * 3 + row * 3
    if HAS_CMP:
        lse = tl.load(lse_cmp + row0 + row, mask=row_ok, other=float("inf"))
        gate = tl.load(gp, mask=row_ok, other=0.0).to(tl.float32)
        dl = tl.load(dp, mask=row_ok, other=0.0)
        acc0, acc1 = _dq_branch(
            acc0, acc1, q0, q1, d_o, lse, gate, dl, k_cmp + b * skcb + g * skcg, v_cmp + b * svcb + g * svcg,
            skcn, svcn, t, t0, t1, scale2, CMP, L, D, LS, W, DK0, DK1, DV, BN, PREC,
        )  # fmt: skip
    lse = tl.load(lse_win + row0 + row, mask=row_ok, other=float("inf"))
    gate = tl.load(gp + 2, mask=row_ok, other=0.0).to(tl.float32)
    dl = tl.load(dp + 2, mask=row_ok, other=0.0)
    acc0, acc1 = _dq_branch(
        acc0, acc1, q0, q1, d_o, lse, gate, dl, k_win + b * skwb + g * skwg, v_win + b * svwb + g * svwg,
        skwn, svwn, t, t0, t1, scale2, WIN, L, D, LS, W, DK0, DK1, DV, BN, PREC,
    )  # fmt: skip
    lse = tl.load(lse_sel + row0 + row, mask=row_ok, other=float("inf"))
    gate = tl.load(gp + 1, mask=row_ok, other=0.0).to(tl.float32)
    dl = tl.load(dp + 1, mask=row_ok, other=0.0)
    acc0, acc1 = _dq_branch(
        acc0, acc1, q0, q1, d_o, lse, gate, dl, k_sel + b * sksb + g * sksg, v_sel + b * svsb + g * svsg,
        sksn, svsn, t, t0, t1, scale2, FORCED, L, D, LS, W, DK0, DK1, DV, BN, PREC,
    )  # fmt: skip
    out = dq + row0 * DK + (row * DK)[:, None]
    tl.store(out + c0[None, :], (acc0 * scale).to(dq.dtype.element_ty), mask=row_ok[:, None])
    if DK1 > 0:
        c1 = DK0 + tl.arange(0, DK1)
        tl.store(out + c1[None, :], (acc1 * scale).to(dq.dtype.element_ty), mask=row_ok[:, None])


@triton.jit
def _dkv_step(
    dk0, dk1, dv, k0, k1, vv, q, do, lse, gates, delta, sqs, tok0, end, n, n_ok, row_in, r_t, q_off, row_off,
    zero64, scale2,
    H: tl.constexpr, MODE: tl.constexpr, L: tl.constexpr, D: tl.constexpr, LS: tl.constexpr, W: tl.constexpr,
    DK0: tl.constexpr, DK1: tl.constexpr, DV: tl.constexpr, MASKED: tl.constexpr, FULL: tl.constexpr,
    PREC: tl.constexpr,
):  # fmt: skip
    """One row tile, transposed: keys down, rows across, so that both products with the rows take them as stored."""
    t = tok0 + r_t
    # 64-bit arithmetic stays scalar; the vectors hold 32-bit offsets that do not change from tile to tile.
    qp = q + (zero64 + tok0) * sqs + q_off[:, None]
    row0 = (zero64 + tok0) * H
    dop = do + row0 * DV + (row_off * DV)[:, None] + tl.arange(0, DV)[None, :]
    lsep = lse + row0 + row_off
    gatep = gates + row0 * 3 + row_off * 3
    dlp = delta + row0 * 3 + row_off * 3
    c0 = tl.arange(0, DK0)
    if MASKED or not FULL:
        ok = row_in & (t < end)
        q0 = tl.load(qp + c0[None, :], mask=ok[:, None], other=0.0)
        d_o = tl.load(dop, mask=ok[:, None], other=0.0)
        # Idle rows: +inf makes their probabilities, and with them every product, exactly zero.
        lse_r = tl.load(lsep, mask=ok, other=float("inf"))
        gate = tl.load(gatep, mask=ok, other=0.0).to(tl.float32)
        dl = tl.load(dlp, mask=ok, other=0.0)
    else:
        q0 = tl.load(qp + c0[None, :])
        d_o = tl.load(dop)
        lse_r = tl.load(lsep)
        gate = tl.load(gatep).to(tl.float32)
        dl = tl.load(dlp)
    s = tl.dot(k0, tl.trans(q0), input_precision=PREC)
    if DK1 > 0:
        c1 = DK0 + tl.arange(0, DK1)
        if MASKED or not FULL:
            q1 = tl.load(qp + c1[None, :], mask=ok[:, None], other=0.0)
        else:
            q1 = tl.load(qp + c1[None, :])
        s = tl.dot(k1, tl.trans(q1), s, input_precision=PREC)
    dp = tl.dot(vv, tl.trans(d_o), input_precision=PREC)
    p = tl.math.exp2(s * scale2 - lse_r[None, :])
    if MASKED:
        seen = is_visible(n[:, None], t[None, :], MODE, L, D, LS, W) & n_ok[:, None]
        p = tl.where(seen, p, 0.0)
    p = p * gate[None, :]
    dv = tl.dot(p.to(d_o.dtype), d_o, dv, input_precision=PREC)
    ds = (p * (dp - dl[None, :])).to(q0.dtype)
    dk0 = tl.dot(ds, q0, dk0, input_precision=PREC)
    if DK1 > 0:
        dk1 = tl.dot(ds, q1, dk1, input_precision=PREC)
    return dk0, dk1, dv


@triton.jit(do_not_specialize=["bg0", "S", "N", "BG", "NB", "NL", "MAX_TILES", "CHUNK", "n_chunks", "sink_chunks"])
def dkv_kernel(
    q, k, v, do, lse, gates, delta, dk, dv, part_dk, part_dv, sink_dk, sink_dv, tile_offsets,
    sqb, sqs, sqh, skb, skn, skg, svb, svn, svg, bg0, S, N, BG, NB, NL, MAX_TILES, CHUNK, n_chunks,
    sink_chunks,
    scale, scale2,
    H: tl.constexpr, G: tl.constexpr, HPG: tl.constexpr, BT: tl.constexpr, L: tl.constexpr, D: tl.constexpr,
    LS: tl.constexpr, W: tl.constexpr, DK0: tl.constexpr, DK1: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, STEP: tl.constexpr, MODE: tl.constexpr, BRANCH: tl.constexpr, PARTS: tl.constexpr,
    PREC: tl.constexpr,
):  # fmt: skip
    """Gradients of ``STEP`` keys (a tile of ``BN`` rows) from the dense rows that see them. Grid (key tiles, n,
    chunks).

    ``CMP`` and ``SINK`` write float32 partial sums ``dk [n_chunks, BG, N, DK]``, one per ``CHUNK`` of queries
    (``SINK``: only key tile 0). ``WIN`` writes ``dk [B, N, G, DK]``. ``LOCAL`` does so too, after adding what
    the gathered rows and the sink left for its block (``STEP = LS``): ``part_*`` by work tile if ``PARTS`` is 1, summed
    up ``[n, N, .]`` if it is 2.
    """
    DK: tl.constexpr = DK0 + DK1
    tile = tl.program_id(0)
    bg = bg0 + tl.program_id(1)
    chunk = tl.program_id(2)
    b = (bg // G).to(tl.int64)
    g = bg % G
    n0 = tile * STEP
    n1 = tl.minimum(n0 + STEP, N) - 1
    if MODE == CMP:  # noqa: SIM102 - the outer test is compiled away
        # Nobody in this chunk sees the first key; the sum over chunks knows that and does not read it.
        if (chunk + 1) * CHUNK <= n0 * D + L - 1:
            return
    i = tl.arange(0, BN)
    n = n0 + i
    n_ok = n <= n1
    c0 = tl.arange(0, DK0)
    cv = tl.arange(0, DV)
    kp = k + b * skb + g * skg + (n.to(tl.int64) * skn)[:, None]
    vp = v + b * svb + g * svg + (n.to(tl.int64) * svn)[:, None]
    k0 = tl.load(kp + c0[None, :], mask=n_ok[:, None], other=0.0)
    k1 = tl.load(kp + DK0 + tl.arange(0, DK1)[None, :], mask=n_ok[:, None], other=0.0) if DK1 > 0 else k0
    vv = tl.load(vp + cv[None, :], mask=n_ok[:, None], other=0.0)
    dk0 = tl.zeros([BN, DK0], tl.float32)
    dk1 = tl.zeros([BN, DK1], tl.float32) if DK1 > 0 else dk0
    dvv = tl.zeros([BN, DV], tl.float32)
    r = tl.arange(0, BM)
    row_in = r < BT * HPG
    r_t = r // HPG
    q_off = r_t * sqs + r % HPG * sqh
    row_off = r_t * H + r % HPG
    row_b = b * S * H + g * HPG
    dop = do + row_b * DV
    lsep = lse + row_b
    qp = q + b * sqb + g * HPG * sqh
    gp = gates + row_b * 3 + BRANCH
    dp = delta + row_b * 3 + BRANCH
    if MODE == CMP or MODE == SINK:  # noqa: SIM109
        lo, flo, fhi, hi = token_ranges(
            n0, n1, chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, S), MODE, L, D, LS, W, BT
        )  # fmt: skip
    else:
        lo, flo, fhi, hi = token_ranges(n0, n1, n0, S, MODE, L, D, LS, W, BT)
    FULL: tl.constexpr = BT * HPG == BM
    for tok0 in tl.range(flo, fhi, BT):
        dk0, dk1, dvv = _dkv_step(
            dk0, dk1, dvv, k0, k1, vv, qp, dop, lsep, gp, dp, sqs, tok0, fhi, n, n_ok, row_in, r_t, q_off, row_off,
            b * 0, scale2, H, MODE, L, D, LS, W, DK0, DK1, DV, False, FULL, PREC,
        )  # fmt: skip
    for step in tl.range(0, tile_count(0, lo, flo, fhi, hi, BT)):
        tok0, end = tile_start(step, 0, lo, flo, fhi, hi, BT)
        dk0, dk1, dvv = _dkv_step(
            dk0, dk1, dvv, k0, k1, vv, qp, dop, lsep, gp, dp, sqs, tok0, end, n, n_ok, row_in, r_t, q_off, row_off,
            b * 0, scale2, H, MODE, L, D, LS, W, DK0, DK1, DV, True, FULL, PREC,
        )  # fmt: skip
    if MODE == CMP or MODE == SINK:  # noqa: SIM109
        out = ((chunk * BG + bg).to(tl.int64) * N + n)[:, None]
    else:
        out = ((b * N + n) * G + g)[:, None]
    if PARTS == 1:
        for at_list in range(tile, NL, NB):
            first = tl.load(tile_offsets + bg * (NL + 1) + at_list)
            last = tl.load(tile_offsets + bg * (NL + 1) + at_list + 1)
            for work in range(first, last):
                at = ((tl.program_id(1).to(tl.int64) * MAX_TILES + work) * LS + i)[:, None]
                dk0 += tl.load(part_dk + at * DK + c0[None, :], mask=n_ok[:, None], other=0.0)
                if DK1 > 0:
                    c1 = DK0 + tl.arange(0, DK1)
                    dk1 += tl.load(part_dk + at * DK + c1[None, :], mask=n_ok[:, None], other=0.0)
                dvv += tl.load(part_dv + at * DV + cv[None, :], mask=n_ok[:, None], other=0.0)
    if PARTS == 2:
        at = (tl.program_id(1).to(tl.int64) * N + n)[:, None]
        dk0 += tl.load(part_dk + at * DK + c0[None, :], mask=n_ok[:, None], other=0.0)
        if DK1 > 0:
            c1 = DK0 + tl.arange(0, DK1)
            dk1 += tl.load(part_dk + at * DK + c1[None, :], mask=n_ok[:, None], other=0.0)
        dvv += tl.load(part_dv + at * DV + cv[None, :], mask=n_ok[:, None], other=0.0)
    dk0 *= scale
    dk1 *= scale
    if MODE == LOCAL:  # noqa: SIM102 - the outer test is compiled away
        if tile == 0:
            for c in range(0, sink_chunks):
                at = ((c * BG + bg).to(tl.int64) * LS + i)[:, None]
                dk0 += tl.load(sink_dk + at * DK + c0[None, :], mask=n_ok[:, None], other=0.0)
                if DK1 > 0:
                    c1 = DK0 + tl.arange(0, DK1)
                    dk1 += tl.load(sink_dk + at * DK + c1[None, :], mask=n_ok[:, None], other=0.0)
                dvv += tl.load(sink_dv + at * DV + cv[None, :], mask=n_ok[:, None], other=0.0)
    tl.store(dk + out * DK + c0[None, :], dk0.to(dk.dtype.element_ty), mask=n_ok[:, None])
    if DK1 > 0:
        tl.store(dk + out * DK + DK0 + tl.arange(0, DK1)[None, :], dk1.to(dk.dtype.element_ty), mask=n_ok[:, None])
    tl.store(dv + out * DV + cv[None, :], dvv.to(dv.dtype.element_ty), mask=n_ok[:, None])
