"""The kernels of this folder from source to functions on a GPU, and tensor maps for them."""

from __future__ import annotations

import ctypes
import functools
import re
import warnings
from collections.abc import Iterable
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from nsa.kernels import nvrtc
from nsa.kernels.hopper.products import products

__all__ = [
    "Constants",
    "compiled",
    "function",
    "in_rows",
    "launch",
    "pointers",
    "second_stream",
    "source",
    "strided",
    "tensor_map",
    "why_not_built",
]

Constants = tuple[tuple[str, int], ...]
"""What a source has for its names in capitals."""

_FIRST, _THEN = "ptx.cuh", "tiles.cuh"


def _read(file: str) -> str:
    return resources.files("nsa.kernels.hopper").joinpath(file).read_text(encoding="utf-8")


def source(name: str, constants: Constants) -> str:
    """The source of a kernel: constants, instructions, the products it needs, what the kernels share, and itself, with
    what it includes in place."""
    of = dict(constants)
    instructions, shared, kernel = (_read(file) for file in (_FIRST, _THEN, f"{name}.cu"))
    kernel = re.sub(r'^#include "(.+)"\n', lambda found: _read(found[1]), kernel, flags=re.MULTILINE)
    defined = "".join(f"#define {key} {value}\n" for key, value in constants)
    widths = {of[key] for key in ("BM", "BN", "DK", "DV", "REST") if key in of} | {64}
    return defined + instructions + products(widths, half=bool(of["HALF"])) + shared + kernel


def compiled(name: str, constants: Constants) -> bytes:
    """Machine code of a kernel; from the disk if it was made before, which needs no GPU.

    Raises:
        RuntimeError: it cannot be compiled.
    """
    options = ["--gpu-architecture=sm_90a", "--std=c++17"]
    return nvrtc.compile_cubin(source(name, constants), options, name=f"{name}.cu")


@functools.lru_cache(maxsize=64)
def function(name: str, constants: Constants, shared_bytes: int, device: int) -> Any:
    """A kernel on a device, which must be the current one.

    Raises:
        RuntimeError: it cannot be compiled or loaded.
    """
    from cuda.bindings import driver

    module = nvrtc.check(driver.cuModuleLoadData(compiled(name, constants)))
    handle = nvrtc.check(driver.cuModuleGetFunction(module, name.encode()))
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    nvrtc.check(driver.cuFuncSetAttribute(handle, attribute, shared_bytes))
    return handle


@functools.lru_cache(maxsize=64)
def why_not_built(name: str, constants: Constants, shared_bytes: int, device: int) -> str | None:
    """None if :func:`function` has one, else ``build``, with a warning that says why, once."""
    try:
        function(name, constants, shared_bytes, device)
    except RuntimeError as error:
        warnings.warn(f"Triton's kernels run, for Hopper's own cannot be built: {error}", stacklevel=2)
        return "build"
    return None


def launch(
    name: str, constants: Constants, shared_bytes: int, blocks: int, arguments: ctypes.Structure, device: torch.device,
    *, threads: int = 384,
) -> None:  # fmt: skip
    """Launch ``blocks`` blocks of ``threads`` of a kernel on a device's current stream.

    Raises:
        RuntimeError: it cannot be compiled, loaded or launched.
    """
    from cuda.bindings import driver

    with torch.cuda.device(device):
        handle = function(name, constants, shared_bytes, torch.cuda.current_device())
        stream = torch.cuda.current_stream().cuda_stream
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        at = ctypes.addressof(parameters)
        nvrtc.check(driver.cuLaunchKernel(handle, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, at, 0))


@functools.cache
def _second_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def second_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A GPU's second stream, for kernels that need nothing of those on the current one: where a kernel ends, processors
    that have nothing to do any more take blocks of the other stream's. None without a GPU."""
    if device.type != "cuda":
        return None
    return _second_stream(torch.cuda.current_device() if device.index is None else device.index)


