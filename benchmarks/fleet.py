"""Does the slow-node search keep its promises? Simulated fleets whose truth is known, through the search itself.

The model was fixed before the search was first run on it. All effects are logarithms, relative to a healthy median:

- a node's computing and its network each vary by 0.8 % between healthy nodes (normal), a GPU in its node by 0.5 %, a
  link by 0.3 %; each reading varies by 1 % from repeat to repeat, independently;
- measured alone: `trainer`, one rate a node, and `gemm`, one rate for each of 8 GPUs; in pairs: `busbw`, the sum of
  both ends' network effects and the link's;
- faults multiply what the node, GPU or link has anyway, so that a node that is "5 % slow" is truly 3.4 to 6.6 % slow
  in 95 % of cases. `slow node`: 5 % in the trainer alone. `slow network`: 5 % in all of its pairs. `slow link`: 5 % in
  one pair. `slow GPU`: 5 % in gemm and trainer. `intermittent`: the trainer is 30 % slower in 30 % of its repeats, at
  random. A fleet has one, two or three faults of a kind, on different nodes;
- robustness: `heavy tails` (the noise is Student's t with 3 degrees of freedom, of the same variance), `rack` (nodes in
  racks of four share a constant effect of 0.5 % and noise of 0.7 % in each repeat), `autocorrelated` (noise of lag-1
  correlation 0.5 between repeats of a round), `weaker end` (a pair is as fast as its slower end, not the sum of both).

    python -m benchmarks.fleet                        # a sample, a minute
    python -m benchmarks.fleet --full --trials 1000   # the tables of docs/cluster.md, with OPENBLAS_NUM_THREADS=1

Bars: at most 1 % of fleets with a false accusation; a node that is 5 % slow, alone or in its network, is found in at
least 95 %; the search itself takes at most 2 s of CPU for 512 nodes. An accusation is false if the node's computing
or network, the GPU or the link is truly less than 3 % slower than the healthy median, whether it had a fault or not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from validator.cluster.judgement import Judgement
from validator.cluster.rounds import Reading, Round
from validator.cluster.search import Rules, Search
from validator.model.fleet import FleetMeasure, FleetOutlier
from validator.stats.distributions import binomial_above

__all__ = ["FAULTS", "MEASURES", "NOISES", "Fleet", "Tally", "main", "searched", "seconds", "simulate"]

Floats = npt.NDArray[np.float64]

NODE, GPU, LINK, RUN = 0.008, 0.005, 0.003, 0.010
"""Standard deviations: between nodes, GPUs of a node, links; from repeat to repeat."""

RACK_OF, RACK, RACK_RUN = 4, 0.005, 0.007
GPUS = 8
SLOW = float(np.log(0.95))
OFTEN, DEEP = 0.3, float(np.log(0.7))
TRULY_SLOW = float(np.log(0.97))

FAULTS = ("healthy", "slow node", "slow network", "slow link", "slow GPU", "intermittent")
NOISES = ("normal", "heavy tails", "rack", "autocorrelated", "weaker end")

MEASURES = (
    FleetMeasure(name="trainer", unit="tok/s", per="node"),
    FleetMeasure(name="gemm", unit="TFLOP/s", per="node"),
    FleetMeasure(name="busbw", unit="GB/s", per="group"),
)
LEVELS = {"trainer": 50_000.0, "gemm": 700.0, "busbw": 180.0}

START_S = 20.0
REPEAT_S = {"trainer": 30.0, "gemm": 10.0, "busbw": 5.0}


def seconds(round_: Round) -> float:
    """What a round takes on rented machines: one start of processes, and each repeat of each measure."""
    return START_S + round_.repeats * sum(REPEAT_S[name] for name in round_.measures)


@dataclass(frozen=True)
class Truth:
    """True effects: of nodes by measure `[n]`, of GPUs `[n, 8]`; and which nodes, or ends of a link, have a fault."""

    nodes: dict[str, Floats]
    gpus: Floats
    faulty: tuple[tuple[int, ...], ...]


class Fleet:
    """A fleet of `size` nodes with `count` faults of one kind."""

    def __init__(self, size: int, fault: str, noise: str, count: int, rng: np.random.Generator) -> None:
        self.nodes = tuple(f"n{number:03d}" for number in range(size))
        self.fault, self.noise, self._rng = fault, noise, rng
        self._at = {node: number for number, node in enumerate(self.nodes)}
        self._racks = np.arange(size) // RACK_OF
        shared = RACK * rng.standard_normal(self._racks[-1] + 1)[self._racks] if noise == "rack" else np.zeros(size)
        compute, network = (NODE * rng.standard_normal(size) + shared for _ in range(2))
        gpus = GPU * rng.standard_normal((size, GPUS))
        self._links: dict[tuple[int, int], float] = {}
        self._slow_links: set[tuple[int, int]] = set()
        healthy = np.median(compute), np.median(network), np.median(compute[:, None] + gpus)
        chosen = rng.permutation(size)
        faulty: list[tuple[int, ...]] = []
        self._trainer, self._often = np.zeros(size), np.zeros(size)
        for number in range(0 if fault == "healthy" else count):
            node = int(chosen[number])
            faulty.append((node,))
            if fault == "slow node":
                self._trainer[node] = SLOW
            elif fault == "slow network":
                network[node] += SLOW
            elif fault == "slow GPU":
                gpus[node, int(rng.integers(GPUS))] += SLOW
                self._trainer[node] = SLOW
            elif fault == "intermittent":
                self._often[node] = OFTEN
            else:
                a, b = sorted((int(chosen[2 * number]), int(chosen[2 * number + 1])))
                faulty[-1] = (a, b)
                self._slow_links.add((a, b))
        self._compute, self._network, self._gpus = compute, network, gpus
        self.truth = Truth(
            {
                "trainer": compute + self._trainer + DEEP * self._often - healthy[0],
                "gemm": compute - healthy[0],
                "busbw": network - healthy[1],
            },
            compute[:, None] + gpus - healthy[2],
            tuple(faulty),
        )

    def link(self, a: int, b: int) -> float:
        """The true effect of the link between two nodes."""
        pair = (min(a, b), max(a, b))
        if pair not in self._links:
            slow = SLOW if pair in self._slow_links else 0.0
            self._links[pair] = LINK * float(self._rng.standard_normal()) + slow
        return self._links[pair]

    def true(self, one: FleetOutlier) -> bool:
        """Whether what is accused is truly slow by the minimum effect, whatever is the matter with it."""
        ids = [self._at[node] for node in one.subject.nodes]
        if len(ids) == 2:
            return self.link(*ids) <= TRULY_SLOW
        if one.subject.gpu is not None:
            return bool(self.truth.gpus[ids[0], one.subject.gpu] <= TRULY_SLOW)
        return bool(self.truth.nodes[one.measure][ids[0]] <= TRULY_SLOW)

    def slow(self, node: str) -> bool:
        """Whether a node is truly slow in anything, by its fault or by chance."""
        at = self._at[node]
        worst = min(float(self.truth.gpus[at].min()), *(float(one[at]) for one in self.truth.nodes.values()))
        return worst <= TRULY_SLOW

    def measure(self, round_: Round) -> list[Reading]:
        """What the nodes give in a round."""
        readings: list[Reading] = []
        for name in round_.measures:
            if name == "busbw":
                readings += self._together(round_)
            else:
                readings += self._alone(round_, name)
        return readings

    def _alone(self, round_: Round, name: str) -> list[Reading]:
        ids = np.array([self._at[group[0]] for group in round_.groups])
        shape = (len(ids), round_.repeats, GPUS if name == "gemm" else 1)
        logs = self._noise(shape) + self._compute[ids][:, None, None] + self._shared(round_.repeats)[ids][:, :, None]
        if name == "gemm":
            logs += self._gpus[ids][:, None, :]
        else:
            slow = self._rng.random((len(ids), round_.repeats)) < self._often[ids][:, None]
            logs[:, :, 0] += self._trainer[ids][:, None] + DEEP * slow
        values = LEVELS[name] * np.exp(logs if name == "gemm" else logs[:, :, 0])
        return [Reading(name, group, one) for group, one in zip(round_.groups, values, strict=True)]

    def _together(self, round_: Round) -> list[Reading]:
        noise = self._noise((len(round_.groups), round_.repeats, 1))[:, :, 0]
        shared = self._shared(round_.repeats)
        readings = []
        for group, own in zip(round_.groups, noise, strict=True):
            ids = [self._at[node] for node in group]
            ends = self._network[ids]
            if len(ids) > 2:
                level = float(ends.min())  # a ring is as fast as its slowest member
            else:
                level = float(ends.min() if self.noise == "weaker end" else ends.sum()) + self.link(*ids)
            values = LEVELS["busbw"] * np.exp(level + own + shared[ids].mean(axis=0))
            readings.append(Reading("busbw", group, values))
        return readings

    def _noise(self, shape: Sequence[int]) -> Floats:
        """Noise `[groups, repeats, gpus]` of the standard deviation `RUN`."""
        if self.noise == "heavy tails":
            return RUN * self._rng.standard_t(3, tuple(shape)) / np.sqrt(3.0)
        noise: Floats = self._rng.standard_normal(tuple(shape))
        if self.noise == "autocorrelated":
            for repeat in range(1, shape[1]):
                noise[:, repeat] = 0.5 * noise[:, repeat - 1] + np.sqrt(0.75) * noise[:, repeat]
        return RUN * noise

    def _shared(self, repeats: int) -> Floats:
        """Noise `[nodes, repeats]` that the nodes of a rack share."""
        if self.noise != "rack":
            return np.zeros((len(self.nodes), repeats))
        return RACK_RUN * self._rng.standard_normal((self._racks[-1] + 1, repeats))[self._racks]


def searched(fleet: Fleet, seed: int = 0) -> tuple[Judgement, float]:
    """A whole search over the fleet, and the CPU seconds that the search itself took."""
    began = time.process_time()
    search = Search(fleet.nodes, MEASURES, Rules(seed=seed))
    spent = time.process_time() - began
    while (round_ := search.next()) is not None:
        readings = fleet.measure(round_)
        began = time.process_time()
        search.add(readings)
        spent += time.process_time() - began
    began = time.process_time()
    judgement = search.judgement()
    return judgement, spent + time.process_time() - began


@dataclass
class Tally:
    """What the searches of one cell said: a number of each for every fleet. `counts` has fleets in which something is
    accused, or a healthy node is not good, and single nodes, GPUs and links that are slow, seen, found or undecided."""

    counts: Counter[str] = field(default_factory=Counter)
    rounds: list[int] = field(default_factory=list)
    minutes: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def add(self, fleet: Fleet, judgement: Judgement, cpu_s: float) -> None:
        """Compare a judgement with the truth."""
        counts = self.counts
        counts["accused"] += any(not fleet.true(one) for one in judgement.slow)
        states = {one.name: one.state for one in judgement.nodes}
        faulty = {fleet.nodes[node] for nodes in fleet.truth.faulty for node in nodes}
        counts["not good"] += any(
            state != "good" and node not in faulty and not fleet.slow(node) for node, state in states.items()
        )
        measured = {group for round_ in judgement.rounds for group in map(frozenset, round_.groups)}
        for nodes in fleet.truth.faulty:
            names = frozenset(fleet.nodes[node] for node in nodes)
            mine = [one for one in judgement.outliers if names == set(one.subject.nodes)]
            outcomes = {one.outcome for one in mine}
            counts["slow"] += 1
            counts["seen"] += names in measured
            counts["found"] += "confirmed" in outcomes
            counts["undecided"] += "inconclusive" in outcomes and "confirmed" not in outcomes
        self.rounds.append(len(judgement.rounds))
        self.minutes.append(sum(map(seconds, judgement.rounds)) / 60)
        self.cpu_s.append(cpu_s)


def simulate(size: int, fault: str, noise: str, trials: int, seed: int) -> Tally:
    """Search through fleets of one cell; a third of those with faults has one, two and three of them."""
    tally = Tally()
    cell = FAULTS.index(fault) * len(NOISES) + NOISES.index(noise)
    for trial in range(trials):
        fleet = Fleet(size, fault, noise, 1 + trial % 3, np.random.default_rng([seed, size, cell, trial]))
        tally.add(fleet, *searched(fleet, trial))
    return tally


def interval(count: int, of: int) -> tuple[float, float]:
    """Clopper and Pearson's 95 % interval of a share."""

    def solved(wanted: float, hits: int) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if binomial_above(hits, of, middle) < wanted else (low, middle)
        return low

    return (solved(0.025, count - 1) if count else 0.0, solved(0.975, count) if count < of else 1.0)


