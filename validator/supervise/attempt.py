"""One attempt at a run: start, watch, end."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from validator.model.plan import RunSpec
from validator.model.record import Attempt, Reason
from validator.runs.journal import Journal
from validator.secrets.redact import redact_words
from validator.supervise.at_steps import ended_as_asked
from validator.supervise.capture import LogCap, compact, logs_below, mask_files, take_in
from validator.supervise.dump import StallEvidence, last_stacks, remove_pipes, save_evidence
from validator.supervise.guardian import Guardian
from validator.supervise.launch import Launch, Place, prepare, prepare_step, start
from validator.supervise.monitor import ArrivalStamps, Look, Monitor, Progress
from validator.supervise.nodes import how_it_failed, on_a_full_disk, saved_on_nodes
from validator.supervise.outcome_text import describe_exit, is_full, says_no_room, says_port_in_use, words_of
from validator.supervise.termination import Grace, ProcessTree, Stopped, await_exit, clear_leftovers, stop
from validator.supervise.wait import CancelToken, Waiter
from validator.supervise.watch import HALT_FILE, named_anomaly, write_halt
from validator.system.nvml import Gpus
from validator.system.processes import oom_kills
from validator.text import format_duration
from validator.times import iso_now

_RUNNERS_OWN = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO)
"""Errors at the start of a run that are not the run's: the runner itself cannot continue."""

_GPU_SLACK_MIB = 64.0

_EVIDENCE_S = 20.0
"""What nodes may take to save evidence of a stall, and to send it, beyond the time that ranks have for their stacks."""

_STEP_S = 25.0
"""What a run across nodes may take to end beyond the grace of its nodes."""


@dataclass(frozen=True)
class AttemptContext:
    """What all attempts of a run need from the validation.

    Attributes:
        run_dir: the run folder; a run's own folder is made below it.
        token: the value of VALIDATOR_RUN_TOKEN by which every process of the validation is recognized.
        cancel: set it from a signal handler or another thread; the first request ends the run in order (reason
            `interrupted`), the second at once.
        guardian: ends the run's processes if this process is killed.
        on_progress: called about once a second, from the calling thread.
        redact: is applied to every text of the run that the supervisor writes.
        mask: is applied to what the run's processes wrote, in whole lines, once they have ended.
        place: the nodes, for runs across nodes.
    """

    run_dir: Path
    journal: Journal
    token: str
    cancel: CancelToken
    guardian: Guardian
    on_progress: Callable[[Progress], None] | None = None
    grace: Grace = field(default_factory=Grace)
    log_cap: LogCap = field(default_factory=LogCap)
    redact: Callable[[str], str] = str
    mask: Callable[[bytes], bytes] | None = None
    place: Place | None = None


@dataclass(frozen=True)
class EndedAttempt:
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
    context: AttemptContext
    launch: Launch
    process: subprocess.Popen[bytes]
    monitor: Monitor
    oom_kills_before: int
    noted: set[str] = field(default_factory=set)
    bundle: tuple[Path, ...] = ()


