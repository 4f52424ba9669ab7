"""The launch of a decode step by clusters, from torch's tensors."""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nsa.kernels import nvrtc
from nsa.kernels.cluster import program
from nsa.kernels.cluster.plan import WARPS, ClusterPlan, plans, served
from nsa.kernels.decode_plan import DecodeSizes

__all__ = ["Arguments", "arguments", "launch_cluster", "why_no_cluster"]

_LOG2_E = 1.4426950408889634
_THREADS = 32 * WARPS
_Pointer, _Stride = ctypes.c_void_p, ctypes.c_longlong


class _Fresh(ctypes.Structure):
    _fields_ = (("k", _Pointer), ("v", _Pointer), ("k_stride", _Stride), ("v_stride", _Stride))


class _Cache(ctypes.Structure):
    _fields_ = (("k", _Pointer), ("v", _Pointer))


class Arguments(ctypes.Structure):
    """``step.cu``'s structure of the same name."""

    _fields_ = (
        ("q", _Pointer), ("q_row", _Stride), ("q_head", _Stride), ("gates", _Pointer), ("fresh", _Fresh * 3),
        ("raw", _Cache), ("cmp", _Cache), ("sel", _Cache), ("win", _Cache), ("n_cmp", ctypes.c_int),
        ("n_sel", ctypes.c_int), ("n_win", ctypes.c_int), ("lengths", _Pointer), ("top", _Pointer), ("o", _Pointer),
        ("scale", ctypes.c_float),
    )  # fmt: skip


def arguments(
    q: Tensor, gates: Tensor, new: Sequence[Tensor], caches: Sequence[Tensor], lengths: Tensor, top: Tensor, o: Tensor,
    *, scale: float,
) -> Arguments:  # fmt: skip
    """The kernel's arguments, in the order of :func:`nsa.kernels.step.launch_step`."""
    k_cmp, k_sel, k_win = caches[2], caches[4], caches[6]
    fresh = [
        _Fresh(k.data_ptr(), v.data_ptr(), k.stride(0), v.stride(0)) for k, v in zip(new[::2], new[1::2], strict=True)
    ]
    pairs = [_Cache(k.data_ptr(), v.data_ptr()) for k, v in zip(caches[::2], caches[1::2], strict=True)]
    return Arguments(
        q.data_ptr(), q.stride(0), q.stride(2), gates.data_ptr(), (_Fresh * 3)(*fresh), *pairs, k_cmp.shape[1],
        k_sel.shape[1], k_win.shape[1], lengths.data_ptr(), top.data_ptr(), o.data_ptr(), scale * _LOG2_E,
    )  # fmt: skip


def why_no_cluster(q: Tensor, gates: Tensor, sizes: DecodeSizes) -> str | None:
    """None if a step can run by clusters, else the reason in snake case.

    ``device``, ``capability`` (below 9.0), ``shape`` (see :func:`~nsa.kernels.cluster.plan.served`), ``cuda_bindings``
    (the package, or the compiler that it loads, is missing), ``shared_memory`` (no plan fits), ``build`` (the kernel
    does not compile or load, as where compiler and driver do not match; a warning says why, once).
    """
    if q.device.type != "cuda":
        return "device"
    if torch.cuda.get_device_capability(q.device) < (9, 0):
        return "capability"
    if not served(sizes):
        return "shape"
    if reason := nvrtc.missing():
        return reason
    if not _plans(sizes, _index(q)):
        return "shared_memory"
    with torch.cuda.device(q.device):
        return _why_not_built(sizes, q.dtype, _gate_dtype(q, gates), _index(q))


def _index(q: Tensor) -> int:
    return q.device.index if q.device.index is not None else torch.cuda.current_device()


@functools.lru_cache(maxsize=64)
def _plans(sizes: DecodeSizes, device: int) -> tuple[ClusterPlan, ...]:
    of = torch.cuda.get_device_properties(device)
    limit = of.shared_memory_per_block_optin
    return tuple(plans(sizes, processors=of.multi_processor_count, shared_limit=limit))


def _gate_dtype(q: Tensor, gates: Tensor) -> torch.dtype:
    """The type in which the kernel reads the gates."""
    return q.dtype if gates.dtype == q.dtype else torch.float32


