"""How a step is cut for clusters: blocks in a cluster, stages of a warp's ring, and the kernel's constants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nsa.kernels.decode_plan import DecodeSizes
from nsa.kernels.problem import ceil_div

__all__ = ["ClusterPlan", "plans", "served"]

WARPS, ROWS = 8, 16
_PORTABLE_CLUSTER = 8


@dataclass(frozen=True)
class ClusterPlan:
    """Blocks in a cluster, compressed tokens that a block can hold, and stages of each warp's ring."""

    sizes: DecodeSizes
    blocks: int
    tokens: int
    stages: int

    @property
    def constants(self) -> dict[str, int]:
        """The kernel's constants that follow from sizes, by name."""
        of = self.sizes
        return {
            "G": of.G, "HPG": of.H // of.G, "DK": of.Dk, "DV": of.Dv, "L": of.l, "STRIDE": of.d, "LS": of.l_sel,
            "NSEL": of.n_sel, "P": self.blocks, "TOKENS": self.tokens, "WINDOW": of.ring, "STAGES": self.stages,
        }  # fmt: skip

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block; the layout is ``step.cu``'s."""
        of, all_warps = self.sizes, self.blocks * WARPS
        heads, carried, top = _heads(of), of.l // of.d - 1, of.n_sel - 3
        ring = WARPS * self.stages * _stage_bytes(of)
        scores = WARPS * max(self.tokens // WARPS, of.Dv) * heads * 4
        arrived = 2 * self.blocks * ceil_div(of.Dv, self.blocks) * heads * 4 + self.blocks * heads * 8
        weights = _aligned(ring + scores + arrived + WARPS * heads * 8 + (carried + self.tokens) * 4)
        keys = _aligned(weights + 2 * all_warps * heads * 4 + max(carried, 1) * heads * 4)
        return keys + WARPS * top * 8 + ceil_div(self.blocks * top, 4) * 32 + _aligned(max(top, 1) * 4)


def _aligned(n: int) -> int:
    return ceil_div(n, 16) * 16


def _heads(of: DecodeSizes) -> int:
    return ceil_div(of.H // of.G, 8) * 8


def _stage_bytes(of: DecodeSizes) -> int:
    return ROWS * max(of.Dk, of.Dv) * 2


def served(of: DecodeSizes) -> bool:
    """Whether ``step.cu`` is written for these sizes.

    Elements of two bytes, at most 16 heads in a group, head dimensions that are multiples of 64 up to 256, blocks that
    divide each other.
    """
    per_block = of.l_sel // of.d
    return (
        of.itemsize == 2
        and of.H // of.G <= 16
        and all(dim % 64 == 0 and dim <= 256 for dim in (of.Dk, of.Dv))
        and of.l % of.d == 0
        and of.l_sel % of.d == 0
        and of.l // of.d - 1 <= ROWS
        and WARPS * ROWS % per_block == 0
        and 3 <= of.n_sel <= 35
    )


def plans(of: DecodeSizes, *, processors: int, shared_limit: int) -> Iterator[ClusterPlan]:
    """Plans that fit into ``shared_limit`` bytes of a block, the most promising first.

    The largest cluster with which all batch rows and groups run at once comes first, then smaller ones, in case the GPU
    cannot place that many, then larger ones, whose blocks hold less each.
    """
    counts = range(1, _PORTABLE_CLUSTER + 1)
    fitting = [n for n in counts if of.bg * n <= processors] or [1]
    for blocks in [*reversed(fitting), *(n for n in counts if n > fitting[-1])]:
        share = ceil_div(ceil_div(of.n_positions, of.l_sel), blocks) * (of.l_sel // of.d)
        tokens = ceil_div(share, WARPS * ROWS) * WARPS * ROWS
        chunks = tokens // (WARPS * ROWS)
        tiles = ceil_div(of.ring, ROWS * WARPS * blocks) + ceil_div(of.n_sel * ceil_div(of.l_sel, ROWS), WARPS * blocks)
        fewest = max(3, ceil_div(of.Dv * _heads(of) * 4, _stage_bytes(of)))
        for stages in range(max(2 * chunks + 2 * tiles, fewest), fewest - 1, -1):
            plan = ClusterPlan(of, blocks, tokens, stages)
            if plan.shared_bytes <= shared_limit:
                yield plan
                break
