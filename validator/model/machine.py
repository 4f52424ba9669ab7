"""Which machines may be compared: those with the same GPUs, number of GPUs and interconnect; or the same CPU.

Apart from the models of a comparison, which the history does without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

_SECTIONS = (
    "python",
    "packages",
    "cpu",
    "memory",
    "disk",
    "git",
    "gpu_driver",
    "gpus",
    "env",
    "resumed",
    "shared_copy",
)

MIN_EFFECT = 0.03
"""How much slower than the other nodes one may be, as a share."""

NODES_ALONE = "Each node alone"
"""Caption of the table of nodes that trained alone: node, steps per second, share of the median."""


def sound_snapshot(found: Any) -> dict[str, Any]:
    """A snapshot from a file, without sections that are not mappings: readers look up keys in them."""
    sound = {
        name: value for name, value in _mapping(found).items() if name not in _SECTIONS or isinstance(value, Mapping)
    }
    if "gpus" in sound:
        sound["gpus"] = {name: gpu for name, gpu in sound["gpus"].items() if isinstance(gpu, Mapping)}
    return sound


def machine_class(environment: Mapping[str, Any]) -> str:
    """The class of the machine that a snapshot (`environment` of result.json) describes.

    `2 x NVIDIA H200, NVLink`, or on a machine without GPUs `CPU, 2 cores, AMD EPYC 9654`; `unknown` without a snapshot.
    Two validations of one runbook on one class are comparable; the host's name does not matter, since rented machines
    and containers get a new one at each start.
    """
    gpus = [gpu for gpu in _mapping(environment.get("gpus")).values() if isinstance(gpu, Mapping)]
    if gpus:
        names = Counter(str(gpu.get("name") or "GPU") for gpu in gpus)
        listed = " + ".join(f"{count} x {name}" for name, count in sorted(names.items()))
        if len(gpus) == 1:
            return listed
        return f"{listed}, {'NVLink' if all(gpu.get('nvlinks_active') for gpu in gpus) else 'PCIe'}"
    cpu = _mapping(environment.get("cpu"))
    model, cores = cpu.get("model"), cpu.get("cores_usable") or cpu.get("cores_logical")
    if not model and not cores:
        return "unknown"
    count = f"{cores:g} cores" if isinstance(cores, (int, float)) else ""
    return ", ".join(("CPU", *([count] if count else []), *([str(model)] if model else [])))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
