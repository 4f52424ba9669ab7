"""The compressed branch's forward pass by a kernel of this folder."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from nsa.kernels import nvrtc
from nsa.kernels.hopper.program import Constants, launch, strided, tensor_map, why_not_built
from nsa.kernels.problem import Problem, capability, ceil_div

__all__ = ["compressed", "why_no_forward"]

_KERNEL = "dense_forward"
_HEAD_DIMS = ((128, 128), (64, 64), (128, 64), (192, 128))


class _Arguments(ctypes.Structure):
    """``dense_forward.cu``'s ``Arguments``."""

    _fields_ = (
        ("maps", ctypes.c_uint64 * 48), ("o", ctypes.c_void_p), ("lse", ctypes.c_void_p), ("sizes", ctypes.c_int * 6),
        ("scale2", ctypes.c_float), ("padding", ctypes.c_byte * 20),
    )  # fmt: skip


def _tile(p: Problem) -> tuple[int, int, int, int]:
    """Warpgroups that multiply, keys of a tile, stages, whether warpgroups issue products in turns."""
    return (2, 128, 2, 1) if p.dims.dk > 64 else (3, 128, 2, 1)


def _constants(p: Problem) -> tuple[Constants, int]:
    """Constants and shared memory."""
    dk, dv = p.dims.dk, p.dims.dv
    warpgroups, keys, stages, turns = _tile(p)
    constants = (
        ("DK", dk), ("DV", dv), ("HPG", p.hpg), ("L", p.l), ("D", p.d), ("WGS", warpgroups), ("BN", keys),
        ("STAGES", stages), ("TURNS", turns), ("HALF", int(p.dtype == torch.float16)),
    )  # fmt: skip
    return constants, 128 * warpgroups * dk + stages * keys * 2 * (dk + dv) + 16 + 32 * stages


def forward_served(p: Problem) -> str | None:
    """The reasons of :func:`why_no_forward` that lie in the problem."""
    if p.dtype not in (torch.bfloat16, torch.float16):
        return "dtype"
    if (p.dims.dk, p.dims.dv) not in _HEAD_DIMS:
        return "head_dim"
    if p.hpg > 128:
        return "sizes"
    return None if p.n_cmp else "no_keys"


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
        return why_not_built(_KERNEL, *_constants(p), torch.cuda.current_device())


def compressed(q: Tensor, kc: Tensor, vc: Tensor, p: Problem) -> tuple[Tensor, Tensor]:
    """Output ``[B, S, H, dv]`` and base-2 log-sum-exp ``[B, S, H]`` over visible compressed tokens ``[B, n_cmp, G, .]``;
    rows that see none give 0 and -1e30."""
    o = q.new_empty(p.B, p.S, p.H, p.dims.dv)
    lse = q.new_empty(p.B, p.S, p.H, dtype=torch.float32)
    warpgroups, keys = _tile(p)[:2]
    tokens = 64 * warpgroups // p.hpg
    tiles = ceil_div(p.S, tokens)
    maps = tensor_map(q, rows=tokens, heads=p.hpg) + tensor_map(kc, rows=keys) + tensor_map(vc, rows=keys)
    sizes = (p.S, p.H, p.G, p.bg, tiles, tiles * p.bg)
    given = _Arguments(
        (ctypes.c_uint64 * 48).from_buffer_copy(maps), o.data_ptr(), lse.data_ptr(), sizes, p.scale2
    )  # fmt: skip
    blocks = min(tiles * p.bg, p.n_processors)
    launch(_KERNEL, *_constants(p), blocks, given, q.device, threads=128 * (warpgroups + 1))
    return o, lse
