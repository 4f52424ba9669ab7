"""One start of a nightly job: the validation as a process of its own, then what follows from its end.

The validation is what `validator run` would be by hand, in the job's folder and environment, its output in a log of its
own. What follows must not change its decision: a webhook that is down is logged, no more.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from validator.errors import ExitCode, Unable, UserError
from validator.files import replace_file
from validator.history.page import change_sentence
from validator.history.store import Retention, expired, read_history, remove, update_index
from validator.history.trend import Group, group_entries
from validator.nightly.notification import Notification, deliver, keep, waiting_notifications
from validator.nightly.settings import (
    BEGUN,
    UNSENT,
    Begun,
    Nightly,
    NightlyError,
    NightlyRun,
    begun_start,
    last_ended,
    unsent_runs,
)
from validator.nightly.variables import lacking_sentence
from validator.pipeline.push import Destination, push
from validator.runs.folder import this_runner
from validator.secrets.redact import redact
from validator.startup import call_argv
from validator.supervise.lock import holders
from validator.text import format_duration, format_time
from validator.times import unix_seconds, utc_now

_DECIDED = (ExitCode.GO, ExitCode.NO_GO, ExitCode.INCONCLUSIVE)


def require_prometheus(path: Path) -> None:
    """Check, when a job is installed, that its metrics can be written at night.

    Raises:
        NightlyError: when the library is missing or the file cannot be there.
    """
    if find_spec("prometheus_client") is None:
        raise NightlyError(
            "--prometheus needs the library prometheus-client: pip install 'training-validator[nightly]'"
        )
    if path.suffix != ".prom" or not path.parent.is_dir():
        raise NightlyError(f"--prometheus {path}: name a file that ends in .prom in a folder that exists")


def write_metrics(path: Path, run: NightlyRun, group: Group | None) -> Iterator[str]:
    """Replace the textfile; a line that says where."""
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

    registry = CollectorRegistry()

    def gauge(name: str, text: str, value: float, **labels: str) -> None:
        made = Gauge(f"validator_nightly_{name}", text, ["nightly", *labels], registry=registry)
        made.labels(run.name, *labels.values()).set(value)

    started = unix_seconds(run.started) or 0.0
    gauge("start_timestamp_seconds", "When the last start began.", started)
    gauge("end_timestamp_seconds", "When the last start ended.", started + run.duration_s)
    gauge("duration_seconds", "How long the last start took.", run.duration_s)
    gauge("exit_code", "Exit code: 0 GO, 1 NO-GO, 3 INCONCLUSIVE, others no decision.", run.exit_code)
    decision = Gauge(
        "validator_nightly_decision", "1 for the last decision.", ["nightly", "decision"], registry=registry
    )
    for code in (*_DECIDED, ExitCode.UNABLE):
        decision.labels(run.name, code.name).set(code.name == run.decision)
    if group is not None:
        gauge("regressions", "Metrics whose last change of level was for the worse.", len(group.regressions))
        metric = Gauge(
            "validator_nightly_figure",
            "A metric of the last run, in its unit.",
            ["nightly", "runbook", "phase", "metric", "unit"],
            registry=registry,
        )
        for point in group.entries[-1].points:
            metric.labels(run.name, group.runbook, point.phase, point.metric, point.unit).set(point.value)
    write_to_textfile(str(path), registry)
    yield f"written to {path}"


_LOGS_KEPT = 30
_UNSENT_KEPT = 30
_LOOK_S = 2.0
_PAUSE_S, _MAX_PAUSE_S = 5.0, 60.0
"""Time between two attempts to start, which doubles: a holder that is not named cannot be watched."""
_PUSH_S = 3600.0
"""How long one start pushes at most: the next one waits for its end."""


class Overlap(Unable):
    """The job's last start has not ended; the message says since when."""


def run_job(job: Nightly) -> NightlyRun:
    """Run the job's runbook to its end, then remove old runs, write metrics, and send notifications.

    Raises:
        Overlap: when the start before this one has not ended; nothing was started.
    """
    folder = Path(job.state)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder, job.name):
        unreported = last_ended(job, alone=True) if begun_start(job) else None
        if unreported is not None:
            _begin_after(job, unreported)
        before = last_ended(job, alone=True)
        started = utc_now()
        log_path = folder / f"{started:%Y%m%dT%H%M%S}Z.log"
        begun = Begun(started=started.isoformat(timespec="seconds"), log=str(log_path), runner=this_runner())
        with _opened_log(log_path) as log:
            run = _run_validation(job, begun, log=log, before=before)
            _follow_up(job, run, log)
        _drop_old_logs(folder)
    return run


