"""The decode step as torch operators: ``nsa::decode_step``, and its halves ``decode_append`` and ``decode_attention``.

All read the rows' lengths on the device and wait for nothing, so that a CUDA graph of a step can be replayed. Their
launches depend on the caches' capacity alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from nsa.kernels.api import selected_blocks
from nsa.kernels.cluster import launch_cluster, why_no_cluster
from nsa.kernels.config import FUSED, interpreting, next_power_of_2
from nsa.kernels.decode import append_kernel, chosen_kernel, merge_kernel, score_kernel, split_kernel
from nsa.kernels.decode_plan import (
    Constants,
    DecodeSizes,
    Plan,
    choose_plan,
    constants,
    key_parts,
    n_tiles,
    resident_shares,
    shares,
)
from nsa.kernels.operators import operator
from nsa.kernels.problem import ceil_div, n_processors
from nsa.kernels.resident import step_kernel

__all__ = [
    "ARRIVALS",
    "Caches",
    "decode_append",
    "decode_attention",
    "decode_step",
    "launch_append",
    "launch_attention",
    "launch_step",
    "selected_blocks",
    "sizes_of",
    "why_no_decode",
]

_MAX_BLOCKS = 4096
_MAX_OFFSET = 2**31
_LOG2_E = 1.4426950408889634
ARRIVALS = 32
"""Integers per (batch row, group) in the counters of :func:`decode_step`: one cache line each."""


class Caches(Protocol):
    """What a cache must offer: ``[B, length, G, .]`` tensors, dense, in the type of the queries."""

    k_cmp: Tensor
    v_cmp: Tensor
    k_sel: Tensor
    v_sel: Tensor
    k_win: Tensor
    v_win: Tensor
    k_raw: Tensor
    v_raw: Tensor


def why_no_decode(q: Tensor, cache: Caches, *, sizes: tuple[int, int, int, int, int]) -> str | None:
    """None if a step can run by the kernels, else the reason in snake case.

    ``device``, ``capability``, ``dtype``, ``heads_per_group`` (more than 32), ``head_dim`` (keys neither a power of
    two nor 192 or the like, or values no power of two, from 16 to 256: a cache is not padded at every step), ``n_sel``
    (below 3), ``block_size`` (``l_sel`` above 128), ``length`` (more than 4,096 selection blocks, or offsets beyond 32
    bits).
    """
    _, _, l_sel, n_sel, _ = sizes
    N, G, Dk = cache.k_sel.shape[1:]
    Dv = cache.v_sel.shape[-1]
    if not interpreting():
        if q.device.type != "cuda":
            return "device"
        if torch.cuda.get_device_capability(q.device) < (8, 0):
            return "capability"
    kinds = (torch.float32,) if interpreting() else (torch.float16, torch.bfloat16, torch.float32)
    if q.dtype not in kinds or any(x.dtype != q.dtype for x in (cache.k_sel, cache.v_sel, cache.k_cmp)):
        return "dtype"
    if q.shape[2] // G > 32:
        return "heads_per_group"
    if key_parts(Dk) is None or Dv != next_power_of_2(Dv) or not 16 <= Dv <= 256:
        return "head_dim"
    if n_sel < 3:
        return "n_sel"
    if l_sel > 128:
        return "block_size"
    return "length" if ceil_div(N, l_sel) > _MAX_BLOCKS or N * G * max(Dk, Dv) >= _MAX_OFFSET else None


def sizes_of(q: Tensor, streams: tuple[Tensor, ...], sizes: list[int]) -> DecodeSizes:
    """What a step's plan depends on; arguments as those of :func:`decode_attention`."""
    k_cmp, _, k_sel, v_sel, k_win, _ = streams
    B, _, H, Dk = q.shape
    N, G, _ = k_sel.shape[1:]
    l, d, l_sel, n_sel, _ = sizes  # noqa: E741
    return DecodeSizes(
        B, H, G, Dk, v_sel.shape[-1], q.element_size(), N, k_cmp.shape[1], k_win.shape[1], l, d, l_sel, n_sel
    )


