"""Which machines may be compared: those with the same GPUs, as many, joined alike; or the same processor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

__all__ = ["machine_class", "sound_snapshot"]

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


def sound_snapshot(found: Any) -> dict[str, Any]:
    """A snapshot from a file, without the sections that are none: whoever reads one asks them for their parts."""
    told = {name: value for name, value in _mapping(found).items() if name not in _SECTIONS or _is_mapping(value)}
    if "gpus" in told:
        told["gpus"] = {name: gpu for name, gpu in told["gpus"].items() if _is_mapping(gpu)}
    return told


def machine_class(environment: Mapping[str, Any]) -> str:
    """The class of the machine that a snapshot (`environment` of result.json) describes.

    `2 x NVIDIA H200, NVLink`, or on a machine without GPUs `CPU, 2 cores, AMD EPYC 9654`; `unknown` without a snapshot.
    Two validations of one runbook on one class are comparable; the host's name does not matter, since rented machines
    and containers get a new one at each start.
    """
    gpus = [gpu for gpu in _mapping(environment.get("gpus")).values() if _is_mapping(gpu)]
    if gpus:
        names = Counter(str(gpu.get("name") or "GPU") for gpu in gpus)
        told = " + ".join(f"{count} x {name}" for name, count in sorted(names.items()))
        if len(gpus) == 1:
            return told
        return f"{told}, {'NVLink' if all(gpu.get('nvlinks_active') for gpu in gpus) else 'PCIe'}"
    cpu = _mapping(environment.get("cpu"))
    model, cores = cpu.get("model"), cpu.get("cores_usable") or cpu.get("cores_logical")
    if not model and not cores:
        return "unknown"
    count = f"{cores:g} cores" if isinstance(cores, (int, float)) else ""
    return ", ".join(("CPU", *([count] if count else []), *([str(model)] if model else [])))


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