def _begin_after(job: Nightly, unreported: NightlyRun) -> None:
    """Record and keep for the notifications how the start before this one ended, which was killed before it did."""
    with suppress(OSError):  # a full disk must not prevent the start
        _write_last(job, unreported)
    waiting = waiting_notifications(job)
    if _to_be_reported(job, unreported) and all(one.run.started != unreported.started for one in waiting):
        keep(job, [*waiting, Notification(unreported, ())])
    (Path(job.state) / BEGUN).unlink(missing_ok=True)


def _write_last(job: Nightly, run: NightlyRun) -> None:
    replace_file(Path(job.state) / "last.json", json.dumps(asdict(run), indent=2) + "\n")


def _note_begun(begun: Begun, job: Nightly) -> None:
    with suppress(OSError):  # a full disk must not prevent the start
        replace_file(Path(job.state) / BEGUN, begun.model_dump_json(indent=2))


@contextmanager
def _alone(folder: Path, name: str) -> Iterator[None]:
    """Hold the job's lock, which the kernel releases however this process ends."""
    with (folder / "lock").open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "started by another process"
            with (folder / "refused.txt").open("a", encoding="utf-8") as refused:
                refused.write(f"{format_time(utc_now())}: {holder}\n")
            raise Overlap(
                f"{name} has not ended yet ({holder}); this start does nothing. Give it more time between starts, or a "
                "shorter runbook"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()}, since {format_time(utc_now())}")
        file.flush()
        yield


def _opened_log(path: Path) -> BinaryIO:
    """The log of a start, open for writing; nothing is kept where the disk has no room for one."""
    try:
        return path.open("wb", buffering=0)
    except OSError:
        return Path(os.devnull).open("wb", buffering=0)


def _run_validation(job: Nightly, begun: Begun, *, log: BinaryIO, before: NightlyRun | None) -> NightlyRun:
    exit_code: int = ExitCode.UNABLE
    found: Mapping[str, Any] = {}
    _note_begun(begun, job)
    try:
        returned, printed = _start_when_free(job, begun, log)
        why = f"validator run ended with exit code {returned}"
        found = _printed_result(printed)
        # Python itself ends with 1 where it cannot start: only a result that names its decision counts.
        decided = found.get("exit_code") == returned
        exit_code = returned if decided or returned not in _DECIDED else ExitCode.UNABLE
    except OSError as error:
        why = f"validator run cannot be started: {error}"
    run_id = str(found["run_id"]) if "run_id" in found else None
    why = str(found.get("why") or found.get("error") or why)
    if "holder" in found:
        why = f"{why}; this start waited {format_duration(job.wait_s)} for it"
    lacking = tuple(name for name in job.lacking if name not in os.environ)
    if lacking and exit_code != ExitCode.GO:
        why = f"{why} {lacking_sentence(lacking)}"
    return NightlyRun(
        name=job.name,
        exit_code=int(exit_code),
        decision=ExitCode(exit_code).name if exit_code in _DECIDED else ExitCode.UNABLE.name,
        why=redact(why),
        started=begun.started,
        duration_s=round(utc_now().timestamp() - (unix_seconds(begun.started) or 0.0), 1),
        run_id=run_id,
        folder=str(Path(job.out) / run_id) if run_id else None,
        log=begun.log,
        before=None if before is None else before.decision,
    )


def _start_when_free(job: Nightly, begun: Begun, log: BinaryIO) -> tuple[int, str]:
    """`_start_validation`, again whenever what another validation holds is released, for `wait_s` at most."""
    until, pause_s = time.monotonic() + job.wait_s, _PAUSE_S
    while True:
        returned, printed = _start_validation(job, begun, log)
        found = _printed_result(printed)
        if returned != ExitCode.UNABLE or "holder" not in found:
            return returned, printed
        refusal = str(found.get("error", "")).partition("; wait")[0]
        with suppress(OSError):  # on a full disk it waits nevertheless
            log.write(f"waits: {redact(refusal)}\n".encode("utf-8", "backslashreplace"))
        _note_begun(begun.model_copy(update={"waits": redact(refusal)}), job)
        # A start that is refused at once must not disturb, again and again, what is measured on the machine.
        next_s, pause_s = time.monotonic() + pause_s, min(2 * pause_s, _MAX_PAUSE_S)
        while time.monotonic() < next_s or _still_held(found["holder"]):
            if time.monotonic() >= until:
                return returned, printed
            time.sleep(_LOOK_S)


def _still_held(holder: Any) -> bool:
    """Whether the process that a refusal names still holds a lock of this machine."""
    with suppress(OSError):
        return isinstance(holder, dict) and holder.get("pid") in [one["pid"] for one in holders().values()]
    return False


