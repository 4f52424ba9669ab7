"""The supervisor: starts a run's processes, watches them, ends them if need be, and reports the outcome.

A run is one or more attempts. Each attempt has its own folder, session and master port; whatever way it ends, no
process of it is left. The journal gets `run_started`, `attempt_started`, `attempt_ended` and `run_ended`, and
`anomaly` for what was noticed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from validator.model.plan import RunSpec
from validator.model.record import Attempt, Outcome
from validator.secrets.masking import clean_spec
from validator.supervise.attempt import AttemptContext, run_attempt
from validator.supervise.capture import mask_files

_RETRIED = ("stalled", "infrastructure")


def supervise(spec: RunSpec, context: AttemptContext, *, earlier: Sequence[Attempt] = ()) -> Outcome:
    """Carry out a run to its end and return how it ended.

    Args:
        spec: what to start; `spec.out` is made below the run folder. A folder that is there already, from an earlier
            attempt, is kept next to it under a numbered name.
        earlier: attempts at this run that an earlier runner of the same validation made; they stay in the outcome, and
            those that stalled count against the run's retries.

    Whatever is raised here, by `on_progress` or by the file system, no process of the run is left behind.
    """
    # Not synced: `attempt_started` follows at once, and is waited for.
    context.journal.append("run_started", sync=False, run=spec.id, as_it_is={"spec": clean_spec(spec)})
    outcome = _attempts(spec, context, earlier)
    context.journal.append("run_ended", run=spec.id, outcome=outcome)
    return outcome


def _attempts(spec: RunSpec, context: AttemptContext, earlier: Sequence[Attempt]) -> Outcome:
    done = list(set_aside(spec, run_dir=context.run_dir, earlier=earlier, mask=context.mask))
    ports: list[int] = []
    retries = max(0, spec.retries - sum(attempt.reason == "stalled" for attempt in done))
    while True:
        ended = run_attempt(spec, context, number=len(done) + 1, used_ports=tuple(ports))
        if ended.port is not None:
            ports.append(ended.port)
        attempt = ended.attempt
        # Losing the race for a port is the supervisor's own doing, so it does not count against the run's retries.
        # What could not even be started will not start a moment later either.
        again = attempt.reason in _RETRIED and attempt.pid is not None and retries > 0
        again = again or (ended.port_taken and len(ports) < 3)
        again = again and not context.cancel.requested
        if again:
            retries -= 0 if ended.port_taken else 1
            kept = _keep_earlier(context.run_dir / spec.out)
            attempt = _moved(attempt, spec.out, kept)
        done.append(attempt)
        context.journal.append("attempt_ended", sync=again, run=spec.id, attempt=attempt)
        if not again:
            return Outcome(run=spec.id, attempts=tuple(done))


def set_aside(
    spec: RunSpec,
    *,
    run_dir: Path,
    earlier: Sequence[Attempt] = (),
    mask: Callable[[bytes], bytes] | None = None,
) -> tuple[Attempt, ...]:
    """Rename what an earlier runner left of a run, with a number, before anything is written to its folder again.

    `mask` is applied to the files first: a runner that was killed has not done it.

    Returns the earlier attempts, the last one with the new paths of its evidence. A second call changes nothing.
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
