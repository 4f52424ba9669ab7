"""The backward pass by this folder's kernels: where it can run, and its launches from torch's tensors."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from nsa.kernels import nvrtc
from nsa.kernels.hopper.program import Constants, launch, strided, tensor_map, why_not_built
from nsa.kernels.hopper.rows import rows_kernel
from nsa.kernels.problem import Problem, ceil_div

__all__ = ["HopperBackward", "why_no_gather", "why_no_wgmma"]

_KEYS = 128
_DENSE, _GATHER = "dense_backward", "gather_backward"
_SERVED = ((128, 128), (128, 64), (64, 64))
_MAPS = ("maps", ctypes.c_uint64 * 80)


class _DenseArguments(ctypes.Structure):
    """``dense_backward.cu``'s ``Arguments``."""

    _fields_ = (
        _MAPS, ("rows", ctypes.c_void_p * 2), ("sums", ctypes.c_void_p * 2), ("sizes", ctypes.c_int * 7),
        ("scales", ctypes.c_float * 2), ("padding", ctypes.c_byte * 60),
    )  # fmt: skip


class _GatherArguments(ctypes.Structure):
    """``gather_backward.cu``'s ``Arguments``."""

    _fields_ = (
        _MAPS, ("rows", ctypes.c_void_p * 2), ("index", ctypes.c_void_p * 4), ("sums", ctypes.c_void_p * 2),
        ("sizes", ctypes.c_int * 7), ("scale2", ctypes.c_float), ("padding", ctypes.c_byte * 32),
    )  # fmt: skip


def _tile(p: Problem) -> int:
    """Tokens of a tile of the dense kernel."""
    return 64 if p.dims.dk > 64 else 128


