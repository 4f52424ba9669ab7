"""Realistic reports in each decision, with the data of their charts: what the renderings are tried on.

The figures follow a two-process run on a small machine; nothing here depends on the machine that runs the tests.
"""

from __future__ import annotations

import hashlib
import math
import random
from typing import Any

from validator.model.measure import MetricStats, ScalarValue, Span
from validator.model.verdict import (
    Artifact,
    Check,
    ComparedArm,
    Comparison,
    Evidence,
    Finding,
    PhaseReport,
    Recommendation,
    RunbookRef,
    RunReport,
    Status,
    ValidationReport,
    Verdict,
)
from validator.report.view import ChartData, ChartSeries, RankSpread, RunCharts

__all__ = ["HOSTILE", "charts", "go", "hostile", "in_progress", "inconclusive", "no_go", "trivial"]

HOSTILE = (
    "</script></style></svg><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31mred\x1b[0m\x00\x07"
    "\u202eevil\u202c |cell| `code` ``` [link](javascript:alert(3)) {{ 7*7 }} {% raw %} $(rm -rf /) '; rm \"quoted\" "
    "]]> & &amp; @everyone #1 https://evil.example/ \ud800 \ufffe"
)
"""Every trick that a log line or a file name may try."""


def stats(mean: float, *, unit: str, stdev: float = 0.0, n: int = 276, window: tuple[int, int] = (25, 300), **more: Any) -> MetricStats:
    """Statistics of a well-behaved series around a mean."""
    values: dict[str, Any] = {
        "unit": unit, "n": n, "mean": mean, "stdev": stdev, "cv": stdev / mean if mean else None,
        "ci_low": mean - stdev / 4, "ci_high": mean + stdev / 4, "min": mean - 3 * stdev, "p50": mean,
        "p95": mean + 1.6 * stdev, "p99": mean + 2.3 * stdev, "max": mean + 3 * stdev, "first": mean, "last": mean,
        "window": Span(first_step=window[0], last_step=window[1]), "source": "runs/baseline/r1/training.csv",
        "sha256": hashlib.sha256(b"csv").hexdigest(),
    }  # fmt: skip
    return MetricStats(**{**values, **more})


def _metrics(rate: float, folder: str) -> dict[str, MetricStats]:
    source = f"runs/{folder}/training.csv"
    return {
        "toks_per_s": stats(rate, unit="tok/s", stdev=rate * 0.021, source=source),
        "step_time_s": stats(2048 / rate, unit="s", stdev=0.004, source=source),
        "loss": stats(3.412, unit="nat", stdev=0.41, window=(1, 300), n=300, first=5.5612, last=2.8713, source=source),
        "grad_norm": stats(0.8312, unit="", stdev=0.12, window=(1, 300), n=300, source=source),
        "lr": stats(3e-4, unit="", stdev=0.0, window=(1, 300), n=300, ci_low=None, ci_high=None, source=source),
        "gpu_mem_alloc_mib": stats(48_913.0, unit="MiB", stdev=3.2, window=(1, 300), n=300, source=source),
        "host_mem_mib": stats(812.4, unit="MiB", stdev=3.2, window=(1, 300), n=300, source=source),
        "gate_entropy_mean": stats(0.9312, unit="", stdev=0.01, window=(1, 300), n=300, source=source),
    }


_REQUESTED = {
    "steps": 300, "out": "runs/baseline/r1", "seq_len": 512, "batch_size": 2, "accum": 2, "lr": 3e-4, "dtype": "bf16",
    "data": {"kind": "local", "path": "/usr/lib/python3.11"}, "compile": False,
}  # fmt: skip


