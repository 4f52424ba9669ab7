"""One attempt at a run: start, watch, end. Split from the supervisor so that each reads in one sitting."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from validator.execute.arrivals import ArrivalStamps
from validator.execute.cancel import CancelToken
from validator.execute.capture import LogCap, compact, logs_below, take_in
from validator.execute.gpu import Gpus
from validator.execute.guardian import Guardian
from validator.execute.halt import HALT_FILE, named_anomaly, write_halt
from validator.execute.journal import Journal
from validator.execute.launch import Launch, prepare, start
from validator.execute.mask import mask_files
from validator.execute.monitor import Look, Monitor
from validator.execute.procfs import oom_kills
from validator.execute.progress import Progress
from validator.execute.stop import Grace, Stopped, await_exit, clear_leftovers, stop
from validator.execute.tree import ProcessTree
from validator.execute.wait import Waiter
from validator.execute.words import describe_exit, is_full, redact_words, says_no_room, says_port_in_use
from validator.model.outcome import Attempt, Reason
from validator.model.plan import RunSpec
from validator.model.units import format_duration

__all__ = ["AttemptRequest", "Ended", "run_attempt"]

_RUNNERS_OWN = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO)
"""Errors at the start of a run that say nothing of it: the runner itself cannot continue."""

_GPU_SLACK_MIB = 64.0


@dataclass(frozen=True)
class AttemptRequest:
    """What all attempts of a run share; see `supervise`."""

    run_dir: Path
    journal: Journal
    token: str
    cancel: CancelToken
    on_progress: Callable[[Progress], None] | None
    guardian: Guardian
    grace: Grace
    log_cap: LogCap
    redact: Callable[[str], str]
    mask: Callable[[bytes], bytes] | None


@dataclass(frozen=True)
class Ended:
    """An attempt that is over, the port it used, and whether it lost the race for that port."""

    attempt: Attempt
    port: int | None = None
    port_taken: bool = False


@dataclass(frozen=True)
class _Ending:
    """Why the supervisor ends a run that has not ended by itself."""

    reason: Reason
    detail: str
    code: str | None = None
    evidence: bool = False


@dataclass
class _Running:
    """An attempt under way."""

    spec: RunSpec
    request: AttemptRequest
    launch: Launch
    process: subprocess.Popen[bytes]
    tree: ProcessTree
    monitor: Monitor
    gpus: Gpus
    started: float
    oom_kills_before: int
    noted: set[str] = field(default_factory=set)
    bundle: tuple[Path, ...] = ()


def run_attempt(spec: RunSpec, request: AttemptRequest, *, number: int, used_ports: Sequence[int] = ()) -> Ended:
    """Start the processes of a run once and stay until none of them is left.

    What cannot be started is an attempt that ended for reason `infrastructure`, not an exception.
    """
    began, clock = datetime.now(timezone.utc).isoformat(timespec="milliseconds"), time.monotonic()
    if request.cancel.requested:
        why = f"was not started: stopped by the user ({request.cancel.why})"
        return Ended(_not_started(spec, request, number, began, "interrupted", why))
    if not request.guardian.ensure():
        request.journal.append("guardian_replaced", pid=request.guardian.pid)
    tree = ProcessTree(token=request.token, spare=(request.guardian.pid,))
    try:
        launch = prepare(spec, run_dir=request.run_dir, token=request.token, used_ports=used_ports)
        gpus = Gpus.open(launch.environment) if spec.watchdog else Gpus(None, {})
        memory_before = gpus.memory_used_mib()
        clock = time.monotonic()
        process = start(launch)
    except OSError as error:
        if error.errno in _RUNNERS_OWN:
            raise
        what = error.filename if isinstance(error.filename, str) else spec.argv[0]
        why = f"could not be started: {error.strerror or error} ({what})"
        return Ended(_not_started(spec, request, number, began, "infrastructure", why))
    tree.watch(process.pid)
    monitor = Monitor(spec, out=launch.out, attempt=number, tree=tree, gpus=gpus, cap=request.log_cap, started=clock)
    try:
        running = _Running(
            spec=spec,
            request=request,
            launch=launch,
            process=process,
            tree=tree,
            monitor=monitor,
            gpus=gpus,
            started=clock,
            oom_kills_before=oom_kills(),
        )
        request.journal.append(
            "attempt_started",
            run=spec.id,
            number=number,
            pid=process.pid,
            command=redact_words(launch.argv, request.redact),
            marker=request.token,
        )
        with Waiter(process, request.cancel) as waiter:
            ending = _watch(running, waiter)
            duration = waiter.ended_s - clock
        stopped = _end(running, ending)
    except BaseException:
        tree.kill(within_s=request.grace.kill_s)
        with suppress(subprocess.TimeoutExpired):  # one that even SIGKILL does not remove must not hide the error
            process.wait(timeout=request.grace.kill_s)
        raise
    finally:
        monitor.arrivals.close()
    if ending is not None:
        duration = time.monotonic() - clock
    _tidy(running, memory_before if ending or stopped.killed else None)
    return _ended(running, number, began, duration, ending, stopped)


def _watch(running: _Running, waiter: Waiter) -> _Ending | None:
    """Stay until the root has ended (None) or must be ended."""
    request, spec = running.request, running.spec
    deadline = running.started + spec.timeout_s
    next_look = running.started + min(0.25, running.monitor.interval_s)
    arrivals = running.monitor.arrivals
    while not _wait(waiter, arrivals, min(next_look, deadline)):
        if request.cancel.requested:
            return _Ending("interrupted", f"stopped by the user ({request.cancel.why})")
        now = time.monotonic()
        arrivals.notice(now)
        if now >= deadline:
            return _Ending("timeout", _timeout_sentence(running), evidence=spec.watchdog is not None)
        if now >= next_look:
            look = running.monitor.look()
            _show(running, look)
            ending = _judge(running, look)
            if ending is not None:
                return ending
            next_look = time.monotonic() + running.monitor.interval_s
    arrivals.notice(time.monotonic(), always=True)
    # The last rows are read before logs are shortened and masked, which moves them within their files.
    for anomaly in running.monitor.look().anomalies:
        _note_anomaly(running, anomaly.code, anomaly.message, anomaly.step)
    return None


def _wait(waiter: Waiter, arrivals: ArrivalStamps, until: float) -> bool:
    """Sleep until a file grows, a stamp that was put off is due, or `until`. Returns whether the root has ended."""
    now = time.monotonic()
    return waiter.wait(min(until, arrivals.due if arrivals.due > now else until) - now, also=arrivals.fileno(now))


def _judge(running: _Running, look: Look) -> _Ending | None:
    """Whether a look calls for an end. With `halt: false` an anomaly is written down, once, and nothing else."""
    limits = running.spec.watchdog
    for anomaly in look.anomalies:
        _note_anomaly(running, anomaly.code, anomaly.message, anomaly.step)
    if limits is None:
        return None
    if look.anomalies and limits.halt:
        first = look.anomalies[0]
        return _Ending("halted", first.message, code=first.code)
    if look.silence is None:
        running.noted.discard("slow")
        running.noted.discard("stall")
        return None
    message = look.silence.message
    if look.silence.verdict == "slow":
        _note_anomaly(running, "slow", message, look.progress.step)
        return None
    message = "; ".join(filter(None, (message, running.monitor.laggard())))
    _note_anomaly(running, "stall", message, look.progress.step)
    return _Ending("stalled", f"stalled: {message}", code="stall", evidence=True) if limits.halt else None


def _end(running: _Running, ending: _Ending | None) -> Stopped:
    """End everything that belongs to the attempt, saving evidence first where it is wanted."""
    cancel, grace = running.request.cancel, running.request.grace

    def urgent() -> bool:
        return cancel.urgent

    if ending is None:
        return clear_leftovers(running.process, running.tree, grace=grace, urgent=urgent)
    _show(running, running.monitor.look(state="stopping", note=ending.detail))
    if ending.evidence and not urgent():
        running.bundle = _save_evidence(running, ending)
    if ending.code is not None:
        write_halt(running.launch.out, code=ending.code, why=ending.detail)
        if ending.reason == "halted":
            await_exit(running.process, within_s=grace.halt_s, urgent=urgent)
    if ending.reason == "stalled":
        from validator.execute.dump import last_stacks

        last_stacks(running.tree, running.tree.scan(), within_s=grace.stacks_s)
    return stop(running.process, running.tree, launcher=running.spec.launcher, grace=grace, urgent=urgent)


def _tidy(running: _Running, memory_before_mib: float | None) -> None:
    """Cap the logs, take secrets out of the files, drop what the dump folder holds in vain, and wait for the GPUs'
    memory to come back."""
    for path in logs_below(running.launch.out / "logs"):
        compact(path, cap=running.request.log_cap)
    take_in(running.launch.out, running.spec.metrics, ranks=running.monitor.follower.by_rank)
    if running.request.mask is not None:
        mask_files(running.launch.out, mask=running.request.mask)
    dump = running.launch.out / "dump"
    with suppress(OSError):
        for pipe in dump.glob("*.pipe"):
            pipe.unlink()
        dump.rmdir()  # only when empty
    if memory_before_mib is None or not running.gpus:
        return
    until = time.monotonic() + running.request.grace.gpu_memory_s
    while running.gpus.memory_used_mib() > memory_before_mib + _GPU_SLACK_MIB and time.monotonic() < until:
        if running.request.cancel.urgent:
            return
        time.sleep(0.25)


def _ended(
    running: _Running, number: int, began: str, duration_s: float, ending: _Ending | None, stopped: Stopped
) -> Ended:
    out, rc = running.launch.out, running.process.returncode
    look = running.monitor.look(state="ended")
    _show(running, look)
    for anomaly in look.anomalies:
        _note_anomaly(running, anomaly.code, anomaly.message, anomaly.step)
    port_taken = ending is None and rc != 0 and says_port_in_use(out, running.launch.port)
    reason: Reason = "exited" if ending is None else ending.reason
    killed_by_kernel = oom_kills() - running.oom_kills_before if rc != 0 else 0
    exited = describe_exit(rc, out=out, step=look.progress.step, oom_kills=killed_by_kernel)
    detail = exited if ending is None else ending.detail
    if port_taken:
        reason, detail = "infrastructure", f"master port {running.launch.port} was taken by another program: {detail}"
    elif ending is None and rc != 0 and (out / HALT_FILE).exists():
        reason, detail = "halted", f"halted by {HALT_FILE} in its folder: {detail}"
    elif ending is None and rc != 0 and (named := named_anomaly(out)) is not None:
        detail = f"stopped itself for {named}: {detail}"
    no_room = rc != 0 and is_full(out)
    detail += "; no room was left on the disk" if no_room else ""
    detail += _leftover_clause(ending, stopped)
    attempt = Attempt(
        number=number,
        command=redact_words(running.launch.argv, running.request.redact),
        pid=running.process.pid,
        started=began,
        duration_s=duration_s,
        rc=rc,
        reason=reason,
        detail=running.request.redact(detail),
        killed=stopped.killed,
        disk_full=no_room or (rc != 0 and says_no_room(out)),
        code={running.request.redact(name): digest for name, digest in running.launch.code.items()},
        bundle=tuple(os.path.relpath(path, running.request.run_dir.resolve()) for path in running.bundle),
    )
    return Ended(attempt, port=running.launch.port, port_taken=port_taken)


def _leftover_clause(ending: _Ending | None, stopped: Stopped) -> str:
    text = ""
    count = len(stopped.killed)
    if count and ending is None:
        text = f"; {count} process{'' if count == 1 else 'es'} that it had left behind had to be ended"
    elif count:
        text = f"; {count} process{'' if count == 1 else 'es'} had to be killed"
    if stopped.surviving:
        text += f"; process {stopped.surviving[0]} could not be killed and may still hold the machine"
    return text


def _not_started(
    spec: RunSpec, request: AttemptRequest, number: int, began: str, reason: Reason, detail: str
) -> Attempt:
    return Attempt(
        number=number,
        command=redact_words(spec.argv, request.redact),
        pid=None,
        started=began,
        duration_s=0.0,
        rc=None,
        reason=reason,
        detail=request.redact(detail),
    )


def _timeout_sentence(running: _Running) -> str:
    step = running.monitor.follower.step
    where = "" if step is None else f" at step {step}" + (f" of {running.spec.steps}" if running.spec.steps else "")
    return f"was still running{where} after its timeout of {format_duration(running.spec.timeout_s)}"


def _note_anomaly(running: _Running, code: str, message: str, step: int | None) -> None:
    if code not in running.noted:
        running.noted.add(code)
        running.request.journal.append("anomaly", run=running.spec.id, code=code, message=message, step=step)


def _save_evidence(running: _Running, ending: _Ending) -> tuple[Path, ...]:
    from validator.execute.dump import Evidence, save_evidence  # needed by few runs, and slow to import

    ranks = {
        str(rank): {"step": state.step, "pid": state.pid, "message": state.message}
        for rank, state in sorted(running.monitor.follower.by_rank.items())
    }
    evidence = Evidence(
        out=running.launch.out,
        gpus=running.gpus,
        about={"id": running.spec.id, "why": running.request.redact(ending.detail), "ranks": ranks},
        redact=running.request.redact,
        stacks_s=running.request.grace.stacks_s,
    )
    return save_evidence(evidence, running.tree)


def _show(running: _Running, look: Look) -> None:
    if running.request.on_progress is not None:
        running.request.on_progress(look.progress)