def pointers(*groups: Iterable[Tensor]) -> list[tuple[int, ...]]:
    """Where tensors begin, group by group."""
    return [tuple(x.data_ptr() for x in some) for some in groups]


def strided(x: Tensor) -> bool:
    """Whether a tensor map can describe ``x [B, N, heads, dim]``: strides and address in units of 16 bytes."""
    units = all(n == 1 or (s * x.element_size()) % 16 == 0 for n, s in zip(x.shape[:3], x.stride()[:3], strict=True))
    return units and x.stride(-1) == 1 and x.data_ptr() % 16 == 0


def in_rows(x: Tensor) -> bool:
    """Whether the heads of a token of ``x [B, N, heads, dim]`` are a row of memory after that of the token before."""
    return x.stride(1) == x.shape[2] * x.stride(2)


def tensor_map(x: Tensor, *, rows: int = 1, heads: int = 0, whole: bool = False, by_lane: bool = False) -> bytes:
    """Tensor map of ``x [B, N, H, dim]`` for boxes of 128 bytes of ``rows`` of one head, or of ``heads`` of each row.

    Coordinates are column, row, head, batch in the first case, and column, head, row, batch in the second. ``whole``,
    for ``heads`` and ``H`` that are multiples of 8 and ``x`` with :func:`in_rows`: a box is all columns of ``heads`` of
    one row, 128 bytes each of eight heads, then their next 128 bytes, then the next eight heads. Its coordinates are
    0, 0, 0, the head counted through all rows divided by 8, batch. ``by_lane``, for contiguous ``x``: row
    ``16 p + 8 h + 2 t + i`` of a box is row ``rows / 4 t + 4 p + 2 h + i`` of ``rows``, so that four neighbours are
    columns of one lane in a product. Its coordinates are the column counted through all heads, 0, the row divided by
    ``rows / 4``, 0, batch; up to ``rows / 4 - 1`` rows of memory beyond the last one are read.
    """
    B, N, H, dim = x.shape
    b, n, h = x.stride()[:3]
    width = 128 // x.element_size()
    if whole:
        inner = ((width, 1, width), (8, h, 8), (dim // width, width, dim // width), (N * H // 8, 8 * h, heads // 8))
    elif by_lane:
        quarter = rows // 4
        inner = (
            (H * dim, 1, width),
            (2, n, 2),
            (-(-N // quarter), quarter * n, 4),
            (quarter // 2, 2 * n, quarter // 2),
        )
    elif heads:
        inner = ((dim, 1, width), (H, h, heads), (N, n, rows))
    else:
        inner = ((dim, 1, width), (N, n, rows), (H, h, 1))
    return _tensor_map(x.data_ptr(), x.dtype, (*inner, (B, b, 1)))


@functools.lru_cache(maxsize=256)
def _tensor_map(pointer: int, dtype: torch.dtype, dimensions: tuple[tuple[int, int, int], ...]) -> bytes:
    """``dimensions``, the innermost first: size, stride and the box's size of each, in elements."""
    from cuda.bindings import driver

    sizes, strides, box = zip(*dimensions, strict=True)
    # A dimension of one element may have any stride; the map wants a multiple of 16 bytes.
    steps = [s * dtype.itemsize if n > 1 else 1024 for n, s in zip(sizes[1:], strides[1:], strict=True)]
    kinds = driver.CUtensorMapDataType
    kind = {
        torch.float16: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        torch.bfloat16: kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        torch.float32: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    }[dtype]
    made = nvrtc.check(
        driver.cuTensorMapEncodeTiled(
            kind,
            len(sizes),
            pointer,
            [driver.cuuint64_t(n) for n in sizes],
            [driver.cuuint64_t(n) for n in steps],
            [driver.cuuint32_t(n) for n in box],
            [driver.cuuint32_t(1)] * len(sizes),
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return ctypes.string_at(int(made.getPtr()), 128)
