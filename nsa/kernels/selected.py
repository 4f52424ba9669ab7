"""The scored blocks of the selected branch, block by block.

A program takes one block of keys and up to ``TT`` of the (token, slot) pairs that chose it, and gathers the
query rows. That moves each query row ``NTOP`` times instead of each block once per query: with 16 heads to a
group a third of the bytes. Scored blocks lie wholly before their queries, so nothing is masked but the end of a
list. Every pair writes its own partial result; the combining kernel (:mod:`nsa.kernels.forward`) and the query
gradient (:mod:`nsa.kernels.backward`) add them up in fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["gather_backward_kernel", "gather_kernel"]


@triton.jit(do_not_specialize=["bg0", "S", "NB", "NL", "N_PAIRS", "MAX_TILES"])
def gather_kernel(
    q,
    k,
    v,
    pairs,
    offsets,
    tile_offsets,
    tile_block,
    part_o,
    part_lse,
    sqb,
    sqs,
    sqh,
    skb,
    skn,
    skg,
    svb,
    svn,
    svg,
    bg0,
    S,
    NB,
    NL,
    N_PAIRS,
    MAX_TILES,
    scale2,
    G: tl.constexpr,
    HPG: tl.constexpr,
    NTOP: tl.constexpr,
    LS: tl.constexpr,
    LSP: tl.constexpr,
    TT: tl.constexpr,
    BE: tl.constexpr,
    DK0: tl.constexpr,
    DK1: tl.constexpr,
    DV: tl.constexpr,
    BM: tl.constexpr,
    PREC: tl.constexpr,
):
    """``part_o [n, N_PAIRS, HPG, DV]``, ``part_lse [n, N_PAIRS, HPG]`` for (batch, group) ``bg0 .. bg0 + n``. Grid
    (MAX_TILES, n)."""
    slab = tl.program_id(1)
    bg = bg0 + slab
    tile = tl.program_id(0)
    at = tl.load(tile_block + bg * MAX_TILES + tile)
    if at < 0:
        return
    j = at % NB
    b = (bg // G).to(tl.int64)
    g = bg % G
    first = tl.load(offsets + bg * (NL + 1) + at)
    end = tl.load(offsets + bg * (NL + 1) + at + 1)
    first += (tile - tl.load(tile_offsets + bg * (NL + 1) + at)) * TT
    end = tl.minimum(first + TT, end)
    r = tl.arange(0, BM)
    head = r % HPG
    n = tl.arange(0, LSP)
    n_ok = (n < LS)[:, None]
    c0 = tl.arange(0, DK0)
    cv = tl.arange(0, DV)
    kp = k + b * skb + g * skg + ((j * LS + n) * skn)[:, None]
    vp = v + b * svb + g * svg + ((j * LS + n) * svn)[:, None] + cv[None, :]
    k0 = tl.load(kp + c0[None, :], mask=n_ok, other=0.0)
    k1 = tl.load(kp + DK0 + tl.arange(0, DK1)[None, :], mask=n_ok, other=0.0) if DK1 > 0 else k0
    vv = tl.load(vp, mask=n_ok, other=0.0)
    qp = q + b * sqb + g * HPG * sqh
    list_bg = pairs + bg.to(tl.int64) * N_PAIRS
    slab64 = slab.to(tl.int64) * N_PAIRS
    for e0 in tl.range(first, end, BE):
        e = e0 + r // HPG
        ok = (r < BE * HPG) & (e < end)
        pair = tl.load(list_bg + e, mask=ok, other=0)
        qrow = qp + ((pair // NTOP).to(tl.int64) * sqs + head * sqh)[:, None]
        q0 = tl.load(qrow + c0[None, :], mask=ok[:, None], other=0.0)
        s = tl.dot(q0, tl.trans(k0), input_precision=PREC)
        if DK1 > 0:
            q1 = tl.load(qrow + DK0 + tl.arange(0, DK1)[None, :], mask=ok[:, None], other=0.0)
            s = tl.dot(q1, tl.trans(k1), s, input_precision=PREC)
        if LSP > LS:
            s = tl.where((n < LS)[None, :], s, float("-inf"))
        m = tl.max(s, 1) * scale2
        p = tl.math.exp2(s * scale2 - m[:, None])
        total = tl.sum(p, 1)
        out = tl.dot(p.to(vv.dtype), vv, input_precision=PREC) / total[:, None]
        row = (slab64 + pair) * HPG + head
        tl.store(part_lse + row, m + tl.math.log2(total), mask=ok)
        tl.store(part_o + row[:, None] * DV + cv[None, :], out.to(part_o.dtype.element_ty), mask=ok[:, None])


@triton.jit(do_not_specialize=["bg0", "S", "NB", "NL", "N_PAIRS", "MAX_TILES"])
def gather_backward_kernel(
    q,
    k,
    v,
    do,
    lse,
    gates,
    dgates,
    pairs,
    offsets,
    tile_offsets,
    tile_block,
    part_dq,
    part_dk,
    part_dv,
    sqb,
    sqs,
    sqh,
    skb,
    skn,
    skg,
    svb,
    svn,
    svg,
    bg0,
    S,
    NB,
    NL,
    N_PAIRS,
    MAX_TILES,
    scale2,
    H: tl.constexpr,
    G: tl.constexpr,
    HPG: tl.constexpr,
    NTOP: tl.constexpr,
    LS: tl.constexpr,
    LSP: tl.constexpr,
    TT: tl.constexpr,
    BE: tl.constexpr,
    DK0: tl.constexpr,
    DK1: tl.constexpr,
    DV: tl.constexpr,
    BM: tl.constexpr,
    PREC: tl.constexpr,
):
    """Five products per block and row tile, each operand read once.

    ``part_dq [n, N_PAIRS, HPG, DK]`` per pair (times the scale only when summed up), ``part_dk``/``part_dv [n,
    MAX_TILES, LS, .]`` per work tile, float32. ``dgates`` holds ``dO . o_branch``. Grid (MAX_TILES, n).
    """
    DK: tl.constexpr = DK0 + DK1
    slab = tl.program_id(1)
    bg = bg0 + slab
    tile = tl.program_id(0)
    at = tl.load(tile_block + bg * MAX_TILES + tile)
    if at < 0:
        return
    j = at % NB
    b = (bg // G).to(tl.int64)
    g = bg % G
    first = tl.load(offsets + bg * (NL + 1) + at)
    end = tl.load(offsets + bg * (NL + 1) + at + 1)
    first += (tile - tl.load(tile_offsets + bg * (NL + 1) + at)) * TT
    end = tl.minimum(first + TT, end)
    r = tl.arange(0, BM)
    head = r % HPG
    n = tl.arange(0, LSP)
    n_ok = (n < LS)[:, None]
    c0 = tl.arange(0, DK0)
    cv = tl.arange(0, DV)
    kp = k + b * skb + g * skg + ((j * LS + n) * skn)[:, None]
    vp = v + b * svb + g * svg + ((j * LS + n) * svn)[:, None] + cv[None, :]
    k0 = tl.load(kp + c0[None, :], mask=n_ok, other=0.0)
    k1 = tl.load(kp + DK0 + tl.arange(0, DK1)[None, :], mask=n_ok, other=0.0) if DK1 > 0 else k0
    vv = tl.load(vp, mask=n_ok, other=0.0)
    dk0 = tl.zeros([LSP, DK0], tl.float32)
    dk1 = tl.zeros([LSP, DK1], tl.float32) if DK1 > 0 else dk0
    dv = tl.zeros([LSP, DV], tl.float32)
    qp = q + b * sqb + g * HPG * sqh
    row_b = b * S * H + g * HPG
    list_bg = pairs + bg.to(tl.int64) * N_PAIRS
    slab64 = slab.to(tl.int64) * N_PAIRS
    for e0 in tl.range(first, end, BE):
        e = e0 + r // HPG
        ok = (r < BE * HPG) & (e < end)
        pair = tl.load(list_bg + e, mask=ok, other=0)
        t = (pair // NTOP).to(tl.int64)
        qrow = qp + (t * sqs + head * sqh)[:, None]
        row = row_b + t * H + head
        q0 = tl.load(qrow + c0[None, :], mask=ok[:, None], other=0.0)
        d_o = tl.load(do + row[:, None] * DV + cv[None, :], mask=ok[:, None], other=0.0)
        # Idle rows: +inf makes their probabilities, and with them every product, exactly zero.
        lse_r = tl.load(lse + row, mask=ok, other=float("inf"))
        gate = tl.load(gates + row * 3 + 1, mask=ok, other=0.0).to(tl.float32)
        delta = tl.load(dgates + row * 3 + 1, mask=ok, other=0.0)
        s = tl.dot(k0, tl.trans(q0), input_precision=PREC)
        if DK1 > 0:
            q1 = tl.load(qrow + DK0 + tl.arange(0, DK1)[None, :], mask=ok[:, None], other=0.0)
            s = tl.dot(k1, tl.trans(q1), s, input_precision=PREC)
        dp = tl.dot(vv, tl.trans(d_o), input_precision=PREC)
        p = tl.math.exp2(s * scale2 - lse_r[None, :]) * gate[None, :]
        if LSP > LS:
            p = tl.where(n_ok, p, 0.0)
        dv = tl.dot(p.to(d_o.dtype), d_o, dv, input_precision=PREC)
        ds = (p * (dp - delta[None, :])).to(q0.dtype)
        dk0 = tl.dot(ds, q0, dk0, input_precision=PREC)
        part_row = (slab64 + pair) * HPG + head
        dq_row = part_dq + part_row[:, None] * DK
        # The matrix unit wants 64 rows: with fewer query rows the product is taken the other way round.
        if BM < 64:
            dq0 = tl.trans(tl.dot(tl.trans(k0), ds, input_precision=PREC))
        else:
            dq0 = tl.dot(tl.trans(ds), k0, input_precision=PREC)
        tl.store(dq_row + c0[None, :], dq0.to(part_dq.dtype.element_ty), mask=ok[:, None])
        if DK1 > 0:
            dk1 = tl.dot(ds, q1, dk1, input_precision=PREC)
            if BM < 64:
                dq1 = tl.trans(tl.dot(tl.trans(k1), ds, input_precision=PREC))
            else:
                dq1 = tl.dot(tl.trans(ds), k1, input_precision=PREC)
            c1 = DK0 + tl.arange(0, DK1)
            tl.store(dq_row + c1[None, :], dq1.to(part_dq.dtype.element_ty), mask=ok[:, None])
    out_row = ((slab.to(tl.int64) * MAX_TILES + tile) * LS + n)[:, None]
    tl.store(part_dk + out_row * DK + c0[None, :], dk0, mask=n_ok)
    if DK1 > 0:
        tl.store(part_dk + out_row * DK + DK0 + tl.arange(0, DK1)[None, :], dk1, mask=n_ok)
    tl.store(part_dv + out_row * DV + cv[None, :], dv, mask=n_ok)
