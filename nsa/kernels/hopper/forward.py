"""The compressed branch's forward pass, the choice of blocks from its scores, and attention over these, by kernels of
this folder."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch
from torch import Tensor

from nsa.attention.spans import span
from nsa.kernels import nvrtc
from nsa.kernels.config import WGMMA_HEAD_DIMS
from nsa.kernels.hopper.program import Constants, in_rows, launch, pointers, strided, tensor_map, why_not_built
from nsa.kernels.problem import Problem, capability, ceil_div

__all__ = [
    "ROWS_BEYOND",
    "attend",
    "compressed",
    "compressed_and_chosen",
    "forward_sources",
    "why_no_attend",
    "why_no_choose",
    "why_no_forward",
]

_DENSE, _CHOOSE, _GATHER = "dense_forward", "choose", "gather_forward"
_SHARED_LIMIT = 227 * 1024
_LEAST_HEADS = 6
"""Heads of a group from which on a copy for each token is large enough."""
_LEAST_KEY_DIM = 128
"""Channels of keys from which on attention over chosen blocks was measured to be faster than Triton's."""


class _DenseArguments(ctypes.Structure):
    """``dense_forward.cu``'s ``Arguments``."""

    _fields_ = (
        ("maps", ctypes.c_uint64 * 48), ("o", ctypes.c_void_p), ("lse", ctypes.c_void_p), ("strips", ctypes.c_void_p),
        ("sizes", ctypes.c_int * 9), ("scale2", ctypes.c_float),
    )  # fmt: skip


class _ChooseArguments(ctypes.Structure):
    """``choose.cu``'s ``Arguments``."""

    _fields_ = (
        ("given", ctypes.c_void_p * 6), ("q_strides", ctypes.c_int64 * 3), ("sizes", ctypes.c_int * 11),
        ("scale2", ctypes.c_float),
    )  # fmt: skip


class _GatherArguments(ctypes.Structure):
    """``gather_forward.cu``'s ``Arguments``."""

    _fields_ = (
        ("maps", ctypes.c_uint64 * 64), ("index", ctypes.c_void_p * 4), ("lse", ctypes.c_void_p),
        ("sizes", ctypes.c_int * 11), ("scale2", ctypes.c_float), ("padding", ctypes.c_byte * 40),
    )  # fmt: skip


def _dense_tile(p: Problem, *, leaves: bool = False) -> tuple[int, int, int, int]:
    """Warpgroups that multiply, keys of a tile, stages, whether warpgroups issue products in turns."""
    if leaves:
        return (2, _LEFT_KEYS, 2, 1) if p.dims.dk > 64 else (2, _LEFT_KEYS, 3, 0)
    # Three warpgroups leave too many rows idle where a group's heads fill 192 rows worse than 128.
    three = 192 // p.hpg * p.hpg >= 160
    if p.dims.dk > 128:
        return 2, 128, 2, 1
    if p.dims.dk > 64:
        return (3, 80, 2, 1) if three else (2, 128, 2, 1)
    return (3, 128, 2, 0) if three else (2, 128, 3, 0)


def _dense_constants(p: Problem, *, leaves: bool = False) -> tuple[Constants, int]:
    """Constants and shared memory; ``leaves``: what blocks are chosen by as well."""
    dk, dv = p.dims.dk, p.dims.dv
    warpgroups, keys, stages, turns = _dense_tile(p, leaves=leaves)
    of_queries, of_keys = 128 * warpgroups * dk, stages * keys * 2 * (dk + dv)
    queries = 2 if 2 * of_queries + of_keys + 32 + 32 * stages <= _SHARED_LIMIT else 1
    constants = (
        ("DK", dk), ("DV", dv), ("HPG", p.hpg), ("L", p.l), ("D", p.d), ("WGS", warpgroups), ("BN", keys),
        ("STAGES", stages), ("QUERIES", queries), ("TURNS", turns), ("LEAVES", int(leaves)),
        ("HALF", int(p.dtype == torch.float16)),
    )  # fmt: skip
    return constants, queries * (of_queries + 16) + of_keys + 32 * stages


_LEFT_KEYS = 128
"""Keys of a record in strips.cuh."""
_STRIP_BYTES = 2560 << 20
"""What is left of probabilities may take this much memory at once; beyond it pairs and tokens run in turns."""
_CHOOSE_WARPS = 8
ROWS_BEYOND = _LEFT_KEYS // 4 - 1
"""Rows after the last one of compressed keys and values that are read where blocks are chosen: zeros, which
:func:`nsa.kernels.launch.compress` leaves there. Others are copied."""