def run_report(phase: str, *, arm: str | None = None, repeat: int = 1, rate: float = 12_840.0, **more: Any) -> RunReport:
    """A run that ended well."""
    folder = "/".join(part for part in (phase, arm, f"r{repeat}") if part)
    values: dict[str, Any] = {
        "id": folder, "arm": arm, "repeat": repeat,
        "command": (
            "python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1",
            "--master-port", "29517", "-m", "nsa.train", "--steps", "300", "--data_path", "/data/a folder",
        ),
        "env": {"OMP_NUM_THREADS": "1", "NSA_DDP_BUCKET_MB": arm or "25"},
        "requested": _REQUESTED, "effective": {**_REQUESTED, "steps": "300", "n_layers": 4, "world_size": 2},
        "outcome": {"rc": 0, "reason": "exited", "duration_s": 48.2, "detail": None, "attempts": []},
        "metrics": _metrics(rate, folder),
        "scalars": {
            "outcome.rc": ScalarValue(value=0), "steps.done": ScalarValue(value=300, unit="steps"),
            "startup.first_step_s": ScalarValue(value=4.213, unit="s", source=f"runs/{folder}/heartbeat_rank0.jsonl"),
        },
        "warmup_end_step": 24, "out": f"runs/{folder}", "log": f"runs/{folder}/logs/stdout.log",
    }  # fmt: skip
    return RunReport(**{**values, **more})


def verdict(id: str, text: str, status: Status = "PASS", **more: Any) -> Verdict:
    """A criterion, judged."""
    return Verdict(**{"id": id, "text": text, "required": True, "status": status, **more})


def _window(folder: str) -> tuple[Evidence, ...]:
    return (Evidence(path=f"runs/{folder}/training.csv", where="steps 25–300", text="276 steps after warm-up"),)


def preflight() -> PhaseReport:
    """A healthy machine with one note."""
    checks = (
        Check(id="cpu_cores", title="CPU cores", status="PASS", observed="2 cores", expected="at least 2"),
        Check(id="memory", title="Memory available", status="PASS", observed="11.2 GiB", expected="at least 4.0 GiB"),
        Check(id="disk_free", title="Free disk space", status="PASS", observed="48.1 GiB", expected="at least 5.0 GiB"),
        Check(
            id="git_clean", title="Uncommitted changes", status="INCONCLUSIVE", required=False, observed="3 files changed",
            expected="none", message="The working tree has changes, so the sha alone does not name what ran.",
            evidence=(Evidence(path="preflight/git_sha.txt", text="840303b, dirty"),),
        ),
    )  # fmt: skip
    return PhaseReport(
        id="preflight", kind="preflight", title="Machine and software", why="Is the machine what the runbook expects?",
        status="PASS", checks=checks, duration_s=1.84,
    )  # fmt: skip


def sanity() -> PhaseReport:
    """Parity tests that passed."""
    tests = {"tests.passed": 14, "tests.failed": 0, "tests.skipped": 0}
    run = RunReport(
        id="sanity/r1", command=("python", "-m", "pytest", "--pyargs", "nsa.parity"), out="runs/sanity/r1",
        outcome={"rc": 0, "reason": "exited", "duration_s": 6.1}, log="runs/sanity/r1/logs/stdout.log",
        scalars={name: ScalarValue(value=count, unit="tests") for name, count in tests.items()},
    )  # fmt: skip
    return PhaseReport(
        id="sanity", kind="pytest", title="Parity of the attention paths", status="PASS", duration_s=6.3, runs=(run,),
        criteria=(verdict("sanity.tests", "tests passed, none failed, none skipped", observed="14 passed"),),
    )  # fmt: skip