def run_attempt(spec: RunSpec, context: AttemptContext, *, number: int, used_ports: Sequence[int] = ()) -> EndedAttempt:
    """Start the processes of a run once and stay until none of them is left.

    What cannot be started is an attempt that ended for reason `infrastructure`, not an exception.
    """
    began, clock = iso_now(), time.monotonic()
    if context.cancel.requested:
        why = f"was not started: stopped by the user ({context.cancel.why})"
        return EndedAttempt(_not_started(spec, context, number, began, "interrupted", why))
    if not context.guardian.ensure():
        context.journal.append("guardian_replaced", pid=context.guardian.pid)
    tree = ProcessTree(token=context.token, spare=(context.guardian.pid,))
    try:
        if context.place is not None and spec.groups:
            grace_s = context.grace.term_s
            launch = prepare_step(spec, context.place, run_dir=context.run_dir, token=context.token, grace_s=grace_s)
        else:
            launch = prepare(spec, run_dir=context.run_dir, token=context.token, number=number, used_ports=used_ports)
        gpus = Gpus.open(launch.environment) if spec.watchdog and not spec.groups else Gpus()
        memory_before = gpus.memory_used_mib()
        clock = time.monotonic()
        if launch.container is not None:
            context.guardian.name_container(launch.container.program, launch.container.name)
        process = start(launch)
    except OSError as error:
        if error.errno in _RUNNERS_OWN:
            raise
        what = error.filename if isinstance(error.filename, str) else spec.argv[0]
        why = f"could not be started: {error.strerror or error} ({what})"
        return EndedAttempt(_not_started(spec, context, number, began, "infrastructure", why))
    tree.watch(process.pid)
    monitor = Monitor(spec, out=launch.out, tree=tree, gpus=gpus, cap=context.log_cap, started=clock)
    try:
        running = _Running(
            spec=spec,
            context=context,
            launch=launch,
            process=process,
            monitor=monitor,
            oom_kills_before=oom_kills(),
        )
        context.journal.append(
            "attempt_started",
            run=spec.id,
            number=number,
            pid=process.pid,
            command=redact_words(_command(running), context.redact),
            marker=context.token,
            container=_journaled(spec, launch),
        )
        with Waiter(process, context.cancel) as waiter:
            ending = _watch(running, waiter)
            duration = waiter.ended_s - clock
        stopped = _end_container(running, _end(running, ending))
    except BaseException:
        tree.kill(within_s=context.grace.kill_s)
        if launch.container is not None:
            launch.container.end()
        with suppress(subprocess.TimeoutExpired):  # one that even SIGKILL does not remove must not hide the error
            process.wait(timeout=context.grace.kill_s)
        raise
    finally:
        monitor.arrivals.close()
    if ending is not None:
        duration = time.monotonic() - clock
    _tidy(running, memory_before if ending or stopped.killed else None)
    return _ended(running, number, began, duration, ending, stopped)


def _command(running: _Running) -> tuple[str, ...]:
    """What is carried out: on the nodes where the run has some."""
    return running.spec.argv if running.spec.groups else running.launch.argv


def _journaled(spec: RunSpec, launch: Launch) -> dict[str, str] | None:
    """What a later runner ends a container by."""
    if spec.container is None or launch.container is None:
        return None
    return {"engine": spec.container.engine, "name": launch.container.name}


def _end_container(running: _Running, stopped: Stopped) -> Stopped:
    """End the container of an attempt that is over, by its name; what was to be ended still is added to `stopped`."""
    container = running.launch.container
    if container is None:
        return stopped
    ran, gone = container.end()
    running.context.guardian.forget_container(container.name)
    if not gone:
        return replace(stopped, surviving_container=container.name)
    return replace(stopped, killed_container=container.name) if ran else stopped


def _watch(running: _Running, waiter: Waiter) -> _Ending | None:
    """Stay until the root has ended (None) or must be ended."""
    context, spec = running.context, running.spec
    deadline = running.monitor.started + spec.timeout_s
    next_look = running.monitor.started + min(0.25, running.monitor.interval_s)
    arrivals = running.monitor.arrivals
    while not _wait(waiter, arrivals, min(next_look, deadline)):
        if context.cancel.requested:
            return _Ending("interrupted", f"stopped by the user ({context.cancel.why})")
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
    _note_anomalies(running, running.monitor.look())
    return None


def _wait(waiter: Waiter, arrivals: ArrivalStamps, until: float) -> bool:
    """Sleep until a file grows, a postponed stamp is due, or `until`. Returns whether the root has ended."""
    now = time.monotonic()
    due = arrivals.due if arrivals.due > now else until
    return waiter.wait(min(until, due) - now, also=(arrivals.fileno(now),))


def _judge(running: _Running, look: Look) -> _Ending | None:
    """Whether a look calls for an end. With `halt: false` an anomaly is only recorded, once."""
    limits = running.spec.watchdog
    _note_anomalies(running, look)
    if limits is not None and look.anomalies and limits.halt:
        first = look.anomalies[0]
        return _Ending("halted", first.message, code=first.code)
    if running.monitor.is_to_be_ended():
        return _Ending("at_steps", f"was ended by validator behind its {running.spec.steps} steps")
    if limits is None:
        return None
    if look.silence is None:
        running.noted.discard("slow")
        running.noted.discard("stall")
        return None
    message = look.silence.message
    if look.silence.verdict == "slow":
        _note_anomaly(running, "slow", message, look.progress.step)
        return None
    message = "; ".join(filter(None, (message, running.monitor.laggard(_node_of(running)))))
    _note_anomaly(running, "stall", message, look.progress.step)
    return _Ending("stalled", f"stalled: {message}", code="stall", evidence=True) if limits.halt else None