def _choose_constants(p: Problem) -> tuple[Constants, int]:
    """Constants and shared memory."""
    most = ceil_div(p.n_blocks, 1024) * 32
    constants = (
        ("DK", p.dims.dk), ("HPG", p.hpg), ("L", p.l), ("D", p.d), ("LS", p.l_sel), ("NTOP", p.n_top), ("MOST", most),
        ("WARPS", _CHOOSE_WARPS), ("RESIDENT", 2 if p.hpg > 16 else 3), ("HALF", int(p.dtype == torch.float16)),
    )  # fmt: skip
    return constants, _CHOOSE_WARPS * (32 * most + 128) * 4


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
        chooses = choose_served(p) is None
        yield _DENSE, _dense_constants(p, leaves=chooses)[0]
        if chooses:
            yield _CHOOSE, _choose_constants(p)[0]
        if attend_served(p) is None:
            yield _GATHER, _gather_constants(p)[0]


def why_no_forward(q: Tensor, kc: Tensor, vc: Tensor, p: Problem) -> str | None:
    """None if the compressed branch's forward pass can run by Hopper's asynchronous products, else the reason: those of
    :func:`nsa.kernels.hopper.why_no_wgmma`, and ``sizes`` (more than 128 heads in a group)."""
    return _why_not(q, kc, vc, forward_served(p)) or _not_built(q.device, (_DENSE, *_dense_constants(p)))


def _why_not(q: Tensor, kc: Tensor, vc: Tensor, in_problem: str | None) -> str | None:
    """The reasons that lie in the device and in the tensors, and between them those ``in_problem``."""
    if q.device.type != "cuda":
        return "device"
    if capability(q.device) != (9, 0):
        return "capability"
    if in_problem:
        return in_problem
    if not all(strided(x) for x in (q, kc, vc)):
        return "strides"
    return nvrtc.missing()


def choose_served(p: Problem) -> str | None:
    """The reasons of :func:`why_no_choose` that lie in the problem."""
    if reason := forward_served(p):
        return reason
    if p.hpg > 32 or p.l != 2 * p.d or p.l_sel != 4 * p.d or not 0 < p.n_top <= 32:
        return "sizes"
    return "sizes" if _choose_constants(p)[1] > _SHARED_LIMIT else None


def why_no_choose(q: Tensor, kc: Tensor, vc: Tensor, p: Problem) -> str | None:
    """None if the compressed branch can also leave what blocks are chosen by, else the reason: those of
    :func:`why_no_forward`, and ``sizes`` for more than 32 heads in a group, more than 32 scored blocks, and other
    ratios of blocks. What only :func:`why_no_forward` needs is not built."""
    return _why_not(q, kc, vc, choose_served(p)) or _not_built(
        q.device, (_DENSE, *_dense_constants(p, leaves=True)), (_CHOOSE, *_choose_constants(p))
    )


def _not_built(device: torch.device, *kernels: tuple[str, Constants, int]) -> str | None:
    """Why one of the kernels (source, constants, shared memory) was not built."""
    with torch.cuda.device(device):
        current = torch.cuda.current_device()
        return next(filter(None, (why_not_built(*kernel, current) for kernel in kernels)), None)


def why_no_attend(q: Tensor, k_sel: Tensor, v_sel: Tensor, p: Problem) -> str | None:
    """None if attention over the chosen blocks can run so, where :func:`why_no_forward` finds nothing against it, and
    is faster so: ``narrow`` are keys for which Triton's is."""
    if reason := attend_served(p):
        return reason
    if not all(strided(x) for x in (q, k_sel, v_sel)):
        return "strides"
    return _not_built(q.device, (_GATHER, *_gather_constants(p, whole=in_rows(q))))


def _dense(
    streams: tuple[Tensor, Tensor, Tensor], out: tuple[Tensor, Tensor], p: Problem, strips: Tensor | None = None,
    *, pairs: tuple[int, int], tokens: tuple[int, int],
) -> None:  # fmt: skip
    """The compressed branch of ``pairs`` (first, count) and ``tokens`` (first, end), which leaves ``strips``."""
    q, kc, vc = streams
    leaves = strips is not None
    warpgroups, keys = _dense_tile(p, leaves=leaves)[:2]
    rows = 64 * warpgroups // p.hpg
    tiles = ceil_div(tokens[1] - tokens[0], rows)
    maps = tensor_map(q, rows=rows, heads=p.hpg)
    maps += b"".join(tensor_map(x, rows=keys, by_lane=leaves) for x in (kc, vc))
    sizes = (p.S, p.H, p.G, pairs[1], tiles, tiles * pairs[1], pairs[0], *tokens)
    left = None if strips is None else strips.data_ptr()
    (at,) = pointers(out)
    given = _DenseArguments((ctypes.c_uint64 * 48).from_buffer_copy(maps), *at, left, sizes, p.scale2)
    blocks = min(tiles * pairs[1], p.n_processors)
    launch(_DENSE, *_dense_constants(p, leaves=leaves), blocks, given, q.device, threads=128 * (warpgroups + 1))


