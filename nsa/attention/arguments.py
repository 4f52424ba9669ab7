"""What the arguments of attention must satisfy, said once for :mod:`nsa.attention.functional` and :mod:`nsa.kernels`.

Shapes are read from the host alone, so a check never waits for a device, and the same call is refused with the same
words whichever implementation would have run it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["check_compressed", "check_options", "check_scale", "check_streams"]

_NAMES = ("q", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win")


def check_scale(scale: float | None, d_k: int) -> float:
    """The factor of the scores: ``scale``, or ``d_k ** -0.5`` if it is None.

    Raises:
        ValueError: it is not a positive, finite number. A negative one would be an attention to the least alike keys,
            which the kernels' running maximum cannot compute; negate q instead.
    """
    if scale is None:
        return float(d_k**-0.5)
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"scale={scale}: must be positive and finite; negate q for a negative factor")
    return float(scale)


def check_options(*, query_chunk: int | None, sel_ranges: str) -> None:
    """Check what changes how, and not what, is computed.

    Raises:
        ValueError: a chunk without queries, or an unknown version of the ranges.
    """
    if query_chunk is not None and query_chunk < 1:
        raise ValueError(f"query_chunk={query_chunk}: must be at least 1, or None to cut by memory")
    if sel_ranges not in ("v1", "v2"):
        raise ValueError(f"sel_ranges={sel_ranges!r}: must be v1 or v2")


def check_streams(streams: tuple[Tensor, ...], gates: Tensor, *, n_compressed: int | None = None) -> None:
    """Check ``(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win)`` and the gates against each other.

    Args:
        streams: ``q [B, S, H, Dk]``, keys ``[B, S, G, Dk]`` and values ``[B, S, G, Dv]``, in that order.
        gates: ``[B, S, H, 3]``.
        n_compressed: length of ``k_cmp`` and ``v_cmp`` if they are compressed already; None if they are not.

    Raises:
        ValueError: a shape, type or device does not fit; the message names the argument, what it is and what it
            must be.
    """
    q, v_sel = streams[0], streams[4]
    for name, x in zip(_NAMES, streams, strict=True):
        if x.dim() != 4:
            raise ValueError(f"{name}: shape {tuple(x.shape)}, must be [batch, sequence, heads or groups, dim]")
        if x.device != q.device:
            raise ValueError(f"{name}: on {x.device}, must be on the device of q, {q.device}")
        # A compression function may return its own precision; every path converts it.
        if (x.dtype != q.dtype and (n_compressed is None or not name.endswith("cmp"))) or not x.is_floating_point():
            raise ValueError(f"{name}: {x.dtype}, must be of one floating-point type with q, which is {q.dtype}")
    B, S, H, Dk = q.shape
    G, Dv = v_sel.shape[2:]
    if S == 0 or B == 0:
        raise ValueError(f"q: shape {tuple(q.shape)}, batch and sequence must not be empty")
    if G == 0 or H == 0 or H % G:
        raise ValueError(f"q: {H} heads, must be a multiple of the {G} groups of v_sel, and at least 1")
    if Dk == 0 or Dv == 0:
        raise ValueError(f"q and v_sel: {Dk} and {Dv} channels, must be at least 1")
    for name, x in zip(_NAMES[1:], streams[1:], strict=True):
        length = n_compressed if n_compressed is not None and name.endswith("cmp") else S
        _check_shape(name, x, (B, length, G, Dk if name.startswith("k") else Dv))
    _check_shape("gates", gates, (B, S, H, 3))
    if gates.device != q.device:
        raise ValueError(f"gates: on {gates.device}, must be on the device of q, {q.device}")
    if not gates.is_floating_point():
        raise ValueError(f"gates: {gates.dtype}, must be of a floating-point type, already activated")
    if q.dtype != torch.float64 and gates.dtype == torch.float64:
        raise ValueError("gates: float64, must not be wider than q and its keys; convert them with .to(q.dtype)")


def check_compressed(k_cmp: Tensor, v_cmp: Tensor, k_sel: Tensor, v_sel: Tensor, *, n_compressed: int) -> None:
    """Check what a compression function returned, given the streams of the selected branch.

    Raises:
        ValueError: it is not one entry per complete block.
    """
    for name, x, like in (("k_cmp", k_cmp, k_sel), ("v_cmp", v_cmp, v_sel)):
        B, _, G, D = like.shape
        _check_shape(f"{name} after compression", x, (B, n_compressed, G, D))


def _check_shape(name: str, x: Tensor, expected: tuple[int, ...]) -> None:
    if tuple(x.shape) != expected:
        raise ValueError(f"{name}: shape {tuple(x.shape)}, must be {expected}")