@functools.lru_cache(maxsize=64)
def _why_not_built(sizes: DecodeSizes, dtype: torch.dtype, gate_dtype: torch.dtype, device: int) -> str | None:
    try:
        _chosen(sizes, dtype, gate_dtype, device)
    except RuntimeError as error:
        warnings.warn(f"Triton's kernels decode, for those by clusters cannot be built: {error}", stacklevel=2)
        return "build"
    return None


@functools.lru_cache(maxsize=64)
def _chosen(
    sizes: DecodeSizes, dtype: torch.dtype, gate_dtype: torch.dtype, device: int
) -> tuple[ClusterPlan, program.Function]:
    """The first plan all of whose clusters run at once, or the first of all."""
    candidates = [(plan, _load(plan, dtype, gate_dtype, device)) for plan in _plans(sizes, device)[:1]]
    for plan in _plans(sizes, device)[1:]:
        if candidates[-1][1].active_clusters >= sizes.bg or plan.blocks > candidates[-1][0].blocks:
            break
        candidates.append((plan, _load(plan, dtype, gate_dtype, device)))
    return candidates[-1] if candidates[-1][1].active_clusters >= sizes.bg else candidates[0]


def _load(plan: ClusterPlan, dtype: torch.dtype, gate_dtype: torch.dtype, device: int) -> program.Function:
    constants = plan.constants | {"HALF": int(dtype == torch.float16), "GATE_ELEMENTS": int(gate_dtype == dtype)}
    return program.load(tuple(constants.items()), shared_bytes=plan.shared_bytes, threads=_THREADS, device=device)


def _rows(x: Tensor) -> Tensor:
    """Dense from the group on, and at an address that sixteen bytes can be copied from."""
    dense = x.stride(-1) == 1 and x.stride(-2) == x.shape[-1] and x.stride(0) % 8 == 0 and x.data_ptr() % 16 == 0
    return x if dense else x.contiguous()


def launch_cluster(
    q: Tensor, gates: Tensor, new: Sequence[Tensor], caches: Sequence[Tensor], lengths: Tensor, sizes: DecodeSizes,
    scale: float, *, plan: ClusterPlan | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Append one position and attend from it: ``o [B, 1, H, Dv]`` and the scored blocks ``[B, 1, G, n_sel - 3]``.

    Only where :func:`why_no_cluster` finds nothing against it. ``plan`` takes the place of the usual one.

    Raises:
        RuntimeError: the kernel cannot be compiled, loaded or launched.
    """
    from cuda.bindings import driver

    gates = gates.to(_gate_dtype(q, gates))
    if q.stride(-1) != 1 or q.stride(0) % 2 or q.stride(2) % 2 or q.data_ptr() % 4:
        q = q.contiguous()
    with torch.cuda.device(q.device):
        device = torch.cuda.current_device()
        if plan is None:
            plan, function = _chosen(sizes, q.dtype, gates.dtype, device)
        else:
            function = _load(plan, q.dtype, gates.dtype, device)
        o = q.new_empty(sizes.B, 1, sizes.H, sizes.Dv)
        top = q.new_empty(sizes.B, 1, sizes.G, sizes.n_sel - 3, dtype=torch.int32)
        given = arguments(q, gates, [_rows(x) for x in new], caches, lengths, top, o, scale=scale)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(given))
        stream = torch.cuda.current_stream().cuda_stream
        config = _config(sizes.bg * plan.blocks, plan.shared_bytes, stream)
        nvrtc.check(driver.cuLaunchKernelEx(config, function.handle, ctypes.addressof(parameters), 0))
    return o, top


@functools.lru_cache(maxsize=64)
def _config(grid: int, shared_bytes: int, stream: int) -> Any:
    """A launch that may be placed while the kernel before it ends: the kernel waits for that one by itself."""
    from cuda.bindings import driver

    early = driver.CUlaunchAttribute()
    early.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    early.value.programmaticStreamSerializationAllowed = 1
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = _THREADS, 1, 1
    config.sharedMemBytes, config.hStream = shared_bytes, stream
    config.attrs, config.numAttrs = [early], 1
    return config
