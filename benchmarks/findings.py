"""How often do the rules on curves, steps and ranks accuse a healthy run? False alarms by simulation, and power.

    python -m benchmarks.findings                 # a sample, half a minute
    python -m benchmarks.findings --trials 2000   # the table of docs/findings.md

Healthy runs have autocorrelated noise, heavy tails, ramps, spikes that recover and a curriculum's steps; sick ones what
each rule is for. Every run goes through the rule itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from validator.diagnose.bottlenecks import straggler
from validator.diagnose.divergence import diverging, what_is_learned_is_lost
from validator.diagnose.loss_curve import frozen_loss, frozen_validation
from validator.diagnose.repeated_data import repeated_data
from validator.diagnose.rule import Rule, RunFacts
from validator.diagnose.stalls import periodic_stall
from validator.diagnose.steadiness import rate_shift
from validator.model.plan import RunSpec
from validator.model.result import Result, Series, SourceFile

Floats = npt.NDArray[np.float64]
Make = Callable[[np.random.Generator, int, float, bool], RunFacts]
SOURCE = SourceFile(path="training.csv", sha256="0" * 64, bytes=0)


def facts(
    series: Mapping[str, Floats],
    by_rank: Mapping[int, Floats] | None = None,
    *,
    steps: npt.NDArray[np.int64] | None = None,
    validation: Floats | None = None,
) -> RunFacts:
    """A run that wrote these series, a row for each step or at `steps`, the ranks' own work, and evaluations at even
    distances."""
    columns = {name: _series(name, values, steps) for name, values in series.items()}
    if validation is not None:
        rows = len(next(iter(series.values())))
        at = np.linspace(0, rows, len(validation) + 1).astype(np.int64)[1:]
        columns["val_loss"] = _series("val_loss", validation, at)
    own = {rank: {"compute_time_s": _series("compute_time_s", one)} for rank, one in (by_rank or {}).items()}
    length = len(next(iter(series.values()))) if steps is None else int(steps[-1])
    spec = RunSpec(
        id="p/r1", phase="p", kind="train", launcher="python", argv=(), env={}, out="r", steps=length, timeout_s=60,
        warmup_steps=20, nproc=len(own),
    )  # fmt: skip
    result = Result("p/r1", columns, own, {}, None, None, None, (), ())
    return RunFacts(spec, result, None)


def _series(name: str, values: Floats, steps: npt.NDArray[np.int64] | None = None) -> Series:
    return Series(name, "", np.arange(1, len(values) + 1) if steps is None else steps, values, SOURCE)


def noise(rng: np.random.Generator, n: int, phi: float, heavy: bool) -> Floats:
    """Autocorrelated noise of unit variance; heavy tails are Student's with 3 degrees of freedom."""
    raw = rng.standard_t(3, n + 50) / np.sqrt(3.0) if heavy else rng.standard_normal(n + 50)
    colored: Floats = lfilter([np.sqrt(1 - phi**2)], [1.0, -phi], raw)[50:]
    return colored


def falling(n: int, first: float = 10.8, last: float = 3.0) -> Floats:
    """A power law from the first loss to the last."""
    x = np.arange(1, n + 1) ** -0.5
    curve_: Floats = last + (first - last) * (x - x[-1]) / (x[0] - x[-1])
    return curve_


