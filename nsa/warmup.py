"""Compile the attention's kernels while the rest of a run is set up.

Left to their first launches, the kernels of forward and backward compile one after the other on one core, and the
first step of a run on a fresh machine takes half a minute. Here they compile side by side in child processes, as soon
as the shapes are known, and are written to Triton's cache, where the first launches find them. A mark beside them says
that all are there: a later run of the same problem starts no children and wakes its GPU meanwhile instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.metadata
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nsa.config import Config

if TYPE_CHECKING:
    from nsa.kernels.hopper.program import Constants
    from nsa.kernels.precompile import Launch, Shape

__all__ = ["WarmUp", "capabilities", "kernel_shape", "start_warm_up"]

LONGEST_S = 180.0  # a child that takes longer hangs; the first launches then compile as they would have without it
_PR_SET_PDEATHSIG = 1
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute


class WarmUp:
    """A compilation in progress; `finish` waits for it, and leaves `mark` where all went well. `others` are threads."""

    def __init__(
        self, process: BaseProcess | None, mark: Path | None = None, others: Sequence[threading.Thread] = ()
    ) -> None:
        self._process, self._mark, self._others = process, mark, others

    def finish(self, *, say: Callable[[str], None]) -> float:
        """Wait for the kernels; returns the seconds waited.

        A kernel that could not be compiled is reported through `say`, not raised: its first launch compiles it.
        """
        began = time.perf_counter()
        for thread in self._others:
            thread.join(LONGEST_S)
        if self._process is None:
            return time.perf_counter() - began if self._others else 0.0
        process, self._process = self._process, None
        process.join(LONGEST_S)
        if process.exitcode != 0:
            how = f"exit code {process.exitcode}" if process.exitcode is not None else f"no end after {LONGEST_S:.0f} s"
            say(f"[start] kernels were not all compiled ahead ({how}): they compile at their first launch")
        elif self._mark is not None:
            with contextlib.suppress(OSError):  # the next start then looks each kernel up again
                self._mark.touch()
        self._stop(process)
        return time.perf_counter() - began

    def close(self) -> None:
        """Stop a compilation that is still running; nothing needs its result. Threads come to their end: a process that
        ended while one waits in the driver would crash."""
        for thread in self._others:
            thread.join(LONGEST_S)
        if self._process is not None:
            self._stop(self._process)
            self._process = None

    @staticmethod
    def _stop(process: BaseProcess) -> None:
        if process.is_alive():
            process.kill()  # its own children die with it
            process.join()
        process.close()


def kernel_shape(config: Config) -> dict[str, Any]:
    """The problem that the attention of `config` passes to the kernels, as arguments of `precompile.Shape`."""
    m, data = config.model, config.data
    dtype = torch.bfloat16 if "bf16" in (config.train.dtype, config.train.param_dtype) else torch.float32
    sizes = (m.l_cmp, m.d_cmp, m.l_sel, m.n_sel, m.w)
    shape = {"S": data.seq_len, "H": m.n_heads, "G": m.n_kv_groups, "Dk": m.d_k, "Dv": m.d_v}
    return {**shape, "B": data.batch_size, "dtype": dtype, "sizes": sizes}


def _is_wanted(config: Config) -> bool:
    m = config.model
    if m.attention != "nsa" or m.prefill not in ("auto", "triton") or config.train.device == "cpu":
        return False
    return torch.version.cuda is not None and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def capabilities() -> list[int]:
    """Compute capabilities of this machine's GPUs, 90 for 9.0, by NVML: after the driver's answer, no fork."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return []
    found, count, major, minor = set(), ctypes.c_uint(), ctypes.c_int(), ctypes.c_int()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    for number in range(count.value):
        device = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device)):
            return []
        if nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor)):
            return []
        found.add(major.value * 10 + minor.value)
    return sorted(found)


