"""Where a decode step by thread block clusters spends its time: ``python -m benchmarks.decode_phases``, on a GPU.

Reads the processors' clocks between the phases of ``step.cu``, by statements put into its source, and prints for each
phase the mean over all blocks, in microseconds of the GPU's highest clock. The first warp of a block is timed.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

import torch

from benchmarks.decode_gpu import CONTEXT, LAYERS, SHAPES, SIZES, layers
from benchmarks.machine import need_gpu
from nsa.kernels import nvrtc, step
from nsa.kernels.cluster import launch, program

__all__ = ["PHASES", "with_clocks"]

PHASES = {
    "start, length of the row, query": "    cluster_arrive();\n    let_next_begin();",
    "keys of the compressed branch": "    // Memory is to bring all keys first",
    "sums told, values asked for": "    tell_lse(LSE_CMP, lse);",
    "window": "    Part win;",
    "weights of all compressed tokens": "    tell_lse(LSE_WIN, lse_win);",
    "importance of blocks, the best of a warp": "    if (NTOP > 0) {\n        u64 best = 0;",
    "the best of a share, told": "        if (lane < NTOP) at<u64>(KEYS",
    "values of the compressed branch, without room": "    const auto add_compressed",
    "the best of all, their loads": "    // The best of all blocks, best first.",
    "values of the compressed branch, parts of two branches": "    // While they come: the other two branches",
    "chosen blocks": "    Part sel;",
    "the block's parts as one, told; output": "    // The block's parts as one",
}
"""Each phase by the text of the source that it begins with."""
_MOST_BLOCKS = 4096


def with_clocks(source: str) -> str:
    """The source with a clock read before each phase and at the end.

    Raises:
        ValueError: a phase's beginning is not in the source exactly once, or they stand in another order.
    """
    places = [source.find(text) for text in PHASES.values()]
    lost = [name for name, text in PHASES.items() if source.count(text) != 1]
    if lost or places != sorted(places):
        raise ValueError(f"step.cu does not hold the beginnings of {', '.join(lost) or 'the phases in order'}")
    entry = 'extern "C" __global__'
    clocks = (
        f"__device__ long long clocks[{len(PHASES) + 1}][{_MOST_BLOCKS}];\n"
        "DEVICE void note(int i) { if (threadIdx.x == 0) clocks[i][blockIdx.x] = clock64(); }\n"
    )
    source = source.replace(entry, clocks + entry, 1)
    for i, text in enumerate(PHASES.values()):
        source = source.replace(text, f"    note({i});\n{text}")
    end = source.rindex("}")
    return f"{source[:end]}    note({len(PHASES)});\n{source[end:]}"


def _clocks(function: Any) -> torch.Tensor:
    from cuda.bindings import driver

    module = nvrtc.check(driver.cuFuncGetModule(function.handle))
    address, n_bytes = nvrtc.check(driver.cuModuleGetGlobal(module, b"clocks"))
    found = torch.empty(int(n_bytes) // 8, dtype=torch.int64)
    nvrtc.check(driver.cuMemcpyDtoH(found.data_ptr(), address, n_bytes))
    return found.view(len(PHASES) + 1, _MOST_BLOCKS).double()


def _measure(name: str) -> None:
    from cuda.bindings import driver

    made = list(layers(SHAPES[name], LAYERS))
    first = made[0]
    for _ in range(5):
        for layer in made:
            layer.lengths.fill_(CONTEXT - 3)  # a step that completes no compressed token
            layer.step()
    torch.cuda.synchronize()
    sizes = step.sizes_of(first.q, first.caches[2:], SIZES)
    if why := launch.why_no_cluster(first.q, first.gates, sizes):
        raise SystemExit(f"{name}: no step by clusters here ({why})")
    plan, function = launch._chosen(sizes, first.q.dtype, first.gates.dtype, torch.cuda.current_device())
    rate = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CLOCK_RATE
    mhz = nvrtc.check(driver.cuDeviceGetAttribute(rate, torch.cuda.current_device())) / 1e3
    spent = _clocks(function)[:, : sizes.bg * plan.blocks].diff(dim=0) / mhz
    print(f"{name}: {plan.blocks} blocks for each row and group, {plan.stages} stages", flush=True)
    for phase, us in zip((*PHASES, "in all"), (*spent.mean(1).tolist(), spent.sum(0).mean().item()), strict=True):
        print(f"  {us:6.2f} us  {phase}")


def main() -> int:
    """Measure both shapes."""
    need_gpu("decode_phases")
    with mock.patch.object(program, "source", return_value=with_clocks(program.source())):
        for name in SHAPES:
            _measure(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
