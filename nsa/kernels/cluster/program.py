"""``step.cu`` from source to a function on a GPU: compiled by NVRTC, kept on disk, loaded once for each device."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from typing import Any

from nsa.kernels import nvrtc
from nsa.kernels.nvrtc import check

__all__ = ["Function", "compile_cubin", "load", "source"]

_FILES = ("gpu.cuh", "step.cu")
_ENTRY = b"decode_step"


def source() -> str:
    """The kernel's source, with what it takes from PTX."""
    folder = resources.files("nsa.kernels.cluster")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in _FILES)


def compile_cubin(constants: dict[str, int], *, capability: tuple[int, int]) -> bytes:
    """Machine code for the constants and the GPU's compute capability; from the disk if it was made before.

    Raises:
        RuntimeError: the source does not compile; the message holds the compiler's.
    """
    options = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}", "--std=c++17"]
    options += [f"-D{name}={value}" for name, value in constants.items()]
    return nvrtc.compile_cubin(source(), options, name="step.cu")


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
