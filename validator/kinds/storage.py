"""How fast is the disk that data are read from and checkpoints are written to?

fio measures where it is installed, a loop of our own elsewhere. Both do the same, past the page cache: sequential
writes and reads of 1 MiB, and 4 KiB reads at random places by eight threads. Then files of a checkpoint size are
written as trainers write them: through the page cache, with fsync at the end.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validator.documents import number_at, parse_json
from validator.files import replace_file
from validator.kinds.base import Found, ImplicitCriterion, JudgedRun, Planner, ProcessKind, Seen, Site
from validator.model.machine_phases import StoragePhase
from validator.model.runbook import Runbook
from validator.model.settings import fill
from validator.runbook.problems import Problem
from validator.startup import call_argv
from validator.text import format_size

if TYPE_CHECKING:
    from validator.ingest.result_builder import ResultBuilder
    from validator.model.plan import RunSpec

_RECORD = "storage.json"
_BLOCK = 2**20
_SMALL = 4096
_READERS = 8
"""Threads that read at random, as many as the workers of a common loader."""

_CHECKPOINTS = 3
"""Files of a checkpoint's size; the slowest counts, for a trainer waits for it."""

_IN_MEMORY = frozenset({"tmpfs", "ramfs"})


@dataclass(frozen=True)
class DiskRecord:
    """What was measured, and by what; `problem` is None where nothing kept it from being measured.

    `direct` says whether the file system was read and written past the page cache.
    """

    path: str
    filesystem: str
    tool: str
    direct: bool
    problem: str | None


class Storage(ProcessKind[StoragePhase]):
    """One process that measures one folder, and leaves nothing in it."""

    schema = StoragePhase
    relies_on = (_RECORD,)
    asks_unwritten = (("disk",), "`path` is on a disk, and every measurement was made")

    def check(self, phase: StoragePhase, site: Site) -> Iterator[Problem]:
        """Sizes that say something: a file of some blocks, read for some time."""
        yield from super().check(phase, site)
        for key in ("size", "checkpoint"):
            if getattr(phase, key) < _BLOCK:
                message = f"{key} of phase {phase.id} is {format_size(getattr(phase, key))}, less than one block"
                yield site.problem(message, f"write {key}: 4 GiB, or at least 1 MiB", key)

    def asks(self, phase: StoragePhase, runbook: Runbook) -> bool:
        """The folder can be in memory, full, or not writable."""
        return True

    def runs(self, phase: StoragePhase, planner: Planner) -> Iterator[RunSpec]:
        """One run, by the Python of the validator: the trainer's need not know it."""
        values = planner.values(phase, "r1")
        sizes = (phase.size, phase.checkpoint, phase.random_for)
        words = (fill(phase.path, values), f"{values['out']}/{_RECORD}", *map(str, sizes))
        yield planner.process(phase, (*call_argv(__name__, "main"), *words), launcher="exec")

    def read(self, spec: RunSpec, gathered: ResultBuilder, log: Path | None) -> None:
        """Rates in MB/s (10⁶ bytes per second) and times, as far as they were measured."""
        read = gathered.json_object(gathered.out / _RECORD, what="the record of the disk")
        if read is None:
            return
        record = read[0]
        path, kind, tool = (str(record.get(key) or "unknown") for key in ("path", "filesystem", "tool"))
        problem = str(record["problem"]) if record.get("problem") else None
        gathered.evidence.own = DiskRecord(path, kind, tool, record.get("direct") is True, problem)
        for name, value in _disk_scalars(record).items():
            gathered.add_scalar(name, value, read[1])

    def criteria(self, phase: StoragePhase, runbook: Runbook) -> Iterator[ImplicitCriterion]:
        """What was measured is a disk."""
        yield ImplicitCriterion("disk", "the folder is on a disk, and every measurement was made", _disk)


def _disk_scalars(record: Mapping[str, Any]) -> dict[str, float]:
    values = {
        "storage.write_mb_s": number_at(record, "write", "mb_s"),
        "storage.read_mb_s": number_at(record, "read", "mb_s"),
        "storage.random_read_iops": number_at(record, "random_read", "iops"),
        "storage.random_read_p99_ms": number_at(record, "random_read", "p99_ms"),
        "storage.checkpoint_s": number_at(record, "checkpoint", "slowest_s"),
        "storage.checkpoint_mb_s": number_at(record, "checkpoint", "mb_s"),
    }
    if record.get("filesystem") in _IN_MEMORY or record.get("direct") is not True:
        # Reads that may come from the page cache say nothing about the disk.
        values = {name: value for name, value in values.items() if "read" not in name}
    return {name: value for name, value in values.items() if value is not None and value > 0}


