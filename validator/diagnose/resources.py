"""What ended a run or came close to it: memory, ports, disks, other ranks, signals and timeouts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from validator.diagnose.progress import left_before_the_others
from validator.diagnose.rule import Diagnosis, RunFacts, as_number, evidence, hit_evidence, rule
from validator.model.result import Series
from validator.model.runbook import SoakPhase
from validator.stats.growth import COLUMN, LONG_RUN_S, outlasts_start, run_memories
from validator.text import format_duration, format_percent

HEADROOM = 0.10
_GROWTH_ROWS = 30
_GROWTH_SHARE = 0.01
_GROWTH_MIB = 16.0

_RANK = r"(?:\[?rank ?\d+\]?:? *|\d+: *)?"
_RAISED = re.compile(_RANK + r"(?:[a-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?::|\s*$)")
_IN_TRACE = re.compile(_RANK + r"(?:\s+\S|\^|File \"|Traceback )")
"""The last line of a traceback, and the lines before it."""

_ENDED = re.compile(
    r"slurmstepd\S*: error: .*CANCELLED|\bexited on signal \d|^Segmentation fault|^Killed\b|^Bus error|\(core dumped\)"
    r"|^\S*\.[A-Z]\w*(?:Error|Exception): "
)
_DECIMAL = re.compile(r"(?<![\w.])\d+\.\d{2,}")
_ROWS_BEHIND = 3
"""Lines with such a number behind the last error from which the training continued."""


@rule("oom", "warning", of="run")
def oom(run: RunFacts) -> Iterator[Diagnosis]:
    """Memory ran out: at which step, on which side."""
    hits = run.hits("oom")
    if not hits:
        return
    gpu = any("CUDA" in h.text or "OutOfMemoryError" in h.text or "CUBLAS" in h.text for h in hits)
    step = (run.steps_done or 0) + 1
    peak = run.series("gpu_mem_reserved_mib") if gpu else run.series("host_mem_mib")
    because = [hit_evidence(hit) for hit in hits[:3]]
    if peak is not None:
        because.append(evidence(f"{peak.name} up to {peak.values.max():,.0f} MiB before", peak.source.path))
    ended = run.outcome is None or run.failed or run.ended_early
    yield Diagnosis(
        f"{'GPU' if gpu else 'Host'} memory ran out "
        + (f"in step {step:.0f}." if ended else "at some point, and the run continued."),
        confidence="high" if run.failed else "medium",
        because=because,
        next_step="Halve batch_size and double accum, turn on grad_checkpointing, or shorten seq_len; then compare "
        "mem_step1.json with mem_boot.json to see what takes the room."
        if gpu
        else "Reduce data loading workers and prefetching, or use a machine with more memory.",
    )


@rule("nccl-error", "warning", of="run")
def nccl_error(run: RunFacts) -> Iterator[Diagnosis]:
    """Communication between ranks failed."""
    hits = [h for h in run.hits("nccl") if "NCCL WARN" not in h.text or run.failed]
    if not hits or not (run.outcome is None or run.failed or _tried_again(run)):
        return
    own = [h for h in hits if "Connection closed by peer" not in h.text and "DistNetworkError" not in h.text]
    first = next(iter(run.evidence.errors), None)
    last = run.outcome.last if run.outcome is not None else None
    culprit = f" Rank {first.rank} failed first: {first.message}" if first else ""
    if not first and not own and last is not None and last.words is not None and last.detail:
        culprit = f" The trainer {last.detail.rstrip('.')}."
    yield Diagnosis(
        f"Communication between ranks failed.{culprit}",
        confidence="high" if own else "low",
        because=[hit_evidence(hit) for hit in (own or hits)[:4]],
        next_step="Look at the rank that failed first, since the others only report that it is gone; if none did, run "
        "once with NCCL_DEBUG=INFO and check the interconnect by nvidia-smi topo -m.",
    )


@rule("port-in-use", "warning", of="run")
def port_in_use(run: RunFacts) -> Iterator[Diagnosis]:
    """The port of the rendezvous was taken."""
    hits = run.hits("port_in_use")
    if hits and (run.outcome is None or run.failed or _tried_again(run)):
        yield Diagnosis(
            "The master port was in use by another process.",
            because=[hit_evidence(hit) for hit in hits[:3]],
            next_step="Let the runbook retry on another port (retries: 1), and see who holds it: ss -ltnp.",
        )


@rule("disk-full", "veto", of="run")
def disk_full(run: RunFacts) -> Iterator[Diagnosis]:
    """Nothing more could be written."""
    because = [hit_evidence(hit) for hit in run.hits("disk_full")[:3]]
    if _no_room(run):
        names = ", ".join(node.node for node in run.evidence.nodes if node.disk_full)
        where = f"on a disk of {names}" if names else "on the disk of its folder"
        because.append(evidence(f"when the run failed, no room was left {where}", "journal.jsonl"))
    if because:
        yield Diagnosis(
            "There was no space left to write to, so artifacts of this run may be incomplete.",
            severity="veto" if run.failed else "warning",
            because=because,
            next_step="Free space or write elsewhere (--out), see df -h, and run again.",
        )


@rule("crashed", "warning", of="run")
def crashed(run: RunFacts) -> Iterator[Diagnosis]:
    """The trainer ended before its time by an error or a signal that no other rule explains, or its log ends in one."""
    outcome = run.outcome
    if not run.training or (outcome is not None and outcome.reason != "exited"):
        return
    if outcome is None or outcome.rc in (0, None):
        yield from _log_ends_in_error(run)
        return
    ending = (outcome.last.detail or f"exited with code {outcome.rc}").rstrip(".")
    explained = any(run.hits(kind) for kind in ("oom", "port_in_use", "disk_full", "nccl", "stale_halt"))
    if (
        explained
        or left_before_the_others(run) is not None
        or _no_room(run)
        or run.irregular("stale-halt")
        or ending.startswith("stopped itself for")
    ):
        return
    errors = run.evidence.errors
    killed = outcome.rc == -9 or "SIGKILL" in ending or any("SIGKILL" in e.message for e in errors)
    tail = [line for line in run.result.log_tail if line.strip()]
    yield Diagnosis(
        f"The trainer {ending}.",
        because=[
            *(evidence(f"rank {e.rank}: {e.message}", e.path) for e in errors[:3]),
            *([evidence(tail[-1], run.result.log_path, "last line")] if tail else []),
            evidence(f"exit code {outcome.rc}", "journal.jsonl"),
        ],
        next_step="Another process or the kernel killed it: look for the out-of-memory killer (dmesg | grep -i oom), "
        "for limits of the container and for other users of this machine; then run again."
        if killed
        else "Read the log from the first error on, mend it, and repeat this phase alone (--only).",
    )


def _log_ends_in_error(run: RunFacts) -> Iterator[Diagnosis]:
    """Of a log alone, or of a trainer whose exit code is 0 all the same."""
    said = _last_words([line for line in run.result.log_tail if line.strip()])
    if said is None or any(run.hits(kind) for kind in ("oom", "disk_full")):
        return
    cancelled = "CANCELLED" in said
    yield Diagnosis(
        f"The log ends {'as its job is cancelled' if cancelled else 'in an error'}: {said[:200]}"
        + ("" if run.outcome is None else "; the exit code is 0 all the same"),
        because=[evidence(said[:300], run.result.log_path, "last lines")],
        next_step="See who cancelled the job, or whether its time limit is shorter than the run; then continue from "
        "the last checkpoint."
        if cancelled
        else "Read the log from the first error on, mend it, and continue from the last checkpoint.",
    )


def _last_words(tail: Sequence[str]) -> str | None:
    """The line of an error, a signal or a cancelled job that ends a log; None where rows of the training follow it."""
    for place in range(len(tail) - 1, -1, -1):
        raised = _RAISED.match(tail[place]) is not None and any(map(_IN_TRACE.match, tail[max(0, place - 2) : place]))
        if not raised and _ENDED.search(tail[place]) is None:
            continue
        rows = sum(_DECIMAL.search(line) is not None for line in tail[place + 1 :])
        ignored = any("Exception ignored in" in line for line in tail[:place])
        return None if rows > _ROWS_BEHIND or (raised and ignored) else tail[place]
    return None


def _tried_again(run: RunFacts) -> bool:
    """Whether an earlier attempt failed although the last one did not."""
    return run.outcome is not None and len(run.outcome.attempts) > 1


def _no_room(run: RunFacts) -> bool:
    """Whether the supervisor found the disk full: a log on that disk cannot show it."""
    return run.outcome is not None and run.outcome.last.disk_full


@rule("over-budget", "warning", of="run")
def over_budget(run: RunFacts) -> Iterator[Diagnosis]:
    """The run had not ended when its timeout was over."""
    outcome = run.outcome
    if not run.training or outcome is None or outcome.reason != "timeout":
        return
    done, requested = run.steps_done or 0.0, run.steps_requested
    needed = ""
    if done and requested:
        needed = f"; at this pace all {requested:,.0f} need {format_duration(requested * outcome.duration_s / done)}"
    yield Diagnosis(
        f"The run was at step {done:,.0f}{f' of {requested:,.0f}' if requested else ''} when its timeout of "
        f"{format_duration(run.spec.timeout_s)} was over{needed}.",
        because=[evidence(outcome.last.detail or "timeout", "journal.jsonl")],
        next_step="Set the phase's timeout above what its steps need, or its steps to what fits; if a step takes "
        "longer than it should, that is the question to answer first.",
    )


@rule("leftover-process", "warning", of="run")
def leftover_process(run: RunFacts) -> Iterator[Diagnosis]:
    """The run ended by itself and left processes behind."""
    if run.outcome is None:
        return
    left = [a for a in run.outcome.attempts if a.reason == "exited" and a.killed]
    if left:
        pids = ", ".join(map(str, left[-1].killed[:8]))
        yield Diagnosis(
            f"Processes outlived the run and had to be killed: {pids}.",
            because=[evidence(f"attempt {left[-1].number} exited with {left[-1].rc}; killed {pids}", "journal.jsonl")],
            next_step="Join or terminate every child before the trainer exits; left alone they hold GPU "
            "memory and ports.",
        )


@rule("low-headroom", "warning", of="run")
def low_headroom(run: RunFacts) -> Iterator[Diagnosis]:
    """So little GPU memory is left that a longer sequence or a fragmented heap ends the run."""
    series, total = run.series("gpu_mem_reserved_mib") or run.series("gpu_mem_alloc_mib"), _gpu_total_mib(run)
    if series is None or total is None:
        return
    finite = series.values[np.isfinite(series.values)]
    if not finite.size:
        return
    peak = float(finite.max())
    left = 1 - peak / total
    if left < HEADROOM:
        yield Diagnosis(
            f"Only {format_percent(max(0.0, left))} of the GPU's memory is left at the peak ({peak:,.0f} of "
            f"{total:,.0f} MiB).",
            because=[evidence(f"max {series.name} {peak:,.0f} MiB", series.source.path)],
            next_step="Leave a tenth free for fragmentation and long batches: lower batch_size, or turn on "
            "grad_checkpointing.",
        )


def _gpu_total_mib(run: RunFacts) -> float | None:
    """Memory of the smallest GPU, by the trainer's dumps or the machine's snapshot."""
    reported = run.evidence.gpu_mem_total_mib or as_number(run.environment.get("gpu_mem_total_mib"))
    if reported:
        return reported
    gpus = run.machine.get("gpus")
    nvml_sizes = [gpu.get("memory_total_mib") for gpu in (gpus.values() if isinstance(gpus, Mapping) else ())]
    sizes = [size for size in map(as_number, nvml_sizes) if size]
    return min(sizes) if sizes else None


@rule("memory-growth", "warning", of="run")
def memory_growth(run: RunFacts) -> Iterator[Diagnosis]:
    """Memory rises to the end without a plateau."""
    for name in ("gpu_mem_alloc_mib", "gpu_mem_reserved_mib", "host_mem_mib"):
        series = run.series(name)
        grown = _growth(series, run.spec.warmup_steps) if series is not None else None
        if series is None or grown is None:
            continue
        per_step, level = grown
        total = _gpu_total_mib(run) if name.startswith("gpu_") else None
        forecast = ""
        if total is not None and total > level:
            forecast = f" At this pace it is full after {(total - level) / per_step:,.0f} more steps."
        yield Diagnosis(
            f"{name} keeps rising, by {1000 * per_step:,.0f} MiB per 1,000 steps, to {level:,.0f} MiB at the "
            f"end.{forecast}",
            confidence="medium" if name == "host_mem_mib" else "high",
            because=[evidence(f"{name}: no plateau in the last third", series.source.path)],
            next_step="Run longer to see whether it levels off; look for tensors kept across steps (losses appended "
            "without .item(), growing caches), by torch.cuda.memory._snapshot() or tracemalloc.",
        )
        return
    yield from _growth_of_processes(run)


def _growth_of_processes(run: RunFacts) -> Iterator[Diagnosis]:
    """The same by the samples of what the run's processes hold, which no trainer needs to write.

    Of a soak always; of other runs where they are long enough to distinguish a leak from their start.
    """
    memories = run_memories(run.evidence, run.spec.warmup_steps) if run.training else []
    soaks = issubclass(run.spec.phase_model, SoakPhase)
    found = [
        (memory, growth)
        for memory in memories
        if (growth := memory.growth()) is not None
        and (soaks or outlasts_start(memory, growth))
        and (growth.full_in_s(memory.left_mib) or 0.0) <= LONG_RUN_S
    ]
    if not found:
        return
    memory, growth = min(found, key=lambda one: not one[1].steady)
    level = f"from {memory.mib[0]:,.0f} to {memory.mib[-1]:,.0f} MiB, no plateau"
    yield Diagnosis(
        f"{memory.text(growth)}.",
        severity="warning" if growth.steady else "info",
        confidence="high" if growth.steady else "medium",
        because=[evidence(f"{COLUMN}: {level}", memory.source)],
        next_step="Run longer to see whether it levels off; look for what is kept across steps (losses appended "
        "without .item(), lists that grow, batches that workers of the data loader hold), by tracemalloc.",
    )


def _growth(series: Series, warmup_steps: int) -> tuple[float, float] | None:
    """MiB per step and the last level, when memory rises through each of the last parts; else None."""
    late = (series.steps > warmup_steps) & np.isfinite(series.values)
    steps, values = series.steps[late], series.values[late]
    if values.size < _GROWTH_ROWS:
        return None
    parts = [float(p.mean()) for p in np.array_split(values, 6)]
    rises = np.diff(parts[2:])
    needed = max(_GROWTH_SHARE * parts[-1], _GROWTH_MIB)
    if not (rises > 0).all() or parts[-1] - parts[2] < needed or rises[-1] < 0.5 * float(np.median(rises)):
        return None
    half = values.size // 2
    x, y = steps[half:] - steps[half:].mean(), values[half:] - values[half:].mean()
    slope = float((x * y).sum() / (x * x).sum())
    return (slope, float(values[-1])) if slope > 0 else None
