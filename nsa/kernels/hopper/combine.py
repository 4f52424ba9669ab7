"""Window, forced blocks, and the merge of all branches, by a kernel of this folder."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch
from torch import Tensor

from nsa.kernels.config import WGMMA_HEAD_DIMS
from nsa.kernels.hopper.program import Constants, launch, strided, tensor_map, why_not_built
from nsa.kernels.problem import Problem, ceil_div

__all__ = ["combine", "combine_sources", "why_no_combine"]

_NAME, _BLOCK = "combine", 64
_LEAST_ROWS = 48
"""Rows of a half that must be in use: with fewer the products are mostly of idle rows."""
_LEAST_KEY_DIM = 128
"""Channels of keys from which on this kernel was measured to be faster than Triton's."""


class _Arguments(ctypes.Structure):
    """``combine.cu``'s ``Arguments``."""

    _fields_ = (
        ("maps", ctypes.c_uint64 * 128), ("given", ctypes.c_void_p * 3), ("out", ctypes.c_void_p * 5),
        ("sizes", ctypes.c_int * 7), ("scale2", ctypes.c_float), ("padding", ctypes.c_byte * 32),
    )  # fmt: skip


def _ring(p: Problem) -> tuple[int, int, int]:
    """Stages of keys and values, partial results on their way, and whether there is room to keep the output so far."""
    if p.dims.dv > 64:
        return 2, 3, int(p.dims.dk <= 128)
    return (2, 5, 1) if p.dims.dk > 64 else (3, 5, 1)


def _constants(p: Problem) -> tuple[Constants, int]:
    """Constants and shared memory."""
    dk, dv = p.dims.dk, p.dims.dv
    stages, ring, kept = _ring(p)
    # The window of a work tile's tokens, less whole tiles; one tile if that is all.
    keys = p.w + 2 * (_BLOCK // p.hpg) - 1
    rest = -(-((keys - 1) % _BLOCK + 1) // 16) * 16 if keys > _BLOCK else _BLOCK
    constants = (
        ("DK", dk), ("DV", dv), ("HPG", p.hpg), ("NTOP", p.n_top), ("W", p.w), ("BN", _BLOCK), ("REST", rest),
        ("STAGES", stages), ("RING", ring), ("KEPT", kept), ("HALF", int(p.dtype == torch.float16)),
    )  # fmt: skip
    shared = 128 * (2 * dk + stages * (dk + dv) + (ring + 2 * kept) * dv + 2 * dv + 4 * p.n_top + 8)
    return constants, shared + 48 + 32 * stages + 16 * ring + 32 * kept


def combine_served(p: Problem) -> str | None:
    """The reasons of :func:`why_no_combine` that lie in the problem."""
    if p.dtype not in (torch.bfloat16, torch.float16):
        return "dtype"
    if (p.dims.dk, p.dims.dv) not in WGMMA_HEAD_DIMS:
        return "head_dim"
    if not p.n_top:
        return "no_keys"
    rows = _BLOCK // p.hpg * p.hpg
    if p.l_sel != _BLOCK or p.n_top > 16 or rows < _LEAST_ROWS:
        return "sizes"
    return None if p.dims.dk >= _LEAST_KEY_DIM else "narrow"


def combine_sources(p: Problem) -> Iterator[tuple[str, Constants]]:
    """This module's source, with its constants, if a problem takes it."""
    if combine_served(p) is None:
        yield _NAME, _constants(p)[0]


def why_no_combine(streams: tuple[Tensor, ...], p: Problem) -> str | None:
    """None if :func:`combine` can run where :func:`nsa.kernels.hopper.forward.why_no_forward` finds nothing against it,
    and is faster so, else the reason: ``dtype``, ``head_dim``, ``no_keys`` (no block is scored), ``sizes``, ``narrow``
    (keys for which Triton's kernel is faster), ``strides``, ``build``."""
    if reason := combine_served(p):
        return reason
    if not all(strided(x) for x in streams):
        return "strides"
    with torch.cuda.device(streams[0].device):
        return why_not_built(_NAME, *_constants(p), torch.cuda.current_device())


def combine(
    streams: tuple[Tensor, ...], o_cmp: Tensor, gates: Tensor, parts: tuple[Tensor, Tensor], out: tuple[Tensor, ...],
    p: Problem, *, first: int, count: int, save: bool,
) -> None:  # fmt: skip
    """What :func:`nsa.kernels.forward.combine_kernel` does, for ``count`` (batch, group) pairs from ``first`` on.

    ``streams``: q, and keys and values of the selected branch and of the window; ``parts``: partial results and their
    log-sum-exp; ``out``: ``o, o_sel, o_win, lse_sel, lse_win``, of which ``save`` writes the last four.
    """
    q, part_o = streams[0], parts[0]
    per = _BLOCK // p.hpg
    tiles = ceil_div(p.S, 2 * per)
    maps = tensor_map(q, rows=per, heads=p.hpg) + b"".join(tensor_map(x, rows=_BLOCK) for x in streams[1:])
    maps += tensor_map(part_o.view(-1, p.S, p.n_top * p.hpg, p.dims.dv), rows=per, heads=p.hpg)
    maps += b"".join(tensor_map(x, rows=per, heads=p.hpg) for x in (o_cmp, out[0]))
    gates = gates.float()
    pointers = [x.data_ptr() for x in (parts[1], gates, o_cmp, *out)]
    sizes = (p.S, p.H, p.G, first, tiles, tiles * count, int(save))
    given = _Arguments(
        (ctypes.c_uint64 * 128).from_buffer_copy(maps), tuple(pointers[:3]), tuple(pointers[3:]), sizes, p.scale2
    )  # fmt: skip
    launch(_NAME, *_constants(p), min(tiles * count, p.n_processors), given, q.device, threads=512)
