"""The backward pass by this folder's kernels: where it can run, and its launches from torch's tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from nsa.kernels import nvrtc
from nsa.kernels.config import FUSED, WGMMA_HEAD_DIMS, gathered_rows, gathers_by_wgmma
from nsa.kernels.hopper.program import Constants, launch, pointers, strided, tensor_map, why_not_built
from nsa.kernels.hopper.rows import rows_kernel
from nsa.kernels.hopper.window import tile_tokens, window_run, window_sources
from nsa.kernels.problem import Problem, capability, ceil_div

__all__ = [
    "HopperBackward", "Run", "RunTurn", "backward_sources", "scratch", "sums_queries", "why_no_gather", "why_no_wgmma",
]  # fmt: skip

_KEYS = 128
_ONE_WARP = 6
"""Heads of a group from which on one warp keeps up with asking for a box for each token."""
_DENSE, _GATHER = "dense_backward", "gather_backward"
Lists = tuple[Tensor, Tensor, Tensor, Tensor]
"""Pairs, offsets, tile offsets, and the block of each tile: :class:`nsa.kernels.launch.Index`."""

_MAPS = ("maps", ctypes.c_uint64 * 80)


class _DenseArguments(ctypes.Structure):
    """``dense_backward.cu``'s ``Arguments``."""

    _fields_ = (
        _MAPS, ("rows", ctypes.c_void_p * 2), ("sums", ctypes.c_void_p * 2), ("sizes", ctypes.c_int * 8),
        ("scales", ctypes.c_float * 2), ("padding", ctypes.c_byte * 56),
    )  # fmt: skip


class _GatherArguments(ctypes.Structure):
    """``gather_backward.cu``'s ``Arguments``."""

    _fields_ = (
        _MAPS, ("rows", ctypes.c_void_p * 2), ("index", ctypes.c_void_p * 4), ("sums", ctypes.c_void_p * 2),
        ("sizes", ctypes.c_int * 13), ("scale2", ctypes.c_float), ("padding", ctypes.c_byte * 8),
    )  # fmt: skip


