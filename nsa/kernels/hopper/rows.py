"""Per-row numbers as the kernels of this folder read them."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["rows_kernel"]


@triton.jit
def _shift(lse, gate):
    """What a base-2 score loses before its exponential is the gated probability, with the gate's sign in the last
    bit."""
    shift = lse - tl.math.log2(tl.abs(gate))
    return ((shift.to(tl.int32, bitcast=True) & -2) | (gate < 0).to(tl.int32)).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["S", "PADDED"])
def rows_kernel(
    lse_cmp, lse_sel, gates, delta, by_head, by_token, S, PADDED, n_by_head, n_by_token,
    H: tl.constexpr, BOTH: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """``by_head [2, B, H, PADDED]`` for the compressed branch, ``by_token [2, B, S, H]`` for the selected one if
    ``BOTH``; float32, first what scores lose (:func:`_shift`), then dO . o. Beyond ``S`` probabilities are zero.

    ``lse [B, S, H]``; ``gates`` and ``delta [B, S, H, 3]``; ``n_by_head`` and ``n_by_token`` are the elements of each
    half. Grid (PADDED / BT, H / BH, B).
    """
    b = tl.program_id(2).to(tl.int64)
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    h = tl.program_id(1) * BH + tl.arange(0, BH)
    ok = (t < S)[:, None] & (h < H)[None, :]
    at = b * S * H + t[:, None].to(tl.int64) * H + h[None, :]
    gate = tl.load(gates + at * 3, mask=ok, other=0.0).to(tl.float32)
    to = (b * H + h[None, :]) * PADDED + t[:, None]
    inside = (t < PADDED)[:, None] & (h < H)[None, :]
    tl.store(by_head + to, _shift(tl.load(lse_cmp + at, mask=ok, other=0.0), gate), mask=inside)
    tl.store(by_head + n_by_head + to, tl.load(delta + at * 3, mask=ok, other=0.0), mask=inside)
    if BOTH:
        gate = tl.load(gates + at * 3 + 1, mask=ok, other=0.0).to(tl.float32)
        tl.store(by_token + at, _shift(tl.load(lse_sel + at, mask=ok, other=0.0), gate), mask=ok)
        tl.store(by_token + n_by_token + at, tl.load(delta + at * 3 + 1, mask=ok, other=0.0), mask=ok)
