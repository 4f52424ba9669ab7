"""Per-row numbers as the kernels of this folder read them."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["rows_kernel"]


@triton.jit(do_not_specialize=["S", "PADDED", "ot", "oh"])
def rows_kernel(
    lse, gates, delta, shift_out, delta_out, S, PADDED, ot, oh,
    H: tl.constexpr, BRANCH: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """``shift_out`` float32: what a base-2 score loses before its exponential is the gated probability, with the gate's
    sign in the last bit; ``delta_out`` likewise dO . o. Both have ``H * PADDED`` elements for each of B, of which token
    ``t`` and head ``h`` have ``ot * t + oh * h``; beyond ``S`` the probability is zero. ``lse [B, S, H]``, and
    ``BRANCH`` of ``gates`` and ``delta``, both ``[B, S, H, 3]``. Grid (PADDED / BT, H / BH, B).
    """
    b = tl.program_id(2).to(tl.int64)
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    h = tl.program_id(1) * BH + tl.arange(0, BH)
    ok = (t < S)[:, None] & (h < H)[None, :]
    at = b * S * H + t[:, None].to(tl.int64) * H + h[None, :]
    gate = tl.load(gates + at * 3 + BRANCH, mask=ok, other=0.0).to(tl.float32)
    shift = tl.load(lse + at, mask=ok, other=0.0) - tl.math.log2(tl.abs(gate))
    bits = (shift.to(tl.int32, bitcast=True) & -2) | (gate < 0).to(tl.int32)
    to = b * H * PADDED + t[:, None].to(tl.int64) * ot + h[None, :].to(tl.int64) * oh
    inside = (t < PADDED)[:, None] & (h < H)[None, :]
    tl.store(shift_out + to, bits.to(tl.float32, bitcast=True), mask=inside)
    tl.store(delta_out + to, tl.load(delta + at * 3 + BRANCH, mask=ok, other=0.0), mask=inside)