@dataclass(frozen=True)
class _Scratch:
    """Outputs and intermediate values of one step; the layouts are those of :mod:`nsa.kernels.decode`."""

    o: Tensor
    top: Tensor
    partial: tuple[Tensor, Tensor, Tensor]
    importance: Tensor
    tile_m: Tensor
    candidates: Tensor

    @classmethod
    def of(cls, q: Tensor, sizes: DecodeSizes, c: Constants, tiles: int) -> _Scratch:
        bg, P, heads, hpg = sizes.bg, int(c["P"]), int(c["HP"]), int(c["HPG"])

        def floats(*shape: int) -> Tensor:
            return q.new_empty(shape, dtype=torch.float32)

        return cls(
            o=q.new_empty(sizes.B, 1, sizes.H, sizes.Dv),
            top=q.new_empty(sizes.B, 1, sizes.G, sizes.n_sel - 3, dtype=torch.int32),
            partial=(floats(bg, 3, P, heads, sizes.Dv), floats(bg, 3, P, heads), floats(bg, 3, P, heads)),
            importance=floats(bg, 2, hpg, tiles * int(c["BJ"])),
            tile_m=floats(bg, hpg, tiles),
            candidates=q.new_empty(bg, int(c["RUNS"]), int(c["NTOPP"]), dtype=torch.int64),
        )


def _launch(kernel: Any, grid: int, *arguments: Any, c: Constants, plan: Plan, **options: Any) -> None:
    """Launch ``kernel`` with those of the constants ``c`` that it declares."""
    taken = {name: c[name] for name in kernel.arg_names if name in c}
    kernel[(grid,)](*arguments, **taken, num_warps=plan.warps, num_stages=plan.stages, **FUSED, **options)