def _node_of(running: _Running) -> Callable[[int], str]:
    """What a clause about a rank adds: its node in brackets, in a run across nodes that have equal numbers of ranks."""
    spec, place = running.spec, running.context.place
    ranks = spec.nproc or len(running.monitor.follower.by_rank)
    if place is None or len(spec.groups) != 1 or ranks % len(spec.groups[0]):
        return lambda rank: ""
    group, each = spec.groups[0], ranks // len(spec.groups[0])
    return lambda rank: f" ({place.nodes[group[rank // each]]})" if rank < ranks else ""


def _end(running: _Running, ending: _Ending | None) -> Stopped:
    """End everything that belongs to the attempt, saving evidence first where it is wanted."""
    cancel, grace = running.context.cancel, running.context.grace

    def urgent() -> bool:
        return cancel.urgent

    if ending is None:
        return clear_leftovers(running.process, running.monitor.tree, grace=grace, urgent=urgent)
    _show(running, running.monitor.look(state="stopping", note=ending.detail))
    if ending.evidence and not urgent():
        running.bundle = _save_evidence(running, ending)
    if ending.code is not None:
        write_halt(running.launch.out, code=ending.code, why=ending.detail)
        if ending.reason == "halted":
            await_exit(running.process, within_s=grace.halt_s, urgent=urgent)
    if ending.reason == "stalled" and not running.spec.groups:
        last_stacks(running.monitor.tree, running.monitor.tree.scan(), within_s=grace.stacks_s)
    container = running.launch.container
    launcher = running.spec.launcher if running.spec.container is None else "exec"
    if running.spec.groups:  # the step alone is asked, and takes as long as its slowest node
        launcher, grace = "torchrun", replace(grace, term_s=grace.term_s + _STEP_S)
    return stop(
        running.process,
        running.monitor.tree,
        launcher=launcher,
        grace=grace,
        urgent=urgent,
        terminate=None if container is None else container.terminate,
    )


def _tidy(running: _Running, memory_before_mib: float | None) -> None:
    """Cap the logs, take secrets out of the files, remove an empty dump folder, and wait until the GPUs' memory is
    free again."""
    for path in logs_below(running.launch.out / "logs"):
        compact(path, cap=running.context.log_cap)
    take_in(running.launch.out, running.spec.metrics, ranks=running.monitor.follower.by_rank)
    if running.context.mask is not None:
        mask_files(running.launch.out, mask=running.context.mask)
    remove_pipes(running.launch.out)
    if memory_before_mib is None or not running.monitor.gpus:
        return
    until = time.monotonic() + running.context.grace.gpu_memory_s
    while running.monitor.gpus.memory_used_mib() > memory_before_mib + _GPU_SLACK_MIB and time.monotonic() < until:
        if running.context.cancel.urgent:
            return
        time.sleep(0.25)


