"""``step.cu`` from source to a function on a GPU: compiled by NVRTC, kept on disk, loaded once for each device."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import Any

from triton.runtime.cache import get_cache_manager

__all__ = ["Function", "check", "load", "missing", "source"]

_FILES = ("gpu.cuh", "step.cu")
_ENTRY = b"decode_step"


@functools.lru_cache(maxsize=1)
def missing() -> str | None:
    """Why nothing can be compiled here, in snake case; None if it can."""
    try:
        from cuda.bindings import driver, nvrtc  # noqa: F401

        check(nvrtc.nvrtcVersion())  # the package may be there without the library
    except (ImportError, RuntimeError):
        return "cuda_bindings"
    return None


def source() -> str:
    """The kernel's source, with what it takes from PTX."""
    folder = resources.files("nsa.kernels.cluster")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in _FILES)


def check(answer: tuple[Any, ...]) -> Any:
    """What a call of the CUDA libraries returned.

    Raises:
        RuntimeError: it failed; the message is the name of its error.
    """
    status, *values = answer
    if int(status):
        raise RuntimeError(f"{type(status).__name__}: {status.name}")
    return values[0] if len(values) == 1 else values


def compile_cubin(constants: dict[str, int], *, capability: tuple[int, int]) -> bytes:
    """Machine code for the constants and the GPU's compute capability; from the disk if it was made before.

    Raises:
        RuntimeError: the source does not compile; the message holds the compiler's.
    """
    from cuda.bindings import nvrtc

    version = check(nvrtc.nvrtcVersion())
    options = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}", "--std=c++17"]
    options += [f"-D{name}={value}" for name, value in constants.items()]
    text = source()
    key = hashlib.sha256(repr((text, options, version)).encode()).hexdigest()
    kept = get_cache_manager(key)
    found = kept.get_file("decode_step.cubin")
    if found is not None:
        with open(found, "rb") as file:  # noqa: PTH123 - the cache deals in strings
            return file.read()
    program = check(nvrtc.nvrtcCreateProgram(text.encode(), b"decode_step.cu", 0, [], []))
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if int(status[0]):
            log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
            check(nvrtc.nvrtcGetProgramLog(program, log))
            raise RuntimeError(f"step.cu does not compile with {' '.join(options)}:\n{log.decode().strip()}")
        cubin = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
        check(nvrtc.nvrtcGetCUBIN(program, cubin))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    kept.put(cubin, "decode_step.cubin", binary=True)
    return cubin


@dataclass(frozen=True)
class Function:
    """A loaded kernel and how many of its clusters are on the GPU at once."""

    handle: Any
    active_clusters: int


@functools.lru_cache(maxsize=64)
def load(constants: tuple[tuple[str, int], ...], *, shared_bytes: int, threads: int, device: int) -> Function:
    """The kernel on a device, which must be the current one.

    ``constants`` are pairs of name and value, ``P`` among them.

    Raises:
        RuntimeError: it cannot be compiled or loaded.
    """
    import torch
    from cuda.bindings import driver

    cubin = compile_cubin(dict(constants), capability=torch.cuda.get_device_capability(device))
    module = check(driver.cuModuleLoadData(cubin))
    handle = check(driver.cuModuleGetFunction(module, _ENTRY))
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    check(driver.cuFuncSetAttribute(handle, attribute, shared_bytes))
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = dict(constants)["P"], 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = shared_bytes
    return Function(handle, check(driver.cuOccupancyMaxActiveClusters(handle, config)))
