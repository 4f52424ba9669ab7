"""How a decode step puts its new position into the caches: rows, the ring of raw ones, a compressed token when due."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["load_new", "store_raw", "store_row"]


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
