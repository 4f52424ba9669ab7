"""The compressed branch's forward pass, the choice of blocks from its scores, and attention over these, by kernels of
this folder."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch
from torch import Tensor

from nsa.kernels import nvrtc
from nsa.kernels.config import WGMMA_HEAD_DIMS
from nsa.kernels.hopper.program import Constants, in_rows, launch, pointers, strided, tensor_map, why_not_built
from nsa.kernels.problem import Problem, capability, ceil_div

__all__ = [
    "ROWS_BEYOND",
    "attend",
    "compressed",
    "forward_sources",
    "select",
    "why_no_attend",
    "why_no_forward",
    "why_no_select",
]

_DENSE, _SCORES, _GATHER = "dense_forward", "scores", "gather_forward"
_SHARED_LIMIT = 227 * 1024
_LEAST_HEADS = 6
"""Heads of a group from which on a copy for each token is large enough."""
_LEAST_KEY_DIM = 128
"""Channels of keys from which on attention over chosen blocks was measured to be faster than Triton's."""


class _DenseArguments(ctypes.Structure):
    """``dense_forward.cu``'s ``Arguments``."""

    _fields_ = (
        ("maps", ctypes.c_uint64 * 48), ("o", ctypes.c_void_p), ("lse", ctypes.c_void_p), ("sizes", ctypes.c_int * 6),
        ("scale2", ctypes.c_float), ("padding", ctypes.c_byte * 20),
    )  # fmt: skip


class _ScoresArguments(ctypes.Structure):
    """``scores.cu``'s ``Arguments``."""

    _fields_ = (
        ("maps", ctypes.c_uint64 * 32), ("lse", ctypes.c_void_p), ("strips", ctypes.c_void_p), ("top", ctypes.c_void_p),
        ("counts", ctypes.c_void_p), ("sizes", ctypes.c_int * 9), ("scale2", ctypes.c_float),
        ("padding", ctypes.c_byte * 56),
    )  # fmt: skip


class _GatherArguments(ctypes.Structure):
    """``gather_forward.cu``'s ``Arguments``."""

    _fields_ = (
        ("maps", ctypes.c_uint64 * 64), ("index", ctypes.c_void_p * 4), ("lse", ctypes.c_void_p),
        ("sizes", ctypes.c_int * 11), ("scale2", ctypes.c_float), ("padding", ctypes.c_byte * 40),
    )  # fmt: skip


def _dense_tile(p: Problem) -> tuple[int, int, int, int]:
    """Warpgroups that multiply, keys of a tile, stages, whether warpgroups issue products in turns."""
    # Three warpgroups leave too many rows idle where a group's heads fill 192 rows worse than 128.
    three = 192 // p.hpg * p.hpg >= 160
    if p.dims.dk > 128:
        return 2, 128, 2, 1
    if p.dims.dk > 64:
        return (3, 80, 2, 1) if three else (2, 128, 2, 1)
    return (3, 128, 2, 0) if three else (2, 128, 3, 0)


def _dense_constants(p: Problem) -> tuple[Constants, int]:
    """Constants and shared memory."""
    dk, dv = p.dims.dk, p.dims.dv
    warpgroups, keys, stages, turns = _dense_tile(p)
    of_queries, of_keys = 128 * warpgroups * dk, stages * keys * 2 * (dk + dv)
    queries = 2 if 2 * of_queries + of_keys + 32 + 32 * stages <= _SHARED_LIMIT else 1
    constants = (
        ("DK", dk), ("DV", dv), ("HPG", p.hpg), ("L", p.l), ("D", p.d), ("WGS", warpgroups), ("BN", keys),
        ("STAGES", stages), ("QUERIES", queries), ("TURNS", turns), ("HALF", int(p.dtype == torch.float16)),
    )  # fmt: skip
    return constants, queries * (of_queries + 16) + of_keys + 32 * stages


_SCORES_KEYS = 128
"""Keys of a tile where blocks are scored."""
ROWS_BEYOND = _SCORES_KEYS // 4 - 1
"""Rows after the last one of compressed keys that are read where blocks are scored. Keys without room for them are
copied."""


def _scores_tile(p: Problem) -> tuple[int, int, int, int]:
    """Rows of a token's heads, warpgroups that multiply, whether one more chooses, stages."""
    rows = next(n for n in (4, 8, 16, 32) if p.hpg <= n)
    return (rows, 3, 0, 2) if p.dims.dk > 128 else (rows, 3, 1, 4)


def _scores_constants(p: Problem) -> tuple[Constants, int]:
    """Constants and shared memory."""
    _, warpgroups, extra, stages = _scores_tile(p)
    most = ceil_div(p.n_blocks, 1024) * 32
    constants = (
        ("DK", p.dims.dk), ("HPG", p.hpg), ("L", p.l), ("D", p.d), ("LS", p.l_sel), ("NTOP", p.n_top),
        ("WGS", warpgroups), ("EXTRA", extra), ("BN", _SCORES_KEYS), ("STAGES", stages), ("MOST", most),
        ("HALF", int(p.dtype == torch.float16)),
    )  # fmt: skip
    tiles = 2 * p.dims.dk * (64 * warpgroups + _SCORES_KEYS * stages)
    return constants, tiles + (3 + 4 * extra) * (32 * most + 128) * 4 + 48 + 16 * stages


