"""How long a report of many long runs takes to render, how large it becomes, and how long a browser takes to open it.

    python -m benchmarks.report                       40 runs of 50,000 steps: 10 phases of 4, one sweep, 40 phases of 1
    python -m benchmarks.report --shapes 40x1         one of these
    python -m benchmarks.report --open                load each page in Chromium as well (needs Playwright)
    python -m benchmarks.report --keep DIR            leave the pages there

The runs are made up in memory as the collectors would hand them over: every metric of the bundled trainer on two ranks,
and an hour of samples of two GPUs. What is timed is what follows judgement: thinning, drawing, and writing all
renderings, in a process of its own that has drawn nothing before. `cpu_s` is the processor time of all its threads,
which a busy machine does not stretch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from validator.model.result import MetricStats, Result, RunEvidence, Samples, Series, SourceFile, Span
from validator.model.verdict import ArmComparison, Artifact, ComparedArm, PhaseReport, RunbookRef, RunReport, Verdict
from validator.model.verdict import ValidationReport as Report

_UNITS = {
    "toks_per_s": "tok/s",
    "step_time_s": "s",
    "compute_time_s": "s",
    "loss": "nat",
    "lr": "",
    "grad_norm": "",
    "dt_fetch_s": "s",
    "tokens": "tokens",
    "wall_s": "s",
    "host_mem_mib": "MiB",
    "gpu_mem_alloc_mib": "MiB",
    "gpu_mem_reserved_mib": "MiB",
    "gpu_mem_peak_mib": "MiB",
    "mfu_nsa": "",
    "fetch_p50_ms": "ms",
    "fetch_p95_ms": "ms",
    "gate_entropy_mean": "",
    "gate_entropy_min": "",
    "gate_max_gate": "",
    "gate_collapse_frac": "",
    "gate_branch_shares_0": "",
    "gate_branch_shares_1": "",
    "gate_branch_shares_2": "",
    "sel_k_mean": "",
    "sel_rows": "",
    "toks_per_s_per_rank": "tok/s",
}
_GPU_COLUMNS = ("util_pct", "mem_used_mib", "power_w", "temperature_c", "sm_clock_mhz", "mem_clock_mhz")
_GPUS = (0, 1)
_SAMPLES = 3600
_START_S = 1_760_000_000.0


def results(shape: tuple[int, int], steps: int) -> Iterator[Result]:
    """What was measured in each run: the same numbers in all, so that 40 runs fit into memory."""
    noise = np.random.default_rng(1)
    every = np.arange(1, steps + 1, dtype=np.int64)
    names = [*_UNITS, *(f"telemetry.gpu{gpu}_{name}" for gpu in _GPUS for name in _GPU_COLUMNS)]
    values = {name: 100 + noise.standard_normal(steps) + 900 * np.exp(-every / 2000) for name in names}
    times = _START_S + np.arange(_SAMPLES, dtype=np.float64)
    columns = {f"gpu{gpu}_{name}": 50 + 10 * noise.standard_normal(_SAMPLES) for gpu in _GPUS for name in _GPU_COLUMNS}
    columns |= {f"gpu{gpu}_throttle_mask": 4.0 * (noise.random(_SAMPLES) < 0.3) for gpu in _GPUS}
    columns["host_cpu_pct"] = 20 + noise.standard_normal(_SAMPLES)
    for run in _run_ids(shape):
        source = SourceFile(path=f"runs/{run}/training.csv", sha256="0" * 64, bytes=1)
        series = {name: Series(name, _UNITS.get(name, ""), every, values[name], source) for name in names}
        yield Result(
            run=run,
            series=series,
            rank_series={rank: {"compute_time_s": series["compute_time_s"]} for rank in _GPUS},
            scalars={},
            requested=None,
            effective=None,
            environment=None,
            irregularities=(),
            sources=(),
            evidence=RunEvidence(
                samples=Samples(source, times, columns), step_times_s=(every, times[0] + 0.07 * every)
            ),
        )


def _run_ids(shape: tuple[int, int]) -> list[str]:
    phases, runs = shape
    return [f"p{phase}/a{run % 2}/r{run // 2 + 1}" for phase in range(phases) for run in range(runs)]


def _stats(unit: str, steps: int, source: str) -> MetricStats:
    values: dict[str, Any] = dict.fromkeys(("mean", "min", "p50", "p95", "p99", "max", "first", "last"), 123.456)
    spread = {"stdev": 1.234, "cv": 0.01, "ci_low": 122.1, "ci_high": 124.9, "sha256": "0" * 64}
    window = Span(first_step=1000, last_step=steps)
    return MetricStats(unit=unit, n=steps, window=window, source=source, **spread, **values)


def _run(run: str, steps: int) -> RunReport:
    _, arm, repeat = run.split("/")
    config: dict[str, Any] = {f"setting_{i}": i for i in range(60)}
    names = [*_UNITS, *(f"telemetry.gpu{gpu}_{name}" for gpu in _GPUS for name in _GPU_COLUMNS)]
    attempt = {"number": 1, "rc": 0, "reason": "exited", "started": "2025-10-09T08:53:20+00:00", "duration_s": 3500.0}
    return RunReport(
        id=run,
        arm=arm,
        repeat=int(repeat[1:]),
        command=("python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "nsa.train", "--out", run),
        env={"OMP_NUM_THREADS": "1"},
        requested=config,
        effective=config,
        outcome={"rc": 0, "reason": "exited", "duration_s": 3500.0, "attempts": [attempt]},
        metrics={name: _stats(_UNITS.get(name, ""), steps, f"runs/{run}/training.csv") for name in names},
        warmup_end_step=1000,
        out=f"runs/{run}",
        log=f"runs/{run}/logs/stdout.log",
    )


def report(shape: tuple[int, int], steps: int) -> Report:
    """The judged validation: each phase with its runs, criteria and, where there are several runs, a comparison."""
    by_phase: dict[str, list[RunReport]] = {}
    for run in _run_ids(shape):
        by_phase.setdefault(run.split("/")[0], []).append(_run(run, steps))
    artifacts = tuple(
        Artifact(path=f"runs/{run}/{name}", bytes=1000, sha256=hashlib.sha256(run.encode()).hexdigest())
        for run in _run_ids(shape)
        for name in ("training.csv", "heartbeat_rank0.jsonl", "heartbeat_rank1.jsonl", "env.json", "logs/stdout.log")
    )
    return Report(
        run_id="20251009T085320Z-bench-node-0000",
        runbook=RunbookRef(name="bench", path="bench.yaml", sha256="0" * 64),
        started="2025-10-09T08:53:20Z",
        finished="2025-10-11T08:53:20Z",
        duration_s=2 * 86400.0,
        decision="GO",
        why="All required criteria passed.",
        exit_code=0,
        phases=tuple(_phase(name, runs) for name, runs in by_phase.items()),
        environment={"python": "3.11", "packages": {f"package{i}": "1.0" for i in range(100)}},
        artifacts=artifacts,
        validator_version="0.1.0",
    )


def _phase(name: str, runs: list[RunReport]) -> PhaseReport:
    arms = [
        ComparedArm(
            arm=arm, settings={"args.lr": arm}, run_means=means, mean=123.0, ci_low=122.0, ci_high=124.0, stdev=1
        )
        for arm in ("a0", "a1")
        if (means := tuple(123.0 + run.repeat for run in runs if run.arm == arm))
    ]
    comparison = ArmComparison(
        metric="toks_per_s.mean",
        unit="tok/s",
        direction="highest",
        arms=tuple(arms),
        outcome="no_difference",
        recommended=None,
        min_effect=0.02,
        message="No difference.",
    )
    criteria = tuple(
        Verdict(
            id=f"{name}.{i}", text=f"toks_per_s.mean >= {i}", required=True, status="PASS", observed=123.4, bound=100.0
        )
        for i in range(6)
    )
    return PhaseReport(
        id=name,
        kind="train",
        title=f"Phase {name}",
        status="PASS",
        runs=tuple(runs),
        criteria=criteria,
        comparison=comparison if len(runs) > 1 else None,
        duration_s=3500.0,
    )


def measure(shape: tuple[int, int], steps: int, folder: Path) -> dict[str, float]:
    """Render one report, and say how long each part took."""
    judged, measured = report(shape, steps), list(results(shape, steps))
    from validator.pipeline.write import write_all
    from validator.report.charts import chart_data

    ends = {run.id: run.warmup_end_step for phase in judged.phases for run in phase.runs}
    start, cpu = time.perf_counter(), time.process_time()
    charts = chart_data(measured, warmup_end=ends)
    thinned = time.perf_counter()
    paths = write_all(judged, charts, folder)
    end = time.perf_counter()
    return {
        "thin_s": thinned - start,
        "total_s": end - start,
        "cpu_s": time.process_time() - cpu,
        "html_mb": paths.html.stat().st_size / 1e6,
        "md_kb": paths.markdown.stat().st_size / 1e3,
    }


def opened(page: Path) -> dict[str, float]:
    """Seconds until Chromium says that the page has loaded and was drawn, its own start apart; the median of five."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=_chromium(), args=["--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
        )
        taken = []
        for _ in range(5):
            tab = browser.new_page()
            start = time.perf_counter()
            tab.goto(page.resolve().as_uri(), wait_until="load")
            tab.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
            taken.append(time.perf_counter() - start)
            tab.close()
        browser.close()
    return {"open_s": sorted(taken)[2]}


def _chromium() -> str | None:
    import shutil

    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def _of(shape: str) -> tuple[int, int]:
    phases, _, runs = shape.partition("x")
    return int(phases), int(runs)


def main() -> int:
    """Measure each shape in a process of its own and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="10x4,1x40,40x1", help="phases x runs in each, several with commas")
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--open", action="store_true", help="load the pages in Chromium as well")
    parser.add_argument("--keep", type=Path, help="leave the pages in this folder")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        folder = Path(asked.keep)
        print(json.dumps(measure(_of(asked.one), asked.steps, folder)))
        return 0
    with tempfile.TemporaryDirectory() as made:
        for shape in asked.shapes.split(","):
            folder = (asked.keep or Path(made)) / shape
            folder.mkdir(parents=True, exist_ok=True)
            words = [sys.executable, "-m", "benchmarks.report", "--one", shape, "--keep", str(folder)]
            ran = subprocess.run([*words, "--steps", str(asked.steps)], check=True, capture_output=True, text=True)
            found = json.loads(ran.stdout)
            found |= opened(folder / "report.html") if asked.open else {}
            print(f"{shape}: " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
