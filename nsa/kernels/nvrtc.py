"""CUDA C++ to machine code by NVRTC, kept on disk."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any

from triton.runtime.cache import get_cache_manager

__all__ = ["check", "compile_cubin", "missing"]


@functools.lru_cache(maxsize=1)
def missing() -> str | None:
    """Why nothing can be compiled here, in snake case; None if it can."""
    try:
        from cuda.bindings import driver, nvrtc  # noqa: F401

        check(nvrtc.nvrtcVersion())  # the package may be there without the library
    except (ImportError, RuntimeError):
        return "cuda_bindings"
    return None


def check(answer: tuple[Any, ...]) -> Any:
    """What a call of the CUDA libraries returned.

    Raises:
        RuntimeError: it failed; the message is the name of its error.
    """
    status, *values = answer
    if int(status):
        raise RuntimeError(f"{type(status).__name__}: {status.name}")
    return values[0] if len(values) == 1 else values


def compile_cubin(text: str, options: Sequence[str], *, name: str) -> bytes:
    """Machine code for a source; from the disk if it was made before. ``name`` is that of the source in messages.

    Raises:
        RuntimeError: the source does not compile; the message holds the compiler's.
    """
    from cuda.bindings import nvrtc

    version = check(nvrtc.nvrtcVersion())
    key = hashlib.sha256(repr((text, list(options), version)).encode()).hexdigest()
    kept, kept_name = get_cache_manager(key), f"{name}.cubin"
    found = kept.get_file(kept_name)
    if found is not None:
        with open(found, "rb") as file:  # noqa: PTH123 - the cache deals in strings
            return file.read()
    program = check(nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), 0, [], []))
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if int(status[0]):
            log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
            check(nvrtc.nvrtcGetProgramLog(program, log))
            raise RuntimeError(f"{name} does not compile with {' '.join(options)}:\n{log.decode().strip()}")
        cubin = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
        check(nvrtc.nvrtcGetCUBIN(program, cubin))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    kept.put(cubin, kept_name, binary=True)
    return cubin