def _disk(run: JudgedRun) -> Found:
    record = run.own(DiskRecord)
    if record is None:
        return Found("INCONCLUSIVE", "Nothing was recorded, so nothing is known of the disk.", None, "a disk")
    kind = record.filesystem
    source = None if run.result is None else run.source(_RECORD)
    seen = (Seen(f"{record.path}: {kind}, measured by {record.tool}", source),)
    if record.problem is not None:
        return Found("FAIL", f"{record.problem}.", kind, "a disk", seen)
    if kind in _IN_MEMORY:
        message = f"{record.path} is {kind}, which is memory: set path to the folder that holds data or checkpoints."
        return Found("FAIL", message, kind, "a disk", seen)
    if not record.direct:
        message = f"{record.path} ({kind}) cannot be read past the page cache, so its reads are not measured."
        return Found("PASS", message, kind, "a disk", seen)
    return Found("PASS", f"{record.path} is on {kind}.", kind, "a disk", seen)


# What runs in a process of its own.


def main() -> int:
    """Measure the folder `argv[1]`, and write `argv[2]`; sizes in bytes and seconds follow."""
    folder, record = map(Path, sys.argv[1:3])
    size, checkpoint, seconds = int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was written is removed
    found: dict[str, Any] = {"schema_version": 1, "path": str(folder), "filesystem": _filesystem(folder)}
    try:
        _require_space(folder, max(size, 2 * checkpoint))
        with tempfile.TemporaryDirectory(prefix=".validator-storage-", dir=folder) as place:
            found["direct"] = _reads_past_the_cache(Path(place) / "probe")
            found |= _all_measured(Path(place), size, checkpoint, seconds, direct=found["direct"])
    except OSError as error:
        found["problem"] = f"{folder}: {error.strerror or error}; name a folder that can be written with path"
    replace_file(record, json.dumps(found, indent=1))
    print(json.dumps(found))  # noqa: T201 - the log of the run
    return 0


def _require_space(folder: Path, need: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < need + need // 10:
        raise OSError(0, f"{format_size(free)} are free, and {format_size(need)} are to be written: lower size")


def _filesystem(folder: Path) -> str:
    """Type of the file system that holds a folder, by the longest mount point above it."""
    whole, best, kind = folder.resolve(), -1, "unknown"
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return kind
    for parts in (line.split() for line in mounts):
        point = Path(parts[1].replace("\\040", " "))
        if whole.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), parts[2]
    return kind


def _reads_past_the_cache(path: Path) -> bool:
    """Whether the file system takes O_DIRECT."""
    try:
        with _opened(path, os.O_RDWR | os.O_CREAT, direct=True) as file, mmap.mmap(-1, _BLOCK) as block:
            return os.writev(file.fileno(), [block]) == _BLOCK
    except OSError:
        return False


def _opened(path: Path, flags: int, *, direct: bool) -> Any:
    number = os.open(path, flags | (os.O_DIRECT if direct else 0) | os.O_CLOEXEC, 0o600)
    return os.fdopen(number, "rb+" if flags & os.O_RDWR else "rb", buffering=0)


def _all_measured(place: Path, size: int, checkpoint: int, seconds: float, *, direct: bool) -> dict[str, Any]:
    size, checkpoint = size // _BLOCK * _BLOCK, checkpoint // _BLOCK * _BLOCK
    program = shutil.which("fio")
    if program is not None:
        try:
            return _by_fio(program, place, size, checkpoint, seconds, direct=direct)
        except (OSError, subprocess.CalledProcessError, ValueError, LookupError) as error:
            # fio may be there and not work, as without shared memory in a container.
            note = f"{type(error).__name__}: {str(getattr(error, 'stderr', '') or error).strip()[:300]}"
            return _by_loop(place, size, checkpoint, seconds, direct=direct) | {"fio_failed": note}
    return _by_loop(place, size, checkpoint, seconds, direct=direct)


def _summary(
    tool: str, write_mb_s: float, read_mb_s: float, iops: float, p99_ms: float, checkpoint: int, times: list[float]
) -> dict[str, Any]:
    slowest = max(times)
    return {
        "tool": tool,
        "write": {"mb_s": write_mb_s},
        "read": {"mb_s": read_mb_s},
        "random_read": {"iops": iops, "p99_ms": p99_ms},
        "checkpoint": {"bytes": checkpoint, "seconds": times, "slowest_s": slowest, "mb_s": checkpoint / slowest / 1e6},
    }


