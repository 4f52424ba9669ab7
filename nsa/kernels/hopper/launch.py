"""The launch of ``dense_backward.cu`` from torch's tensors, and where it can run."""

from __future__ import annotations

import ctypes
import functools
import warnings
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from nsa.kernels import nvrtc
from nsa.kernels.hopper.products import products
from nsa.kernels.hopper.rows import rows_kernel
from nsa.kernels.problem import Problem, ceil_div

__all__ = ["COLUMNS", "CompressedBackward", "Tiling", "tiling", "why_no_wgmma"]

COLUMNS = 64
"""Columns of the queries' gradient that lie side by side."""
_KEYS = 128
_THREADS = 384
_SHARED_LIMIT = 232448
_FILES = ("ptx.cuh", "dense_backward.cu")


@dataclass(frozen=True)
class Tiling:
    """How the kernel cuts one shape: ``tokens`` in a tile, ``stages`` of tiles on the way."""

    tokens: int
    stages: int
    swizzle: int
    """Which bits of a row's number its columns are swizzled by: those from this one on."""

    def shared_bytes(self, dk: int, dv: int) -> int:
        """Shared memory of a block."""
        row = 2 * (dk + dv)
        added = 2 * (self.tokens if dk > COLUMNS else COLUMNS) * COLUMNS * 4
        tiles = self.stages * self.tokens * (row + 8) + 2 * self.tokens * 2 * _KEYS
        return _KEYS * row + tiles + added + 8 * (1 + 4 * self.stages)


def tiling(dk: int, dv: int) -> Tiling | None:
    """Tiles for head dimensions, None if the kernel is not written for them."""
    if (dk, dv) in ((128, 128), (128, 64)):
        return Tiling(tokens=80, stages=2, swizzle=1)
    return Tiling(tokens=128, stages=2, swizzle=0) if (dk, dv) == (64, 64) else None