def baseline(status: Status = "PASS", **more: Any) -> PhaseReport:
    """The declared configuration for 300 steps."""
    run = more.pop("run", None) or run_report("baseline")
    evidence = _window("baseline/r1")
    criteria = more.pop("criteria", None) or (
        verdict("baseline.exit", "every run ends by itself with exit code 0", observed=0.0, bound=0.0),
        verdict("baseline.1", "toks_per_s.mean >= 9000", observed=12_840.0, unit="tok/s", ci_low=12_772.6,
                ci_high=12_907.4, bound=9000.0, margin=0.4267, evidence=evidence),
        verdict("baseline.2", "loss.last < loss.first", observed=2.8713, unit="nat", bound=5.5612, margin=0.4837,
                evidence=evidence),
        verdict("baseline.3", "toks_per_s.cv <= 0.05", required=False, observed=0.021, bound=0.05, margin=0.58),
    )  # fmt: skip
    return PhaseReport(
        id="baseline", kind="train", title="Baseline, two processes", why="The declared configuration on real text.",
        status=status, criteria=criteria, runs=(run,), duration_s=49.0, **more,
    )  # fmt: skip


def buckets(outcome: str = "significant") -> PhaseReport:
    """A sweep of three arms with four runs each."""
    rates = {"1": (12_610, 12_655, 12_580, 12_640), "4": (13_120, 13_150, 13_090, 13_160), "25": (12_830, 12_870, 12_800, 12_850)}
    arms, runs = [], []
    for name, means in rates.items():
        mean = sum(means) / len(means)
        spread = math.sqrt(sum((m - mean) ** 2 for m in means) / len(means))
        arms.append(
            ComparedArm(
                arm=name, settings={"env.NSA_DDP_BUCKET_MB": int(name)}, run_means=tuple(map(float, means)), mean=mean,
                ci_low=mean - 1.8 * spread, ci_high=mean + 1.8 * spread, stdev=spread, tie_value=spread / 3,
            )
        )  # fmt: skip
        runs += [run_report("buckets", arm=name, repeat=i, rate=float(m)) for i, m in enumerate(means, start=1)]
    won = outcome == "significant"
    message = (
        "Arm 4 is 2.3 % faster than the runner-up, and the interval excludes less than 2 %."
        if won
        else "Two runs in each arm cannot decide a difference of 2 %; four would."
    )
    comparison = Comparison(
        metric="toks_per_s.mean", unit="tok/s", direction="highest", arms=tuple(arms), outcome=outcome,
        recommended="4" if won else None, adopted=won, p_value=0.0004 if won else None, effect=0.0228,
        effect_ci=(0.0203, 0.0251), min_effect=0.02, message=message,
    )  # fmt: skip
    return PhaseReport(
        id="buckets", kind="sweep", title="Bucket size", status="PASS", runs=tuple(runs), comparison=comparison,
        duration_s=402.0, required=False,
        criteria=(verdict("buckets.exit", "every run ends by itself with exit code 0", observed=0.0, bound=0.0),),
    )  # fmt: skip


def _report(decision: str, why: str, exit_code: int | None, phases: tuple[PhaseReport, ...], **more: Any) -> ValidationReport:
    values: dict[str, Any] = {
        "run_id": "20250827T140311Z-smoke-cpu-node7-3f9a",
        "runbook": RunbookRef(
            name="smoke-cpu", path="runbooks/smoke_cpu.yaml", sha256=hashlib.sha256(b"runbook").hexdigest(),
            title="Smoke run on the CPU", description="Two processes on real text, in under two minutes.",
            overrides=("baseline.steps=300",),
        ),
        "started": "2025-08-27T14:03:11+00:00", "finished": "2025-08-27T14:12:02+00:00", "duration_s": 531.2,
        "decision": decision, "why": why, "exit_code": exit_code, "phases": phases,
        "environment": {
            "hostname": "node7", "python": "3.11.9", "packages": {"torch": "2.7.1", "numpy": "2.1.0"},
            "cpu": {"model": "AMD EPYC 7B13", "cores": 2, "affinity": [0, 1]}, "memory_bytes": 12_884_901_888,
            "gpus": [{"index": 0, "name": "NVIDIA A100 80GB PCIe"}, {"index": 1, "name": "NVIDIA A100 80GB PCIe"}],
            "env": {"NCCL_ALGO": "Ring", "HF_TOKEN": "[redacted]"},
        },
        "artifacts": tuple(
            Artifact(path=path, bytes=size, sha256=hashlib.sha256(path.encode()).hexdigest())
            for path, size in (("run.json", 4_212), ("journal.jsonl", 18_233), ("runs/baseline/r1/training.csv", 28_113))
        ) + (Artifact(path="runs/baseline/r1/trace/rank 0.json", bytes=3_221_225_472, sha256=None),),
        "validator_version": "0.1.0",
    }  # fmt: skip
    return ValidationReport(**{**values, **more})


