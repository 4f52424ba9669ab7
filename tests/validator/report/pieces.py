"""Runs, criteria and phases that the sample reports are put together from, and the series of their charts.

The figures follow a two-process run on a small machine; nothing here depends on the machine that runs the tests.
"""

from __future__ import annotations

import hashlib
import math
import random
import shlex
from typing import Any

from validator.model.catalogue import METRICS
from validator.model.result import MetricStats, ScalarValue, Span
from validator.model.verdict import (
    ArmComparison,
    Check,
    ComparedArm,
    Evidence,
    PhaseReport,
    RunReport,
    Status,
    ValidationReport,
    Verdict,
)
from validator.report.specs import ChartData, ChartSeries, RankSpread, RunCharts


def stats(
    mean: float, *, unit: str, stdev: float = 0.0, n: int = 276, window: tuple[int, int] = (25, 300), **more: Any
) -> MetricStats:
    """Statistics of a well-behaved series around a mean."""
    values: dict[str, Any] = {
        "unit": unit,
        "n": n,
        "mean": mean,
        "stdev": stdev,
        "cv": stdev / mean if mean else None,
        "ci_low": mean - stdev / 4,
        "ci_high": mean + stdev / 4,
        "min": mean - 3 * stdev,
        "p50": mean,
        "p95": mean + 1.6 * stdev,
        "p99": mean + 2.3 * stdev,
        "max": mean + 3 * stdev,
        "first": mean,
        "last": mean,
        "window": Span(first_step=window[0], last_step=window[1]),
        "source": "runs/baseline/r1/training.csv",
        "sha256": hashlib.sha256(b"csv").hexdigest(),
    }
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


REQUESTED = {
    "steps": 300,
    "out": "runs/baseline/r1",
    "seq_len": 512,
    "batch_size": 2,
    "accum": 2,
    "lr": 3e-4,
    "dtype": "bf16",
    "data": {"kind": "local", "path": "/usr/lib/python3.11"},
    "compile": False,
}


COMMAND = """
python -m torch.distributed.run --nproc-per-node 2 --master-addr 127.0.0.1 --master-port 29517
    -m nsa.train --steps 300 --data_path "/data/a folder"
"""
ATTEMPT = [{"number": 1, "rc": 0, "reason": "exited", "started": "2025-08-27T14:03:41.500+00:00", "duration_s": 48.2}]


def run_report(
    phase: str, *, arm: str | None = None, repeat: int = 1, rate: float = 12_840.0, **more: Any
) -> RunReport:
    """A run that ended well."""
    folder = "/".join(part for part in (phase, arm, f"r{repeat}") if part)
    values: dict[str, Any] = {
        "id": folder,
        "arm": arm,
        "repeat": repeat,
        "command": tuple(shlex.split(COMMAND)),
        "env": {"OMP_NUM_THREADS": "1", "NSA_DDP_BUCKET_MB": arm or "25"},
        "requested": REQUESTED,
        "effective": {**REQUESTED, "steps": "300", "n_layers": 4, "world_size": 2},
        "outcome": {"rc": 0, "reason": "exited", "duration_s": 48.2, "detail": None, "attempts": ATTEMPT},
        "metrics": _metrics(rate, folder),
        "scalars": {
            "outcome.rc": ScalarValue(value=0),
            "steps.done": ScalarValue(value=300, unit="steps"),
            "startup.first_step_s": ScalarValue(value=4.213, unit="s", source=f"runs/{folder}/heartbeat_rank0.jsonl"),
        },
        "warmup_end_step": 24,
        "out": f"runs/{folder}",
        "log": f"runs/{folder}/logs/stdout.log",
    }
    return RunReport(**{**values, **more})


def verdict(id: str, text: str, status: Status = "PASS", **more: Any) -> Verdict:
    """A criterion, judged."""
    return Verdict(**{"id": id, "text": text, "required": True, "status": status, **more})


def ended_well(phase: str) -> Verdict:
    return verdict(f"{phase}.exit", "every run ends by itself with exit code 0", observed=0.0, bound=0.0)


def rate_verdict(bound: int, status: Status = "PASS", **more: Any) -> Verdict:
    """What the baseline's rate is beside a bound."""
    measured = {"observed": 12_840.0, "unit": "tok/s", "ci_low": 12_772.6, "ci_high": 12_907.4}
    evidence = window("baseline/r1")
    text = f"toks_per_s.mean >= {bound}"
    return verdict("baseline.1", text, status, **measured, bound=float(bound), evidence=evidence, **more)


def loss_verdict(**more: Any) -> Verdict:
    measured = {"observed": 2.8713, "unit": "nat", "bound": 5.5612, "margin": 0.4837}
    return verdict("baseline.2", "loss.last < loss.first", **measured, **more)


def window(folder: str) -> tuple[Evidence, ...]:
    return (Evidence(path=f"runs/{folder}/training.csv", where="steps 25–300", text="276 steps after warm-up"),)