def _chunk_tokens(p: Problem) -> int:
    """Tokens that a block of the dense kernel walks over at most."""
    return min(max(p.S // 8, 2048), 8192)


def _dense_constants(p: Problem) -> tuple[Constants, int]:
    """Constants and shared memory of the dense kernel."""
    dk, dv, tile, stages = p.dims.dk, p.dims.dv, _tile(p), 2
    constants = (
        ("DK", dk), ("DV", dv), ("BM", tile), ("STAGES", stages), ("L", p.l), ("D", p.d),
        ("HALF", int(p.dtype == torch.float16)),
    )  # fmt: skip
    row = 2 * (dk + dv)
    added = 2 * (tile if dk > 64 else 64) * 64 * 4
    shared = _KEYS * row + stages * tile * (row + 8) + 4 * tile * _KEYS + added + 8 * (1 + 4 * stages)
    return constants, shared


def _gather_constants(p: Problem) -> tuple[Constants, int]:
    """Constants and shared memory of the gathering kernel."""
    dk, dv = p.dims.dk, p.dims.dv
    row, stages = 2 * (dk + dv), 3 if dk > 64 else 4
    constants = (
        ("DK", dk), ("DV", dv), ("HPG", p.hpg), ("NTOP", p.n_top), ("TT", p.tiles.pairs_per_tile), ("STAGES", stages),
        ("HALF", int(p.dtype == torch.float16)),
    )  # fmt: skip
    shared = 64 * row + stages * 64 * (row + 8) + 4 * 64 * 128 + 2 * 64 * dk * 4 + 8 * (1 + 2 * stages)
    return constants, shared


def why_no_wgmma(q: Tensor, kc: Tensor, vc: Tensor, do: Tensor, p: Problem) -> str | None:
    """None if the compressed branch's backward pass can run by Hopper's asynchronous products, else the reason.

    ``device``, ``capability`` (9.0 alone has these instructions), ``dtype`` (float32), ``head_dim``, ``deterministic``
    (sums are made in the order of arrival), ``no_keys``, ``strides``, ``cuda_bindings``, ``build`` (the kernel does not
    compile or load; a warning says why, once).
    """
    if q.device.type != "cuda":
        return "device"
    if torch.cuda.get_device_capability(q.device) != (9, 0):
        return "capability"
    if q.dtype not in (torch.bfloat16, torch.float16):
        return "dtype"
    if (p.dims.dk, p.dims.dv) not in _SERVED:
        return "head_dim"
    if p.deterministic:
        return "deterministic"
    if not p.n_cmp:
        return "no_keys"
    if not all(strided(x) for x in (q, kc, vc, do)):
        return "strides"
    if reason := nvrtc.missing():
        return reason
    with torch.cuda.device(q.device):
        return why_not_built(_DENSE, *_dense_constants(p), torch.cuda.current_device())


def why_no_gather(k_sel: Tensor, v_sel: Tensor, p: Problem) -> str | None:
    """None if the scored blocks' backward pass can run so too, where :func:`why_no_wgmma` finds nothing against it.

    ``no_keys`` (no block is scored), ``block_size`` (not 64), ``strides``, ``build``.
    """
    if not p.n_top:
        return "no_keys"
    if p.l_sel != 64:
        return "block_size"
    if not (strided(k_sel) and strided(v_sel)):
        return "strides"
    with torch.cuda.device(k_sel.device):
        return why_not_built(_GATHER, *_gather_constants(p), torch.cuda.current_device())


class HopperBackward:
    """Gradients of the compressed branch and of the scored blocks; those of the queries are summed in :attr:`dq`."""

    def __init__(self, q: Tensor, do: Tensor, gates: Tensor, delta: Tensor, p: Problem) -> None:
        """``q [B, S, H, dk]``, ``do [B, S, H, dv]``, ``gates`` and ``delta [B, S, H, 3]``."""
        self.p, self._q, self._do, self._gates, self._delta = p, q, do, gates, delta
        self.dq = q.new_zeros(p.B, p.S, p.H, p.dims.dk, dtype=torch.float32)
        """Not scaled."""

    def _rows(self, lse: Tensor, branch: int, padded: int, ot: int, oh: int) -> tuple[Tensor, Tensor]:
        p = self.p
        shift, delta = (lse.new_empty(p.B * p.H * padded) for _ in range(2))
        rows_kernel[(ceil_div(padded, 64), ceil_div(p.H, 16), p.B)](
            lse, self._gates, self._delta, shift, delta, p.S, padded, ot, oh, H=p.H, BRANCH=branch, BT=64, BH=16
        )
        return shift, delta

    def _sums(self, n: int) -> tuple[Tensor, Tensor]:
        p = self.p
        return tuple(self.dq.new_zeros(1, p.bg, n, dim) for dim in (p.dims.dk, p.dims.dv))  # type: ignore[return-value]

    def compressed(self, kc: Tensor, vc: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of ``kc, vc [B, n_cmp, G, .]``: ``[1, B * G, n_cmp, .]`` float32."""
        p, tile = self.p, _tile(self.p)
        n_tiles, key_tiles = ceil_div(p.S, tile), ceil_div(p.n_cmp, _KEYS)
        chunk = ceil_div(_chunk_tokens(p), tile)
        rows, sums = self._rows(lse, 0, n_tiles * tile, 1, n_tiles * tile), self._sums(p.n_cmp)
        maps = [tensor_map(x, rows=tile) for x in (self._q, self._do)] + [tensor_map(x, rows=_KEYS) for x in (kc, vc)]
        maps.append(tensor_map(self.dq, rows=64))
        given = _DenseArguments(
            _MAPS[1].from_buffer_copy(b"".join(maps)), tuple(x.data_ptr() for x in rows),
            tuple(x.data_ptr() for x in sums), (n_tiles, p.n_cmp, p.H, p.G, p.B * p.H, key_tiles, chunk),
            (p.scale, p.scale2),
        )  # fmt: skip
        with torch.cuda.device(kc.device):
            launch(_DENSE, *_dense_constants(p), (p.B * p.H * key_tiles * ceil_div(n_tiles, chunk), 1), given)
        return sums

    def gather(
        self, k_sel: Tensor, v_sel: Tensor, lse: Tensor, index: tuple[Tensor, Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """What the scored blocks give to the gradients of ``k_sel, v_sel [B, S, G, .]``: ``[1, B * G, S, .]`` float32,
        not scaled. ``index`` is pairs, offsets, tile offsets and the block of each tile."""
        p = self.p
        rows, sums = self._rows(lse, 1, p.S, p.H, 1), self._sums(p.S)
        maps = [tensor_map(x, heads=p.hpg) for x in (self._q, self._do)]
        maps += [tensor_map(x, rows=64) for x in (k_sel, v_sel)] + [tensor_map(self.dq, heads=p.hpg)]
        given = _GatherArguments(
            _MAPS[1].from_buffer_copy(b"".join(maps)), tuple(x.data_ptr() for x in rows),
            tuple(x.data_ptr() for x in index), tuple(x.data_ptr() for x in sums),
            (p.S, p.H, p.G, p.n_blocks, p.n_lists, p.n_pairs, p.max_tiles), p.scale2,
        )  # fmt: skip
        with torch.cuda.device(k_sel.device):
            launch(_GATHER, *_gather_constants(p), (p.max_tiles, p.bg), given)
        return sums