def _gather_constants(p: Problem, *, whole: bool = True) -> tuple[Constants, int]:
    """Constants and shared memory; ``whole``: the heads of a token are one after the other in memory."""
    dk, dv, warpgroups, stages = p.dims.dk, p.dims.dv, 3, 3 if p.dims.dk > 128 else 6
    constants = (
        ("DK", dk), ("DV", dv), ("HPG", p.hpg), ("NTOP", p.n_top), ("TT", p.tiles.pairs_per_tile),
        ("WGS", warpgroups), ("STAGES", stages), ("WHOLE", int(whole and p.hpg % 8 == 0)),
        ("HALF", int(p.dtype == torch.float16)),
    )  # fmt: skip
    return constants, 128 * (2 * (dk + dv) + stages * dk + warpgroups * (dv + 2)) + 32 + 16 * stages


def attend_served(p: Problem) -> str | None:
    """The reasons of :func:`why_no_attend` that lie in the problem."""
    if p.dtype not in (torch.bfloat16, torch.float16):
        return "dtype"
    if (p.dims.dk, p.dims.dv) not in WGMMA_HEAD_DIMS:
        return "head_dim"
    if not p.n_top:
        return "no_keys"
    if p.l_sel != 64 or not _LEAST_HEADS <= p.hpg <= 64:
        return "sizes"
    return None if p.dims.dk >= _LEAST_KEY_DIM else "narrow"


def select_served(p: Problem) -> str | None:
    """The reasons of :func:`why_no_select` that lie in the problem."""
    if p.dtype not in (torch.bfloat16, torch.float16):
        return "dtype"
    if p.dims.dk not in (64, 128, 192):
        return "head_dim"
    if not 4 <= p.hpg <= 32 or p.l != 2 * p.d or p.l_sel != 4 * p.d or not 0 < p.n_top <= 32:
        return "sizes"
    return "sizes" if _scores_constants(p)[1] > _SHARED_LIMIT else None


def forward_served(p: Problem) -> str | None:
    """The reasons of :func:`why_no_forward` that lie in the problem."""
    if p.dtype not in (torch.bfloat16, torch.float16):
        return "dtype"
    if (p.dims.dk, p.dims.dv) not in WGMMA_HEAD_DIMS:
        return "head_dim"
    if p.hpg > 128:
        return "sizes"
    return None if p.n_cmp else "no_keys"


def forward_sources(p: Problem) -> Iterator[tuple[str, Constants]]:
    """Sources, with their constants, of the kernels of this module that a problem takes."""
    if forward_served(p) is None:
        yield _DENSE, _dense_constants(p)[0]
        if select_served(p) is None:
            yield _SCORES, _scores_constants(p)[0]
        if attend_served(p) is None:
            yield _GATHER, _gather_constants(p)[0]


def why_no_forward(q: Tensor, kc: Tensor, vc: Tensor, p: Problem) -> str | None:
    """None if the compressed branch's forward pass can run by Hopper's asynchronous products, else the reason: those of
    :func:`nsa.kernels.hopper.why_no_wgmma`, and ``sizes`` (more than 128 heads in a group)."""
    if q.device.type != "cuda":
        return "device"
    if capability(q.device) != (9, 0):
        return "capability"
    if reason := forward_served(p):
        return reason
    if not all(strided(x) for x in (q, kc, vc)):
        return "strides"
    if reason := nvrtc.missing():
        return reason
    with torch.cuda.device(q.device):
        return why_not_built(_DENSE, *_dense_constants(p), torch.cuda.current_device())


def why_no_select(q: Tensor, kc: Tensor, p: Problem) -> str | None:
    """None if scores and the choice of blocks can run so, where :func:`why_no_forward` finds nothing against it."""
    if reason := select_served(p):
        return reason
    with torch.cuda.device(q.device):
        return why_not_built(_SCORES, *_scores_constants(p), torch.cuda.current_device())


def why_no_attend(q: Tensor, k_sel: Tensor, v_sel: Tensor, p: Problem) -> str | None:
    """None if attention over the chosen blocks can run so, where :func:`why_no_forward` finds nothing against it, and
    is faster so: ``narrow`` are keys for which Triton's is."""
    if reason := attend_served(p):
        return reason
    if not all(strided(x) for x in (q, k_sel, v_sel)):
        return "strides"
    with torch.cuda.device(q.device):
        return why_not_built(_GATHER, *_gather_constants(p, whole=in_rows(q)), torch.cuda.current_device())


