"""Does the slow-node search keep its promises? Simulated fleets whose truth is known, through the search itself.

The model was fixed before the search was first run on it. All effects are logarithms, relative to a healthy median:

- a node's computing and its network each vary by 0.8 % between healthy nodes (normal), a GPU in its node by 0.5 %, a
  link by 0.3 %; each reading varies by 1 % from repeat to repeat, independently;
- measured alone: `trainer`, one rate a node, and `gemm`, one rate for each of 8 GPUs; in pairs: `busbw`, the sum of both
  ends' network effects and the link's;
- faults multiply what the node, GPU or link has anyway, so that a node that is "5 % slow" is truly 3.4 to 6.6 % slow in
  95 % of cases. `slow node`: 5 % in the trainer alone. `slow network`: 5 % in all of its pairs. `slow link`: 5 % in one
  pair. `slow GPU`: 5 % in gemm and trainer. `intermittent`: the trainer is 30 % slower in 30 % of its repeats, at random.
  A fleet has one, two or three faults of a kind, on different nodes;
- robustness: `heavy tails` (the noise is Student's t with 3 degrees of freedom, of the same variance), `rack` (nodes in
  racks of four share a constant effect of 0.5 % and noise of 0.7 % in each repeat), `autocorrelated` (noise of lag-1
  correlation 0.5 between repeats of a round), `weaker end` (a pair is as fast as its slower end, not the sum of both).

Bars: at most 1 % of fleets with a false accusation; a node that is 5 % slow, alone or in its network, is found in at
least 95 %; the search itself takes at most 2 s of CPU for 512 nodes. An accusation is false if the node's computing
or network, the GPU or the link is truly less than 3 % slower than the healthy median, whether it had a fault or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from validator.cluster.rounds import Measure, Reading, Round

__all__ = ["FAULTS", "MEASURES", "NOISES", "Fleet", "seconds"]

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
    Measure("trainer", "tok/s"),
    Measure("gemm", "TFLOP/s"),
    Measure("busbw", "GB/s", per="group"),
)
LEVELS = {"trainer": 50_000.0, "gemm": 700.0, "busbw": 180.0}

START_S = 20.0
REPEAT_S = {"trainer": 30.0, "gemm": 10.0, "busbw": 5.0}


def seconds(round_: Round) -> float:
    """What a round takes on rented machines: one start of processes, and each repeat of each measure."""
    return START_S + round_.repeats * sum(REPEAT_S[name] for name in round_.measures)


@dataclass(frozen=True)
class Truth:
    """True effects: of nodes in computing and network `[n]`, of GPUs `[n, 8]`; and who has a fault."""

    compute: Floats
    network: Floats
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
            compute + self._trainer - healthy[0],
            network - healthy[1],
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