def preflight() -> PhaseReport:
    """A healthy machine with one note."""
    checks = (
        Check(id="cpu_cores", title="CPU cores", status="PASS", observed="2 cores", expected="at least 2"),
        Check(id="memory", title="Memory available", status="PASS", observed="11.2 GiB", expected="at least 4.0 GiB"),
        Check(id="disk_free", title="Free disk space", status="PASS", observed="48.1 GiB", expected="at least 5.0 GiB"),
        Check(
            id="git_clean",
            title="Uncommitted changes",
            status="INCONCLUSIVE",
            required=False,
            observed="3 files changed",
            expected="none",
            message="The working tree has changes, so the sha alone does not name what ran.",
            evidence=(Evidence(path="preflight/git_sha.txt", text="840303b, dirty"),),
        ),
    )
    return PhaseReport(
        id="preflight",
        kind="preflight",
        title="Machine and software",
        why="Is the machine what the runbook expects?",
        status="PASS",
        checks=checks,
        duration_s=1.84,
    )


def sanity() -> PhaseReport:
    """Parity tests that passed."""
    tests = {"tests.passed": 14, "tests.failed": 0, "tests.skipped": 0}
    run = RunReport(
        id="sanity/r1",
        command=("python", "-m", "pytest", "--pyargs", "nsa.parity"),
        out="runs/sanity/r1",
        outcome={"rc": 0, "reason": "exited", "duration_s": 6.1},
        log="runs/sanity/r1/logs/stdout.log",
        scalars={name: ScalarValue(value=count, unit="tests") for name, count in tests.items()},
    )
    return PhaseReport(
        id="sanity",
        kind="pytest",
        title="Parity of the attention paths",
        status="PASS",
        duration_s=6.3,
        runs=(run,),
        criteria=(verdict("sanity.tests", "tests passed, none failed, none skipped", observed="14 passed"),),
    )


def baseline(status: Status = "PASS", **more: Any) -> PhaseReport:
    """The declared configuration for 300 steps."""
    run = more.pop("run", None) or run_report("baseline")
    criteria = more.pop("criteria", None) or (
        ended_well("baseline"),
        rate_verdict(9000, margin=0.4267),
        loss_verdict(evidence=window("baseline/r1")),
        verdict("baseline.3", "toks_per_s.cv <= 0.05", required=False, observed=0.021, bound=0.05, margin=0.58),
    )
    return PhaseReport(
        id="baseline",
        kind="train",
        title="Baseline, two processes",
        why="The declared configuration on real text.",
        status=status,
        criteria=criteria,
        runs=(run,),
        duration_s=49.0,
        **more,
    )


def buckets(outcome: str = "significant") -> PhaseReport:
    """A sweep of three arms with four runs each."""
    rates = {
        "1": (12_610, 12_655, 12_580, 12_640),
        "4": (13_120, 13_150, 13_090, 13_160),
        "25": (12_830, 12_870, 12_800, 12_850),
    }
    arms, runs = [], []
    for name, means in rates.items():
        mean = sum(means) / len(means)
        spread = math.sqrt(sum((m - mean) ** 2 for m in means) / len(means))
        arms.append(
            ComparedArm(
                arm=name,
                settings={"env.NSA_DDP_BUCKET_MB": int(name)},
                run_means=tuple(map(float, means)),
                mean=mean,
                ci_low=mean - 1.8 * spread,
                ci_high=mean + 1.8 * spread,
                stdev=spread,
                tie_value=spread / 3,
            )
        )
        runs += [run_report("buckets", arm=name, repeat=i, rate=float(m)) for i, m in enumerate(means, start=1)]
    won = outcome == "significant"
    message = (
        "Arm 4 is 2.3 % faster than the runner-up, and the interval excludes less than 2 %."
        if won
        else "Two runs in each arm cannot decide a difference of 2 %; four would."
    )
    comparison = ArmComparison(
        metric="toks_per_s.mean",
        unit="tok/s",
        direction="highest",
        arms=tuple(arms),
        outcome=outcome,
        recommended="4" if won else None,
        adopted=won,
        p_value=0.0004 if won else None,
        effect=0.0228,
        effect_ci=(0.0203, 0.0251),
        min_effect=0.02,
        message=message,
    )
    return PhaseReport(
        id="buckets",
        kind="sweep",
        title="Bucket size",
        status="PASS",
        runs=tuple(runs),
        comparison=comparison,
        duration_s=402.0,
        required=False,
        criteria=(ended_well("buckets"),),
    )


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
    made = {
        name: ChartSeries(name, unit, tuple(every), tuple(values), chart=METRICS[name].chart or "")
        for name, unit, values in (
            ("toks_per_s", "tok/s", rates),
            ("loss", "nat", losses),
            ("gpu_mem_alloc_mib", "MiB", memory),
            ("gpu_mem_reserved_mib", "MiB", [m + 900 for m in memory]),
        )
    }
    ranks = tuple(
        RankSpread(rank, "compute_time_s", "s", 276, 0.141 + d, 0.146 + d, 0.149 + d, 0.153 + d, 0.161 + d)
        for rank, d in ((0, 0.0), (1, 0.0042))
    )
    return RunCharts(run.id, made, ranks)