def compressed(q: Tensor, kc: Tensor, vc: Tensor, p: Problem) -> tuple[Tensor, Tensor]:
    """Output ``[B, S, H, dv]`` and base-2 log-sum-exp ``[B, S, H]`` over the visible compressed tokens ``kc, vc
    [B, n_cmp, G, .]``; rows that see none give 0 and -1e30."""
    o = q.new_empty(p.B, p.S, p.H, p.dims.dv)
    lse = q.new_empty(p.B, p.S, p.H, dtype=torch.float32)
    warpgroups, keys = _dense_tile(p)[:2]
    tokens = 64 * warpgroups // p.hpg
    tiles = ceil_div(p.S, tokens)
    maps = tensor_map(q, rows=tokens, heads=p.hpg) + tensor_map(kc, rows=keys) + tensor_map(vc, rows=keys)
    sizes = (p.S, p.H, p.G, p.bg, tiles, tiles * p.bg)
    given = _DenseArguments(
        (ctypes.c_uint64 * 48).from_buffer_copy(maps), o.data_ptr(), lse.data_ptr(), sizes, p.scale2
    )  # fmt: skip
    blocks = min(tiles * p.bg, p.n_processors)
    launch(_DENSE, *_dense_constants(p), blocks, given, q.device, threads=128 * (warpgroups + 1))
    return o, lse


def _with_rows_beyond(kc: Tensor) -> Tensor:
    """Contiguous, in memory of its own for :data:`ROWS_BEYOND` rows after the last one."""
    beyond = ROWS_BEYOND * kc[0, :1].numel()
    room = kc.untyped_storage().nbytes() // kc.element_size() - kc.storage_offset() - kc.numel()
    if room >= beyond and kc.is_contiguous():
        return kc
    return kc.new_empty(kc.numel() + beyond)[: kc.numel()].view_as(kc).copy_(kc)


def select(q: Tensor, kc: Tensor, lse: Tensor, p: Problem) -> tuple[Tensor, Tensor]:
    """The highest-scoring blocks ``[B * G, S, n_top]`` of each token, and how often each was chosen from each span, as
    :func:`nsa.kernels.select.select_kernel` gives them. ``lse [B, S, H]`` is that of :func:`compressed`."""
    rows, warpgroups, extra, _ = _scores_tile(p)
    tokens, constants = 64 * warpgroups // rows, _scores_constants(p)
    tiles = ceil_div(p.S, tokens)
    blocks = min(tiles * p.bg, p.n_processors)
    top = q.new_empty(p.bg, p.S, p.n_top, dtype=torch.int32)
    counts = q.new_zeros(p.bg, p.n_lists, dtype=torch.int32)
    strips = q.new_empty(blocks, 2, tokens, ceil_div(rows, 16), 32 * dict(constants[0])["MOST"], dtype=torch.float32)
    kc = _with_rows_beyond(kc)
    maps = tensor_map(q, rows=tokens if p.hpg == rows else 1, heads=p.hpg)
    maps += tensor_map(kc, rows=_SCORES_KEYS, by_lane=True)
    sizes = (p.S, p.H, p.G, p.bg, tiles, tiles * p.bg, p.n_blocks, p.span, p.n_lists)
    pointers = tuple(x.data_ptr() for x in (lse, strips, top, counts))
    given = _ScoresArguments((ctypes.c_uint64 * 32).from_buffer_copy(maps), *pointers, sizes, p.scale2)
    launch(_SCORES, *constants, blocks, given, q.device, threads=128 * (warpgroups + 1 + extra))
    return top, counts


def attend(
    streams: tuple[Tensor, Tensor, Tensor], index: tuple[Tensor, ...], parts: tuple[Tensor, Tensor], p: Problem, *,
    first: int, count: int,
) -> None:  # fmt: skip
    """What :func:`nsa.kernels.selected.gather_kernel` does, for ``count`` (batch, group) pairs from ``first`` on.

    ``streams``: q, and keys and values of the selected branch; ``index``: pairs, offsets, tile offsets, and the block
    of each tile; ``parts``: partial results ``[most, n_pairs, heads per group, dv]`` and their log-sum-exp.
    """
    q, k, v = streams
    constants, shared = _gather_constants(p, whole=in_rows(q))
    part = parts[0].view(1, -1, p.hpg, p.dims.dv)
    whole = bool(dict(constants)["WHOLE"])
    of_q, of_part = (tensor_map(x, heads=p.hpg, whole=whole) for x in (q, part))
    maps = of_q + tensor_map(k, rows=64) + tensor_map(v, rows=64) + of_part
    sizes = (p.S, p.H, p.G, p.n_blocks, p.n_lists, p.n_pairs, p.max_tiles, 0, p.n_lists, first, first + count)
    (lists,) = pointers(index)
    all_maps = (ctypes.c_uint64 * 64).from_buffer_copy(maps)
    given = _GatherArguments(all_maps, lists, parts[1].data_ptr(), sizes, p.scale2)
    threads = 128 * (dict(constants)["WGS"] + 1)
    launch(_GATHER, constants, shared, min(p.max_tiles * count, p.n_processors), given, q.device, threads=threads)
