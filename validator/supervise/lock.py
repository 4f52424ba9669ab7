"""One validation at a time on the same GPUs, or on the CPU: two would disturb each other's timings.

A lock is a file that is locked by the kernel, so it cannot outlive its holder, however that ended. The file says who
holds it.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from validator.errors import Unable
from validator.system.nvml import Gpus
from validator.times import iso_now

IN_USE = "of this machine is in use by another validation"
"""In the message of every validation that finds its lock held."""

Holder = Mapping[str, Any]
"""Who holds a lock: `pid`, `command`, `since` (UTC, ISO 8601) and `run_dir` (None until it is known)."""


class LockHeld(Unable):
    """Another validation holds the machine. The message names it; `holder` is what its lock file says."""

    def __init__(self, name: str, holder: Holder) -> None:
        self.name = name
        self.holder = holder
        what = "the CPU" if name == "cpu" else name.replace("-", " ", 1).replace("gpu", "GPU", 1)
        since = f" since {holder['since']}" if holder.get("since") else ""
        where = f", writing to {holder['run_dir']}" if holder.get("run_dir") else ""
        who = f"process {holder['pid']} ({holder['command']})" if holder.get("pid") else "another process"
        super().__init__(
            f"{what} {IN_USE}: {who}{since}{where}; wait for it, stop it, or pass --no-lock if timings do not matter"
        )

    def details(self) -> dict[str, Any]:
        """Who holds it, for whoever waits until it is released."""
        return {"holder": dict(self.holder)}


def lock_names(gpus: int, *, environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The locks that a runbook for so many GPUs needs: `cpu`, or one name per GPU it may use.

    The GPUs are the first of those in CUDA_VISIBLE_DEVICES, else of all, by UUID where there is a driver to ask, so
    that the same GPU has the same lock however it is selected.
    """
    if gpus == 0:
        return ("cpu",)
    environ = os.environ if environment is None else environment
    driver = Gpus.open(environ)
    uuids = driver.uuids()[:gpus]
    driver.close()
    if uuids and all(uuids):  # without UUIDs all GPUs would share one lock
        return tuple(sorted(f"gpu-{uuid.removeprefix('GPU-')}" for uuid in uuids))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    entries = [entry.strip() for entry in visible.split(",")] if visible else []
    chosen = [entry for entry in entries if entry][:gpus] or [str(index) for index in range(gpus)]
    return tuple(sorted({f"gpu-{''.join(c if c.isalnum() or c in '-.' else '_' for c in name)}" for name in chosen}))


def holders(*, folder: Path | None = None) -> dict[str, Holder]:
    """Every lock of this machine that is held now, by name. No lock is taken, so no validation is refused meanwhile.

    Raises:
        PermissionError: when the folder of the locks belongs to another user.
    """
    found = {}
    for path in sorted((_private_folder() if folder is None else folder).glob("*.lock")):
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            os.kill(held["pid"], 0)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # released, or left by one that was killed
        found[path.stem] = held
    return found


class MachineLock:
    """Holds every named lock while its context is open; takes all of them or none."""

    def __init__(self, names: Sequence[str], *, folder: Path | None = None, redact: Callable[[str], str] = str) -> None:
        self._names = tuple(sorted(set(names)))
        self._folder = folder
        self._files: list[int] = []
        self._record: dict[str, Any] = {
            "pid": os.getpid(),
            "command": redact(" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]))[:500],
            "since": iso_now("seconds"),
            "run_dir": None,
        }

    def __enter__(self) -> MachineLock:
        self.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Take the locks, without waiting.

        Raises:
            LockHeld: when another process holds one of them; none is kept then.
            OSError: when the lock files cannot be made.
        """
        folder = _private_folder() if self._folder is None else self._folder
        try:
            for name in self._names:
                self._take(folder / f"{name}.lock", name)
            self._write()
        except BaseException:
            self.release()
            raise

    def name(self, run_dir: Path) -> None:
        """Add the run folder to what a refused validation shows about the holder."""
        self._record["run_dir"] = str(run_dir.resolve())
        self._write()

    def release(self) -> None:
        """Give the locks back. Releasing twice is harmless."""
        for fd in self._files:
            with suppress(OSError):
                os.ftruncate(fd, 0)
            os.close(fd)
        self._files = []

    def _take(self, path: Path, name: str) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(fd)
            os.close(fd)
            raise LockHeld(name, holder) from None
        except BaseException:
            os.close(fd)
            raise
        self._files.append(fd)

    def _write(self) -> None:
        data = json.dumps(self._record).encode()
        for fd in self._files:
            with suppress(OSError):  # on a full disk the lock holds without its holder's name
                os.ftruncate(fd, 0)
                os.pwrite(fd, data, 0)


def _holder(fd: int) -> Holder:
    try:
        record = json.loads(os.pread(fd, 65536, 0))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _private_folder() -> Path:
    """A folder that only this user can write to, below XDG_RUNTIME_DIR or the folder for temporary files."""
    # A cron job has no XDG_RUNTIME_DIR and must still meet the locks of a login session.
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    if os.access(runtime, os.W_OK):
        folder = Path(runtime) / "validator"
    else:
        folder = Path(tempfile.gettempdir()) / f"validator-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user; remove it, or set XDG_RUNTIME_DIR to your own folder")
    return folder
