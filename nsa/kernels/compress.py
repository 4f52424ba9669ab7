"""Average compression (arXiv 2502.11089, eq. 7 with a mean for phi) and its transpose."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["compress_kernel", "spread_kernel"]


@triton.jit(do_not_specialize=["NC"])
def compress_kernel(
    x,
    out,
    sxb,
    sxs,
    sxg,
    NC,
    G: tl.constexpr,
    L: tl.constexpr,
    D: tl.constexpr,
    DIM: tl.constexpr,
    DIMP: tl.constexpr,
    BC: tl.constexpr,
    BEYOND: tl.constexpr,
):
    """``out [B, NC, G, DIM]``: mean of ``x [B, S, G, DIM]`` over tokens ``i*D .. i*D+L-1``. The last sequence's are
    followed by ``BEYOND`` rows of zeros. Grid ((NC + BEYOND) / BC, B * G)."""
    bg = tl.program_id(1)
    b = (bg // G).to(tl.int64)
    g = bg % G
    i = tl.program_id(0) * BC + tl.arange(0, BC)
    c = tl.arange(0, DIMP)
    ok = (i < NC)[:, None] & (c < DIM)[None, :]
    base = x + b * sxb + g * sxg
    total = tl.zeros([BC, DIMP], tl.float32)
    # Unrolled: the loads do not wait for each other.
    for offset in tl.static_range(L):
        row = (i * D + offset).to(tl.int64)
        total += tl.load(base + row[:, None] * sxs + c[None, :], mask=ok, other=0.0).to(tl.float32)
    dest = out + ((b * NC + i.to(tl.int64)) * G + g)[:, None] * DIM + c[None, :]
    room = NC + BEYOND * (bg >= tl.num_programs(1) - G).to(tl.int32)
    tl.store(dest, (total / L).to(out.dtype.element_ty), mask=(i < room)[:, None] & (c < DIM)[None, :])


@triton.jit(do_not_specialize=["S", "NC", "BG", "CHUNK", "n_chunks"])
def spread_kernel(
    partial,
    dx,
    S,
    NC,
    BG,
    CHUNK,
    n_chunks,
    G: tl.constexpr,
    L: tl.constexpr,
    D: tl.constexpr,
    BNC: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    DIM: tl.constexpr,
    DIMP: tl.constexpr,
    BS: tl.constexpr,
):
    """Sum ``partial [n_chunks, B*G, NC, DIM]`` over the chunks that wrote it and hand it on.

    ``PER_TOKEN``: ``dx [B, S, G, DIM]``, each token collecting 1/L of the blocks that cover it. Otherwise ``dx
    [B, NC, G, DIM]``, the gradient of the compressed tokens themselves. Chunk ``c`` covers the queries before
    ``(c + 1) * CHUNK``; it wrote key tile ``i // BNC`` only if one of them sees the tile's first key. Grid
    (rows / BS, B * G).
    """
    bg = tl.program_id(1)
    b = (bg // G).to(tl.int64)
    g = bg % G
    n = tl.program_id(0) * BS + tl.arange(0, BS)
    c = tl.arange(0, DIMP)
    total = tl.zeros([BS, DIMP], tl.float32)
    n_out = S if PER_TOKEN else NC
    steps: tl.constexpr = L // D if PER_TOKEN else 1
    for back in range(steps):
        i = n // D - back if PER_TOKEN else n
        ok = (i >= 0) & (i < NC) & (n < n_out)
        first_token = i // BNC * BNC * D + L - 1
        for chunk in range(0, n_chunks):
            wrote = ok & ((chunk + 1) * CHUNK > first_token)
            row = (chunk * BG + bg).to(tl.int64) * NC + i
            total += tl.load(
                partial + row[:, None] * DIM + c[None, :], mask=wrote[:, None] & (c < DIM)[None, :], other=0.0
            )
    if PER_TOKEN:
        total = total / L
    dest = dx + ((b * n_out + n.to(tl.int64)) * G + g)[:, None] * DIM + c[None, :]
    tl.store(dest, total.to(dx.dtype.element_ty), mask=(n < n_out)[:, None] & (c < DIM)[None, :])