def launch_attention(
    q: Tensor, gates: Tensor, streams: tuple[Tensor, ...], lengths: Tensor, sizes: list[int], scale: float, *,
    processors: int, plan: Plan | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What :func:`decode_attention` runs: a launch for each part."""
    k_cmp, v_cmp, k_sel, v_sel, k_win, v_win = streams
    of = sizes_of(q, streams, sizes)
    plan = plan or choose_plan(of)
    P, tiles, scale2 = (
        shares(2 * plan.resident * processors, of.bg),
        max(n_tiles(of, plan), 1),
        scale * _LOG2_E,
    )
    c = constants(of, plan, P)
    x = _Scratch.of(q, of, c, tiles)
    grid, N, strides = of.bg * P, of.n_positions, (q.stride(0), q.stride(2))
    _launch(
        split_kernel, grid, q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, lengths, *x.partial, x.importance, x.tile_m,
        *strides, N, of.ring, of.n_compressed, tiles, scale2, c=c, plan=plan,
    )  # fmt: skip
    if of.n_sel > 3:
        _launch(
            score_kernel, grid, lengths, *x.partial[1:], x.importance, x.tile_m, x.candidates, tiles, c=c, plan=plan
        )
        _launch(
            chosen_kernel, grid, q, k_sel, v_sel, x.candidates, *x.partial, x.top, *strides, N, scale2, c=c, plan=plan
        )
    _launch(merge_kernel, grid, gates, *x.partial, x.o, c=c, plan=plan)
    return x.o, x.top


def _dense_rows(new: list[Tensor]) -> list[Tensor]:
    """Rows must be dense from the group on; a slice of a wider projection is, for it holds one position."""
    return [x if x.stride(-1) == 1 and x.stride(-2) == x.shape[-1] else x.contiguous() for x in new]


def launch_append(new: list[Tensor], caches: tuple[Tensor, ...], lengths: Tensor, l: int, d: int) -> None:  # noqa: E741
    """What :func:`decode_append` runs."""
    k_cmp, _, k_sel, v_sel, k_win = caches[2:7]
    new = _dense_rows(new)
    B, N, G, Dk = k_sel.shape
    Dv = v_sel.shape[-1]
    append_kernel[(B * G,)](
        *new, *caches, lengths, *(x.stride(0) for x in new), N,
        k_win.shape[1], k_cmp.shape[1], G=G, L=l, D=d, LP=next_power_of_2(l), DK=Dk, DKP=next_power_of_2(Dk), DV=Dv,
        DVP=next_power_of_2(Dv), num_warps=2, **FUSED,
    )  # fmt: skip


def launch_step(
    q: Tensor, gates: Tensor, new: list[Tensor], caches: tuple[Tensor, ...], lengths: Tensor, arrivals: Tensor,
    sizes: list[int], scale: float, *, processors: int, plan: Plan | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What :func:`decode_step` runs.

    One launch by clusters where the GPU has them; else, and where ``plan`` is given, one of Triton's where the GPU can
    hold its programs, else one for each part.
    """
    streams = caches[2:]
    of = sizes_of(q, streams, sizes)
    if plan is None and why_no_cluster(q, gates, of) is None:
        return launch_cluster(q, gates, new, caches, lengths, of, scale)
    plan = plan or choose_plan(of)
    P = resident_shares(of, plan, processors=processors)
    if P == 0:
        launch_append(new, caches, lengths, of.l, of.d)
        return launch_attention(q, gates, streams, lengths, sizes, scale, processors=processors, plan=plan)
    new = _dense_rows(new)
    c, tiles = constants(of, plan, P), max(n_tiles(of, plan), 1)
    x = _Scratch.of(q, of, c, tiles)
    options = {} if interpreting() else {"launch_cooperative_grid": True}
    _launch(
        step_kernel, of.bg * P, *new, *caches, q, gates, lengths, arrivals, *x.partial, x.importance, x.tile_m,
        x.candidates, x.top, x.o, *(y.stride(0) for y in new), q.stride(0), q.stride(2), of.n_positions, of.ring,
        of.n_compressed, tiles, scale * _LOG2_E, c=c | {"SPREAD": ARRIVALS}, plan=plan, **options,
    )  # fmt: skip
    return x.o, x.top


@operator(
    "nsa::decode_append",
    mutates_args=("k_raw", "v_raw", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "lengths"),
)
def decode_append(
    new: list[Tensor],
    k_raw: Tensor,
    v_raw: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    lengths: Tensor,
    l: int,  # noqa: E741 - the paper's symbol
    d: int,
) -> None:
    """Store one position per row, ``new = [k_cmp, v_cmp, k_sel, v_sel, k_win, v_win]`` each ``[B, 1, G, .]``, average a
    compressed token where one is complete, and add 1 to ``lengths [B, G]`` int32. A full row is left as it is."""
    launch_append(new, (k_raw, v_raw, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win), lengths, l, d)


@operator("nsa::decode_attention")
def decode_attention(
    q: Tensor,
    gates: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    lengths: Tensor,
    sizes: list[int],
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Attention of the newest position of each row over its caches.

    Args:
        q: ``[B, 1, H, Dk]``; gates: ``[B, 1, H, 3]``; k_cmp ... v_win: as in :class:`Caches`.
        lengths: ``[B, G]`` int32, positions held including the newest, at least 1; equal for the groups of a row.
        sizes: ``[l, d, l_sel, n_sel, w]``; scale: factor of the scores.

    Returns: ``o [B, 1, H, Dv]`` and the scored blocks ``[B, 1, G, n_sel - 3]`` int32, best first, -1 for none; the
        forced ones are not among them.
    """
    streams = (k_cmp, v_cmp, k_sel, v_sel, k_win, v_win)
    return launch_attention(q, gates, streams, lengths, sizes, scale, processors=n_processors(q.device))


@torch.library.register_fake("nsa::decode_attention")
def _(
    q: Tensor,
    gates: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    lengths: Tensor,
    sizes: list[int],
    scale: float,
) -> tuple[Tensor, Tensor]:
    B, _, H, _ = q.shape
    top = q.new_empty(B, 1, k_sel.shape[2], sizes[3] - 3, dtype=torch.int32)
    return q.new_empty(B, 1, H, v_sel.shape[-1]), top


@operator(
    "nsa::decode_step",
    mutates_args=(
        "k_raw", "v_raw", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "lengths", "arrivals",
    ),
)  # fmt: skip
def decode_step(
    q: Tensor,
    gates: Tensor,
    new: list[Tensor],
    k_raw: Tensor,
    v_raw: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    lengths: Tensor,
    arrivals: Tensor,
    sizes: list[int],
    scale: float,
) -> tuple[Tensor, Tensor]:
    """:func:`decode_append` and :func:`decode_attention` in one launch where the GPU can hold all its programs.

    ``arrivals [B, G, ARRIVALS]`` int32, zero in the beginning, belongs to the caches and is not for the caller to
    change; steps that share it must not run at the same time.
    """
    caches = (k_raw, v_raw, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win)
    return launch_step(
        q, gates, new, caches, lengths, arrivals, sizes, scale, processors=n_processors(q.device)
    )  # fmt: skip


@torch.library.register_fake("nsa::decode_step")
def _(
    q: Tensor,
    gates: Tensor,
    new: list[Tensor],
    k_raw: Tensor,
    v_raw: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    lengths: Tensor,
    arrivals: Tensor,
    sizes: list[int],
    scale: float,
) -> tuple[Tensor, Tensor]:
    B, _, H, _ = q.shape
    top = q.new_empty(B, 1, k_sel.shape[2], sizes[3] - 3, dtype=torch.int32)
    return q.new_empty(B, 1, H, v_sel.shape[-1]), top