def _chunk_tokens(p: Problem) -> int:
    """Tokens that a block of the dense kernel walks over at most: fewer where blocks would leave processors idle."""
    tokens, blocks = min(max(p.S // 8, 2048), 8192), p.bg * p.hpg * ceil_div(p.n_cmp, _KEYS)
    while tokens > 256 and 2 * blocks * ceil_div(p.S, tokens) < p.n_processors:
        tokens //= 2
    return tokens


def _dense_constants(p: Problem) -> tuple[Constants, int]:
    """Constants and shared memory of the dense kernel."""
    dk, dv, tile, stages = p.dims.dk, p.dims.dv, tile_tokens(p), 2
    constants = (
        ("DK", dk), ("DV", dv), ("BM", tile), ("STAGES", stages), ("L", p.l), ("D", p.d),
        ("HALF", int(p.dtype == torch.float16)),
    )  # fmt: skip
    row = 2 * (dk + dv)
    added = (4 if dk > 128 else 2) * (tile if dk > 64 else 64) * 64 * 4
    shared = _KEYS * row + stages * tile * (row + 8) + 4 * tile * _KEYS + added + 8 * (1 + 4 * stages)
    return constants, shared


def sums_queries(p: Problem) -> bool:
    """Whether the gathering kernel adds to the queries' gradients instead of storing partial results. Sums that are not
    in the L2 cache cost more than partial results do, and only those of small heads fit."""
    return p.dims.dk <= 64


def _gather_constants(p: Problem) -> tuple[Constants, int]:
    """Constants and shared memory of the gathering kernel."""
    dk, dv = p.dims.dk, p.dims.dv
    tile, row, stages, parts = gathered_rows(dk), 2 * (dk + dv), 4, int(not sums_queries(p))
    constants = (
        ("DK", dk), ("DV", dv), ("BM", tile), ("HPG", p.hpg), ("NTOP", p.n_top), ("TT", p.tiles.pairs_per_tile),
        ("PARTS", parts), ("SPLIT", int(p.hpg < _ONE_WARP)), ("STAGES", stages),
        ("HALF", int(p.dtype == torch.float16)),
    )  # fmt: skip
    shared = 64 * row + stages * tile * (row + 8) + 4 * tile * 128 + 2 * tile * dk * (2 if parts else 4)
    shared += 8 * (2 + 3 * stages)
    return constants, shared


def dense_served(p: Problem) -> str | None:
    """The reasons of :func:`why_no_wgmma` that lie in the problem."""
    if p.dtype not in (torch.bfloat16, torch.float16):
        return "dtype"
    if (p.dims.dk, p.dims.dv) not in WGMMA_HEAD_DIMS:
        return "head_dim"
    if p.deterministic:
        return "deterministic"
    return None if p.n_cmp else "no_keys"


def gather_served(p: Problem) -> str | None:
    """The reasons of :func:`why_no_gather` that lie in the problem."""
    if not p.n_top:
        return "no_keys"
    return None if gathers_by_wgmma(p.dims, p.hpg, p.l_sel, p.dtype.itemsize) else "sizes"


def backward_sources(p: Problem) -> Iterator[tuple[str, Constants]]:
    """Sources, with their constants, of the kernels of the backward pass that a problem takes."""
    if dense_served(p) is None:
        yield _DENSE, _dense_constants(p)[0]
        if gather_served(p) is None:
            yield _GATHER, _gather_constants(p)[0]
        yield from window_sources(p)


def why_no_wgmma(q: Tensor, kc: Tensor, vc: Tensor, do: Tensor, p: Problem) -> str | None:
    """None if the compressed branch's backward pass can run by Hopper's asynchronous products, else the reason.

    ``device``, ``capability`` (9.0 alone has these instructions), ``dtype`` (float32), ``head_dim``, ``deterministic``
    (sums are made in the order of arrival), ``no_keys``, ``strides``, ``cuda_bindings``, ``build`` (the kernel does not
    compile or load; a warning says why, once).
    """
    if q.device.type != "cuda":
        return "device"
    if capability(q.device) != (9, 0):
        return "capability"
    if reason := dense_served(p):
        return reason
    if not all(strided(x) for x in (q, kc, vc, do)):
        return "strides"
    if reason := nvrtc.missing():
        return reason
    with torch.cuda.device(q.device):
        return why_not_built(_DENSE, *_dense_constants(p), torch.cuda.current_device())


def why_no_gather(k_sel: Tensor, v_sel: Tensor, p: Problem) -> str | None:
    """None if the scored blocks' backward pass can run so too, where :func:`why_no_wgmma` finds nothing against it.

    ``no_keys`` (no block is scored), ``sizes`` (:func:`nsa.kernels.config.gathers_by_wgmma`), ``strides``, ``build``.
    """
    if reason := gather_served(p):
        return reason
    if not (strided(k_sel) and strided(v_sel)):
        return "strides"
    with torch.cuda.device(k_sel.device):
        return why_not_built(_GATHER, *_gather_constants(p), torch.cuda.current_device())


Run = Callable[[int, int], tuple[Tensor, Tensor]]
"""Runs (batch, group) pairs ``first .. first + count`` and returns sums of key and value gradients."""
RunTurn = Callable[[int, int, tuple[int, int]], tuple[Tensor, Tensor]]
"""The same for some tokens, ``(first, end)``, of whole spans."""


def _widths(p: Problem, *, gathers: bool, window: bool) -> list[int]:
    """Columns of a token's sums: of its queries, then of keys and values of the selected branch and of the window, if
    something adds to them."""
    return [p.hpg * p.dims.dk, *(p.dims.dk, p.dims.dv) * (window + (window or gathers))]


def scratch(p: Problem, *, gathers: bool, window: bool) -> int:
    """Bytes that each pair needs at a time: sums, and what Triton's kernel leaves by work tile if that gathers."""
    tiles = 0 if gathers or not p.n_top else p.max_tiles * p.l_sel * (p.dims.dk + p.dims.dv)
    return 4 * (p.S * sum(_widths(p, gathers=gathers, window=window)) + tiles)


class HopperBackward:
    """Gradients of the compressed branch and of the scored blocks, some (batch, group) pairs at a time.

    Those of the queries are summed in :attr:`dq` ``[most, S, heads per group, dk]``, those of keys and values in
    :attr:`selected` and :attr:`in_window`, each ``[most, S, dk]`` and ``[most, S, dv]``; float32, not scaled, for as
    many pairs as run at a time. :meth:`begin` empties them for those that come next.
    """

    def __init__(
        self, q: Tensor, do: Tensor, gates: Tensor, delta: Tensor, lse: tuple[Tensor, Tensor, Tensor], p: Problem,
        *, most: int, gathers: bool, window: bool,
    ) -> None:  # fmt: skip
        """``q [B, S, H, dk]``, ``do [B, S, H, dv]``, ``gates`` and ``delta [B, S, H, 3]``, ``lse [B, S, H]`` of the
        compressed and the selected branch and of the window; ``most`` pairs at a time; whether :meth:`gather` and
        :meth:`window` will be asked for."""
        self.p, self._q, self._do, self._n_tiles = p, q, do, ceil_div(p.S, tile_tokens(p))
        widths = _widths(p, gathers=gathers, window=window)
        self._all = q.new_empty(most * p.S * sum(widths), dtype=torch.float32)
        dq, *keys = (x.view(most, p.S, -1) for x in self._all.split([most * p.S * n for n in widths]))
        self.dq = dq.view(most, p.S, p.hpg, p.dims.dk)
        self.selected, self.in_window = tuple(keys[:2]), tuple(keys[2:])
        padded = self._n_tiles * tile_tokens(p)
        self._by_head = lse[0].new_empty(6 if window else 2, p.B * p.H * padded)
        self._by_token = lse[0].new_empty(2, p.B * p.H * p.S if gathers else 0)
        rows_kernel[(ceil_div(padded, 64), ceil_div(p.H, 16), p.B)](
            *lse, gates, delta, self._by_head, self._by_token, p.S, padded, self._by_head.shape[1],
            self._by_token.shape[1], H=p.H, ALL=window, BOTH=gathers, BT=64, BH=16, **FUSED,
        )  # fmt: skip

    def begin(self) -> None:
        """Empty the sums."""
        self._all.zero_()

    def compressed(self, kc: Tensor, vc: Tensor) -> Run:
        """The compressed branch, ``kc, vc [B, n_cmp, G, .]``; returns sums of their gradients ``[1, B * G, n_cmp, .]``
        float32, scaled, complete once every pair has run."""
        p, tile = self.p, tile_tokens(self.p)
        n_tiles, key_tiles = self._n_tiles, ceil_div(p.n_cmp, _KEYS)
        chunk = ceil_div(_chunk_tokens(p), tile)
        n = p.bg * p.n_cmp
        dk, dv = self.dq.new_zeros(n * (p.dims.dk + p.dims.dv)).split((n * p.dims.dk, n * p.dims.dv))
        sums = dk.view(1, p.bg, p.n_cmp, -1), dv.view(1, p.bg, p.n_cmp, -1)
        maps = [tensor_map(x, rows=tile) for x in (self._q, self._do)] + [tensor_map(x, rows=_KEYS) for x in (kc, vc)]
        maps.append(tensor_map(self.dq, rows=min(tile, 64)))
        all_maps, at = _MAPS[1].from_buffer_copy(b"".join(maps)), pointers(self._by_head[:2].unbind(), sums)

        def run(first: int, count: int) -> tuple[Tensor, Tensor]:
            heads = count * p.hpg
            sizes = (n_tiles, p.n_cmp, p.H, p.G, first, heads, key_tiles, chunk)
            given = _DenseArguments(all_maps, *at, sizes, (p.scale, p.scale2))
            launch(_DENSE, *_dense_constants(p), heads * key_tiles * ceil_div(n_tiles, chunk), given, kc.device)
            return sums

        return run

    def gather(self, k_sel: Tensor, v_sel: Tensor, index: Lists, part_dq: Tensor | None) -> RunTurn:
        """The scored blocks, ``k_sel, v_sel [B, S, G, .]``: adds to :attr:`selected`, which it returns.

        Query gradients go to ``part_dq [most, tokens * n_top, heads per group, dk]``, from the turn's first token on,
        or, if :func:`sums_queries`, to :attr:`dq`.
        """
        p = self.p
        sums = self.selected
        maps = [tensor_map(x, heads=p.hpg) for x in (self._q, self._do)]
        maps += [tensor_map(x, rows=64) for x in (k_sel, v_sel)]
        maps.append(tensor_map(self.dq if part_dq is None else part_dq.view(1, -1, p.hpg, p.dims.dk), heads=p.hpg))
        all_maps, at = _MAPS[1].from_buffer_copy(b"".join(maps)), pointers(self._by_token.unbind(), index, sums)
        n_parts = 0 if part_dq is None else part_dq.shape[1]

        def run(first: int, count: int, turn: tuple[int, int]) -> tuple[Tensor, Tensor]:
            list_from, list_end = (ceil_div(t, p.span) * p.n_blocks for t in turn)
            sizes = (p.S, p.H, p.G, p.n_blocks, p.n_lists, p.n_pairs, p.max_tiles, list_from, list_end)
            sizes += (first, first + count, n_parts, turn[0] * p.n_top)
            given = _GatherArguments(all_maps, *at, sizes, p.scale2)
            launch(_GATHER, *_gather_constants(p), min(p.max_tiles * count, p.n_processors), given, k_sel.device)
            return sums

        return run

    def window(self, streams: tuple[Tensor, ...]) -> Callable[[int, int], None]:
        """Window and forced blocks, ``k_win, v_win, k_sel, v_sel [B, S, G, .]``: adds to :attr:`dq`, :attr:`selected`
        and :attr:`in_window`."""
        queries = (self._q, self._do)
        return window_run(self.p, queries, self._by_head[2:], streams, self.dq, self.selected, self.in_window)
