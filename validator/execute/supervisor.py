"""The supervisor: starts a run's processes, watches them, ends them if need be, and says how it went.

A run is one or more attempts. Each attempt has its own folder, session and master port; whatever way it ends, no
process of it is left. The journal gets `run_started`, `attempt_started`, `attempt_ended` and `run_ended`, and
`anomaly` for what was noticed but not acted upon.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from validator.execute.attempt import AttemptRequest, run_attempt
from validator.execute.cancel import CancelToken
from validator.execute.capture import LogCap
from validator.execute.guardian import Guardian
from validator.execute.journal import Journal
from validator.execute.mask import mask_files
from validator.execute.progress import Progress
from validator.execute.stop import Grace
from validator.model.outcome import Attempt, Outcome
from validator.model.plan import RunSpec

__all__ = ["set_aside", "supervise"]

_RETRIED = ("stalled", "infrastructure")


def supervise(
    spec: RunSpec,
    *,
    run_dir: Path,
    journal: Journal,
    token: str,
    cancel: CancelToken | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    guardian: Guardian | None = None,
    grace: Grace | None = None,
    log_cap: LogCap | None = None,
    redact: Callable[[str], str] = str,
    mask: Callable[[bytes], bytes] | None = None,
    earlier: Sequence[Attempt] = (),
    told: RunSpec | None = None,
) -> Outcome:
    """Carry out a run to its end and return how it ended.

    Args:
        spec: what to start; `spec.out` is made below `run_dir`. A folder that is there already, from an earlier
            attempt, is kept under a numbered name beside it.
        token: the value of VALIDATOR_RUN_TOKEN by which every process of the validation is recognized.
        cancel: set it from a signal handler or another thread; the first request ends the run in order (reason
            `interrupted`), the second at once.
        on_progress: called about once a second, from the calling thread.
        guardian: ends the run's processes if this process is killed; without one, one is started for this run.
        redact: goes over every text of the run that the supervisor writes.
        mask: goes over what the run's processes wrote, in whole lines, once they have ended.
        earlier: attempts at this run that an earlier runner of the same validation made; they stay in the outcome, and
            those that stalled count against the run's retries.
        told: what the journal says of the run, where it must not say everything; it is written as it is.

    Whatever is raised here, by `on_progress` or by the file system, no process of the run is left behind.
    """
    own_guardian = Guardian.start(token=token) if guardian is None else None
    guard = guardian or own_guardian
    assert guard is not None, "either given or started"
    own_cancel = CancelToken() if cancel is None else None
    stopper = cancel or own_cancel
    assert stopper is not None, "either given or made"
    try:
        # `attempt_started` follows at once, and is waited for.
        if told is None:
            journal.append("run_started", sync=False, run=spec.id, spec=spec)
        else:
            journal.append("run_started", sync=False, run=spec.id, as_it_is={"spec": told})
        outcome = _attempts(
            spec,
            AttemptRequest(
                run_dir=run_dir,
                journal=journal,
                token=token,
                cancel=stopper,
                on_progress=on_progress,
                guardian=guard,
                grace=grace or Grace(),
                log_cap=log_cap or LogCap(),
                redact=redact,
                mask=mask,
            ),
            earlier,
        )
        journal.append("run_ended", run=spec.id, outcome=outcome)
        return outcome
    finally:
        if own_guardian is not None:
            own_guardian.close()
        if own_cancel is not None:
            own_cancel.close()


def _attempts(spec: RunSpec, request: AttemptRequest, earlier: Sequence[Attempt]) -> Outcome:
    done = list(set_aside(spec, run_dir=request.run_dir, earlier=earlier, mask=request.mask))
    ports: list[int] = []
    retries = max(0, spec.retries - sum(attempt.reason == "stalled" for attempt in done))
    while True:
        ended = run_attempt(spec, request, number=len(done) + 1, used_ports=tuple(ports))
        if ended.port is not None:
            ports.append(ended.port)
        attempt = ended.attempt
        # Losing the race for a port is the supervisor's own doing, so it does not count against the run's retries.
        # What could not even be started will not start a moment later either.
        again = attempt.reason in _RETRIED and attempt.pid is not None and retries > 0
        again = again or (ended.port_taken and len(ports) < 3)
        again = again and not request.cancel.requested
        if again:
            retries -= 0 if ended.port_taken else 1
            kept = _keep_earlier(request.run_dir / spec.out)
            attempt = _moved(attempt, spec.out, kept)
        done.append(attempt)
        request.journal.append("attempt_ended", sync=again, run=spec.id, attempt=attempt)
        if not again:
            return Outcome(run=spec.id, attempts=tuple(done))


def set_aside(
    spec: RunSpec,
    *,
    run_dir: Path,
    earlier: Sequence[Attempt] = (),
    mask: Callable[[bytes], bytes] | None = None,
) -> tuple[Attempt, ...]:
    """Give what an earlier runner left of a run a numbered name, before anything is written to its folder again.

    `mask` goes over the files: a runner that was killed did not come to that.

    Returns the earlier attempts, the last one with the new places of its evidence. Done twice, it changes nothing more.
    """
    if mask is not None:
        mask_files(run_dir / spec.out, mask=mask)
    kept = _keep_earlier(run_dir / spec.out)
    return (*earlier[:-1], _moved(earlier[-1], spec.out, kept)) if earlier else ()


def _keep_earlier(out: Path) -> str | None:
    """Move a folder out of the way of a new attempt; returns its new name, None when there was nothing to keep."""
    if not out.exists():
        return None
    if not any(out.iterdir()):
        shutil.rmtree(out)
        return None
    number = 1
    while (kept := out.with_name(f"{out.name}.attempt{number}")).exists():
        number += 1
    out.rename(kept)
    return kept.name


def _moved(attempt: Attempt, out: str, kept: str | None) -> Attempt:
    if kept is None:
        return attempt
    new = str(Path(out).with_name(kept))
    bundle = tuple(new + path[len(out) :] if path.startswith(out + "/") else path for path in attempt.bundle)
    return attempt.model_copy(update={"bundle": bundle})
