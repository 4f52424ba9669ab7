"""Compile kernels into their caches on all cores: ``compile_all.py``, a pickled pair of lists of
:class:`nsa.kernels.precompile.Shape` on standard input, of attention and of decode steps."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import time
from functools import partial
from unittest import mock

import torch

from nsa.kernels import nvrtc
from nsa.kernels.hopper import combine, forward, launch, program, window
from nsa.kernels.precompile import Launch, Shape, record, record_decode, warm_launches
from nsa.kernels.problem import Problem

Source = tuple[str, program.Constants]


def sources(shape: Shape) -> list[Source]:
    """Hopper's own kernels, also where Triton's are faster: tests run them there too."""

    def meta(heads: int, dim: int) -> torch.Tensor:
        return torch.empty(shape.B, shape.S, heads, dim, dtype=shape.dtype, device="meta")

    tensors = meta(shape.H, shape.Dk), meta(shape.G, shape.Dk), meta(shape.G, shape.Dv)
    p = Problem.of(*tensors, sizes=shape.sizes, scale=shape.Dk**-0.5, deterministic=False)
    backward = launch.dense_served(p)
    asked = (
        ("dense_backward", backward, launch._dense_constants),
        ("gather_backward", backward or launch.gather_served(p), launch._gather_constants),
        ("window_backward", backward or window.window_served(p), window._constants),
        ("dense_forward", forward.forward_served(p), forward._dense_constants),
        ("dense_forward", forward.choose_served(p), partial(forward._dense_constants, leaves=True)),
        ("choose", forward.choose_served(p), forward._choose_constants),
        ("combine", combine.combine_served(p), combine._constants),
        ("gather_forward", forward.attend_served(p), forward._gather_constants),
    )
    return [(name, constants(p)[0]) for name, reason, constants in asked if reason in (None, "narrow")]


def compile_one(source: Source) -> None:
    name, constants = source
    options = ["--gpu-architecture=sm_90a", "--std=c++17"]
    nvrtc.compile_cubin(program.source(name, constants), options, name=f"{name}.cu")


def compiled_as(one: Launch) -> tuple[object, ...]:
    """What Triton makes a kernel of its own for."""
    key: list[object] = [one.name, *one.options.items()]
    for parameter in one.kernel.params:
        x = one.arguments[parameter.name]
        if isinstance(x, torch.Tensor):
            key.append((x.dtype, x.data_ptr() % 16))
        elif parameter.is_constexpr or not isinstance(x, int):
            key.append(x)
        elif not parameter.do_not_specialize:
            key.append((x == 1, x % 16 == 0, x >= 2**31))
    return tuple(key)


def launches(shapes: list[Shape], steps: list[Shape]) -> list[Launch]:
    """Triton's kernels, also those that do the window beside Hopper's own."""
    found = [one for shape in shapes for one in record(shape)]
    with mock.patch.object(window, "window_served", return_value="off"):
        found += [one for shape in shapes if shape.sizes == Shape.sizes for one in record(shape)]
    for together in (False, True):
        found += [one for step in steps for one in record_decode(step, together=together)]
    return list({compiled_as(one): one for one in found}.values())


def main() -> None:
    shapes, steps = pickle.load(sys.stdin.buffer)
    began = time.perf_counter()
    served = shapes if nvrtc.missing() is None else []
    asked = list(dict.fromkeys(source for shape in served for source in sources(shape)))
    with multiprocessing.get_context("fork").Pool(len(os.sched_getaffinity(0))) as pool:
        pool.map(compile_one, asked, chunksize=1)
    told = warm_launches(launches(shapes, steps))
    failed = [line for line in told if ": " in line]
    print(f"compiled {len(asked)} and {len(told)} kernels in {time.perf_counter() - began:.0f} s", *failed, sep="\n")


if __name__ == "__main__":
    main()
