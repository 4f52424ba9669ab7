"""Device helpers shared by all kernels: which keys a query sees, and in which ranges a tile must mask.

A *row* is one query head of one token. A tile holds the ``HPG`` heads of ``BT`` consecutive tokens of one
group, packed into ``BM`` rows, so that small groups still fill the matrix units and neighbouring rows share
keys. When ``HPG`` does not divide ``BM`` the last few rows are idle.

Head dimensions that are no power of two (192) travel as two parts, ``DK0 + DK1``.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "CMP",
    "WIN",
    "FORCED",
    "LOCAL",
    "SINK",
    "attend",
    "is_visible",
    "key_ranges",
    "nothing_yet",
    "tile_count",
    "tile_start",
    "token_ranges",
    "visible_count",
]

# Who sees what. FORCED is the union of LOCAL (own block and the one before) and SINK (block 0).
CMP = tl.constexpr(0)
WIN = tl.constexpr(1)
FORCED = tl.constexpr(2)
LOCAL = tl.constexpr(3)
SINK = tl.constexpr(4)


@triton.jit
def visible_count(t, L: tl.constexpr, D: tl.constexpr):
    """Compressed blocks that lie entirely at or before position ``t``."""
    return tl.where(t + 1 >= L, (t + 1 - L) // D + 1, 0)


@triton.jit
def is_visible(n, t, MODE: tl.constexpr, L: tl.constexpr, D: tl.constexpr, LS: tl.constexpr, W: tl.constexpr):
    """Whether the query at ``t`` sees key ``n``; ``n`` and ``t`` broadcast against each other."""
    if MODE == CMP:
        ok = n * D + L <= t + 1
    elif MODE == WIN:
        ok = (n <= t) & (n > t - W)
    elif MODE == SINK:
        ok = (n < LS) & (t >= 2 * LS)
    else:
        near = n // LS >= t // LS - 1
        if MODE == FORCED:
            near = near | (n < LS)
        ok = (n <= t) & near
    return ok


@triton.jit
def key_ranges(
    t0,
    t1,
    MODE: tl.constexpr,
    L: tl.constexpr,
    D: tl.constexpr,
    LS: tl.constexpr,
    W: tl.constexpr,
    BN: tl.constexpr,
):
    """Keys that tokens ``t0..t1`` see: ``[0, sink)`` masked, ``[lo, flo)`` masked, ``[flo, fhi)`` seen by all,
    ``[fhi, hi)`` masked. ``fhi - flo`` is a multiple of ``BN``."""
    sink = t0 * 0
    if MODE == CMP:
        lo = t0 * 0
        full_lo = t0 * 0
        hi = visible_count(t1, L, D)
        full_hi = visible_count(t0, L, D)
    elif MODE == WIN:
        lo = tl.maximum(t0 - W + 1, 0)
        full_lo = tl.maximum(t1 - W + 1, 0)
        hi = t1 + 1
        full_hi = t0 + 1
    else:
        lo = tl.maximum(t0 // LS - 1, 0) * LS
        full_lo = tl.maximum(t1 // LS - 1, 0) * LS
        hi = t1 + 1
        full_hi = t0 + 1
        if MODE == FORCED:
            sink = tl.minimum(lo, LS)
    full_lo = tl.minimum(full_lo, hi)
    flo = lo + (full_lo - lo + BN - 1) // BN * BN
    fhi = flo + tl.maximum(full_hi - flo, 0) // BN * BN
    return sink, lo, flo, fhi, hi


@triton.jit
def token_ranges(
    n0,
    n1,
    first,
    last,
    MODE: tl.constexpr,
    L: tl.constexpr,
    D: tl.constexpr,
    LS: tl.constexpr,
    W: tl.constexpr,
    BT: tl.constexpr,
):
    """Tokens in ``[first, last)`` that see keys ``n0..n1``: ``[lo, flo)`` masked, ``[flo, fhi)`` see all of them,
    ``[fhi, hi)`` masked. ``fhi - flo`` is a multiple of ``BT``."""
    if MODE == CMP:
        lo = n0 * D + L - 1
        full_lo = n1 * D + L - 1
        hi = last
        full_hi = last
    elif MODE == WIN:
        lo = n0
        full_lo = n1
        hi = n1 + W
        full_hi = n0 + W
    elif MODE == LOCAL:
        lo = n0
        full_lo = n1
        hi = (n1 // LS + 2) * LS
        full_hi = (n0 // LS + 2) * LS
    else:
        lo = n0 * 0 + 2 * LS
        full_lo = lo
        hi = last
        full_hi = last
    lo = tl.maximum(lo, first)
    hi = tl.maximum(tl.minimum(hi, last), lo)
    full_hi = tl.minimum(full_hi, last)
    full_lo = tl.minimum(tl.maximum(full_lo, lo), hi)
    flo = lo + (full_lo - lo + BT - 1) // BT * BT
    fhi = flo + tl.maximum(full_hi - flo, 0) // BT * BT
    return lo, flo, fhi, hi


@triton.jit
def tile_start(i, sink, lo, flo, fhi, hi, BN: tl.constexpr):
    """Start and end of the ``i``-th masked tile of :func:`key_ranges` (or, with ``sink = 0``,
    :func:`token_ranges`)."""
    n1 = (sink + BN - 1) // BN
    n2 = (flo - lo) // BN
    start = tl.where(i < n1, i * BN, tl.where(i < n1 + n2, lo + (i - n1) * BN, fhi + (i - n1 - n2) * BN))
    end = tl.where(i < n1, sink, tl.where(i < n1 + n2, tl.minimum(flo, hi), hi))
    return start, end


@triton.jit
def tile_count(sink, lo, flo, fhi, hi, BN: tl.constexpr):
    """How many masked tiles there are."""
    return (sink + BN - 1) // BN + (flo - lo) // BN + (tl.maximum(hi - fhi, 0) + BN - 1) // BN


@triton.jit
def _softmax_step(
    acc,
    m,
    total,
    q0,
    q1,
    k,
    v,
    sk,
    sv,
    n,
    ok,
    n_ok,
    scale2,
    DK0: tl.constexpr,
    DK1: tl.constexpr,
    DV: tl.constexpr,
    MASKED: tl.constexpr,
    PREC: tl.constexpr,
):
    c0 = tl.arange(0, DK0)
    cv = tl.arange(0, DV)
    if MASKED:
        k0 = tl.load(k + n[:, None] * sk + c0[None, :], mask=n_ok[:, None], other=0.0)
    else:
        k0 = tl.load(k + n[:, None] * sk + c0[None, :])
    s = tl.dot(q0, tl.trans(k0), input_precision=PREC)
    if DK1 > 0:
        c1 = DK0 + tl.arange(0, DK1)
        if MASKED:
            k1 = tl.load(k + n[:, None] * sk + c1[None, :], mask=n_ok[:, None], other=0.0)
        else:
            k1 = tl.load(k + n[:, None] * sk + c1[None, :])
        s = tl.dot(q1, tl.trans(k1), s, input_precision=PREC)
    if MASKED:
        vv = tl.load(v + n[:, None] * sv + cv[None, :], mask=n_ok[:, None], other=0.0)
        s = tl.where(ok, s, float("-inf"))
    else:
        vv = tl.load(v + n[:, None] * sv + cv[None, :])
    m_new = tl.maximum(m, tl.max(s, 1) * scale2)
    p = tl.math.exp2(s * scale2 - m_new[:, None])
    alpha = tl.math.exp2(m - m_new)
    total = total * alpha + tl.sum(p, 1)
    acc = tl.dot(p.to(vv.dtype), vv, acc * alpha[:, None], input_precision=PREC)
    return acc, m_new, total


@triton.jit
def nothing_yet(BM: tl.constexpr, DV: tl.constexpr):
    """State of :func:`attend` before the first key: sum of values, maximum, sum of weights."""
    # A finite floor instead of -inf: a tile in which a row sees nothing then adds exactly zero, without NaN.
    return tl.zeros([BM, DV], tl.float32), tl.full([BM], -1e30, tl.float32), tl.zeros([BM], tl.float32)


@triton.jit
def attend(
    acc,
    m,
    total,
    q0,
    q1,
    k,
    v,
    sk,
    sv,
    t,
    t0,
    t1,
    scale2,
    MODE: tl.constexpr,
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
    """Online-softmax attention of a row tile over the keys of ``MODE``, on top of the state ``acc [BM, DV], m, total``.

    Returns the normalized output ``[BM, DV]`` and the base-2 log-sum-exp ``[BM]``; rows that see nothing give 0
    and -1e30.
    """
    sink, lo, flo, fhi, hi = key_ranges(t0, t1, MODE, L, D, LS, W, BN)
    for start in tl.range(flo, fhi, BN):
        n = start + tl.arange(0, BN)
        acc, m, total = _softmax_step(
            acc, m, total, q0, q1, k, v, sk, sv, n, n, n, scale2, DK0, DK1, DV, False, PREC
        )  # fmt: skip
    for i in tl.range(0, tile_count(sink, lo, flo, fhi, hi, BN)):
        start, end = tile_start(i, sink, lo, flo, fhi, hi, BN)
        n = start + tl.arange(0, BN)
        ok = is_visible(n[None, :], t[:, None], MODE, L, D, LS, W) & (n < end)[None, :]
        acc, m, total = _softmax_step(
            acc, m, total, q0, q1, k, v, sk, sv, n, ok, n < end, scale2, DK0, DK1, DV, True, PREC
        )  # fmt: skip
    some = total > 0
    safe = tl.where(some, total, 1.0)
    return acc / safe[:, None], tl.where(some, m + tl.math.log2(safe), -1e30)
