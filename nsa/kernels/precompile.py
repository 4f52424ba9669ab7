"""Compile the kernels ahead of their first launch: for a GPU that is not there, or on all cores before a run.

The launch code runs on meta tensors with every kernel replaced by a recorder; each recorded launch is then compiled
with the specializations that a real launch would use. So what is compiled here cannot drift from the launch code.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from nsa.kernels import launch, launch_backward, nvrtc, step
from nsa.kernels.config import Tiles, choose_tiles, hopper_allowed, split_head_dim
from nsa.kernels.decode_plan import Plan
from nsa.kernels.hopper import combine as hopper_combine
from nsa.kernels.hopper import forward as hopper_forward
from nsa.kernels.hopper import launch as hopper
from nsa.kernels.hopper import window as hopper_window
from nsa.kernels.hopper.program import Constants
from nsa.kernels.problem import Problem

__all__ = [
    "Launch",
    "Resources",
    "Shape",
    "compile_for",
    "hopper_sources",
    "record",
    "record_decode",
    "resources",
    "warm",
    "warm_launches",
]

_OPTIONS = ("num_warps", "num_stages", "maxnreg", "launch_cooperative_grid", "enable_fp_fusion")
_HINTS = getattr(triton.backends.compiler, "AttrsDescriptor", None)  # Triton 3.2 alone
_TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


@dataclass(frozen=True)
class Launch:
    """One kernel launch as recorded."""

    kernel: JITFunction
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    options: dict[str, int]

    @property
    def name(self) -> str:
        mode = self.arguments.get("MODE")
        return str(self.kernel.__name__) + ("" if mode is None else f"[{mode}]")


@dataclass(frozen=True)
class Shape:
    """A problem to record."""

    S: int
    H: int
    G: int
    Dk: int
    Dv: int
    dtype: torch.dtype = torch.bfloat16
    capability: int = 90
    B: int = 1
    sizes: tuple[int, int, int, int, int] = (32, 16, 64, 16, 512)


@contextlib.contextmanager
def _recorder(into: list[Launch]) -> Iterator[None]:
    def run(self: JITFunction, *args: Any, grid: tuple[int, ...], warmup: bool, **kwargs: Any) -> None:
        options = {k: kwargs.pop(k) for k in _OPTIONS if k in kwargs}
        names = self.arg_names
        into.append(Launch(self, grid, dict(zip(names, args, strict=False)) | kwargs, options))

    with mock.patch.object(JITFunction, "run", run):
        yield


# Functions, for a mock would keep the tensors that it is called with.
def _launches_nothing(*_: object, **__: object) -> None:
    pass


def _maps_nothing(*_: object, **__: object) -> bytes:
    return bytes(128)


@contextlib.contextmanager
def _beside_hopper(p: Problem) -> Iterator[None]:
    """Launches of Triton's kernels beside those of :mod:`nsa.kernels.hopper`, which are left out."""
    reasons = {
        (launch_backward, "why_no_wgmma"): hopper.dense_served(p),
        (launch_backward, "why_no_gather"): hopper.gather_served(p),
        (launch_backward, "why_no_window"): hopper_window.window_served(p),
        (hopper_forward, "why_no_forward"): hopper_forward.forward_served(p),
        (hopper_forward, "why_no_choose"): hopper_forward.choose_served(p),
        (hopper_forward, "why_no_attend"): hopper_forward.attend_served(p),
        (hopper_combine, "why_no_combine"): hopper_combine.combine_served(p),
    }
    with contextlib.ExitStack() as patches:
        for (module, name), reason in reasons.items():
            patches.enter_context(mock.patch.object(module, name, return_value=reason))
        for module in (hopper, hopper_window, hopper_forward, hopper_combine):
            patches.enter_context(mock.patch.object(module, "launch", _launches_nothing))
            patches.enter_context(mock.patch.object(module, "tensor_map", _maps_nothing))
        yield