def _by_fio(program: str, place: Path, size: int, checkpoint: int, seconds: float, *, direct: bool) -> dict[str, Any]:
    """Raises OSError, CalledProcessError, ValueError or LookupError where fio does not say what is needed."""
    data, report = place / "data", place / "fio.json"
    common = ["--stonewall", "--ioengine=psync", f"--filename={data}", f"--size={size}"]
    past = f"--direct={int(direct)}"
    whole, small = f"--bs={_BLOCK}", [f"--bs={_SMALL}", f"--numjobs={_READERS}", "--thread", "--group_reporting"]
    jobs = [
        ["--name=write", *common, past, "--rw=write", whole, "--end_fsync=1"],
        ["--name=read", *common, past, "--rw=read", whole],
        ["--name=random", *common, past, "--rw=randread", *small, "--time_based", f"--runtime={seconds:g}"],
    ]
    for n in range(_CHECKPOINTS):
        target = ["--ioengine=psync", f"--filename={place / f'checkpoint{n}'}", f"--size={checkpoint}", "--unlink=1"]
        jobs.append([f"--name=checkpoint{n}", "--stonewall", *target, "--rw=write", whole, "--end_fsync=1"])
    words = [program, "--output-format=json", f"--output={report}", *(word for job in jobs for word in job)]
    subprocess.run(words, cwd=place, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    found = parse_json(report.read_text(encoding="utf-8"))
    done = {job["jobname"]: job for job in found["jobs"]}
    if any(job["error"] for job in done.values()):
        raise ValueError("fio reports an error of a job")
    # fio's bandwidth leaves the last fsync out, its run time (ms) has it.
    return _summary(
        str(found["fio version"]),
        size / done["write"]["job_runtime"] / 1e3,
        done["read"]["read"]["bw_bytes"] / 1e6,
        done["random"]["read"]["iops"],
        done["random"]["read"]["clat_ns"]["percentile"]["99.000000"] / 1e6,
        checkpoint,
        [done[f"checkpoint{n}"]["job_runtime"] / 1e3 for n in range(_CHECKPOINTS)],
    )


def _by_loop(place: Path, size: int, checkpoint: int, seconds: float, *, direct: bool) -> dict[str, Any]:
    data = place / "data"
    write_s = _timed(lambda: _write(data, size, direct=direct))
    read_s = _timed(lambda: _read(data, direct=direct))
    waits, random_s = _read_randomly(data, size, seconds, direct=direct)
    times = []
    for _ in range(_CHECKPOINTS):
        data.unlink()  # each is a new file, and what it costs to free the old one is not counted
        times.append(_timed(lambda: _write(data, checkpoint, direct=False)))
    p99_ms = sorted(waits)[min(len(waits) - 1, len(waits) * 99 // 100)] * 1e3
    rates = (size / write_s / 1e6, size / read_s / 1e6, len(waits) / random_s)
    return _summary("own loop", *rates, p99_ms, checkpoint, times)


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return max(time.perf_counter() - start, 1e-9)


def _write(path: Path, size: int, *, direct: bool) -> None:
    with _opened(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, direct=direct) as file, mmap.mmap(-1, _BLOCK) as block:
        block[:] = os.urandom(_BLOCK)  # zeros would be compressed away by some disks
        for _ in range(size // _BLOCK):
            if os.writev(file.fileno(), [block]) != _BLOCK:
                raise OSError(0, "a write is incomplete")
        os.fsync(file.fileno())


def _read(path: Path, *, direct: bool) -> None:
    with _opened(path, os.O_RDONLY, direct=direct) as file, mmap.mmap(-1, _BLOCK) as block:
        while os.readv(file.fileno(), [block]):
            pass


def _read_randomly(path: Path, size: int, seconds: float, *, direct: bool) -> tuple[list[float], float]:
    """Seconds of each read, in no order, and of all together."""
    waits: list[list[float]] = [[] for _ in range(_READERS)]
    errors: list[OSError] = []
    end = time.perf_counter() + seconds

    def reader(mine: list[float], places: random.Random) -> None:
        try:
            with _opened(path, os.O_RDONLY, direct=direct) as file, mmap.mmap(-1, _SMALL) as block:
                before = time.perf_counter()
                while before < end or not mine:
                    os.preadv(file.fileno(), [block], places.randrange(size // _SMALL) * _SMALL)
                    after = time.perf_counter()
                    mine.append(after - before)
                    before = after
        except OSError as error:
            errors.append(error)

    start = time.perf_counter()
    # Daemons, so that a stop need not wait for them.
    places = map(random.Random, range(_READERS))
    threads = [threading.Thread(target=reader, args=one, daemon=True) for one in zip(waits, places, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [wait for mine in waits for wait in mine], time.perf_counter() - start
