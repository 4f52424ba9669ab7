"""Memory in use, on the device and by the process, as numbers for a row and as dumps to look into."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from nsa.telemetry.files import write_json, write_text

__all__ = ["memory_now", "rss_mib", "write_memory_dump"]

MIB = 2**20


def rss_mib() -> float | None:
    """Resident memory of this process, MiB; None without /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def memory_now(device: torch.device) -> dict[str, float]:
    """`gpu_mem_alloc` and `gpu_mem_reserved` in MiB; empty on a CPU."""
    if device.type != "cuda":
        return {}
    return {
        "gpu_mem_alloc": torch.cuda.memory_allocated(device) / MIB,
        "gpu_mem_reserved": torch.cuda.memory_reserved(device) / MIB,
    }


def write_memory_dump(out: Path, tag: str, device: torch.device, *, step: int, **known_bytes: int) -> None:
    """Write `mem_{tag}.json` and `mem_{tag}.txt`.

    `known_bytes` are sizes the trainer knows exactly, such as those of weights and of the optimizer's state.
    """
    record: dict[str, Any] = {"schema_version": 1, "tag": tag, "step": step, "device": str(device)}
    record["rss_mib"] = rss_mib()
    record |= {f"{name}_mib": size / MIB for name, size in known_bytes.items()}
    text = "\n".join(f"{key}: {value}" for key, value in record.items()) + "\n"
    if device.type == "cuda":
        record["gpu_mem_peak_mib"] = torch.cuda.max_memory_allocated(device) / MIB
        record |= {f"{name}_mib": value for name, value in memory_now(device).items()}
        free, total = torch.cuda.mem_get_info(device)
        record["gpu_mem_free_mib"], record["gpu_mem_total_mib"] = free / MIB, total / MIB
        record["allocator"] = torch.cuda.memory_stats(device)
        text += "\n" + torch.cuda.memory_summary(device)
    else:
        text += "\n" + _process_status()
    write_json(out / f"mem_{tag}.json", record)
    write_text(out / f"mem_{tag}.txt", text)


def _process_status() -> str:
    try:
        return Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return "no further detail on this system\n"