def chunk_tokens(p: Problem) -> int:
    """Tokens that a block walks over at most."""
    return min(max(p.S // 8, 2048), 8192)


class _Arguments(ctypes.Structure):
    """``dense_backward.cu``'s structure of the same name."""

    _fields_ = (
        ("maps", ctypes.c_uint64 * 64), ("shift", ctypes.c_void_p), ("delta", ctypes.c_void_p), ("dq", ctypes.c_void_p),
        ("dk", ctypes.c_void_p), ("dv", ctypes.c_void_p), ("tiles", ctypes.c_int),
        ("n_keys", ctypes.c_int), ("H", ctypes.c_int), ("G", ctypes.c_int), ("per_group", ctypes.c_int),
        ("first", ctypes.c_int), ("heads", ctypes.c_int), ("key_tiles", ctypes.c_int),
        ("chunk", ctypes.c_int), ("scale", ctypes.c_float),
        ("scale2", ctypes.c_float), ("padding", ctypes.c_byte * 44),
    )  # fmt: skip


def _strided(x: Tensor) -> bool:
    """Whether a tensor map can describe ``x [B, N, heads, dim]``: strides and address in units of 16 bytes."""
    units = all(n == 1 or (s * x.element_size()) % 16 == 0 for n, s in zip(x.shape[:3], x.stride()[:3], strict=True))
    return units and x.stride(-1) == 1 and x.data_ptr() % 16 == 0


def why_no_wgmma(q: Tensor, kc: Tensor, vc: Tensor, do: Tensor, p: Problem) -> str | None:
    """None if the compressed branch's backward pass can run by Hopper's asynchronous products, else the reason.

    ``device``, ``capability`` (9.0 alone has these instructions), ``dtype`` (float32), ``head_dim``, ``deterministic``
    (query gradients are added in the order of arrival), ``no_keys``, ``strides``, ``cuda_bindings``, ``build`` (the
    kernel does not compile or load; a warning says why, once).
    """
    if q.device.type != "cuda":
        return "device"
    if torch.cuda.get_device_capability(q.device) != (9, 0):
        return "capability"
    if q.dtype not in (torch.bfloat16, torch.float16):
        return "dtype"
    if tiling(p.dims.dk, p.dims.dv) is None:
        return "head_dim"
    if p.deterministic:
        return "deterministic"
    if not p.n_cmp:
        return "no_keys"
    if not all(_strided(x) for x in (q, kc, vc, do)):
        return "strides"
    if reason := nvrtc.missing():
        return reason
    with torch.cuda.device(q.device):
        return _why_not_built(_constants(p), torch.cuda.current_device())


def _constants(p: Problem) -> tuple[tuple[str, int], ...]:
    tiles = tiling(p.dims.dk, p.dims.dv)
    assert tiles is not None
    return (
        ("DK", p.dims.dk), ("DV", p.dims.dv), ("BM", tiles.tokens), ("STAGES", tiles.stages), ("L", p.l), ("D", p.d),
        ("HALF", int(p.dtype == torch.float16)), ("EARLY", 1),
    )  # fmt: skip


def source(constants: tuple[tuple[str, int], ...]) -> str:
    """The kernel's source: constants, instructions, the products it needs, and itself."""
    of = dict(constants)
    folder = resources.files("nsa.kernels.hopper")
    instructions, kernel = (folder.joinpath(name).read_text(encoding="utf-8") for name in _FILES)
    widths = (of["BM"], of["DK"], of["DV"], COLUMNS)
    defined = "".join(f"#define {name} {value}\n" for name, value in constants)
    return defined + instructions + products(widths, half=bool(of["HALF"])) + kernel


@functools.lru_cache(maxsize=64)
def _function(constants: tuple[tuple[str, int], ...], device: int) -> Any:
    """The kernel on a device, which must be the current one."""
    from cuda.bindings import driver

    of = dict(constants)
    options = ["--gpu-architecture=sm_90a", "--std=c++17"]
    cubin = nvrtc.compile_cubin(source(constants), options, name="dense_backward.cu")
    handle = nvrtc.check(driver.cuModuleGetFunction(nvrtc.check(driver.cuModuleLoadData(cubin)), b"dense_backward"))
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    shared = Tiling(of["BM"], of["STAGES"], 0).shared_bytes(of["DK"], of["DV"])
    nvrtc.check(driver.cuFuncSetAttribute(handle, attribute, shared))
    return handle


@functools.lru_cache(maxsize=64)
def _why_not_built(constants: tuple[tuple[str, int], ...], device: int) -> str | None:
    try:
        _function(constants, device)
    except RuntimeError as error:
        warnings.warn(f"Triton's kernels run, for Hopper's own cannot be built: {error}", stacklevel=2)
        return "build"
    return None


def _map(x: Tensor, rows: int) -> bytes:
    """Tensor map of ``x [B, N, heads, dim]`` for boxes of ``rows`` of one head by 64 columns."""
    from cuda.bindings import driver

    B, N, heads, dim = x.shape
    size = x.element_size()
    # A dimension of one element may have any stride; the map wants a multiple of 16 bytes.
    steps = [s * size if n > 1 else 16 * dim for n, s in ((N, x.stride(1)), (heads, x.stride(2)), (B, x.stride(0)))]
    half = x.dtype == torch.float16
    kind, sector = driver.CUtensorMapDataType, driver.CUtensorMapL2promotion
    made = nvrtc.check(
        driver.cuTensorMapEncodeTiled(
            kind.CU_TENSOR_MAP_DATA_TYPE_FLOAT16 if half else kind.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            4,
            x.data_ptr(),
            [driver.cuuint64_t(n) for n in (dim, N, heads, B)],
            [driver.cuuint64_t(n) for n in steps],
            [driver.cuuint32_t(n) for n in (COLUMNS, rows, 1, 1)],
            [driver.cuuint32_t(1)] * 4,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            sector.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return ctypes.string_at(int(made.getPtr()), 128)


class CompressedBackward:
    """The backward pass of the compressed branch, some (batch, group) pairs at a time."""

    def __init__(
        self, q: Tensor, kc: Tensor, vc: Tensor, do: Tensor, lse: Tensor, gates: Tensor, delta: Tensor, p: Problem
    ) -> None:
        """``q, kc, vc, do`` as :func:`why_no_wgmma` took them; ``lse [B, S, H]``, ``gates, delta [B, S, H, 3]``."""
        self.p, self._constants, tiles = p, _constants(p), tiling(p.dims.dk, p.dims.dv)
        assert tiles is not None
        self.tiling, self.n_tiles = tiles, ceil_div(p.S, tiles.tokens)
        padded = self.n_tiles * tiles.tokens
        self._rows = [q.new_empty(p.B, p.H, padded, dtype=torch.float32) for _ in range(2)]
        rows_kernel[(ceil_div(padded, 64), ceil_div(p.H, 16), p.B)](
            lse, gates, delta, *self._rows, p.S, padded, H=p.H, BT=64, BH=16
        )
        self._kept = (q, kc, vc, do)
        self._maps = b"".join(_map(x, n) for x, n in ((q, tiles.tokens), (do, tiles.tokens), (kc, _KEYS), (vc, _KEYS)))
        self.dk = q.new_zeros(1, p.bg, p.n_cmp, p.dims.dk, dtype=torch.float32)
        """Sums ``[1, B * G, n_cmp, dk]``, scaled; complete once every pair has run."""
        self.dv = q.new_zeros(1, p.bg, p.n_cmp, p.dims.dv, dtype=torch.float32)

    def query_sums(self, most: int) -> Tensor:
        """Room for the queries' gradients of ``most`` pairs, ``[most * heads a group, tiles, dk / 64, tokens, 64]``."""
        p = self.p
        shape = (most * p.hpg, self.n_tiles, p.dims.dk // COLUMNS, self.tiling.tokens, COLUMNS)
        return self._rows[0].new_empty(shape)

    def run(self, first: int, count: int, dq: Tensor) -> None:
        """Pairs ``first .. first + count``: into :attr:`dk` and :attr:`dv`, and into ``dq`` from :meth:`query_sums`,
        whose columns are swizzled by row: column ``c`` of token ``t`` is at ``c ^ 8 * (t >> swizzle & 3)``. Not scaled.
        """
        from cuda.bindings import driver

        p, heads = self.p, count * self.p.hpg
        key_tiles, chunk = ceil_div(p.n_cmp, _KEYS), ceil_div(chunk_tokens(p), self.tiling.tokens)
        dq[:heads].zero_()
        given = _Arguments(
            (ctypes.c_uint64 * 64).from_buffer_copy(self._maps),
            *(x.data_ptr() for x in (*self._rows, dq, self.dk, self.dv)),
            self.n_tiles, p.n_cmp, p.H, p.G, p.hpg, first, heads, key_tiles, chunk, p.scale, p.scale2,
        )  # fmt: skip
        with torch.cuda.device(dq.device):
            function = _function(self._constants, torch.cuda.current_device())
            stream = torch.cuda.current_stream().cuda_stream
            shared = self.tiling.shared_bytes(p.dims.dk, p.dims.dv)
            parameters = (ctypes.c_void_p * 1)(ctypes.addressof(given))
            grid = heads * key_tiles * ceil_div(self.n_tiles, chunk)
            nvrtc.check(
                driver.cuLaunchKernel(
                    function, grid, 1, 1, _THREADS, 1, 1, shared, stream, ctypes.addressof(parameters), 0
                )
            )
