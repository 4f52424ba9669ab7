"""The machine apart from its GPUs: processor, memory, disk and load, as far as this process may use them.

Read from /proc, /sys and the file system; limits of a container (cgroup v1 and v2) are taken into account, because a
trainer that believes in 64 cores and may use 4 is slow for no visible reason.
"""

from __future__ import annotations

import os
import platform
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["HostFacts", "read_host"]

_NO_LIMIT = 1 << 60
"""cgroup v1 writes a number near 2**63 for "no limit"."""


@dataclass(frozen=True)
class HostFacts:
    """Sizes in bytes, cores as numbers that may be fractions under a quota. None where the system does not tell."""

    cpu_model: str
    cores_logical: int
    cores_allowed: int
    cores_quota: float | None
    load_1m: float | None
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    memory_limit_bytes: int | None
    disk_total_bytes: int
    disk_free_bytes: int
    disk_path: str

    @property
    def usable_cores(self) -> float:
        """Cores that this process may use: its affinity, or less under a quota."""
        return min(float(self.cores_allowed), self.cores_quota or float(self.cores_allowed))

    @property
    def memory_usable_bytes(self) -> int | None:
        """Memory that can be had now."""
        known = [value for value in (self.memory_available_bytes, self.memory_limit_bytes) if value is not None]
        return min(known) if known else None

    def as_json(self) -> dict[str, Any]:
        """Facts as plain values."""
        return {**asdict(self), "usable_cores": self.usable_cores, "memory_usable_bytes": self.memory_usable_bytes}


def read_host(where: Path, *, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> HostFacts:
    """The machine as seen by this process; `where` is the folder whose disk counts (it need not exist yet)."""
    folder = next(path for path in (where.absolute(), *where.absolute().parents) if path.exists())
    disk = shutil.disk_usage(folder)
    memory = _meminfo(proc)
    return HostFacts(
        cpu_model=_cpu_model(proc),
        cores_logical=os.cpu_count() or 1,
        cores_allowed=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        cores_quota=_cpu_quota(proc, cgroup),
        load_1m=_load(),
        memory_total_bytes=memory.get("MemTotal"),
        memory_available_bytes=memory.get("MemAvailable"),
        memory_limit_bytes=_memory_left(proc, cgroup),
        disk_total_bytes=disk.total,
        disk_free_bytes=disk.free,
        disk_path=str(folder),
    )


def _read(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text()
    return ""


def _cpu_model(proc: Path) -> str:
    for line in _read(proc / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "Hardware"):
            return value.strip()
    return platform.processor() or platform.machine()


def _meminfo(proc: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in _read(proc / "meminfo").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found


def _load() -> float | None:
    with suppress(OSError, AttributeError):
        return os.getloadavg()[0]
    return None


def _cgroup_folders(proc: Path, cgroup: Path, controller: str) -> list[Path]:
    """Folders of this process's group, innermost first: version 2, then version 1's of that controller."""
    folders: list[Path] = []
    for line in _read(proc / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        if number == "0" and not controllers:
            base = cgroup
        elif controller in controllers.split(","):
            base = cgroup / controller
        else:
            continue
        inner = base / place.lstrip("/")
        folders += [inner, *(parent for parent in inner.parents if parent == base or base in parent.parents)]
    return [*folders, cgroup, cgroup / controller]


def _cpu_quota(proc: Path, cgroup: Path) -> float | None:
    quotas: list[float] = []
    for folder in _cgroup_folders(proc, cgroup, "cpu"):
        words = _read(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit():
            quotas.append(int(words[0]) / int(words[1]))
        quota, period = _read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit() and int(quota) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas) if quotas else None


def _memory_left(proc: Path, cgroup: Path) -> int | None:
    """What the tightest group still allows. File cache is given back when memory is short, so it counts as free."""
    left: list[int] = []
    for folder in _cgroup_folders(proc, cgroup, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _read(folder / limit_name).strip(), _read(folder / used_name).strip()
            if limit.isdigit() and used.isdigit() and int(limit) < _NO_LIMIT:
                left.append(max(0, int(limit) - int(used) + _file_cache(folder)))
    return min(left) if left else None


def _file_cache(folder: Path) -> int:
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0
