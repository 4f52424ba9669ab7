"""Do the statistics keep their promises? False decisions, coverage and power by simulation.

    python benchmarks/calibration.py                      # the corners, under a minute
    python benchmarks/calibration.py --full --trials 200  # the tables of docs/statistics.md, several minutes

Runs are simulated step by step: lag-1 autocorrelated step times, a slow first stretch (ramp), bursts, and a rate that
differs from run to run. They go through the same `judge_phase` as real ones; the truth is known, so each verdict can be
told right, wrong or open.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from validator.judge import judge_phase
from validator.judge.compare import ArmRuns, Rules, compare_arms
from validator.judge.estimate import MIN_REPEATS
from validator.judge.measure import measure
from validator.judge.window import steady_window
from validator.model.extension import Extension
from validator.model.measure import ScalarValue, SourceFile
from validator.model.outcome import Attempt, Outcome
from validator.model.plan import RunSpec
from validator.model.record import PhaseRecord, RunRecord, ValidationRecord
from validator.model.result import Result, Series
from validator.model.runbook import Runbook
from validator.model.verdict import Verdict

Floats = npt.NDArray[np.float64]
TOKENS, RATE, WARMUP = 100.0, 100.0, 20
EXTENSION = Extension(criteria=("p.1",), runs_before=1, runs_after=MIN_REPEATS)
SOURCE = SourceFile(path="training.csv", sha256="0" * 64, bytes=0)


@dataclass(frozen=True)
class Setting:
    """How runs behave: noise of steps, autocorrelation, variation between runs, shape of the start, rare slow steps."""

    phi: float = 0.0
    run_cv: float = 0.0
    step_cv: float = 0.02
    shape: str = "flat"
    steps: int = 300

    @property
    def name(self) -> str:
        """The setting as a row's first cells."""
        return f"{self.phi:g} | {100 * self.run_cv:g} % | {self.shape} | {self.steps}"


def step_times(setting: Setting, rng: np.random.Generator, *, rate: float = RATE) -> Floats:
    """Step times of one run whose long-run rate is `rate` on average over runs."""
    burn_in = 100
    noise = rng.standard_normal(setting.steps + burn_in) * np.sqrt(1 - setting.phi**2)
    noise = lfilter([1.0], [1.0, -setting.phi], noise)
    relative = 1 + setting.step_cv * noise[burn_in:]
    steps = np.arange(setting.steps)
    if setting.shape == "ramp":
        relative = relative * (1 + 0.5 * np.exp(-steps / 15))
    if setting.shape == "bursts":
        slow = rng.random(setting.steps) < 0.02
        relative = (relative + 0.5 * slow) / 1.01
    level = TOKENS / (rate * (1 + setting.run_cv * rng.standard_normal()))
    return np.asarray(np.maximum(relative, 0.05) * level, dtype=np.float64)


def collected(run: str, times: Floats) -> Result:
    """What would have been collected from such a run."""
    steps = np.arange(1, len(times) + 1)
    columns = {"step_time_s": times, "toks_per_s": TOKENS / times, "loss": np.linspace(5, 3, len(times))}
    return Result(
        run=run,
        series={name: Series(name, "", steps, values, SOURCE) for name, values in columns.items()},
        rank_series={},
        scalars={"steps.done": ScalarValue(value=float(len(times)))},
        requested=None,
        effective=None,
        environment=None,
        irregularities=(),
        sources=(SOURCE,),
    )


def record(run: str, times: Floats, repeat: int) -> RunRecord:
    """A run that ended well."""
    attempt = Attempt(number=1, command=(), pid=1, started="", duration_s=1.0, rc=0, reason="exited")
    spec = RunSpec(
        id=run,
        phase="p",
        kind="train",
        repeat=repeat,
        launcher="torchrun",
        argv=(),
        env={},
        out=run,
        nproc=2,
        steps=len(times),
        warmup_steps=WARMUP,
        timeout_s=1.0,
    )
    return RunRecord(spec, Outcome(run=run, attempts=(attempt,)), collected(run, times))


