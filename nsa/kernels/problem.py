"""One attention problem as the kernels see it: sizes, strides, grids and scratch, all known without asking the
device."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa.kernels import nvrtc
from nsa.kernels.config import (
    HeadDims,
    Tile,
    Tiles,
    choose_span,
    choose_tiles,
    gathers_by_wgmma,
    hopper_allowed,
    interpreting,
    next_power_of_2,
)

__all__ = ["Problem", "capability", "ceil_div", "n_processors", "strides"]

# Partial results of the scored blocks may take this much memory at once; beyond it (batch, group) pairs run in turns.
_SCRATCH_BYTES = 4 << 30
# Those of the queries in the backward pass take this much; beyond it the tokens of a pair run in turns as well, two of
# them at a time.
_TURN_BYTES = 1536 << 20


def ceil_div(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


def strides(x: Tensor) -> tuple[int, int, int]:
    """Strides of the first three dimensions of a ``[B, N, heads, dim]`` tensor, in elements."""
    return x.stride(0), x.stride(1), x.stride(2)


@functools.lru_cache(maxsize=16)
def _capability(index: int) -> tuple[int, int, int]:
    properties = torch.cuda.get_device_properties(index)
    return properties.major, properties.minor, properties.multi_processor_count


def _index(device: torch.device) -> int:
    return device.index if device.index is not None else torch.cuda.current_device()


def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of a GPU, asked for once."""
    return _capability(_index(device))[:2]


def n_processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; 2 where there is none, for the interpreter."""
    if device.type != "cuda":
        return 2
    return _capability(_index(device))[2]


@dataclass(frozen=True)
class Problem:
    """Sizes of one call. ``B, S, H, G`` as in the API, ``hpg`` heads per group, ``dims`` head dimensions after
    padding."""

    B: int
    S: int
    H: int
    G: int
    dims: HeadDims
    l: int  # noqa: E741 - the paper's symbol
    d: int
    l_sel: int
    n_sel: int
    w: int
    scale: float
    dtype: torch.dtype
    tiles: Tiles
    n_processors: int
    deterministic: bool
    span: int
    """Tokens whose selection is listed together: few enough that what they read stays in the L2 cache."""

    @classmethod
    def of(
        cls,
        q: Tensor,
        k_sel: Tensor,
        v_sel: Tensor,
        *,
        sizes: tuple[int, int, int, int, int],
        scale: float,
        deterministic: bool,
    ) -> Problem:
        """From padded tensors; ``sizes`` is ``(l, d, l_sel, n_sel, w)``."""
        B, S, H, Dk = q.shape
        low = 1 << (Dk.bit_length() - 1)
        dims = HeadDims(low, Dk - low, v_sel.shape[-1])
        cuda, G = q.device.type == "cuda", k_sel.shape[2]
        of = capability(q.device) if cuda else (9, 0)
        tiles = choose_tiles(dims, itemsize=q.element_size(), hopper=of >= (9, 0), interpret=interpreting())
        by_span = of == (9, 0) and not deterministic and not (cuda and nvrtc.missing())
        # Triton's kernels keep partial sums for each list: with a list for each span these take gigabytes more.
        by_span = by_span and gathers_by_wgmma(dims, H // G, sizes[2], q.element_size()) and hopper_allowed()
        span = min(choose_span(dims, H // G, q.element_size()), S) if by_span else S
        return cls(B, S, H, G, dims, *sizes, scale, q.dtype, tiles, n_processors(q.device), deterministic, span)

    @property
    def hpg(self) -> int:
        return self.H // self.G

    @property
    def bg(self) -> int:
        return self.B * self.G

    @property
    def n_cmp(self) -> int:
        """Complete compression blocks."""
        return 0 if self.l > self.S else (self.S - self.l) // self.d + 1

    @property
    def n_blocks(self) -> int:
        return ceil_div(self.S, self.l_sel)

    @property
    def n_lists(self) -> int:
        """Lists of queries of one (batch, group): one for each span and block."""
        return ceil_div(self.S, self.span) * self.n_blocks

    @property
    def n_top(self) -> int:
        """Scored blocks per query: all but the three forced ones; 0 while no query has a fourth block."""
        return self.n_sel - 3 if 3 * self.l_sel < self.S else 0

    @property
    def n_pairs(self) -> int:
        return self.S * self.n_top

    @property
    def scale2(self) -> float:
        """Scale of scores in base 2."""
        return self.scale * math.log2(math.e)

    @property
    def precision(self) -> str:
        return "ieee" if self.dtype == torch.float32 else "tf32"

    @property
    def max_tiles(self) -> int:
        """Upper bound of the work tiles of one (batch, group), whatever was selected."""
        return self.n_pairs // self.tiles.pairs_per_tile + self.n_lists

    @property
    def block_rows(self) -> int:
        """Rows of a selection block's tile."""
        return max(next_power_of_2(self.l_sel), 16)

    def tokens(self, tile: Tile) -> int:
        """Tokens of one row tile."""
        return tile.bm // self.hpg

    def common(self) -> dict[str, int]:
        """Compile-time constants that the dense kernels share."""
        return {
            "H": self.H,
            "G": self.G,
            "HPG": self.hpg,
            "L": self.l,
            "D": self.d,
            "LS": self.l_sel,
            "W": self.w,
            "DK0": self.dims.dk0,
            "DK1": self.dims.dk1,
            "DV": self.dims.dv,
        }

    def slabs(self, width: int, beside: int = 0) -> list[tuple[int, int]]:
        """``(first, count)`` runs of (batch, group) pairs, about equal ones, whose partial results, ``width`` per row,
        fit the scratch limit with the ``beside`` bytes that each pair needs beside them."""
        per_bg = self.n_pairs * self.hpg * width * self.dtype.itemsize + beside
        most = self.bg if per_bg == 0 else max(1, min(self.bg, _SCRATCH_BYTES // per_bg))
        count = ceil_div(self.bg, ceil_div(self.bg, most))
        return [(first, min(count, self.bg - first)) for first in range(0, self.bg, count)]

    def turns(self, pairs: int) -> tuple[list[tuple[int, int]], int]:
        """``(first, end)`` runs of tokens, of whole spans, about equal ones, and whether one or two of them at a time:
        so many that the queries' partial results of ``pairs`` (batch, group) pairs fit their limit."""
        spans = ceil_div(self.S, self.span)
        per_span = pairs * self.span * self.n_top * self.hpg * self.dims.dk * self.dtype.itemsize
        count = ceil_div(spans, ceil_div(spans, max(1, _TURN_BYTES // max(per_span, 1))))
        beside = 2 if 1 < count < spans else 1
        count //= beside
        return [(i * self.span, min((i + count) * self.span, self.S)) for i in range(0, spans, count)], beside

    def query_chunk(self, wanted: int, step: int) -> tuple[int, int]:
        """Length and number of about ``wanted`` query chunks, the length a multiple of ``step`` tokens."""
        length = ceil_div(ceil_div(self.S, max(wanted, 1)), step) * step
        return length, ceil_div(self.S, length)