def _problem(shape: Shape, tiles: Tiles | None) -> tuple[Problem, torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """The problem, and its queries, keys and values without memory."""
    dims = split_head_dim(shape.Dk, shape.Dv)

    def meta(*size: int) -> torch.Tensor:
        return torch.empty(size, dtype=shape.dtype, device="meta")

    B, S, H, G = shape.B, shape.S, shape.H, shape.G
    q = meta(B, S, H, dims.dk)
    k = [meta(B, S, G, dims.dk) for _ in range(3)]
    v = [meta(B, S, G, dims.dv) for _ in range(3)]
    # A real scale: to some versions of Triton a 1.0 is a constant, and the kernel another one.
    p = Problem.of(q, k[1], v[1], sizes=shape.sizes, scale=shape.Dk**-0.5, deterministic=False)
    tiles = tiles or choose_tiles(dims, itemsize=q.element_size(), hopper=shape.capability >= 90)
    p = replace(p, tiles=tiles, n_processors=132 if shape.capability >= 90 else 108)
    return (p if shape.capability == 90 else replace(p, span=S)), q, k, v


def hopper_sources(shape: Shape) -> list[tuple[str, Constants]]:
    """Sources, with their constants, of the kernels of :mod:`nsa.kernels.hopper` that a problem takes, if they may
    run and can be compiled."""
    if shape.capability != 90 or not hopper_allowed() or nvrtc.missing():
        return []
    p = _problem(shape, None)[0]
    forward = list(hopper_forward.forward_sources(p))
    return [*forward, *(hopper_combine.combine_sources(p) if forward else ()), *hopper.backward_sources(p)]


def record(shape: Shape, *, tiles: Tiles | None = None, fallback: bool = True) -> list[Launch]:
    """All launches of a forward pass, and of a forward and backward pass; ``tiles`` overrides the table.

    Where Hopper's kernels serve the problem these are the launches beside them and, with ``fallback``, those without.
    """
    p, q, k, v = _problem(shape, tiles)
    gates = torch.empty(*q.shape[:3], 3, dtype=torch.float32, device="meta")
    launches: list[Launch] = []

    def passes() -> None:
        kc, vc = launch.compress(k[0], p), launch.compress(v[0], p)
        streams = (q, kc, vc, k[1], v[1], k[2], v[2])
        launch.forward(*streams, gates, p, save=False)
        o, saved = launch.forward(*streams, gates, p)
        launch_backward.backward(o, *streams, gates, saved, p, per_token=True)

    served = shape.capability == 90 and hopper_allowed() and hopper.dense_served(p) is None
    with _recorder(launches):
        if fallback or not served:
            passes()
        if served:
            with _beside_hopper(p):
                passes()
    return launches


def record_decode(shape: Shape, *, plan: Plan | None = None, together: bool = False) -> list[Launch]:
    """All launches of one decode step over caches that hold up to ``shape.S`` positions: a launch for each part, or
    ``together``; ``plan`` overrides the table."""

    def meta(*size: int, dtype: torch.dtype = shape.dtype) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device="meta")

    B, S, H, G = shape.B, shape.S, shape.H, shape.G
    l, d, _, _, w = shape.sizes  # noqa: E741 - the paper's symbol
    lengths, arrivals = meta(B, G, dtype=torch.int32), meta(B, G, step.ARRIVALS, dtype=torch.int32)
    q, gates = meta(B, 1, H, shape.Dk), meta(B, 1, H, 3, dtype=torch.float32)
    streams = tuple(meta(B, n, G, dim) for n in ((S - l) // d + 1, S, w) for dim in (shape.Dk, shape.Dv))
    caches = (meta(B, l, G, shape.Dk), meta(B, l, G, shape.Dv), *streams)
    new = [meta(B, 1, G, dim) for _ in range(3) for dim in (shape.Dk, shape.Dv)]
    processors, sizes = 132 if shape.capability >= 90 else 108, list(shape.sizes)
    launches: list[Launch] = []
    with _recorder(launches):
        if together:
            step.launch_step(
                q, gates, new, caches, lengths, arrivals, sizes, 0.1, processors=processors, plan=plan
            )  # fmt: skip
        else:
            step.launch_append(new, caches, lengths, l, d)
            step.launch_attention(q, gates, streams, lengths, sizes, 0.1, processors=processors, plan=plan)
    return launches


def _source(one: Launch) -> ASTSource:
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    divisible: list[int] = []
    for i, parameter in enumerate(one.kernel.params):
        value = one.arguments[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = _TYPES[value.dtype]
            divisible.append(i)
        elif isinstance(value, float):
            signature[parameter.name] = "fp32"
        elif value == 1 and not parameter.do_not_specialize:
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = 1
        else:
            signature[parameter.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0 and not parameter.do_not_specialize:
                divisible.append(i)
    if _HINTS is not None:
        return _source_of_3_2(one, signature, constants, divisible)
    return ASTSource(one.kernel, signature, constants, {(i,): [["tt.divisibility", 16]] for i in divisible})


def _source_of_3_2(
    one: Launch, signature: dict[str, str], constants: dict[str, Any], divisible: Sequence[int]
) -> ASTSource:
    """Triton 3.2 lists no constants among the types, an integer of 1 excepted, and has a class for the hints."""
    ones = {p.num: p.name for p in one.kernel.params if not p.is_constexpr and p.name in constants}
    types = {name: "i32" if name in ones.values() else kind for name, kind in signature.items()}
    types = {name: kind for name, kind in types.items() if kind != "constexpr"}
    hints = {**dict.fromkeys(divisible, 16), **dict.fromkeys(ones, 1)}
    return ASTSource(one.kernel, types, constants, _HINTS.from_hints(hints))


def compile_for(one: Launch, capability: int) -> Any:
    """The compiled kernel, with ``metadata.shared`` bytes and ``asm`` texts."""
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(_source(one), target=target, options=dict(one.options))


@dataclass(frozen=True)
class Resources:
    """What one compiled kernel takes: shared memory per program, registers per thread, bytes spilled per thread."""

    shared_bytes: int
    registers: int
    spill_bytes: int


def _assemble(options: Sequence[str | Path]) -> str:
    """What the assembler says; of the two that Triton brings along, the first that knows this PTX."""
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    said = ""
    for name in ("ptxas", "ptxas-blackwell"):
        if (folder / name).exists():
            done = subprocess.run([folder / name, *options], check=False, capture_output=True, text=True)
            said = done.stderr
            if done.returncode == 0:
                return said
            if "Unsupported .version" not in said:
                break
    raise RuntimeError(f"no assembler of Triton {triton.__version__} took the kernel: {said[:500]}")


def resources(one: Launch, capability: int) -> Resources:
    """Compile for ``capability`` and read the assembler's report; needs no GPU."""
    compiled = compile_for(one, capability)
    # The "a" variant carries the warp-group products; Triton targets it for Hopper as well.
    arch = f"sm_{capability}{'a' if capability >= 90 else ''}"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(compiled.asm["ptx"])
        options: list[str | Path] = ["-v", "--gpu-name", arch, source, "-o", Path(folder, "kernel.cubin")]
        if one.options.get("maxnreg"):
            options[1:1] = [f"--maxrregcount={one.options['maxnreg']}"]
        report = _assemble(options)
    registers, spilled = re.search(r"Used (\d+) registers", report), re.search(r"(\d+) bytes spill stores", report)
    if registers is None or spilled is None:
        raise RuntimeError(f"{one.name}: ptxas -v did not report registers and spills: {report[:200]!r}")
    return Resources(compiled.metadata.shared, int(registers[1]), int(spilled[1]))


def _warm_one(one: Launch) -> str:
    arguments = [one.arguments[name] for name in one.kernel.arg_names]
    try:
        one.kernel.warmup(*arguments, grid=one.grid, **one.options)
    except Exception as error:  # noqa: BLE001 - the launch itself will raise it again, in its own context
        return f"{one.name}: {error}"
    return one.name


def _identity(one: Launch) -> tuple[object, ...]:
    values = ((x.dtype, x.data_ptr() % 16) if isinstance(x, torch.Tensor) else x for x in one.arguments.values())
    return (one.kernel.__name__, *values, *one.options.items())


def warm(
    shapes: list[Shape], *, tile_sets: Sequence[Tiles | None] = (None,), processes: int | None = None
) -> list[str]:
    """Compile what these problems need into Triton's cache, in parallel; names of the kernels, in order of
    completion.

    Call it before the process uses CUDA: the workers are forked.
    """
    pending = {_identity(one): one for shape in shapes for tiles in tile_sets for one in record(shape, tiles=tiles)}
    return warm_launches(list(pending.values()), processes=processes)


def warm_launches(launches: list[Launch], *, processes: int | None = None) -> list[str]:
    """:func:`warm` for launches that are recorded already."""
    slow_first = sorted(launches, key=lambda one: -len(one.arguments))
    count = processes or len(os.sched_getaffinity(0))
    # Launches hold kernels, which do not pickle: workers inherit the list and are handed positions.
    global _inherited
    _inherited = slow_first
    with multiprocessing.get_context("fork").Pool(count) as pool:
        return list(pool.imap_unordered(_warm_at, range(len(slow_first))))


_inherited: list[Launch] = []


def _warm_at(position: int) -> str:
    return _warm_one(_inherited[position])
