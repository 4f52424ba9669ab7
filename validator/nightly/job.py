"""One start of a nightly job: the validation as a process of its own, then what follows from its end.

The validation is what `validator run` would be by hand, in the job's folder and environment, its output in a log of its
own. What follows must not change its decision: a webhook that is down is logged, and no more.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

from validator.files import Tree, replace_file
from validator.history.read import Entry
from validator.history.retention import Retention, expired, remove
from validator.history.store import read_history
from validator.history.trend import Group, group_entries
from validator.nightly.metrics import write_metrics
from validator.nightly.notify import Told, notify
from validator.nightly.settings import Nightly
from validator.observe.redact import redact
from validator.python import calling
from validator.stages.looking_back import update_index

__all__ = ["Ended", "Overlap", "last_ended", "run_job"]

_LOGS_KEPT = 30

_DECISIONS = {0: "GO", 1: "NO_GO", 3: "INCONCLUSIVE"}
_UNABLE = 4


class Overlap(RuntimeError):
    """The job's last start has not ended; the message says since when."""


@dataclass(frozen=True)
class Ended:
    """How one start ended. `decision` is UNABLE when there was none; `before` is that of the start before it."""

    name: str
    exit_code: int
    decision: str
    why: str
    started: str
    duration_s: float
    run_id: str | None
    folder: str | None
    log: str
    before: str | None = None


def last_ended(job: Nightly) -> Ended | None:
    """How the job's last start ended; None when it has not been started yet."""
    try:
        with Tree(Path(job.state)) as tree:
            return Ended(**tree.json("last.json"))
    except (OSError, ValueError, TypeError):
        return None


def run_job(job: Nightly) -> Ended:
    """Run the job's runbook to its end, then clear old runs away, write metrics, and tell those who want to know.

    Raises:
        Overlap: when the start before this one has not ended; nothing was started.
    """
    folder = Path(job.state)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder, job.name):
        before = last_ended(job)
        started = datetime.now(timezone.utc)
        log_path = folder / f"{started:%Y%m%dT%H%M%S}Z.log"
        with _log(log_path) as log:
            ended = _validate(job, started=started, log=log, log_path=log_path, before=before)
            _follow_up(job, ended, log)
        _drop_old_logs(folder)
    return ended