def _mark(config: Config) -> Path | None:
    """The file that says, once it is there, that Triton's cache holds all that a run of `config` launches; None where
    that cannot be known. It lies in the cache, and goes with it."""
    gpus, asked = capabilities(), os.environ.get("HOPPER_KERNELS")
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return None
    if len(gpus) != 1:  # with several kinds, which one the run takes is not known yet
        return None
    made_of = hashlib.sha256(repr((kernel_shape(config), gpus, triton, torch.__version__, asked)).encode())
    for source in sorted((Path(__file__).parent / "kernels").rglob("*.*")):
        if source.suffix in (".py", ".cu", ".cuh"):
            made_of.update(source.read_bytes())
    home = Path(os.environ.get("TRITON_HOME") or Path.home())
    cache = Path(os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")
    return cache / f"nsa-warm-{made_of.hexdigest()[:32]}"


def _wake_device(number: int) -> None:
    """Let the driver make the context that torch will use."""
    with contextlib.suppress(OSError):
        driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if not driver.cuInit(0) and not driver.cuDeviceGet(ctypes.byref(device), number):
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def _hash_triton() -> None:
    """Triton's key of itself, which its first launch needs: a hash over all of its library."""
    with contextlib.suppress(Exception):  # not there in every version, which then makes it later
        from triton.runtime.cache import triton_key

        triton_key()


def start_warm_up(config: Config) -> WarmUp:
    """Begin to compile what a run of `config` will launch. Call it before CUDA is used: processes are forked.

    Where nothing is left to compile, and in all processes of a machine but one, which share its cache, threads make the
    GPU's context and Triton's key of itself meanwhile: they wait in the driver or read, and take nothing from Python.
    """
    if not _is_wanted(config):
        return WarmUp(None)
    from nsa.attention.dispatch import load_kernels

    rank = int(os.environ.get("LOCAL_RANK", "0"))
    mark = _mark(config)
    threads: list[threading.Thread] = []
    if rank or (mark is not None and mark.exists()):
        threads.append(threading.Thread(target=_wake_device, args=(rank,), daemon=True, name="nsa-wake"))
        threads[0].start()  # beside the import of the kernels
    if load_kernels() is None:
        return WarmUp(None, others=threads)
    if threads:
        threads.append(threading.Thread(target=_hash_triton, daemon=True, name="nsa-hash"))
        threads[1].start()
        return WarmUp(None, others=threads)
    from nsa.kernels.precompile import Shape

    process = multiprocessing.get_context("fork").Process(
        target=_compile_all,
        args=(Shape(**kernel_shape(config)),),
        kwargs={"fallback": config.train.deterministic},
        name="nsa-warm-up",
    )
    process.start()
    return WarmUp(process, mark)


def _die_with_parent() -> None:
    """A killed trainer leaves no compiler behind; Ctrl-C is the trainer's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _capability() -> int | None:
    """Compute capability of the first GPU, 90 for 9.0, asked of the driver without creating a context; None: no GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    driver.cuDeviceGetAttribute(ctypes.byref(major), _CAPABILITY_MAJOR, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _CAPABILITY_MINOR, device)
    return major.value * 10 + minor.value


# Launches hold kernels, which do not pickle: workers inherit them and are handed positions.
_pending: list[Launch | tuple[str, Constants]] = []
_target = 0


def _compile_all(shape: Shape, *, fallback: bool) -> None:
    """In the child: record the launches, compile them in its own pool; with `fallback` also those that run where
    Hopper's kernels do not, as in deterministic runs."""
    from dataclasses import replace

    from nsa.kernels.precompile import hopper_sources, record

    global _pending, _target
    _die_with_parent()
    capability = _capability()
    if capability is None or capability < 80:
        return
    shape = replace(shape, capability=capability)
    sources = hopper_sources(shape)
    launches = record(shape, fallback=fallback or not sources)
    # The same kernel with the same constants may be launched in several places.
    distinct = {repr(_constants(one)): one for one in launches}
    # Those with the most arguments take longest: first, so that none is left alone at the end.
    _pending = [*sources, *sorted(distinct.values(), key=lambda one: -len(one.arguments))]
    _target = capability
    workers = min(len(os.sched_getaffinity(0)), len(_pending))
    with multiprocessing.get_context("fork").Pool(workers, initializer=_open_worker) as pool:
        failed = sum(not ok for ok in pool.imap_unordered(_compile_at, range(len(_pending))))
    if failed:
        raise SystemExit(1)


def _open_worker() -> None:
    _die_with_parent()
    _pretend_device(_target)


def _pretend_device(capability: int) -> None:
    """Give Triton a current device that needs no CUDA context: sixteen workers would each hold one on the GPU.

    The kernels then go through the very code that a launch goes through, up to the launch. What Triton stores is
    found by a hash of all it was given, so that compiling by any other way would be compiling for nothing.
    """
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaDriver, CudaLauncher, CudaUtils
    from triton.runtime import driver

    class AnyDevice(CudaDriver):  # type: ignore[misc]
        def __init__(self) -> None:
            self.launcher_cls = CudaLauncher

        @functools.cached_property
        def utils(self) -> Any:
            return CudaUtils()

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", capability, 32)

    driver.set_active(AnyDevice())


def _constants(one: Launch) -> tuple[Any, ...]:
    values = ((x.dtype if isinstance(x, torch.Tensor) else x) for x in one.arguments.values())
    return (one.kernel.__name__, *values, *one.options.items())


def _compile_at(position: int) -> bool:
    one = _pending[position]
    if isinstance(one, tuple):
        from nsa.kernels.hopper.program import compiled as compile_source

        try:
            compile_source(*one)
        except RuntimeError:
            return False
        return True
    arguments = [one.arguments[name] for name in one.kernel.arg_names]
    try:
        compiled = one.kernel.warmup(*arguments, grid=one.grid, **one.options)
    except Exception:  # noqa: BLE001 - the launch itself will raise it again, where it can be understood
        return False
    _build_launcher(compiled)
    return True


def _build_launcher(compiled: Any) -> None:
    """Some versions of Triton compile, on top of a kernel, the C code that launches it; have that cached as well."""
    from triton.runtime import driver

    with contextlib.suppress(Exception):  # not the same in every version: the first launch builds what is missing
        driver.active.launcher_cls(compiled.src, compiled.metadata)