def share(count: int, of: int) -> str:
    """A share with its interval, in percent."""
    if not of:
        return "–"
    low, high = interval(count, of)
    return f"{100 * count / of:.1f} % ({100 * low:.1f}–{100 * high:.1f})"


HEAD = (
    "| nodes | fault | noise | fleets | falsely accused | a healthy node not good | found | found of measured "
    "| inconclusive | rounds | minutes, mean and largest | node-hours | CPU s, largest |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
)


def row(size: int, fault: str, noise: str, tally: Tally) -> str:
    """One row of the table."""
    counts, fleets = tally.counts, len(tally.rounds)
    minutes = sum(tally.minutes) / fleets
    parts = (
        str(size),
        fault,
        noise,
        str(fleets),
        share(counts["accused"], fleets),
        share(counts["not good"], fleets),
        share(counts["found"], counts["slow"]),
        share(counts["found"], counts["seen"]),
        share(counts["undecided"], counts["slow"]),
        f"{sum(tally.rounds) / fleets:.1f}",
        f"{minutes:.1f}, {max(tally.minutes):.1f}",
        f"{size * minutes / 60:.1f}",
        f"{max(tally.cpu_s):.2f}",
    )
    return f"| {' | '.join(parts)} |"


def cells(*, full: bool) -> Iterator[tuple[int, str, str]]:
    """Size, fault and noise of each row."""
    if not full:
        yield from ((8, fault, "normal") for fault in FAULTS)
        return
    for size in (8, 64, 512):
        yield from ((size, fault, "normal") for fault in FAULTS)
        yield from ((size, "healthy", noise) for noise in NOISES[1:])
        yield from ((size, fault, noise) for fault in ("slow node", "slow network") for noise in NOISES[1:])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="every cell in place of a few")
    parser.add_argument("--trials", type=int, default=50, help="fleets of each cell (default: 50)")
    parser.add_argument("--sizes", default="8,64,512", help="sizes of fleets among the cells (default: all)")
    parser.add_argument("--fault", help="only this fault")
    parser.add_argument("--noise", help="only this noise")
    parser.add_argument("--seed", type=int, default=21)
    given = parser.parse_args(arguments)
    sizes = [int(size) for size in given.sizes.split(",")]
    began = time.monotonic()
    print("\n".join(HEAD), flush=True)
    for size, fault, noise in cells(full=given.full):
        if size in sizes and given.fault in (None, fault) and given.noise in (None, noise):
            print(row(size, fault, noise, simulate(size, fault, noise, given.trials, given.seed)), flush=True)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