def loss(shape: str, share: float) -> Make:
    """Runs whose loss has a healthy shape and noise of that share of its level."""

    def make(rng: np.random.Generator, n: int, phi: float, heavy: bool) -> RunFacts:
        e, base = noise(rng, n, phi, heavy), falling(n)
        if shape == "plateau":
            base = np.full(n, 3.0)
        if shape == "curriculum":
            base[n // 2 :] *= 1.1
        if shape == "spike":
            at = int(rng.integers(n // 4, n - n // 8))
            base[at : at + 3] *= 3.0
        values = base * (1 + share * e)
        if shape == "near zero":
            values = falling(n, 3.0, 0.002) * np.exp(share * e)
        if shape == "negative":
            values = -falling(n, 1.0, 5.0) * (1 + share * e)
        return facts({"loss": values})

    return make


def times(shape: str, cv: float) -> Make:
    """Runs whose time per step has a healthy shape."""

    def make(rng: np.random.Generator, n: int, phi: float, heavy: bool) -> RunFacts:
        base = np.ones(n)
        if shape == "warm-up":
            base += np.exp(-np.arange(n) / (n / 15))
        if shape == "thermal":
            base[n // 4 :] *= 1.015
        if shape == "ramp":
            base *= np.linspace(1, 1.02, n)
        return facts({"step_time_s": np.maximum(base * (1 + cv * noise(rng, n, phi, heavy)), 0.2)})

    return make


def work(count: int, cv: float, *, slow: float = 0.0, often: float = 1.0) -> Make:
    """Ranks that are alike within one percent; one of them may be slow in a share of the steps."""

    def make(rng: np.random.Generator, n: int, phi: float, heavy: bool) -> RunFacts:
        own = {}
        for rank in range(count):
            level = 1 + 0.01 * (rank / max(1, count - 1))
            values = level * np.maximum(1 + cv * noise(rng, n, phi, heavy), 0.2)
            if slow and rank == 0:
                values = values * np.where(rng.random(n) < often, 1 + slow, 1.0)
            own[rank] = values
        return facts({"step_time_s": np.maximum.reduce(list(own.values()))}, own)

    return make


def sick_loss(n_share: float, factor: float) -> Make:
    """A loss that rises by a factor over the last part."""

    def make(rng: np.random.Generator, n: int, phi: float, heavy: bool) -> RunFacts:
        base, first = falling(n), int(n * (1 - n_share))
        base[first:] *= np.linspace(1, factor, n - first)
        return facts({"loss": base * (1 + 0.02 * noise(rng, n, phi, heavy))})

    return make


def reward(share: float, *, lost: bool = False) -> Make:
    """A reward of episodes that rises to its level, with noise of that share of it; the last third may lose it all."""

    def make(rng: np.random.Generator, n: int, phi: float, heavy: bool) -> RunFacts:
        level = 20.0 + 180.0 * (1 - np.exp(-np.arange(n) / (n / 10)))
        if lost:
            level[2 * n // 3 :] = 20.0
        return facts({"ep_reward_mean": level + 200.0 * share * noise(rng, n, phi, heavy)})

    return make


def thrown_back(rng: np.random.Generator, n: int, phi: float, heavy: bool) -> RunFacts:
    """A loss that is thrown back at two thirds, to twice what it was, and learns again a part of what it had."""
    first = 2 * n // 3
    base = np.concatenate([falling(first, 4.7, 3.1), falling(n - first, 6.2, 4.5)])
    return facts({"loss": base * (1 + 0.01 * noise(rng, n, phi, heavy))})


def bar(share: float, pause: float) -> Make:
    """Rows of 4 to 10 steps, as a bar is drawn, with a pause of as many step times every 9 steps."""

    def make(rng: np.random.Generator, n: int, phi: float, heavy: bool) -> RunFacts:
        steps = np.cumsum(rng.integers(4, 11, n))
        whole = int(steps[-1])
        each = np.maximum(1 + share * noise(rng, whole, phi, heavy), 0.2)
        each[8::9] += pause
        covered = np.diff(steps, prepend=0)
        means = np.diff(np.cumsum(each)[steps - 1], prepend=0.0) / covered
        return facts({"step_time_s": means}, steps=steps)

    return make


def printed_loss(shape: str, share: float, places: int, *, frozen: float = 0.0) -> Make:
    """A loss as it is printed: of each step, its running mean or renewed every 10 rows; a part at the end is frozen."""

    def make(rng: np.random.Generator, n: int, phi: float, heavy: bool) -> RunFacts:
        base = np.full(n, 3.0) if shape == "plateau" else falling(n)
        values = np.round(base * (1 + share * noise(rng, n, phi, heavy)), places)
        if shape == "running mean":
            values = np.round(np.cumsum(values) / np.arange(1, n + 1), places)
        if shape == "every 10 rows":
            values = values[np.arange(n) // 10 * 10]
        first = n - round(n * frozen)
        values[first:] = values[first - 1]
        return facts({"loss": values})

    return make


def evaluated(shape: str, *, noise_share: float = 0.02, every: int = 15, places: int = 4) -> Make:
    """A loss and evaluations every so many rows, of other data: they follow, settle, overfit in many passes over the
    data, rise in the second half, stay where they were at first (few batches by heart), or freeze half-way."""

    def make(rng: np.random.Generator, n: int, phi: float, heavy: bool) -> RunFacts:
        count = n // every
        at, share = np.arange(1, count + 1) / count, noise(rng, count, phi, heavy) * noise_share
        rows = falling(n) * (1 + 0.05 * noise(rng, n, phi, heavy))
        if shape in ("overfit", "by heart"):
            rows = falling(n, 3.0, 0.02) * np.exp(0.1 * noise(rng, n, phi, heavy))
        others = 3.2 + 5.0 * np.exp(-4 * at)
        if shape == "settle":
            others = 3.0 + rng.uniform(0.1, 3.0) * rng.uniform(0.2, 0.9) ** np.arange(count)
        if shape == "overfit":
            others = 0.5 + 1.2 * np.exp(-8 * at) + 0.3 * at
        if shape == "rise":
            others = others + 5.0 * np.maximum(at - 0.4, 0)
        if shape == "by heart":
            others = 2.8 + rng.uniform(0.0, 2.0) * at
        if shape == "freeze":
            others[count // 2 :], share[count // 2 :] = others[count // 2], share[count // 2]
        return facts({"loss": rows}, validation=np.round(others * (1 + share), places))

    return make


def sick_times(what: str) -> Make:
    """A pause at every 7th step, one at 3 % of the steps, or a level that is 10 % slower from the middle on."""

    def make(rng: np.random.Generator, n: int, phi: float, heavy: bool) -> RunFacts:
        base = 1 + 0.02 * noise(rng, n, phi, heavy)
        if what == "every 7th":
            base[6::7] += 0.5
        if what == "now and then":
            base += (rng.random(n) < 0.03) * 0.7
        if what == "10 % slower":
            base[n // 2 :] *= 1.1
        return facts({"step_time_s": np.maximum(base, 0.2)})

    return make


@dataclass(frozen=True)
class Line:
    """A row of the table: a rule, what it is given, and whether it should speak."""

    what: str
    rule: Rule[RunFacts]
    make: Make
    sick: bool = False


LINES = (
    *(
        Line(f"{shape}, noise {100 * share:g} %", diverging, loss(shape, share))
        for shape, share in (
            *(("falling", 0.02), ("falling", 0.1), ("plateau", 0.1), ("curriculum", 0.02), ("spike", 0.02)),
            *(("near zero", 0.3), ("negative", 0.1)),
        )
    ),
    *(
        Line(f"{shape}, noise {100 * share:g} %", repeated_data, loss(shape, share))
        for shape, share in (("falling", 0.02), ("plateau", 0.1), ("near zero", 0.05), ("near zero", 0.3))
    ),
    *(
        Line(
            f"evaluations that {shape}, noise {100 * share:g} %", rule, evaluated(shape, noise_share=share, every=every)
        )
        for rule, every, share, shapes in (
            (repeated_data, 15, 0.1, ("follow", "settle", "overfit")),
            (what_is_learned_is_lost, 15, 0.02, ("follow", "settle")),
            (what_is_learned_is_lost, 20, 0.05, ("follow", "settle")),
        )
        for shape in shapes
    ),
    *(
        Line(
            f"evaluations that {shape}, noise {100 * share:g} %, {places} decimals",
            frozen_validation,
            evaluated(shape, noise_share=share, places=places, every=every),
        )
        for shape, share, places, every in (
            *(("settle", 0.0, 2, 15), ("settle", 0.0, 3, 15), ("settle", 0.0, 4, 5), ("settle", 0.001, 3, 15)),
            *(("settle", 0.001, 2, 5), ("follow", 0.001, 3, 15)),
        )
    ),
    *(
        Line(f"{shape}, noise {100 * share:g} %, {places} decimals", frozen_loss, printed_loss(shape, share, places))
        for shape, share, places in (
            *(("plateau", 0.001, 2), ("plateau", 0.005, 2), ("plateau", 0.02, 4), ("falling", 0.005, 2)),
            *(("running mean", 0.02, 2), ("running mean", 0.02, 4), ("every 10 rows", 0.02, 4)),
        )
    ),
    *(
        Line(f"{shape}, noise {100 * cv:g} %", rule, times(shape, cv))
        for rule in (periodic_stall, rate_shift)
        for shape, cv in (("flat", 0.02), ("flat", 0.05), ("warm-up", 0.02), ("thermal", 0.01), ("ramp", 0.01))
    ),
    *(
        Line(f"{count} ranks, noise {100 * cv:g} %", straggler, work(count, cv))
        for count, cv in ((2, 0.02), (8, 0.02), (8, 0.05))
    ),
    *(Line(f"rows of a bar, noise {100 * cv:g} %", periodic_stall, bar(cv, 0.0)) for cv in (0.05, 0.3)),
    *(Line(f"reward, noise {100 * one:g} %", what_is_learned_is_lost, reward(one)) for one in (0.1, 0.3)),
    Line("reward lost at two thirds, noise 10 %", what_is_learned_is_lost, reward(0.1, lost=True), True),
    Line("thrown back at two thirds", diverging, thrown_back, True),
    Line("learned by heart, evaluations that stay or rise", repeated_data, evaluated("by heart"), True),
    Line("evaluations that rise", what_is_learned_is_lost, evaluated("rise"), True),
    Line(
        "evaluations that freeze half-way, 3 decimals", frozen_validation, evaluated("freeze", places=3, every=10), True
    ),
    Line("rows of a bar, ten times a step every 9", periodic_stall, bar(0.1, 10.0), True),
    Line("× 1.5 over the last fifth", diverging, sick_loss(0.2, 1.5), True),
    Line("frozen over the last fifth, 4 decimals", frozen_loss, printed_loss("falling", 0.02, 4, frozen=0.2), True),
    Line("frozen over the last fifth, 2 decimals", frozen_loss, printed_loss("falling", 0.02, 2, frozen=0.2), True),
    Line("+50 % at every 7th", periodic_stall, sick_times("every 7th"), True),
    Line("+70 % in 3 % of steps", periodic_stall, sick_times("now and then"), True),
    Line("10 % slower half-way", rate_shift, sick_times("10 % slower"), True),
    Line("8 ranks, one 5 % slower", straggler, work(8, 0.02, slow=0.05), True),
    Line("8 ranks, one 50 % slower in 10 %", straggler, work(8, 0.02, slow=0.5, often=0.1), True),
)


def shares(line: Line, *, trials: int, steps: int, phi: float, heavy: bool) -> tuple[float, float]:
    """Share of the runs with a finding that matters (a veto or a warning), and with any."""
    rng = np.random.default_rng([steps, int(100 * phi), heavy, trials])
    loud = told = 0
    for _ in range(trials):
        found = list(line.rule.findings(line.make(rng, steps, phi, heavy)))
        told += bool(found)
        loud += any(one.severity != "info" for one in found)
    return loud / trials, told / trials


CELLS = tuple((n, phi, heavy) for n in (60, 300) for phi in (0.0, 0.5, 0.9) for heavy in (False, True))


def main(argv: list[str] | None = None) -> int:
    """Print the table; 1 when a rule accuses more than 1 % of the healthy runs of some kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=40, help="runs of each cell")
    parser.add_argument("--only", default="", help="a code")
    chosen = parser.parse_args(argv)
    print("| code | runs | veto or warning, mean | worst cell | any finding, mean | worst cell |")
    print("|---|---|---|---|---|---|")
    worst = 0.0
    for line in LINES:
        if chosen.only not in line.rule.code:
            continue
        cells = [shares(line, trials=chosen.trials, steps=n, phi=p, heavy=h) for n, p, h in CELLS]
        order = min if line.sick else max
        loud, told = ([cell[i] for cell in cells] for i in (0, 1))
        print(
            f"| `{line.rule.code}` | {'**' if line.sick else ''}{line.what}{'**' if line.sick else ''} | "
            + " | ".join(f"{100 * one:.1f} %" for one in (np.mean(loud), order(loud), np.mean(told), order(told)))
            + " |",
            flush=True,
        )
        worst = worst if line.sick else max(worst, float(np.mean(loud)))
    return 1 if worst > 0.01 else 0


if __name__ == "__main__":
    sys.exit(main())
