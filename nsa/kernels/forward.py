"""Dense attention of packed row tiles: the compressed branch; then window and forced blocks, which also finish the
output.

Both kernels are FlashAttention-shaped: a tile of ``BM`` rows stays on chip while its keys stream past. They differ in
which keys a row sees (:mod:`nsa.kernels.tiles`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from nsa.kernels.tiles import CMP, FORCED, WIN, attend, nothing_yet

__all__ = ["combine_kernel", "compressed_kernel"]


@triton.jit(do_not_specialize=["S"])
def compressed_kernel(
    q,
    k,
    v,
    o,
    lse,
    sqb,
    sqs,
    sqh,
    skb,
    skn,
    skg,
    svb,
    svn,
    svg,
    S,
    scale2,
    H: tl.constexpr,
    G: tl.constexpr,
    HPG: tl.constexpr,
    BT: tl.constexpr,
    L: tl.constexpr,
    D: tl.constexpr,
    LS: tl.constexpr,
    W: tl.constexpr,
    DK0: tl.constexpr,
    DK1: tl.constexpr,
    DV: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    PREC: tl.constexpr,
):
    """``o [B, S, H, DV]`` and base-2 ``lse [B, S, H]`` over the visible compressed tokens. Grid (tiles, B * G)."""
    # Late tiles see the most keys: they go first, so that the last wave is made of short ones.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    bg = tl.program_id(1)
    b = (bg // G).to(tl.int64)
    g = bg % G
    r = tl.arange(0, BM)
    t0 = tile * BT
    t = t0 + r // HPG
    row_ok = (r < BT * HPG) & (t < S)
    t1 = tl.minimum(t0 + BT, S) - 1
    qp = q + b * sqb + t0.to(tl.int64) * sqs + ((r // HPG) * sqs + (g * HPG + r % HPG) * sqh)[:, None]
    q0 = tl.load(qp + tl.arange(0, DK0)[None, :], mask=row_ok[:, None], other=0.0)
    q1 = tl.load(qp + DK0 + tl.arange(0, DK1)[None, :], mask=row_ok[:, None], other=0.0) if DK1 > 0 else q0
    kp = k + b * skb + g * skg
    vp = v + b * svb + g * svg
    acc, m, total = nothing_yet(BM, DV)
    out, lse_rows = attend(
        acc, m, total, q0, q1, kp, vp, skn, svn, t, t0, t1, scale2, CMP, L, D, LS, W, DK0, DK1, DV, BM, BN, PREC
    )  # fmt: skip
    row0 = (b * S + t0) * H
    row = (r // HPG) * H + g * HPG + r % HPG
    tl.store(lse + row0 + row, lse_rows, mask=row_ok)
    op = o + row0 * DV + (row * DV)[:, None] + tl.arange(0, DV)[None, :]
    tl.store(op, out.to(o.dtype.element_ty), mask=row_ok[:, None])


@triton.jit
def _scored(
    part_o,
    part_lse,
    first_row,
    ok,
    n_used,
    HPG: tl.constexpr,
    NTOP: tl.constexpr,
    NTOPP: tl.constexpr,
    DV: tl.constexpr,
):
    """Scored blocks of a row tile, from their partial results: a state that :func:`attend` goes on from."""
    slots = tl.arange(0, NTOPP)
    used = ok[:, None] & (slots[None, :] < n_used[:, None])
    lse_rows = tl.load(part_lse + first_row[:, None] + slots[None, :] * HPG, mask=used, other=float("-inf"))
    m = tl.maximum(tl.max(lse_rows, 1), -1e30)
    total = tl.sum(tl.math.exp2(lse_rows - m[:, None]), 1)
    acc = tl.zeros([first_row.shape[0], DV], tl.float32)
    part = part_o + first_row[:, None] * DV + tl.arange(0, DV)[None, :]
    for slot in tl.static_range(NTOP):
        here = ok & (slot < n_used)
        weight = tl.math.exp2(tl.load(part_lse + first_row + slot * HPG, mask=here, other=float("-inf")) - m)
        acc += tl.load(part + slot * HPG * DV, mask=here[:, None], other=0.0).to(tl.float32) * weight[:, None]
    return acc, m, total


@triton.jit(do_not_specialize=["bg0", "S", "N_PAIRS"])
def combine_kernel(
    q, k_sel, v_sel, k_win, v_win, o_cmp, gates, part_o, part_lse, o, o_sel, o_win, lse_sel, lse_win,
    sqb, sqs, sqh, sksb, sksn, sksg, svsb, svsn, svsg, skwb, skwn, skwg, svwb, svwn, svwg, bg0, S, N_PAIRS, scale2,
    H: tl.constexpr, G: tl.constexpr, HPG: tl.constexpr, NTOP: tl.constexpr, NTOPP: tl.constexpr, BT: tl.constexpr,
    L: tl.constexpr, D: tl.constexpr, LS: tl.constexpr, W: tl.constexpr, DK0: tl.constexpr, DK1: tl.constexpr,
    DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SAVE: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Selected branch, window, and ``o [B, S, H, DV]``, the gated sum of all three. Grid (tiles, n) for (batch, group)
    ``bg0 .. bg0 + n``.

    The scored blocks arrive as partial results; the forced blocks are shared by neighbouring queries and are done
    densely on top of them. One kernel reads the partial results while other programs on the processor do products.
    ``SAVE``: also write what the backward pass needs, ``o_sel, o_win, lse_sel, lse_win``.
    """
    slab = tl.program_id(1)
    bg = bg0 + slab
    b = (bg // G).to(tl.int64)
    g = bg % G
    r = tl.arange(0, BM)
    head = r % HPG
    t0 = tl.program_id(0) * BT
    t = t0 + r // HPG
    row_ok = (r < BT * HPG) & (t < S)
    t1 = tl.minimum(t0 + BT, S) - 1
    if NTOP > 0:
        # A token's list is as long as there are blocks that compete for it; it need not be read to know that.
        n_used = tl.minimum(tl.maximum(t // LS - 2, 0), NTOP)
        first_row = (slab.to(tl.int64) * N_PAIRS + t.to(tl.int64) * NTOP) * HPG + head
        acc, m, total = _scored(part_o, part_lse, first_row, row_ok, n_used, HPG, NTOP, NTOPP, DV)
    else:
        acc, m, total = nothing_yet(BM, DV)
    qp = q + b * sqb + t0.to(tl.int64) * sqs + ((r // HPG) * sqs + (g * HPG + head) * sqh)[:, None]
    q0 = tl.load(qp + tl.arange(0, DK0)[None, :], mask=row_ok[:, None], other=0.0)
    q1 = tl.load(qp + DK0 + tl.arange(0, DK1)[None, :], mask=row_ok[:, None], other=0.0) if DK1 > 0 else q0
    row0 = (b * S + t0) * H
    row = (r // HPG) * H + g * HPG + head
    cols = (row * DV)[:, None] + tl.arange(0, DV)[None, :]
    kp = k_sel + b * sksb + g * sksg
    vp = v_sel + b * svsb + g * svsg
    out, lse_rows = attend(
        acc, m, total, q0, q1, kp, vp, sksn, svsn, t, t0, t1, scale2, FORCED, L, D, LS, W, DK0, DK1, DV, BM, BN, PREC
    )  # fmt: skip
    gp = gates + row0 * 3 + row * 3
    gate = tl.load(gp + 1, mask=row_ok, other=0.0).to(tl.float32)
    # Kept in the output's precision meanwhile: the registers are wanted for the window.
    mixed = (out * gate[:, None]).to(o.dtype.element_ty)
    if SAVE:
        tl.store(lse_sel + row0 + row, lse_rows, mask=row_ok)
        tl.store(o_sel + row0 * DV + cols, out.to(o_sel.dtype.element_ty), mask=row_ok[:, None])
    kp = k_win + b * skwb + g * skwg
    vp = v_win + b * svwb + g * svwg
    acc, m, total = nothing_yet(BM, DV)
    out, lse_rows = attend(
        acc, m, total, q0, q1, kp, vp, skwn, svwn, t, t0, t1, scale2, WIN, L, D, LS, W, DK0, DK1, DV, BM, BN, PREC
    )  # fmt: skip
    if SAVE:
        tl.store(lse_win + row0 + row, lse_rows, mask=row_ok)
        tl.store(o_win + row0 * DV + cols, out.to(o_win.dtype.element_ty), mask=row_ok[:, None])
    gate = tl.load(gp + 2, mask=row_ok, other=0.0).to(tl.float32)
    out = out * gate[:, None] + mixed.to(tl.float32)
    gate = tl.load(gp, mask=row_ok, other=0.0).to(tl.float32)
    out += gate[:, None] * tl.load(o_cmp + row0 * DV + cols, mask=row_ok[:, None], other=0.0).to(tl.float32)
    tl.store(o + row0 * DV + cols, out.to(o.dtype.element_ty), mask=row_ok[:, None])
