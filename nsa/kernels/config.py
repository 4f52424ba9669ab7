"""Tile sizes of the kernels, by head dimensions, element size and GPU generation.

A small table instead of an autotuner: a choice costs no start-up time, is the same in every process, and is backed by
the measurement noted beside it in ``docs/experiments.md``.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, replace

__all__ = [
    "FUSED",
    "WGMMA_HEAD_DIMS",
    "HeadDims",
    "Tile",
    "Tiles",
    "choose_span",
    "choose_tiles",
    "gathered_rows",
    "gathers_by_wgmma",
    "hopper_allowed",
    "interpreting",
    "next_power_of_2",
    "split_head_dim",
]

WGMMA_HEAD_DIMS = ((128, 128), (128, 64), (64, 64), (192, 128))
"""Head dimensions, of keys and of values, that :mod:`nsa.kernels.hopper` is written for."""

FUSED: dict[str, bool] = {} if "TRITON_DEFAULT_FP_FUSION" in os.environ else {"enable_fp_fusion": True}
"""An option of every launch: products and sums become one instruction, as in all that was measured. Triton up to 3.9
does so by default and 3.10 does not; a user who sets its variable decides."""


def next_power_of_2(n: int) -> int:
    """Smallest power of two that is at least ``n`` (1 for ``n <= 1``)."""
    return 1 << max(n - 1, 0).bit_length()


def interpreting() -> bool:
    """Whether Triton runs its kernels through its CPU interpreter (``TRITON_INTERPRET=1`` before it is imported)."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def hopper_allowed() -> bool:
    """Whether the kernels of :mod:`nsa.kernels.hopper` may run; ``HOPPER_KERNELS=0`` leaves all work to Triton's."""
    return os.environ.get("HOPPER_KERNELS", "1") != "0"


@dataclass(frozen=True)
class HeadDims:
    """Head dimensions as the kernels see them: ``dk0 + dk1`` for keys (``dk1`` may be 0) and ``dv`` for values."""

    dk0: int
    dk1: int
    dv: int

    @property
    def dk(self) -> int:
        return self.dk0 + self.dk1


def split_head_dim(dk: int, dv: int) -> HeadDims:
    """Smallest served head dimensions that hold ``dk`` and ``dv``; larger ones are reached by zero padding.

    Keys may be one power of two or the sum of two (192 = 128 + 64), each at least 16; values one power of two.
    """
    smallest = max(next_power_of_2(dk), 16)
    low = smallest // 2
    best = HeadDims(smallest, 0, max(next_power_of_2(dv), 16))
    if low >= 16:
        rest = max(next_power_of_2(dk - low), 16)
        if rest < low:
            best = replace(best, dk0=low, dk1=rest)
    return best


@dataclass(frozen=True)
class Tile:
    """One kernel's launch: rows and keys per tile, warps per program, software-pipeline depth."""

    bm: int
    bn: int
    warps: int
    stages: int
    regs: int = 0
    """Most registers per thread; 0 leaves it to the compiler."""
    resident: int = 2
    """Programs per processor that a persistent kernel starts."""


@dataclass(frozen=True)
class Tiles:
    """Launches of all kernels for one shape."""

    compressed: Tile
    select: Tile
    gather: Tile
    combine: Tile
    gather_backward: Tile
    dq: Tile
    dq_rest: Tile
    """As ``dq`` where other kernels have done the compressed branch."""
    dkv_cmp: Tile
    dkv_win: Tile
    dkv_sel: Tile
    """Forced blocks; its ``bn`` is not used, the block is the tile."""
    pairs_per_tile: int
    """Most (token, slot) pairs of one block that one program takes."""


def gathered_rows(dk: int) -> int:
    """Rows that Hopper's own kernel for the scored blocks' backward pass takes at a time."""
    return 64 if dk <= 128 else 48


def gathers_by_wgmma(dims: HeadDims, heads_per_group: int, l_sel: int, itemsize: int) -> bool:
    """Whether Hopper's own kernel for the scored blocks' backward pass is written for these sizes. With fewer than four
    heads a copy for each token is too small: Triton's is faster there."""
    served = (dims.dk, dims.dv) in WGMMA_HEAD_DIMS and l_sel == 64 and itemsize == 2
    return served and 4 <= heads_per_group <= gathered_rows(dims.dk)