def gate(setting: Setting, repeats: int, bounds: Sequence[float], rng: np.random.Generator, seed: int) -> list[str]:
    """The verdicts on `toks_per_s.mean >= bound`, for each bound, when the true rate is RATE."""
    times = [step_times(setting, rng) for _ in range(repeats)]
    return [one.status for one in judged(setting, times, [f"toks_per_s.mean >= {bound}" for bound in bounds], seed)]


def judged(
    setting: Setting, times: Sequence[Floats], accept: Sequence[str], seed: int, *, extended: bool = False
) -> list[Verdict]:
    """The verdicts on `accept` when these runs were made."""
    phase = {"id": "p", "kind": "train", "steps": setting.steps, "accept": list(accept)}
    book = Runbook.model_validate({"schema": 1, "name": "c", "phases": [phase]})
    runs = tuple(record(f"p/{seed}/r{n}", one, n) for n, one in enumerate(times, start=1))
    phase_record = PhaseRecord(book.phases[0], "done", runs, extended=EXTENSION if extended else None)
    report = judge_phase(phase_record, validation=ValidationRecord(book, (phase_record,)), judged={})
    return [one for one in report.criteria if one.text in accept]


def extended_gate(setting: Setting, bounds: Sequence[float], rng: np.random.Generator, seed: int) -> list[str]:
    """As `gate` for one run, but an open verdict is given three more runs and judged again, as a phase is."""
    times = [step_times(setting, rng) for _ in range(MIN_REPEATS)]
    verdicts = []
    for bound in bounds:
        verdict = judged(setting, times[:1], [f"toks_per_s.mean >= {bound}"], seed)[0]
        if verdict.open_for is not None:
            verdict = judged(setting, times, [f"toks_per_s.mean >= {bound}"], seed, extended=True)[0]
        verdicts.append(verdict.status)
    return verdicts


def compare(setting: Setting, repeats: int, difference: float, rng: np.random.Generator) -> str | None:
    """The arm that an A/B calls significantly better, if any; `b` is truly faster by `difference`."""
    arms = []
    for name, rate in (("a", RATE), ("b", RATE * (1 + difference))):
        means = [measured_rate(step_times(setting, rng, rate=rate)) for _ in range(repeats)]
        arms.append(ArmRuns(name, {}, tuple(mean for mean in means if mean is not None), repeats))
    rules = Rules(metric="toks_per_s.mean", unit="tok/s", direction="highest", min_effect=0.02)
    answer = compare_arms(arms, rules=rules)
    return answer.recommended if answer.outcome == "significant" else None


def measured_rate(times: Floats) -> float | None:
    """The run's rate, None when it was never steady; as `measure` has it, without the intervals."""
    steps = np.arange(1, len(times) + 1)
    window = steady_window(steps, times, warmup_steps=WARMUP)
    inside = times[window.contains(steps)]
    return TOKENS * len(inside) / float(inside.sum()) if window.steady else None


def coverage(setting: Setting, trials: int, rng: np.random.Generator) -> tuple[int, int]:
    """Runs with a stated interval of their own rate, and those whose interval holds the truth."""
    stated = held = 0
    for n in range(trials):
        own = Setting(setting.phi, 0.0, setting.step_cv, setting.shape, setting.steps)
        stats = measure(collected(f"r{n}", step_times(own, rng)), warmup_steps=WARMUP).metrics["toks_per_s"]
        if stats.ci_low is not None and stats.ci_high is not None:
            stated += 1
            held += stats.ci_low <= RATE <= stats.ci_high
    return stated, held


def settings(full: bool) -> Iterator[Setting]:
    """Every combination that the promises are checked for, or the corners of it."""
    for shape in ("flat", "ramp", "bursts"):
        for phi in (0.0, 0.5, 0.8) if full else (0.0, 0.8):
            for run_cv in (0.0, 0.01, 0.02) if full else (0.0, 0.02):
                yield Setting(phi=phi, run_cv=run_cv, shape=shape)