def _empty_output(q: Tensor, p: Problem) -> tuple[Tensor, Tensor]:
    return q.new_empty(p.B, p.S, p.H, p.dims.dv), q.new_empty(p.B, p.S, p.H, dtype=torch.float32)


def compressed(q: Tensor, kc: Tensor, vc: Tensor, p: Problem) -> tuple[Tensor, Tensor]:
    """Output ``[B, S, H, dv]`` and base-2 log-sum-exp ``[B, S, H]`` over the visible compressed tokens ``kc, vc
    [B, n_cmp, G, .]``; rows that see none give 0 and -1e30."""
    out = _empty_output(q, p)
    _dense((q, kc, vc), out, p, pairs=(0, p.bg), tokens=(0, p.S))
    return out


def _records(p: Problem) -> tuple[int, int]:
    """Tokens that have as many records of strips.cuh, and the bytes of one."""
    return _LEFT_KEYS * p.d, ceil_div(p.hpg * (_LEFT_KEYS // 2 + 8), 16) * 16


def _strip_turns(p: Problem) -> tuple[list[tuple[tuple[int, int], tuple[int, int]]], int]:
    """Runs of pairs (first, count) and of tokens (first, end), of which what is left fits its limit as far as it can,
    and the bytes of the largest."""
    tokens, record = _records(p)

    def records(t: int) -> int:
        """Of a pair's tokens before ``t``."""
        c = t // tokens
        return tokens * c * (c + 1) // 2 + t % tokens * (c + 1)

    of_pair = records(p.S) * record
    if of_pair <= _STRIP_BYTES:
        most = min(_STRIP_BYTES // max(of_pair, 1), p.bg)
        count = ceil_div(p.bg, ceil_div(p.bg, most))
        turns = [((first, min(count, p.bg - first)), (0, p.S)) for first in range(0, p.bg, count)]
        return turns, of_pair * count
    ranges, first = [], 0
    for end in [*range(tokens, p.S, tokens), p.S]:
        after = min(end + tokens, p.S)
        if end == p.S or (records(after) - records(first)) * record > _STRIP_BYTES:
            ranges.append((first, end))
            first = end
    most = max((records(end) - records(first)) * record for first, end in ranges)
    return [((pair, 1), one) for pair in range(p.bg) for one in ranges], most


def compressed_and_chosen(q: Tensor, kc: Tensor, vc: Tensor, p: Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What :func:`compressed` gives, then the highest-scoring blocks ``[B * G, S, n_top]`` of each token, and how often
    each was chosen from each span, as :func:`nsa.kernels.select.select_kernel` gives them."""
    out = _empty_output(q, p)
    top = q.new_empty(p.bg, p.S, p.n_top, dtype=torch.int32)
    counts = q.new_empty(p.bg, p.n_lists, dtype=torch.int32)
    with span("nsa.compress"):
        kc, vc = _with_rows_beyond(kc), _with_rows_beyond(vc)
    turns, most = _strip_turns(p)
    strips = q.new_empty(most, dtype=torch.uint8)
    constants = _choose_constants(p)
    resident = dict(constants[0])["RESIDENT"]
    for turn, (pairs, tokens) in enumerate(turns):
        with span("nsa.cmp"):
            _dense((q, kc, vc), out, p, strips, pairs=pairs, tokens=tokens)
        sizes = (p.S, p.H, p.G, p.n_cmp, p.n_blocks, p.span, p.n_lists, pairs[1], pairs[0], *tokens)
        (at,) = pointers((strips, q, kc, out[1], top, counts))
        given = _ChooseArguments(at, q.stride()[:3], sizes, p.scale2)
        blocks = min(ceil_div((tokens[1] - tokens[0]) * pairs[1], _CHOOSE_WARPS), resident * p.n_processors)
        with span("nsa.sel.ranges_v2"):
            if not turn:
                counts.zero_()
            launch(_CHOOSE, *constants, blocks, given, q.device, threads=32 * _CHOOSE_WARPS)
    return *out, top, counts


def _with_rows_beyond(kc: Tensor) -> Tensor:
    """Contiguous, followed by :data:`ROWS_BEYOND` rows of zeros, as :func:`nsa.kernels.launch.compress` leaves it."""
    beyond = ROWS_BEYOND * kc[0, :1].numel()
    if kc.untyped_storage().nbytes() == (kc.numel() + beyond) * kc.element_size() and kc.is_contiguous():
        return kc
    return kc.new_zeros(kc.numel() + beyond)[: kc.numel()].view_as(kc).copy_(kc)


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
