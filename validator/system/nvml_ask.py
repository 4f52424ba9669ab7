"""How NVML is asked: one answer or None, for it refuses what a card, a driver or a container does not support."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any

NO_DRIVER = "no NVIDIA driver is loaded"


def load() -> tuple[Any | None, str | None]:
    """The binding, or None and why there is none."""
    # Without a driver the import of the library would only cost time. /dev/dxg is the driver's device under WSL.
    if not Path("/dev/nvidiactl").exists() and not Path("/dev/dxg").exists():
        return None, NO_DRIVER
    try:
        import pynvml
    except ImportError:
        return None, "the package nvidia-ml-py is not installed"
    return pynvml, None


def ask_nvml(nvml: Any, name: str, *arguments: Any, **options: Any) -> Any:
    """One answer, or None."""
    try:
        return getattr(nvml, name)(*arguments, **options)
    except Exception:  # noqa: BLE001 -- NVMLError, or an attribute that an older binding lacks
        return None


def decoded(value: Any) -> str:
    """Older bindings answer in bytes."""
    if value is None:
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def watts(milliwatts: int | None) -> float | None:
    """From milliwatts."""
    return None if milliwatts is None else milliwatts / 1000


def filled(nvml: Any, question: str, handle: Any, structure: str) -> Any:
    """The structure that the driver fills, None where it does not."""
    answer = ask_nvml(nvml, structure)
    place = ctypes.byref(answer) if isinstance(answer, ctypes.Structure) else answer
    return None if answer is None or ask_nvml(nvml, question, handle, place) is None else answer


def field_value(nvml: Any, handle: Any, field: Any) -> int | None:
    """One field value, None where this driver does not know it. All fields asked here are unsigned integers."""
    found = ask_nvml(nvml, "nvmlDeviceGetFieldValues", handle, [field])
    if not found or found[0].nvmlReturn != 0:
        return None
    return int(found[0].value.uiVal)


def known(value: Any) -> int | None:
    """As a number."""
    return None if value is None else int(value)


def total(counts: Iterable[int | None]) -> int | None:
    """Their sum; None where none is known."""
    known = [one for one in counts if one is not None]
    return sum(known) if known else None