def go() -> ValidationReport:
    """All passed, a setting adopted."""
    return _report(
        "GO", "All 7 required criteria passed on the declared configuration.", 0,
        (preflight(), sanity(), baseline(), buckets()),
        recommended=Recommendation(
            env={"NSA_DDP_BUCKET_MB": "4", "NCCL_ALGO": "Ring", "NOTE": "it's a test"},
            command="NSA_DDP_BUCKET_MB=4 python -m torch.distributed.run --nproc-per-node 2 -m nsa.train",
            because=("NSA_DDP_BUCKET_MB=4: 13,130 tok/s against 12,838 of the runner-up over 4 runs each (buckets).",),
        ),
        findings=(
            Finding(code="warmup-exceeds-run", severity="info", confidence="medium", phase="baseline",
                    message="The schedule warms up for 2,000 steps; this run has 300.",
                    next_step="Judge the loss by its trend only."),
        ),
    )  # fmt: skip


def no_go() -> ValidationReport:
    """Too slow, because the trainer ignored its settings; a later phase was not run."""
    effective = {**_REQUESTED, "seq_len": 128, "dtype": "fp32", "n_layers": 1, "world_size": 2}
    evidence = (Evidence(path="runs/baseline/r1/env.json", where="effective.seq_len", text="requested 512, ran 128"),)
    slow = (
        verdict("baseline.exit", "every run ends by itself with exit code 0", observed=0.0, bound=0.0),
        verdict("baseline.config", "the declared configuration is what ran", "FAIL", observed="2 settings differ",
                message="seq_len ran as 128 instead of 512, dtype as fp32 instead of bf16.", evidence=evidence),
        verdict("baseline.1", "toks_per_s.mean >= 39000", "FAIL", observed=12_840.0, unit="tok/s", ci_low=12_772.6,
                ci_high=12_907.4, bound=39_000.0, margin=-0.6708,
                message="The whole interval lies below 39,000 tok/s.", evidence=_window("baseline/r1")),
        verdict("baseline.2", "loss.last < loss.first", observed=2.8713, unit="nat", bound=5.5612, margin=0.4837),
        verdict("baseline.4", "gate_entropy_min.min >= 0.2", "INCONCLUSIVE", required=False, observed=None, bound=0.2,
                message="The trainer wrote no gate_entropy_min; log it on every step."),
    )  # fmt: skip
    crashed = run_report(
        "soak", metrics={}, effective=None, requested=None, warmup_end_step=None,
        outcome={
            "rc": -9, "reason": "exited", "duration_s": 12.4, "detail": "Rank 1 was killed by signal 9 after step 41.",
            "attempts": [
                {"number": 1, "rc": None, "reason": "stalled", "duration_s": 200.0, "detail": "No step for 180 s.",
                 "bundle": ["runs/soak/r1.attempt1/dump/stacks.txt"]},
                {"number": 2, "rc": -9, "reason": "exited", "duration_s": 12.4, "detail": "Killed after step 41.", "bundle": []},
            ],
        },
        irregularities=("training.csv line 42: cut off in the middle",),
    )  # fmt: skip
    soak = PhaseReport(
        id="soak", kind="soak", title="Long run", status="FAIL", runs=(crashed,), duration_s=213.0,
        message="Rank 1 was killed by signal 9 after step 41.",
        criteria=(
            verdict("soak.exit", "every run ends by itself with exit code 0", "FAIL", observed="signal 9", bound=0.0,
                    message="The run was killed by signal 9."),
        ),
    )  # fmt: skip
    single = PhaseReport(
        id="single", kind="train", title="One process", status="NOT_RUN", message="It needs `baseline`, which ended FAIL.",
        criteria=(verdict("single.1", "scaling.efficiency >= 0.9", "NOT_RUN", message="The phase was not run."),),
    )  # fmt: skip
    return _report(
        "NO_GO", "baseline fails toks_per_s.mean >= 39000: 12,840 tok/s; and config-ignored vetoes the start.", 1,
        (preflight(), sanity(), baseline("FAIL", criteria=slow, run=run_report("baseline", effective=effective)), single, soak),
        findings=(
            Finding(code="oom", severity="warning", confidence="medium", phase="soak", run="soak/r1",
                    message="Rank 1 ended by SIGKILL while host memory was at 98 %.",
                    next_step="Halve batch_size and double accum; watch `dmesg` for the OOM killer.",
                    evidence=(Evidence(path="runs/soak/r1/logs/stderr.log", where="line 812", text="Killed"),)),
            Finding(code="config-ignored", severity="veto", confidence="high", phase="baseline", run="baseline/r1",
                    message="The trainer ran [2, 128] in fp32 although [2, 512] in bf16 was requested.",
                    next_step="Pass --seq_len 512 and check effective.seq_len in env.json.", evidence=evidence),
        ),
    )  # fmt: skip


