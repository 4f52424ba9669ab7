"""Attention of a decode step's one query to tiles of cache rows, online softmax.

The ``HPG`` heads of a group are the rows of a tile, filled up to ``HP``. A branch begins with :func:`nothing_yet` of
:mod:`nsa.kernels.tiles`.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["attend_rows", "attend_rows_in_powers", "attend_tile", "load_query", "load_tile", "pow2"]


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
def attend_rows(
    acc, m, total, q0, q1, k, v, row, ok, scale2,
    DK0: tl.constexpr, DK1: tl.constexpr, DV: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Load a tile and attend to it; all loads stand before the first product, so that there is one wait for memory."""
    k0, k1, vv = load_tile(k, v, row, ok, DK0, DK1, DV)
    return attend_tile(acc, m, total, q0, q1, k0, k1, vv, ok, scale2, DK1, PREC)


@triton.jit
def pow2(k):
    """2 to the ``k``, a whole number of at most 127, exactly; 0 below -126."""
    return ((tl.maximum(k, -127.0).to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def attend_rows_in_powers(
    acc, unit, total, q0, q1, k, v, row, ok, scale2,
    DK0: tl.constexpr, DK1: tl.constexpr, DV: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """:func:`attend_rows` with weights in units of 2 to the ``unit [HP]``, a whole number not below the largest score.

    A score's own power of two is split off before the unit's is, so the weights of equal scores in different units are
    the same number times a power of two, and so are their sums: equal scores stay equal across tiles and shares.
    """
    k0, k1, vv = load_tile(k, v, row, ok, DK0, DK1, DV)
    # A tile holds a visible token, so what is hidden is far below the unit.
    s = _tile_scores(q0, q1, k0, k1, ok, scale2, -1e30, DK1, PREC)
    new = tl.maximum(unit, tl.ceil(tl.max(s, 1)))
    whole = tl.floor(s)
    w = tl.math.exp2(s - whole) * pow2(whole - new[:, None])
    alpha = pow2(unit - new)
    total = total * alpha + tl.sum(w, 1)
    acc = tl.dot(w.to(vv.dtype), vv, acc * alpha[:, None], input_precision=PREC)
    return acc, new, total, w