def _start_validation(job: Nightly, begun: Begun, log: BinaryIO) -> tuple[int, str]:
    """Carry `validator run` out; its exit code, and what it printed. Raises OSError where it cannot be started."""
    sets = [word for item in job.overrides for word in ("--set", item)]
    own = call_argv("validator.cli", "main", python=job.python)
    with subprocess.Popen(
        [*own, "run", job.runbook, *sets, "--out", job.out, "--json"],
        cwd=job.cwd,
        env={**os.environ, **job.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
    ) as process:
        _note_begun(begun.model_copy(update={"validation": process.pid}), job)
        printed, _ = process.communicate()
    return process.returncode, printed.decode("utf-8", "replace")


def _printed_result(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _follow_up(job: Nightly, run: NightlyRun, log: BinaryIO) -> None:
    """Record, retention, metrics, notification, push; each is tried even if the one before it failed."""

    def note(text: str) -> None:
        with suppress(OSError):  # a full disk must not prevent the notification
            log.write(f"{redact(text)}\n".encode("utf-8", "backslashreplace"))

    def attempt(what: str, action: Callable[[], Iterable[str] | None]) -> None:
        try:
            for line in action() or ():
                note(f"{what}: {line}")
        except Exception as error:  # noqa: BLE001 -- the decision stands, whatever fails after it
            note(f"{what} failed: {type(error).__name__}: {error}")

    groups: list[Group] = []
    attempt("record", lambda: _write_last(job, run))
    attempt("retention", lambda: _retain(job, run))
    attempt("history", lambda: groups.extend(_group_of(job, run)))
    group = groups[0] if groups else None
    if job.prometheus:
        target = Path(job.prometheus)
        attempt("metrics", lambda: write_metrics(target, run, group))
    worse = () if group is None else group.regressions
    sentences = tuple(f"{trend.name}: {change_sentence(trend, change)}" for trend, change in worse)
    new = [Notification(run, sentences)] if _to_be_reported(job, run) else []
    attempt("notification", lambda: deliver(job, new, started=run.started))
    attempt("end", lambda: (Path(job.state) / BEGUN).unlink(missing_ok=True))
    if job.push:
        attempt("push", lambda: _hand_in(job, run))


def _hand_in(job: Nightly, run: NightlyRun) -> Iterator[str]:
    """Push this run, then what earlier starts could not; what cannot be pushed now waits for the next start."""
    new = [run.run_id] if run.run_id and run.decision != ExitCode.UNABLE.name else []
    waiting = list(dict.fromkeys((*unsent_runs(job), *new)))[-_UNSENT_KEPT:]
    replace_file(Path(job.state) / UNSENT, json.dumps(waiting))
    to, until = push_destination(job), time.monotonic() + _PUSH_S
    for name in waiting[::-1]:
        lines: list[str] = []
        try:
            push(Path(job.out) / name, to, say=lines.append, limit_s=until - time.monotonic())
            lines.append(f"{to.url} has {name}")
        except Unable:
            raise
        except UserError as error:  # another start would not change it
            lines.append(f"{name} is left out: {error}")
        waiting.remove(name)
        replace_file(Path(job.state) / UNSENT, json.dumps(waiting))
        yield from lines


def push_destination(job: Nightly) -> Destination:
    """The service that gets the job's runs; raises UserError when it cannot be as it was named."""
    token, ca_file = (Path(path) if path else None for path in (job.push_token_file, job.push_ca_file))
    return Destination.of(
        job.push or "", token=os.environ.get("VALIDATOR_TOKEN", ""), token_file=token, ca_file=ca_file
    )


def _retain(job: Nightly, run: NightlyRun) -> Iterator[str]:
    retention = Retention(count=job.keep_count, age_days=job.keep_days, bytes=job.keep_bytes)
    if retention == Retention() or run.run_id is None:
        return
    parent = Path(job.out)
    entries = read_history(parent)
    own = next((entry.runbook for entry in entries if entry.run_id == run.run_id), None)
    gone = expired(parent, [entry for entry in entries if entry.runbook == own], retention)
    remove(parent, [entry for entry, _ in gone])
    yield from (f"removed {entry.folder}: {why}" for entry, why in gone)
    update_index(parent)


def _group_of(job: Nightly, run: NightlyRun) -> list[Group]:
    """The comparable runs that this one belongs to, if there was one."""
    groups = group_entries(read_history(Path(job.out))) if run.run_id is not None else ()
    return [group for group in groups if any(entry.run_id == run.run_id for entry in group.entries)]


def _to_be_reported(job: Nightly, run: NightlyRun) -> bool:
    if job.notify_on == "never" or not (job.notify or job.command):
        return False
    return job.notify_on == "always" or run.decision != run.before


def _drop_old_logs(folder: Path) -> None:
    for path in sorted(folder.glob("*.log"))[:-_LOGS_KEPT]:
        path.unlink(missing_ok=True)
