"""Per-row numbers as the kernels of this folder read them, and gradients from the sums that they leave."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["finish_kernel", "rows_kernel"]


@triton.jit
def _shift(lse, gate):
    """What a base-2 score loses before its exponential is the gated probability, with the gate's sign in the last
    bit."""
    shift = lse - tl.math.log2(tl.abs(gate))
    return ((shift.to(tl.int32, bitcast=True) & -2) | (gate < 0).to(tl.int32)).to(tl.float32, bitcast=True)


@triton.jit
def _store_rows(to, n, lse, gates, delta, at, ok, inside, BRANCH: tl.constexpr):
    gate = tl.load(gates + at * 3 + BRANCH, mask=ok, other=0.0).to(tl.float32)
    tl.store(to, _shift(tl.load(lse + at, mask=ok, other=0.0), gate), mask=inside)
    tl.store(to + n, tl.load(delta + at * 3 + BRANCH, mask=ok, other=0.0), mask=inside)


@triton.jit(do_not_specialize=["S", "PADDED"])
def rows_kernel(
    lse_cmp, lse_sel, lse_win, gates, delta, by_head, by_token, S, PADDED, n_by_head, n_by_token,
    H: tl.constexpr, ALL: tl.constexpr, BOTH: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """``by_head [2, B, H, PADDED]`` for the compressed branch, and if ``ALL`` as much for the selected one and the
    window after that; ``by_token [2, B, S, H]`` for the selected one if ``BOTH``; float32, first what scores lose
    (:func:`_shift`), then dO . o. Beyond ``S`` probabilities are zero.

    ``lse [B, S, H]``; ``gates`` and ``delta [B, S, H, 3]``; ``n_by_head`` and ``n_by_token`` are the elements of each
    half. Grid (PADDED / BT, H / BH, B).
    """
    b = tl.program_id(2).to(tl.int64)
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    h = tl.program_id(1) * BH + tl.arange(0, BH)
    ok = (t < S)[:, None] & (h < H)[None, :]
    at = b * S * H + t[:, None].to(tl.int64) * H + h[None, :]
    to = by_head + b * H * PADDED + h[None, :] * PADDED + t[:, None]
    inside = (t < PADDED)[:, None] & (h < H)[None, :]
    _store_rows(to, n_by_head, lse_cmp, gates, delta, at, ok, inside, 0)
    if ALL:
        _store_rows(to + 2 * n_by_head, n_by_head, lse_sel, gates, delta, at, ok, inside, 1)
        _store_rows(to + 4 * n_by_head, n_by_head, lse_win, gates, delta, at, ok, inside, 2)
    if BOTH:
        _store_rows(by_token + at, n_by_token, lse_sel, gates, delta, at, ok, ok, 1)


@triton.jit(do_not_specialize=["bg0", "S", "first", "end", "n_parts", "NB", "NL", "MAX_TILES"])
def finish_kernel(
    sums, parts, tile_offsets, out, bg0, S, first, end, n_parts, NB, NL, MAX_TILES, scale,
    H: tl.constexpr, G: tl.constexpr, HPG: tl.constexpr, DIM: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr,
    PARTS: tl.constexpr, NTOP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """``out [B, S, H, DIM]`` from sums ``[n, S, HPG, DIM]`` float32 times ``scale``, for ``n`` (batch, group) pairs
    from ``bg0`` on and tokens ``first .. end``.

    ``PARTS``: keys, ``HPG`` is 1, and partial sums by work tile ``[n, MAX_TILES, STEP, DIM]`` come on top, of which a
    block of ``STEP`` keys has those of its ``NL / NB`` lists. ``NTOP``: queries, and partial results of their scored
    blocks of ``STEP`` keys come on top, ``[NTOP, HPG, DIM]`` for each token from ``first`` on, ``n_parts`` of
    ``[HPG, DIM]`` for each pair. Grid (rows / STEP, n, DIM / COLUMNS), ``COLUMNS`` a power of two.
    """
    block = tl.program_id(0)
    slab = tl.program_id(1).to(tl.int64)
    bg = bg0 + tl.program_id(1)
    b = (bg // G).to(tl.int64)
    g = bg % G
    i = tl.arange(0, ROWS)
    row = first * HPG + block * STEP + i
    ok = ((i < STEP) & (row < end * HPG))[:, None]
    c = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    x = tl.load(sums + (slab * S * HPG + row)[:, None] * DIM + c, mask=ok, other=0.0)
    if PARTS:
        for at_list in range(block, NL, NB):
            begin = tl.load(tile_offsets + bg * (NL + 1) + at_list)
            until = tl.load(tile_offsets + bg * (NL + 1) + at_list + 1)
            for work in range(begin, until):
                x += tl.load(parts + ((slab * MAX_TILES + work) * STEP + i)[:, None] * DIM + c, mask=ok, other=0.0)
    t = row // HPG
    for slot in tl.static_range(NTOP):
        # All blocks compete but the first, a token's own and the one before it.
        found = ok & (slot < t // STEP - 2)[:, None]
        at = (slab * n_parts + (t - first) * NTOP + slot) * HPG + row % HPG
        x += tl.load(parts + at[:, None] * DIM + c, mask=found, other=0.0).to(tl.float32)
    to = (b * S + t) * H + g * HPG + row % HPG
    tl.store(out + to[:, None] * DIM + c, (x * scale).to(out.dtype.element_ty), mask=ok)