def choose_span(dims: HeadDims, heads_per_group: int, itemsize: int) -> int:
    """Tokens whose queries and output gradients together take up to 40 MiB, as many as the L2 cache of a Hopper GPU
    holds beside the rest; of up to 64 channels with float32 query gradients, 32 MiB."""
    row, room = (dims.dk + dims.dv) * itemsize, 40 << 20
    if dims.dk <= 64:
        row, room = row + dims.dk * 4, 32 << 20
    return next_power_of_2(room // (heads_per_group * row) + 1) // 2


@functools.lru_cache(maxsize=64)
def choose_tiles(dims: HeadDims, *, itemsize: int, hopper: bool, interpret: bool = False) -> Tiles:
    """Tile sizes for head dimensions ``dims`` and elements of ``itemsize`` bytes.

    ``hopper``: compute capability 9 with 227 KiB of shared memory; otherwise tiles fit into the 163 KiB of an A100.
    """
    if interpret:
        small = Tile(32, 16, 1, 1)
        return Tiles(small, small, small, small, small, small, small, small, small, small, pairs_per_tile=16)
    widest = max(dims.dk, dims.dv)
    if itemsize == 4:
        return _float32_tiles(widest)
    return _hopper_tiles(widest) if hopper else _ampere_tiles(widest)


def _float32_tiles(widest: int) -> Tiles:
    # Exact float32 products run on the plain cores; small tiles keep their operands in registers.
    base = Tile(32, 32, 4, 1) if widest <= 128 else Tile(32, 16, 4, 1)
    return Tiles(
        compressed=base,
        select=replace(base, bn=32),
        gather=base,
        combine=base,
        gather_backward=base,
        dq=base,
        dq_rest=base,
        dkv_cmp=base,
        dkv_win=base,
        dkv_sel=base,
        pairs_per_tile=128,
    )


def _hopper_tiles(widest: int) -> Tiles:
    if widest <= 64:
        return Tiles(
            compressed=Tile(64, 64, 4, 3),
            select=Tile(128, 64, 4, 3, regs=168, resident=3),
            gather=Tile(64, 64, 4, 3),
            combine=Tile(64, 32, 4, 3, regs=128),
            gather_backward=Tile(64, 64, 4, 2),
            dq=Tile(64, 64, 4, 3),
            dq_rest=Tile(64, 64, 4, 3),
            dkv_cmp=Tile(32, 64, 4, 3),
            dkv_win=Tile(32, 64, 4, 3),
            dkv_sel=Tile(32, 64, 4, 3),
            pairs_per_tile=256,
        )
    if widest <= 128:
        return Tiles(
            compressed=Tile(64, 64, 4, 3),
            select=Tile(128, 64, 4, 2, regs=168, resident=3),
            gather=Tile(64, 64, 4, 1),
            combine=Tile(64, 32, 4, 4),
            gather_backward=Tile(32, 64, 4, 3),
            dq=Tile(128, 64, 8, 3),
            dq_rest=Tile(64, 32, 4, 3),
            dkv_cmp=Tile(32, 64, 4, 3),
            dkv_win=Tile(32, 64, 4, 3),
            dkv_sel=Tile(32, 64, 4, 3),
            pairs_per_tile=256,
        )
    if widest <= 192:
        return Tiles(
            compressed=Tile(128, 64, 8, 3),
            select=Tile(128, 64, 4, 2),
            gather=Tile(64, 64, 4, 3),
            combine=Tile(64, 32, 4, 3),
            gather_backward=Tile(32, 64, 4, 2),
            dq=Tile(128, 32, 8, 3),
            dq_rest=Tile(128, 32, 8, 3),
            dkv_cmp=Tile(32, 128, 8, 3),
            dkv_win=Tile(32, 128, 8, 3),
            dkv_sel=Tile(32, 64, 4, 2),
            pairs_per_tile=256,
        )
    return Tiles(
        compressed=Tile(128, 32, 8, 2),
        select=Tile(64, 64, 8, 2),
        gather=Tile(64, 64, 8, 1),
        combine=Tile(128, 32, 8, 2),
        gather_backward=Tile(64, 64, 8, 1),
        dq=Tile(64, 32, 8, 2),
        dq_rest=Tile(64, 32, 8, 2),
        dkv_cmp=Tile(32, 64, 8, 1),
        dkv_win=Tile(32, 64, 8, 1),
        dkv_sel=Tile(32, 64, 8, 1),
        pairs_per_tile=256,
    )


def _ampere_tiles(widest: int) -> Tiles:
    if widest <= 64:
        return Tiles(
            compressed=Tile(128, 64, 4, 3),
            select=Tile(64, 64, 4, 3),
            gather=Tile(64, 64, 4, 2),
            combine=Tile(128, 64, 4, 3),
            gather_backward=Tile(32, 64, 4, 2),
            dq=Tile(64, 64, 4, 2),
            dq_rest=Tile(64, 64, 4, 2),
            dkv_cmp=Tile(64, 64, 4, 2),
            dkv_win=Tile(64, 64, 4, 2),
            dkv_sel=Tile(64, 64, 4, 2),
            pairs_per_tile=256,
        )
    if widest <= 192:
        return Tiles(
            compressed=Tile(128, 32, 8, 2),
            select=Tile(64, 64, 8, 2),
            gather=Tile(64, 64, 4, 1),
            combine=Tile(128, 32, 8, 2),
            gather_backward=Tile(32, 64, 8, 1),
            dq=Tile(64, 32, 8, 2),
            dq_rest=Tile(64, 32, 8, 2),
            dkv_cmp=Tile(32, 64, 8, 2),
            dkv_win=Tile(32, 64, 8, 2),
            dkv_sel=Tile(32, 64, 8, 2),
            pairs_per_tile=256,
        )
    return Tiles(
        compressed=Tile(64, 32, 8, 1),
        select=Tile(64, 32, 8, 1),
        gather=Tile(32, 64, 8, 1),
        combine=Tile(64, 32, 8, 1),
        gather_backward=Tile(32, 64, 8, 1),
        dq=Tile(32, 32, 8, 1),
        dq_rest=Tile(32, 32, 8, 1),
        dkv_cmp=Tile(32, 64, 8, 1),
        dkv_win=Tile(32, 64, 8, 1),
        dkv_sel=Tile(32, 64, 8, 1),
        pairs_per_tile=256,
    )