def inconclusive() -> ValidationReport:
    """The interval straddles the bound and the sweep has too few runs."""
    undecided = (
        verdict("baseline.1", "toks_per_s.mean >= 12800", "INCONCLUSIVE", observed=12_840.0, unit="tok/s",
                ci_low=12_772.6, ci_high=12_907.4, bound=12_800.0, margin=0.0031,
                message="The interval reaches over the bound; about 900 more steps would decide it.",
                evidence=_window("baseline/r1")),
        verdict("baseline.2", "loss.last < loss.first", observed=2.8713, unit="nat", bound=5.5612, margin=0.4837),
    )  # fmt: skip
    return _report(
        "INCONCLUSIVE", "baseline: toks_per_s.mean >= 12800 is not decided; the interval reaches over the bound.", 3,
        (preflight(), sanity(), baseline("INCONCLUSIVE", criteria=undecided), buckets("not_decidable")),
        findings=(
            Finding(code="not-significant", severity="warning", confidence="high", phase="buckets",
                    message="Two runs in each arm; the arms cannot be told apart.", next_step="Set repeats: 4."),
        ),
    )  # fmt: skip


def in_progress() -> ValidationReport:
    """Half way."""
    soak = PhaseReport(id="soak", kind="soak", title="Long run", status="RUNNING", message="Step 120 of 1,200.")
    return _report(
        "IN_PROGRESS", "2 of 4 phases are judged; soak is running, single is pending.", None,
        (preflight(), baseline(), soak, PhaseReport(id="single", kind="train", title="One process", status="NOT_RUN")),
        finished=None, artifacts=(),
    )  # fmt: skip


