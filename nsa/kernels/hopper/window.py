"""Window and forced blocks in the backward pass, by a kernel of this folder."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from nsa.kernels.hopper.program import Constants, launch, pointers, strided, tensor_map, why_not_built
from nsa.kernels.problem import Problem, ceil_div

__all__ = ["tile_tokens", "why_no_window", "window_run", "window_served", "window_sources"]

_NAME, _KEYS, _BLOCK = "window_backward", 128, 64
_STAGES = 2


class _Arguments(ctypes.Structure):
    """``window_backward.cu``'s ``Arguments``."""

    _fields_ = (
        ("maps", ctypes.c_uint64 * 112), ("rows", ctypes.c_void_p * 4), ("keys", ctypes.c_void_p * 4),
        ("sizes", ctypes.c_int * 6), ("scale2", ctypes.c_float), ("padding", ctypes.c_byte * 36),
    )  # fmt: skip


def tile_tokens(p: Problem) -> int:
    """Tokens of a tile of the kernels that walk over all tokens."""
    return 48 if p.dims.dk > 128 else 64 if p.dims.dk > 64 else 128


def _range(p: Problem) -> int:
    """Tokens whose blocks of threads run side by side: a multiple of the keys of a block and of two tiles."""
    return 768 if p.dims.dk > 128 else 1024


def _heads(p: Problem) -> int:
    """Heads that a block of threads takes: their keys' gradients are summed before they go to memory, and as many as
    leave their queries in the L2 cache and a block to every processor."""
    wanted = (4, 3, 2, 5, 7, 1) if p.dims.dk > 64 else (8, 6, 5, 7, 4, 3, 2, 1)
    possible = [n for n in wanted if p.hpg % n == 0]
    return next((n for n in possible if _blocks(p, n) * p.bg >= p.n_processors), possible[-1])


def _blocks(p: Problem, heads: int) -> int:
    """Blocks of threads for a pair of batch and group: of each range keys of the window, keys of blocks, and the halves
    of what comes after block 0."""
    return (2 * (_range(p) // _KEYS) + 2) * ceil_div(p.S, _range(p)) * (p.hpg // heads)


def _constants(p: Problem) -> tuple[Constants, int]:
    """Constants and shared memory."""
    dk, dv, tile, heads = p.dims.dk, p.dims.dv, tile_tokens(p), _heads(p)
    constants = (
        ("DK", dk), ("DV", dv), ("BM", tile), ("HPG", p.hpg), ("HS", heads), ("W", p.w), ("RANGE", _range(p)),
        ("STAGES", _STAGES), ("HALF", int(p.dtype == torch.float16)),
    )  # fmt: skip
    row, added = 2 * (dk + dv), (4 if dk > 128 else 2) * (tile if dk > 64 else 64) * 64 * 4
    shared = _KEYS * row + _STAGES * tile * (row + 8) + 4 * tile * _KEYS + added
    return constants, shared + 8 * (1 + 4 * _STAGES)


def window_served(p: Problem) -> str | None:
    """The reasons of :func:`why_no_window` that lie in the problem."""
    if p.dims.dk > 192:
        return "head_dim"
    return "sizes" if p.l_sel != _BLOCK else None


def window_sources(p: Problem) -> Iterator[tuple[str, Constants]]:
    """This module's source, with its constants, if a problem takes it."""
    if window_served(p) is None:
        yield _NAME, _constants(p)[0]


def why_no_window(streams: tuple[Tensor, ...], p: Problem) -> str | None:
    """None if window and forced blocks can run by Hopper's asynchronous products too, where
    :func:`nsa.kernels.hopper.why_no_wgmma` finds nothing against it: ``head_dim`` (more than 192 channels of keys),
    ``sizes``, ``strides``, ``build``. ``streams``: keys and values of the window and of the selected branch.
    """
    if reason := window_served(p):
        return reason
    if not all(strided(x) for x in streams):
        return "strides"
    with torch.cuda.device(streams[0].device):
        return why_not_built(_NAME, *_constants(p), torch.cuda.current_device())


def window_run(
    p: Problem, queries: tuple[Tensor, Tensor], rows: Tensor, streams: tuple[Tensor, ...], dq: Tensor,
    selected: tuple[Tensor, Tensor], window: tuple[Tensor, Tensor],
) -> Callable[[int, int], None]:  # fmt: skip
    """Runs (batch, group) pairs ``first .. first + count``: adds to ``dq [most, S, heads per group, dk]``, and to sums
    of keys and values ``[most, S, .]``.

    ``queries``: q and dO; ``rows [4, .]``: what scores lose and dO . o by head, of the selected branch, then of the
    window.
    """
    tile = tile_tokens(p)
    maps = b"".join(tensor_map(x, rows=tile) for x in queries) + b"".join(tensor_map(x, rows=_KEYS) for x in streams)
    all_maps = (ctypes.c_uint64 * 112).from_buffer_copy(maps + tensor_map(dq, rows=min(tile, 64)))
    at = pointers(
        (rows[2], rows[0], rows[3], rows[1]), (window[0], selected[0], window[1], selected[1])
    )  # fmt: skip
    ranges, tiles = ceil_div(p.S, _range(p)), ceil_div(p.S, tile)
    constants, blocks = _constants(p), _blocks(p, _heads(p))

    def run(first: int, count: int) -> None:
        sizes = (p.S, p.H, p.G, first, tiles, ranges)
        given = _Arguments(all_maps, *at, sizes, p.scale2)
        launch(_NAME, *constants, blocks * count, given, dq.device)

    return run
