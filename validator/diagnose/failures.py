"""Why a run ended badly, as its logs tell."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnose.facts import RunFacts
from validator.diagnose.rule import evidence, found
from validator.model.units import format_duration
from validator.model.verdict import Finding

__all__ = ["crashed", "disk_full", "leftover_process", "nccl_error", "oom", "over_budget", "port_in_use"]


def _tried_again(run: RunFacts) -> bool:
    """Whether an earlier attempt failed although the last one did not."""
    return run.outcome is not None and len(run.outcome.attempts) > 1


def oom(run: RunFacts) -> Iterator[Finding]:
    """Memory ran out: at which step, on which side."""
    hits = run.hits("oom")
    if not hits:
        return
    gpu = any("CUDA" in h.text or "OutOfMemoryError" in h.text or "CUBLAS" in h.text for h in hits)
    step = (run.steps_done or 0) + 1
    peak = run.series("gpu_mem_reserved_mib") if gpu else run.series("host_mem_mib")
    because = [hit.evidence for hit in hits[:3]]
    if peak is not None:
        because.append(evidence(f"{peak.name} up to {peak.values.max():,.0f} MiB before", peak.source.path))
    ended = run.outcome is None or run.failed
    yield found(
        "oom",
        f"{'GPU' if gpu else 'Host'} memory ran out "
        + (f"in step {step:.0f}." if ended else "at some point, and the run went on."),
        severity="warning",
        confidence="high" if run.failed else "medium",
        because=because,
        next_step="Halve batch_size and double accum, turn on grad_checkpointing, or shorten seq_len; then compare "
        "mem_step1.json with mem_boot.json to see what takes the room."
        if gpu
        else "Reduce data loading workers and prefetching, or use a machine with more memory.",
    )


def nccl_error(run: RunFacts) -> Iterator[Finding]:
    """Communication between ranks failed."""
    hits = [h for h in run.hits("nccl") if "NCCL WARN" not in h.text or run.failed]
    if not hits or not (run.outcome is None or run.failed or _tried_again(run)):
        return
    own = [h for h in hits if "Connection closed by peer" not in h.text and "DistNetworkError" not in h.text]
    first = next(iter(run.result.extra.get("errors", [])), None)
    detail = run.outcome.last.detail if run.outcome is not None else None
    culprit = f" Rank {first['rank']} failed first: {first['message']}" if first else ""
    if not first and not own and detail and "last words" in detail:
        culprit = f" The trainer {detail.rstrip('.')}."
    yield found(
        "nccl-error",
        f"Communication between ranks failed.{culprit}",
        confidence="high" if own else "low",
        because=[hit.evidence for hit in (own or hits)[:4]],
        next_step="Look at the rank that failed first, since the others only report that it is gone; if none did, run "
        "once with NCCL_DEBUG=INFO and check the links by nvidia-smi topo -m.",
    )


def port_in_use(run: RunFacts) -> Iterator[Finding]:
    """The port of the rendezvous was taken."""
    hits = run.hits("port_in_use")
    if hits and (run.outcome is None or run.failed or _tried_again(run)):
        yield found(
            "port-in-use",
            "The master port was in use by another process.",
            because=[hit.evidence for hit in hits[:3]],
            next_step="Let the runbook retry on another port (retries: 1), and see who holds it: ss -ltnp.",
        )


def disk_full(run: RunFacts) -> Iterator[Finding]:
    """Nothing more could be written."""
    because = [hit.evidence for hit in run.hits("disk_full")[:3]]
    if _no_room(run):
        because.append(evidence("when the run failed, no room was left on the disk of its folder", "journal.jsonl"))
    if because:
        yield found(
            "disk-full",
            "There was no space left to write to, so artifacts of this run may be incomplete.",
            severity="veto" if run.failed else "warning",
            because=because,
            next_step="Free space or write elsewhere (--out), see df -h, and run again.",
        )


def _no_room(run: RunFacts) -> bool:
    """Whether the supervisor found the disk full: a log on that disk cannot tell."""
    return run.outcome is not None and run.outcome.last.disk_full


def leftover_process(run: RunFacts) -> Iterator[Finding]:
    """The run ended by itself and left processes behind."""
    if run.outcome is None:
        return
    left = [a for a in run.outcome.attempts if a.reason == "exited" and a.killed]
    if left:
        pids = ", ".join(map(str, left[-1].killed[:8]))
        yield found(
            "leftover-process",
            f"Processes outlived the run and had to be killed: {pids}.",
            because=[evidence(f"attempt {left[-1].number} exited with {left[-1].rc}; killed {pids}", "journal.jsonl")],
            next_step="Join or terminate every child before the trainer exits; left alone they hold GPU "
            "memory and ports.",
        )


def crashed(run: RunFacts) -> Iterator[Finding]:
    """The trainer ended before its time, by an error or a signal that no other rule explains."""
    outcome = run.outcome
    if not run.training or outcome is None or outcome.reason != "exited" or outcome.rc in (0, None):
        return
    told = (outcome.last.detail or f"exited with code {outcome.rc}").rstrip(".")
    explained = any(run.hits(kind) for kind in ("oom", "port_in_use", "disk_full", "nccl", "stale_halt"))
    if explained or _no_room(run) or run.irregular("stale-halt") or told.startswith("stopped itself for"):
        return
    errors = run.result.extra.get("errors", [])
    killed = outcome.rc == -9 or "SIGKILL" in told or any("SIGKILL" in str(e["message"]) for e in errors)
    tail = [line for line in run.result.log_tail if line.strip()]
    yield found(
        "crashed",
        f"The trainer {told}.",
        because=[
            *(evidence(f"rank {e['rank']}: {e['message']}", str(e["path"])) for e in errors[:3]),
            *([evidence(tail[-1], run.result.log_path, "last line")] if tail else []),
            evidence(f"exit code {outcome.rc}", "journal.jsonl"),
        ],
        next_step="Somebody or the kernel killed it: look for the out-of-memory killer (dmesg | grep -i oom), for "
        "limits of the container and for who else works on this machine; then run again."
        if killed
        else "Read the log from the first error on, mend it, and repeat this phase alone (--only).",
    )


def over_budget(run: RunFacts) -> Iterator[Finding]:
    """The run had not ended when its timeout was over."""
    outcome = run.outcome
    if not run.training or outcome is None or outcome.reason != "timeout":
        return
    done, asked = run.steps_done or 0.0, run.steps_asked
    needed = ""
    if done and asked:
        needed = f"; at this pace all {asked:,.0f} need {format_duration(asked * outcome.duration_s / done)}"
    yield found(
        "over-budget",
        f"The run was at step {done:,.0f}{f' of {asked:,.0f}' if asked else ''} when its timeout of "
        f"{format_duration(run.spec.timeout_s)} was over{needed}.",
        because=[evidence(outcome.last.detail or "timeout", "journal.jsonl")],
        next_step="Set the phase's timeout above what its steps need, or its steps to what fits; if a step takes "
        "longer than it should, that is the question to answer first.",
    )
