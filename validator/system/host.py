"""The machine without its GPUs: CPU, memory, disk and load, as far as this process may use them.

Read from /proc, /sys and the file system; limits of a container (cgroup v1 and v2) are taken into account, because a
trainer that believes in 64 cores and may use 4 is slow for no visible reason.
"""

from __future__ import annotations

import ipaddress
import os
import platform
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from validator.system.processes import proc_fields, read_proc_text

_NO_LIMIT = 1 << 60
"""cgroup v1 writes a number near 2**63 for "no limit"."""

_CGROUP = Path("/sys/fs/cgroup")


_REMOTE = re.compile(
    r"nfs|cifs|smb|lustre|gpfs|beegfs|ceph|glusterfs|wekafs|9p|virtiofs|fuse\.(?!lxcfs|snapfuse|portal)"
)


@dataclass(frozen=True)
class HostFacts:
    """Sizes in bytes, cores as numbers that may be fractions under a quota. None where the system reports nothing."""

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
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Shared and remote file systems: where, and of which type."""

    @property
    def usable_cores(self) -> float:
        """Cores that this process may use: its affinity, or less under a quota."""
        return min(float(self.cores_allowed), self.cores_quota or float(self.cores_allowed))

    @property
    def memory_usable_bytes(self) -> int | None:
        """Memory that is available now."""
        known = [value for value in (self.memory_available_bytes, self.memory_limit_bytes) if value is not None]
        return min(known) if known else None


def read_host(folder: Path, *, proc: Path = Path("/proc"), cgroup: Path = _CGROUP) -> HostFacts:
    """The machine as seen by this process; `folder` is the one whose disk counts (it need not exist yet)."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    disk = shutil.disk_usage(existing)
    memory = meminfo(proc)
    return HostFacts(
        cpu_model=_cpu_model(proc),
        cores_logical=os.cpu_count() or 1,
        cores_allowed=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        cores_quota=_cpu_quota(proc, cgroup),
        load_1m=load_1m(),
        memory_total_bytes=memory.get("MemTotal"),
        memory_available_bytes=memory.get("MemAvailable"),
        memory_limit_bytes=memory_left(proc, cgroup),
        disk_total_bytes=disk.total,
        disk_free_bytes=disk.free,
        disk_path=str(existing),
        mounts=_remote_mounts(proc),
    )


def _cpu_model(proc: Path) -> str:
    named = (value for name, value in proc_fields(proc / "cpuinfo") if name in ("model name", "Model", "Hardware"))
    return next(named, platform.processor() or platform.machine())


def _remote_mounts(proc: Path) -> dict[str, str]:
    """By mount point; the server is left out, since it names a machine."""
    fields = [line.split() for line in read_proc_text(proc / "self/mounts").splitlines()]
    return {one[1]: one[2] for one in fields if len(one) > 2 and _REMOTE.match(one[2])}


def meminfo(proc: Path = Path("/proc")) -> dict[str, int]:
    """The lines of /proc/meminfo in bytes: MemTotal, MemAvailable and others."""
    found: dict[str, int] = {}
    for name, value in proc_fields(proc / "meminfo"):
        size = value.partition(" ")[0]
        if size.isdigit():
            found[name] = int(size) * 1024  # the file counts in KiB
    return found


def load_1m() -> float | None:
    """Load average of the last minute; None where the system does not report it."""
    with suppress(OSError, AttributeError):
        return os.getloadavg()[0]
    return None


def _cgroup_folders(proc: Path, cgroup: Path, controller: str) -> list[Path]:
    """Folders of this process's group, innermost first: version 2, then version 1's of that controller."""
    folders: list[Path] = []
    for line in read_proc_text(proc / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            base = cgroup
        elif controller in controllers.split(","):
            base = cgroup / controller
        else:
            continue
        inner = base / group.lstrip("/")
        folders += [inner, *(parent for parent in inner.parents if parent == base or base in parent.parents)]
    return [*folders, cgroup, cgroup / controller]


def _cpu_quota(proc: Path, cgroup: Path) -> float | None:
    quotas: list[float] = []
    for folder in _cgroup_folders(proc, cgroup, "cpu"):
        share = read_proc_text(folder / "cpu.max").split()  # "150000 100000", or "max 100000" without a quota
        if len(share) == 2 and share[0].isdigit():
            quotas.append(int(share[0]) / int(share[1]))
        quota, period = read_proc_text(folder / "cpu.cfs_quota_us"), read_proc_text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(quota) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas) if quotas else None


def memory_left(proc: Path = Path("/proc"), cgroup: Path = _CGROUP) -> int | None:
    """Bytes that the tightest group still allows; None where none has a limit.

    The kernel frees file cache when memory is short, so it counts as free.
    """
    left: list[int] = []
    for folder in _cgroup_folders(proc, cgroup, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = read_proc_text(folder / limit_name), read_proc_text(folder / used_name)
            if limit.isdigit() and used.isdigit() and int(limit) < _NO_LIMIT:
                left.append(max(0, int(limit) - int(used) + _file_cache(folder)))
    return min(left) if left else None


def _file_cache(folder: Path) -> int:
    cached = ("inactive_file", "total_inactive_file")
    return next((int(value) for name, value in proc_fields(folder / "memory.stat", " ") if name in cached), 0)


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