def hostile() -> ValidationReport:
    """Foreign text that attacks in every field that can hold some."""
    text = HOSTILE
    run = run_report(
        "baseline", arm=text, command=("python", text), env={"X": text}, requested={text: text, "a": text},
        effective={text: "other", "deep": {"a": {"b": [text]}}}, irregularities=(text,), out=text, log=text,
        outcome={"rc": 1, "reason": text, "duration_s": 1.0, "detail": text,
                 "attempts": [{"number": 1, "reason": text, "detail": text, "bundle": [text]}, {"number": 2, "rc": 1}]},
        metrics={text: stats(1.0, unit=text, source=text, note=text), "loss": stats(2.0, unit="nat")},
        scalars={text: ScalarValue(value=text, unit=text, source="javascript:alert(1)")},
    )  # fmt: skip
    evidence = (Evidence(path="../../etc/passwd", where=text, text=text), Evidence(path="https://evil.example/", text=text))
    phase = PhaseReport(
        id="baseline", kind="train", title=text, why=text, status="FAIL", message=text, runs=(run,),
        criteria=(verdict(text, text, "FAIL", observed=text, bound=text, unit=text, message=text, evidence=evidence),),
        checks=(Check(id=text, title=text, status="FAIL", observed=text, expected=text, message=text, evidence=evidence),),
        comparison=Comparison(
            metric=text, unit=text, direction="highest", outcome="no_difference", recommended=text, min_effect=0.02,
            message=text,
            arms=tuple(
                ComparedArm(arm=name, settings={text: text}, run_means=(1.0, 2.0), mean=1.5, ci_low=1.0, ci_high=2.0, stdev=0.5)
                for name in (text, "plain")
            ),
        ),
    )  # fmt: skip
    return _report(
        "NO_GO", text, 1, (phase,), run_id="hostile", environment={text: {text: [text]}, "list": [{text: text}]},
        runbook=RunbookRef(name=text, path=text, sha256=text, title=text, description=text, overrides=(text,)),
        findings=(Finding(code=text, severity="veto", confidence="low", phase=text, run=text, message=text,
                          evidence=evidence, next_step=text),),
        recommended=Recommendation(env={"GOOD": text, text: text}, command=text, because=(text,)),
        artifacts=(Artifact(path=text, bytes=1, sha256=text), Artifact(path="/etc/passwd", bytes=1, sha256=None)),
        validator_version=text,
    )  # fmt: skip


def trivial(count: int) -> ValidationReport:
    """Command phases with nothing to draw."""
    phases = tuple(
        PhaseReport(
            id=f"step_{i}", kind="command", title=f"Step {i}", status="PASS", duration_s=0.05,
            runs=(RunReport(id=f"step_{i}/r1", command=("sh", "-c", "true"), out=f"runs/step_{i}/r1",
                            outcome={"rc": 0, "reason": "exited", "duration_s": 0.05}),),
            criteria=(verdict(f"step_{i}.exit", "every run ends by itself with exit code 0", observed=0.0, bound=0.0),),
        )
        for i in range(count)
    )  # fmt: skip
    return _report("GO", f"All {count} required criteria passed.", 0, phases)


def charts(report: ValidationReport, *, steps: int = 300) -> ChartData:
    """Series for every run that has metrics, with a warm-up and some noise; the same on every call."""
    return ChartData({run.id: _run_charts(run, steps) for phase in report.phases for run in phase.runs if run.metrics})


def _run_charts(run: RunReport, steps: int) -> RunCharts:
    noise = random.Random(run.repeat)
    rate = run.metrics["toks_per_s"].mean if "toks_per_s" in run.metrics else 1000.0
    assert rate is not None
    every = range(1, steps + 1)
    rates = [rate * (1 + 0.02 * noise.gauss(0, 1) - 0.7 * math.exp(-s / 6)) for s in every]
    losses = [2.7 + 2.9 * math.exp(-s / 70) + 0.05 * noise.gauss(0, 1) for s in every]
    memory = [48_100 + 813 * (1 - math.exp(-s / 3)) for s in every]
    source = f"{run.out}/training.csv"
    made = {
        name: ChartSeries(name, unit, tuple(every), tuple(values), steps, source)
        for name, unit, values in (
            ("toks_per_s", "tok/s", rates), ("loss", "nat", losses), ("gpu_mem_alloc_mib", "MiB", memory),
            ("gpu_mem_reserved_mib", "MiB", [m + 900 for m in memory]),
        )
    }  # fmt: skip
    ranks = tuple(
        RankSpread(rank, "compute_time_s", "s", 276, 0.141 + d, 0.146 + d, 0.149 + d, 0.153 + d, 0.161 + d)
        for rank, d in ((0, 0.0), (1, 0.0042))
    )
    return RunCharts(run.id, made, ranks)