def coverage_table(trials: int, full: bool, rng: np.random.Generator) -> list[str]:
    """Coverage of the interval of one run's mean rate, step noise 2 %."""
    rows = ["| φ | shape | steps | interval stated | holds the truth |", "|---|---|---|---|---|"]
    for shape in ("flat", "ramp", "bursts"):
        for phi in (0.0, 0.5, 0.8):
            for steps in (60, 120, 300) if full else (120, 300):
                one = Setting(phi=phi, shape=shape, steps=steps)
                stated, held = coverage(one, trials, rng)
                share = f"{100 * held / stated:.1f} % of {stated}" if stated else "–"
                rows.append(f"| {phi:g} | {shape} | {steps} | {100 * stated / trials:.1f} % | {share} |")
    return rows


def decision_table(trials: int, full: bool, rng: np.random.Generator) -> list[str]:
    """False decisions when the truth is on the wrong side of the bound by a hair, or when there is no difference."""
    rows = [
        "| φ | run CV | shape | steps | gate, 1 run: false PASS / FAIL | gate, 4 runs: false PASS / FAIL "
        "| gate, 1 run extended to 4: false PASS / FAIL | A/B, 4 + 4 runs: false winner |",
        "|---|---|---|---|---|---|---|---|",
    ]
    edges = (1.0001 * RATE, 0.9999 * RATE)
    for one in settings(full):
        cells = []
        for repeats in (1, 4):
            verdicts = [gate(one, repeats, edges, rng, n) for n in range(trials)]
            false_pass = sum(above == "PASS" for above, _ in verdicts) / trials
            false_fail = sum(below == "FAIL" for _, below in verdicts) / trials
            cells.append(f"{100 * false_pass:.1f} % / {100 * false_fail:.1f} %")
        verdicts = [extended_gate(one, edges, rng, n) for n in range(trials)]
        false_pass = sum(above == "PASS" for above, _ in verdicts) / trials
        false_fail = sum(below == "FAIL" for _, below in verdicts) / trials
        cells.append(f"{100 * false_pass:.1f} % / {100 * false_fail:.1f} %")
        winners = sum(compare(one, 4, 0.0, rng) is not None for _ in range(4 * trials)) / (4 * trials)
        rows.append(f"| {one.name} | {' | '.join(cells)} | {100 * winners:.1f} % |")
    return rows


def power_table(trials: int, full: bool, rng: np.random.Generator) -> list[str]:
    """How often real differences and clear margins are recognized."""
    rows = ["| φ | run CV | A/B, +3 %, 4 runs: right / wrong arm | gate 10 % below, 1 run: PASS |", "|---|---|---|---|"]
    for phi in (0.0, 0.5, 0.8) if full else (0.0, 0.8):
        for run_cv in (0.0, 0.01):
            one = Setting(phi=phi, run_cv=run_cv)
            found = [compare(one, 4, 0.03, rng) for _ in range(4 * trials)]
            passed = sum(gate(one, 1, [0.9 * RATE], rng, n) == ["PASS"] for n in range(trials)) / trials
            right, wrong = (found.count(arm) / len(found) for arm in ("b", "a"))
            rows.append(
                f"| {phi:g} | {100 * run_cv:g} % | {100 * right:.0f} % / {100 * wrong:.1f} % | {100 * passed:.0f} % |"
            )
    return rows


TABLES: tuple[tuple[str, str, Callable[[int, bool, np.random.Generator], list[str]]], ...] = (
    ("coverage", "Coverage of one run's own interval (nominal 95 %)", coverage_table),
    ("decisions", "False decisions", decision_table),
    ("power", "Power", power_table),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="every setting in place of the corners")
    parser.add_argument("--trials", type=int, default=25, help="simulated runs per setting (default: 25)")
    parser.add_argument("--only", choices=("coverage", "decisions", "power"), help="one table alone")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    for name, title, table in TABLES:
        if options.only not in (None, name):
            continue
        began = time.monotonic()
        rows = table(options.trials, options.full, np.random.default_rng(options.seed))
        print("\n".join([f"### {title}", "", *rows, ""]), flush=True)
        print(f"{title}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