def _ended(
    running: _Running, number: int, began: str, duration_s: float, ending: _Ending | None, stopped: Stopped
) -> EndedAttempt:
    out, rc = running.launch.out, running.process.returncode
    look = running.monitor.look(state="ended")
    _show(running, look)
    _note_anomalies(running, look)
    port_taken = ending is None and rc != 0 and says_port_in_use(out, running.launch.port)
    reason: Reason = "exited" if ending is None else ending.reason
    killed_by_kernel = oom_kills() - running.oom_kills_before if rc != 0 else 0
    # What nodes report is older than their end.
    step = None if running.spec.groups and rc == 0 else look.progress.step
    words = words_of(rc, out=out)
    exited = describe_exit(rc, words=words, step=step, oom_kills=killed_by_kernel)
    detail = exited if ending is None else ending.detail
    across = running.spec.groups and reason in ("exited", "at_steps")
    place = running.context.place
    allocation = None if place is None else place.allocation
    failure = how_it_failed(out, allocation, asked=ending is not None) if across else None
    if failure is not None:
        reason, detail = failure
        if reason == "interrupted":  # without its nodes the validation cannot continue
            running.context.cancel.request(detail)
    elif port_taken:
        reason, detail = "infrastructure", f"master port {running.launch.port} was taken by another program: {detail}"
    elif ending is None and rc != 0 and (out / HALT_FILE).exists():
        reason, detail = "halted", f"halted by {HALT_FILE} in its folder: {detail}"
    elif ending is None and rc != 0 and (named := named_anomaly(out)) is not None:
        detail = f"stopped itself for {named}: {detail}"
    elif reason == "at_steps":
        killed = running.process.pid in stopped.killed or stopped.killed_container is not None
        if stopped.left or not ended_as_asked(rc, launcher=running.spec.launcher, killed=killed, out=out):
            reason, detail = "exited", f"{detail}, and then {exited}"
    no_room = rc != 0 and is_full(out)
    detail += "; no room was left on the disk" if no_room else ""
    detail += _leftover_clause(ending, stopped)
    attempt = Attempt(
        number=number,
        command=redact_words(_command(running), running.context.redact),
        pid=running.process.pid,
        started=began,
        duration_s=duration_s,
        rc=rc,
        reason=reason,
        detail=running.context.redact(detail),
        words=words and words.model_copy(update={"text": running.context.redact(words.text)}),
        killed=stopped.killed,
        disk_full=no_room or (rc != 0 and (says_no_room(out) or on_a_full_disk(out))),
        code={running.context.redact(name): digest for name, digest in running.launch.code.items()},
        bundle=tuple(os.path.relpath(path, running.context.run_dir.resolve()) for path in running.bundle),
    )
    return EndedAttempt(attempt, port=running.launch.port, port_taken=port_taken)


def _leftover_clause(ending: _Ending | None, stopped: Stopped) -> str:
    text = ""
    count = len(stopped.killed)
    if count and ending is None:
        text = f"; {count} process{'' if count == 1 else 'es'} that it had left behind had to be ended"
    elif count:
        text = f"; {count} process{'' if count == 1 else 'es'} had to be killed"
    if stopped.surviving:
        text += f"; process {stopped.surviving[0]} could not be killed and may still hold the machine"
    if stopped.killed_container is not None:
        text += f"; container {stopped.killed_container} was still running and had to be killed"
    if stopped.surviving_container is not None:
        text += f"; container {stopped.surviving_container} could not be ended and may still hold the machine"
    return text


def _not_started(
    spec: RunSpec, context: AttemptContext, number: int, began: str, reason: Reason, detail: str
) -> Attempt:
    return Attempt(
        number=number,
        command=redact_words(spec.argv, context.redact),
        pid=None,
        started=began,
        duration_s=0.0,
        rc=None,
        reason=reason,
        detail=context.redact(detail),
    )


def _timeout_sentence(running: _Running) -> str:
    step = running.monitor.follower.step
    where = "" if step is None else f" at step {step}" + (f" of {running.spec.steps}" if running.spec.steps else "")
    return f"was still running{where} after its timeout of {format_duration(running.spec.timeout_s)}"


def _note_anomalies(running: _Running, look: Look) -> None:
    for anomaly in look.anomalies:
        _note_anomaly(running, anomaly.code, anomaly.message, anomaly.step)


def _note_anomaly(running: _Running, code: str, message: str, step: int | None) -> None:
    if code not in running.noted:
        running.noted.add(code)
        running.context.journal.append("anomaly", run=running.spec.id, code=code, message=message, step=step)


def _save_evidence(running: _Running, ending: _Ending) -> tuple[Path, ...]:
    ranks = {
        str(rank): {"step": state.step, "pid": state.pid, "message": state.message}
        for rank, state in sorted(running.monitor.follower.by_rank.items())
    }
    why = running.context.redact(ending.detail)
    about = {"id": running.spec.id, "reason": ending.reason, "why": why, "ranks": ranks}
    if running.spec.groups:  # their agents see what ran there
        within_s = running.context.grace.stacks_s + _EVIDENCE_S
        return saved_on_nodes(running.process, running.launch.out, about, within_s=within_s)
    evidence = StallEvidence(
        out=running.launch.out,
        gpus=running.monitor.gpus,
        about=about,
        redact=running.context.redact,
        stacks_s=running.context.grace.stacks_s,
    )
    return save_evidence(evidence, running.monitor.tree)


def _show(running: _Running, look: Look) -> None:
    if running.context.on_progress is not None:
        progress = look.progress.ended_on_nodes() if running.spec.groups else look.progress
        running.context.on_progress(progress)
