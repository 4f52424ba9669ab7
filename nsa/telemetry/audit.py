"""`sdpa_audit.json`: which kernels each branch of each layer ran, forward and backward, from profiler events."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from nsa.telemetry.trace import kernel_events, on_gpu

__all__ = ["audit_record", "backend_of"]

SCHEMA_VERSION = 1
_LAYER = re.compile(r"nsa\.layer\.(\d+)(\.backward)?$")
_BRANCHES = {
    "nsa.cmp": "cmp",
    "nsa.compress": "compress",
    "nsa.sel": "sel",
    "nsa.win": "win",
    "nsa.gate": "gate",
    "nsa.query": "query",  # the queries' gradient, of all branches in one kernel
}
_ATTENTION_BRANCHES = ("cmp", "sel", "win", "query", "dense", "fused")
# Autograd names a backward node after its forward operator: `MmBackward0`, and `GeneratedBackwardFor_xBackward` for
# a custom operator x, whose forward pass is recorded as `GeneratedBackwardFor_x`.
_BACKWARD = re.compile(r"Backward\d*$")
_LAUNCH = re.compile(r"(cu|cuda|hip)[A-Z]")

# The first pattern that a kernel's or operator's name holds names the backend. `_flash_`, `_efficient_` and `_cudnn_`
# are how torch's own fused attention is called; Triton kernels of this package carry its name.
_BACKENDS = (
    ("cudnn", re.compile(r"cudnn.*(attention|sdpa)", re.IGNORECASE)),  # first, for its kernels also say flash
    ("flash", re.compile(r"flash", re.IGNORECASE)),
    ("mem_efficient", re.compile(r"efficient_attention|fmha_cutlass", re.IGNORECASE)),
    ("sdpa_math", re.compile(r"_scaled_dot_product_attention_math")),
    # Those of nsa.kernels.hopper have the names of their sources. They serve `prefill: triton` where they can.
    ("triton", re.compile(r"^(?:(?:dense|gather)_(?:forward|backward)|window_backward|choose|combine)$")),
    # Triton gives its kernels their Python names: plain words, where C++ kernels have signatures and cuBLAS prefixes.
    ("triton", re.compile(r"triton|nsa_|^(?!nvjet|sm\d|cutlass|cudnn)[a-z][a-z0-9_]*_kernel$")),
    ("matmul", re.compile(r"bmm|addmm|aten::mm|gemm|cutlass|xmma", re.IGNORECASE)),
)


def backend_of(names: Iterable[str]) -> str:
    """The attention backend that a set of kernel or operator names shows; `none` where nothing is recognized."""
    found = list(names)
    return next((backend for backend, pattern in _BACKENDS if any(pattern.search(n) for n in found)), "none")


def _ancestors(event: Any) -> Iterator[Any]:
    parent = event.cpu_parent
    while parent is not None:
        yield parent
        parent = parent.cpu_parent


def _place(event: Any) -> tuple[int, str, str] | None:
    """Layer, branch and direction of an event, from the ranges around it; None outside of attention."""
    layer, direction, branch = None, "forward", ""
    for name in (e.name for e in _ancestors(event)):
        match = _LAYER.match(name)
        if match:
            layer = int(match[1])
            direction = "backward" if match[2] else direction
            break
        if name.endswith(".backward") and name.removesuffix(".backward") in _BRANCHES:
            direction = "backward"
        root = next((r for r in _BRANCHES if name == r or name.startswith((f"{r}.b", f"{r}.r"))), None)
        if root and not branch:
            branch = "select" if ".ranges" in name else _BRANCHES[root]
        if "scaled_dot_product" in name and not branch:
            branch = "dense"
        if name.startswith("nsa::") and not branch:
            branch = "fused"  # all branches in one operator that does not mark them
        if _BACKWARD.search(name):
            direction = "backward"
    if layer is None:
        return None
    if not branch:
        own = {"scaled_dot_product": "dense", "nsa::": "fused"}
        branch = next((b for part, b in own.items() if part in event.name), "projections")
    return layer, branch, direction


def _work_by_launch(events: list[Any]) -> list[tuple[Any, str, float]]:
    """What each call of the driver or runtime put on the GPU: the call, the kernel's name, microseconds.

    The profiler credits a kernel to the operator around it, and an operator may hold several branches. The call that
    launched it has the kernel's own number, and its place among the ranges is exact. Empty unless every kernel's
    launch was seen: an audit with holes would be no evidence.
    """
    launches = {e.id: e for e in events if not on_gpu(e) and _LAUNCH.match(e.name)}
    kernels = kernel_events(events)
    if not all(e.id in launches for e in kernels):
        return []
    return [(launches[e.id], e.name, float(e.time_range.end - e.time_range.start)) for e in kernels]


def _work_by_operator(events: list[Any], *, on_cuda: bool) -> Iterator[tuple[Any, str, float]]:
    """What each operator ran: its GPU kernels, or, on a CPU, the operator itself."""
    for event in events:
        if on_cuda:
            yield from ((event, kernel.name, float(kernel.duration)) for kernel in getattr(event, "kernels", ()))
        elif event.name.startswith("aten::"):
            yield event, event.name, float(event.self_cpu_time_total)


def audit_record(events: Iterable[Any], *, step: int, device: str) -> dict[str, Any]:
    """The audit of one profiled step.

    `layers[]` holds for each layer, branch and direction the kernels (operators on a CPU) with counts and times, and
    the backend they show; `summary[]` the same in one line per branch and direction, all layers together.
    """
    on_cuda, seen = device.startswith("cuda"), list(events)
    found: dict[tuple[int, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0, 0.0]))
    for event, name, time_us in (on_cuda and _work_by_launch(seen)) or _work_by_operator(seen, on_cuda=on_cuda):
        place = _place(event)
        if place is not None:
            entry = found[place][name]
            entry[0] += 1
            entry[1] += time_us
    layers = [
        {
            "layer": layer,
            "branch": branch,
            "direction": direction,
            "backend": backend_of(kernels),
            "time_us": round(sum(time_us for _, time_us in kernels.values()), 1),
            "kernels": {
                name: {"count": int(count), "time_us": round(time_us, 1)}
                for name, (count, time_us) in sorted(kernels.items(), key=lambda item: -item[1][1])
            },
        }
        for (layer, branch, direction), kernels in sorted(found.items())
    ]
    return {
        "schema_version": SCHEMA_VERSION,
        "step": step,
        "device": device,
        "layers": layers,
        "summary": list(_summary(layers)),
    }


def _summary(layers: list[dict[str, Any]]) -> Iterator[str]:
    grouped: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for entry in layers:
        grouped[entry["branch"], entry["direction"]].append(entry)
    for (branch, direction), entries in sorted(grouped.items()):
        backends = sorted({e["backend"] for e in entries})
        total_us = sum(e["time_us"] for e in entries)
        fused = " (attention)" if branch in _ATTENTION_BRANCHES else ""
        yield f"{branch} {direction}{fused}: {', '.join(backends)} in {len(entries)} layers, {total_us / 1e3:.2f} ms"