@contextmanager
def _alone(folder: Path, name: str) -> Iterator[None]:
    """Hold the job's lock, which the kernel takes back however this process ends."""
    with (folder / "lock").open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "started by another process"
            with (folder / "refused.txt").open("a", encoding="utf-8") as refused:
                refused.write(f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC: {holder}\n")
            raise Overlap(
                f"{name} has not ended yet ({holder}); this start does nothing. Give it more time between starts, or a "
                "shorter runbook"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()}, since {datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC")
        file.flush()
        yield


@contextmanager
def _log(path: Path) -> Iterator[BinaryIO]:
    """The log of a start; nothing is kept where the disk has no room for one."""
    try:
        file = path.open("wb", buffering=0)
    except OSError:
        file = Path(os.devnull).open("wb", buffering=0)  # noqa: SIM115 -- closed below
    with file:
        yield file


def _validate(job: Nightly, *, started: datetime, log: BinaryIO, log_path: Path, before: Ended | None) -> Ended:
    sets = [word for item in job.overrides for word in ("--set", item)]
    own = calling("validator.cli", "main", python=job.python)
    command = [*own, "run", job.runbook, *sets, "--out", job.out, "--json"]
    exit_code = _UNABLE
    found: Mapping[str, Any] = {}
    try:
        done = subprocess.run(
            command,
            cwd=job.cwd,
            env={**os.environ, **job.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            check=False,
        )
        why = f"validator run ended with exit code {done.returncode}"
        found = _result(done.stdout.decode("utf-8", "replace"))
        # Python itself ends with 1 where it cannot start: only what names its decision has one.
        decided = found.get("exit_code") == done.returncode
        exit_code = done.returncode if decided or done.returncode not in _DECISIONS else _UNABLE
    except OSError as error:
        why = f"validator run cannot be started: {error}"
    run_id = str(found["run_id"]) if "run_id" in found else None
    why = str(found.get("why") or found.get("error") or why)
    return Ended(
        name=job.name,
        exit_code=exit_code,
        decision=_DECISIONS.get(exit_code, "UNABLE"),
        why=redact(why),
        started=started.isoformat(timespec="seconds"),
        duration_s=round((datetime.now(timezone.utc) - started).total_seconds(), 1),
        run_id=run_id,
        folder=str(Path(job.out) / run_id) if run_id else None,
        log=str(log_path),
        before=None if before is None else before.decision,
    )


def _result(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _follow_up(job: Nightly, ended: Ended, log: BinaryIO) -> None:
    """Record, retention, metrics, notification; each is tried whatever became of the one before it."""

    def note(text: str) -> None:
        with suppress(OSError):  # a full disk must not keep anybody from being told
            log.write(f"{redact(text)}\n".encode("utf-8", "backslashreplace"))

    def attempt(what: str, action: Callable[[], Iterable[str]]) -> None:
        try:
            for line in action():
                note(f"{what}: {line}")
        except Exception as error:  # noqa: BLE001 -- the decision stands, whatever fails after it
            note(f"{what} failed: {type(error).__name__}: {error}")

    groups: list[Group] = []

    def record() -> tuple[()]:
        replace_file(Path(job.state) / "last.json", json.dumps(asdict(ended), indent=2) + "\n")
        return ()

    def compare() -> tuple[()]:
        groups.extend(_group_of(job, ended))
        return ()

    attempt("record", record)
    attempt("retention", lambda: _retain(job, ended))
    attempt("history", compare)
    group = groups[0] if groups else None
    if job.prometheus:
        target = Path(job.prometheus)
        attempt("metrics", lambda: write_metrics(target, ended, group))
    if _worth_telling(job, ended):
        attempt("notification", lambda: notify(job, _told(ended, group)))


def _entries(job: Nightly) -> tuple[Entry, ...]:
    return read_history(Path(job.out))


def _retain(job: Nightly, ended: Ended) -> Iterator[str]:
    retention = Retention(count=job.keep_count, age_days=job.keep_days, bytes=job.keep_bytes)
    if retention == Retention() or ended.run_id is None:
        return
    parent = Path(job.out)
    entries = _entries(job)
    own = next((entry.runbook for entry in entries if entry.run_id == ended.run_id), None)
    gone = expired(parent, [entry for entry in entries if entry.runbook == own], retention)
    remove(parent, [entry for entry, _ in gone])
    yield from (f"removed {entry.folder}: {why}" for entry, why in gone)
    update_index(parent)


def _group_of(job: Nightly, ended: Ended) -> list[Group]:
    """The comparable runs that this one belongs to, if there was one."""
    groups = group_entries(_entries(job)) if ended.run_id is not None else ()
    return [group for group in groups if any(entry.run_id == ended.run_id for entry in group.entries)]


def _worth_telling(job: Nightly, ended: Ended) -> bool:
    if job.notify_on == "never" or not (job.notify or job.command):
        return False
    return job.notify_on == "always" or ended.decision != ended.before


def _told(ended: Ended, group: Group | None) -> Told:
    from validator.history.page import change_sentence

    worse = () if group is None else group.regressions
    return Told(
        name=ended.name,
        decision=ended.decision,
        before=ended.before,
        why=ended.why,
        report=f"{ended.folder}/report.html" if ended.folder else ended.log,
        regressions=tuple(f"{trend.name}: {change_sentence(trend, change)}" for trend, change in worse),
        exit_code=ended.exit_code,
    )


def _drop_old_logs(folder: Path) -> None:
    for path in sorted(folder.glob("*.log"))[:-_LOGS_KEPT]:
        path.unlink(missing_ok=True)
