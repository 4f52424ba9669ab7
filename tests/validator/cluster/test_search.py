"""The slow-node search: who is accused, on which evidence, and who is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.fleet import FAULTS, Fleet, searched
from validator.cluster.judgement import Judgement
from validator.cluster.rounds import Reading, Round
from validator.cluster.search import Rules, Search
from validator.model.fleet import FleetMeasure, FleetSubject

RATE = FleetMeasure(name="rate", unit="tok/s", per="node")
GEMM = FleetMeasure(name="gemm", unit="TFLOP/s", per="node")
BANDWIDTH = FleetMeasure(name="busbw", unit="GB/s", per="group")


@dataclass
class Machines:
    """Nodes whose speed is what the test says: factors of nodes, GPUs and links, and noise of half a percent."""

    count: int
    alone: dict[int, float] = field(default_factory=dict)
    network: dict[int, float] = field(default_factory=dict)
    links: dict[frozenset[int], float] = field(default_factory=dict)
    gpus: dict[tuple[int, int], float] = field(default_factory=dict)
    factor: Callable[[Round, str, tuple[int, ...]], float] = lambda *_: 1.0
    noise: float = 0.005
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        self.nodes = [f"n{number}" for number in range(self.count)]
        self.rng = np.random.default_rng(7)
        self.rounds: list[Round] = []

    def readings(self, round_: Round) -> list[Reading]:
        self.rounds.append(round_)
        return [
            Reading(name, group, self.values(round_, name, tuple(int(node[1:]) for node in group)))
            for name in round_.measures
            for group in round_.groups
        ]

    def values(self, round_: Round, name: str, ids: tuple[int, ...]) -> npt.NDArray[np.float64]:
        shape = (round_.repeats, 4) if name == "gemm" else (round_.repeats,)
        values = 100.0 * np.exp(self.noise * self.rng.standard_normal(shape)) * self.factor(round_, name, ids)
        if name == "rate":
            return values * self.alone.get(ids[0], 1.0)
        if name == "gemm":
            return values * [self.gpus.get((ids[0], gpu), 1.0) for gpu in range(4)]
        worst = min(self.network.get(one, 1.0) for one in ids)
        return values * worst * self.links.get(frozenset(ids), 1.0)

    def search(self, *measures: FleetMeasure) -> Search:
        search = Search(self.nodes, measures or (RATE, GEMM, BANDWIDTH), self.rules)
        while (round_ := search.next()) is not None:
            search.add(self.readings(round_))
        return search

    def judged(self, *measures: FleetMeasure) -> Judgement:
        return self.search(*measures).judgement()


def _accused(judgement: Judgement) -> set[tuple[str, FleetSubject]]:
    return {(one.code, one.subject) for one in judgement.slow}


def _states(judgement: Judgement) -> dict[str, str]:
    return {one.name: one.state for one in judgement.nodes}


@pytest.mark.parametrize("count", [4, 5, 8, 20])
def test_nobody_is_accused_in_a_healthy_fleet_and_all_are_good(count: int) -> None:
    judgement = Machines(count).judged()
    assert not judgement.slow
    assert set(judgement.compatible) == set(Machines(count).nodes)
    assert judgement.complete
    assert [round_.stage for round_ in judgement.rounds if round_.stage in ("confirm", "part")] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_simulated_fleets_are_searched_and_no_healthy_one_is_accused(fault: str) -> None:
    found = []
    for seed in range(6):
        fleet = Fleet(8, fault, "normal", 1, np.random.default_rng(seed))
        judgement, _ = searched(fleet, seed)
        assert all(fleet.true(one) for one in judgement.slow)
        found.append(bool(judgement.slow))
    assert sum(found) >= (0 if fault == "healthy" else 3)


def test_a_node_that_is_slow_alone_is_confirmed_beside_known_good_ones() -> None:
    machines = Machines(6, alone={2: 0.92})
    judgement = machines.judged()
    assert _accused(judgement) == {("slow-node", FleetSubject(nodes=("n2",)))}
    (found,) = judgement.slow
    assert found.measure == "rate"
    assert found.low < -0.08 < found.high < -0.03
    assert found.by == "alone"
    assert found.repeats >= 4
    assert judgement.compatible.count("n2") == 0
    assert len(judgement.compatible) == 5
    confirming = [round_ for round_ in judgement.rounds if round_.stage == "confirm"]
    assert confirming
    assert all(set(round_.groups) == {(node,) for node in machines.nodes} for round_ in confirming)


def test_accusations_rest_on_new_readings_alone() -> None:
    def once(round_: Round, name: str, ids: tuple[int, ...]) -> float:
        return 0.9 if round_.stage == "each" and name == "rate" and ids == (2,) else 1.0

    judgement = Machines(6, factor=once).judged()
    assert not judgement.slow
    (suspect,) = judgement.outliers
    assert (suspect.subject, suspect.outcome) == (FleetSubject(nodes=("n2",)), "acquitted")
    assert abs(suspect.effect) < 0.01
    assert _states(judgement)["n2"] == "good"


def test_a_slow_network_is_confirmed_by_swapping_partners() -> None:
    judgement = Machines(8, network={3: 0.9}).judged()
    assert _accused(judgement) == {("slow-node", FleetSubject(nodes=("n3",)))}
    (found,) = judgement.slow
    assert (found.measure, found.by) == ("busbw", "swap")


def test_a_slow_link_is_not_called_a_slow_node() -> None:
    judgement = Machines(6, links={frozenset((1, 4)): 0.85}).judged()
    assert _accused(judgement) == {("slow-link", FleetSubject(nodes=("n1", "n4")))}
    assert set(_states(judgement).values()) == {"good"}
    assert len({"n1", "n4"} & set(judgement.compatible)) == 1  # all but one of its ends can work together
    (found,) = judgement.slow
    assert found.low < -0.15 < found.high


@pytest.mark.parametrize("where", ["alone", "network"])
def test_two_slow_nodes_are_both_found(where: str) -> None:
    judgement = Machines(8, **{where: {1: 0.93, 6: 0.9}}).judged()
    assert _accused(judgement) == {
        ("slow-node", FleetSubject(nodes=("n1",))),
        ("slow-node", FleetSubject(nodes=("n6",))),
    }
    assert len(judgement.compatible) == 6


@pytest.mark.parametrize("slow", [0.7, 0.4])
@pytest.mark.parametrize(("count", "nodes"), [(4, (1,)), (5, (1,)), (6, (1, 2)), (8, (1, 2))])
def test_a_very_slow_network_is_neither_noise_nor_slow_links(count: int, nodes: tuple[int, ...], slow: float) -> None:
    """With four nodes half of all pairs have the slow one: the usual distance from the median pair is the fault's."""
    judgement = Machines(count, network=dict.fromkeys(nodes, slow), noise=0.03).judged(BANDWIDTH)
    assert _accused(judgement) == {("slow-node", FleetSubject(nodes=(f"n{node}",))) for node in nodes}


@pytest.mark.parametrize("noise", [0.001, 0.005, 0.03])
@pytest.mark.parametrize("slow", [0.9, 0.5])
def test_of_four_nodes_a_slow_link_is_not_taken_for_a_fast_one_opposite(slow: float, noise: float) -> None:
    if noise == 0.03 and slow == 0.9:
        return  # three times the noise, in two rounds: it stays open
    judgement = Machines(4, links={frozenset((0, 2)): slow}, noise=noise).judged(BANDWIDTH)
    assert _accused(judgement) == {("slow-link", FleetSubject(nodes=("n0", "n2")))}


def test_three_slow_nodes_of_eight_do_not_hide_each_other() -> None:
    judgement = Machines(8, alone={1: 0.92, 4: 0.93, 6: 0.91}).judged()
    assert {one.subject.nodes[0] for one in judgement.slow} == {"n1", "n4", "n6"}


@pytest.mark.parametrize("count", [2, 3])
def test_few_healthy_nodes_of_a_noisy_measure_are_measured_again_before_they_are_doubted(count: int) -> None:
    """Repeats of one GPU's matrix product varied by 4 %; four of them held a healthy pair of nodes back."""
    doubted = []
    for seed in range(60):
        machines = Machines(count, noise=0.04)
        machines.rng = np.random.default_rng(seed)
        doubted.append(set(_states(machines.judged(RATE)).values()) != {"good"})
    assert sum(doubted) <= 4, sum(doubted)
    slow = Machines(count, noise=0.04, alone={1: 0.85}).judged(RATE)
    assert [one.outcome for one in slow.outliers] == ["differs"], "what is truly slow still is after the new readings"


@pytest.mark.parametrize("slow", [(0, 1), (0, 1, 2)])
def test_without_a_majority_nobody_is_accused_but_nobody_is_good(slow: tuple[int, ...]) -> None:
    judgement = Machines(4, alone=dict.fromkeys(slow, 0.9)).judged(RATE)
    assert not judgement.slow or len(slow) == 3
    if len(slow) == 2:
        assert {one.outcome for one in judgement.outliers} == {"differs"}
        assert {_states(judgement)[f"n{one}"] for one in slow} == {"inconclusive"}


BOUNDED = FleetMeasure(name="rate", unit="tok/s", per="node", least=90.0, accuses=True)


@pytest.mark.parametrize("count", [2, 3])
def test_of_few_nodes_a_public_bound_names_the_slow_one(count: int) -> None:
    judgement = Machines(count, alone={1: 0.42}).judged(BOUNDED)
    (slow,) = judgement.slow
    assert (slow.subject, slow.by) == (FleetSubject(nodes=("n1",)), "bound")
    assert _states(judgement) == {f"n{one}": "slow" if one == 1 else "good" for one in range(count)}
    assert judgement.compatible == tuple(f"n{one}" for one in range(count) if one != 1) or count == 3


def test_a_bound_that_is_not_between_two_nodes_accuses_none_of_them() -> None:
    both_reach = Machines(2, alone={1: 0.93}).judged(BOUNDED)
    assert (both_reach.slow, _states(both_reach)["n1"]) == ((), "inconclusive")
    both_miss = Machines(2, alone={0: 0.8, 1: 0.4}).judged(BOUNDED)
    assert both_miss.slow == ()
    assert set(_states(both_miss).values()) == {"inconclusive"}, "the faster one misses the bound as well"
    shown = Machines(2, alone={1: 0.42}).judged(FleetMeasure(name="rate", unit="tok/s", per="node", least=90.0))
    assert (shown.slow, _states(shown)) == ((), {"n0": "good", "n1": "inconclusive"}), (
        "of another product: it acquits alone"
    )


@pytest.mark.parametrize("count", [2, 3])
def test_two_or_three_nodes_differ_and_none_is_accused(count: int) -> None:
    judgement = Machines(count, alone={1: 0.9}).judged()
    assert not judgement.slow
    (found,) = judgement.outliers
    assert (found.outcome, found.subject, found.measure) == ("differs", FleetSubject(nodes=("n1",)), "rate")
    assert found.against is not None
    assert found.high < -0.03
    assert _states(judgement)["n1"] == "inconclusive"
    assert not Machines(count).judged().outliers
    assert len(Machines(count).judged().compatible) == count


def test_pairs_of_three_nodes_differ() -> None:
    judgement = Machines(3, network={1: 0.8}).judged()
    assert not judgement.slow
    assert {one.outcome for one in judgement.outliers} == {"differs"}
    assert all(one.subject.kind == "link" for one in judgement.outliers)


def test_one_node_has_nothing_to_be_compared_with_but_its_gpus_have() -> None:
    assert Machines(1).judged().compatible == ("n0",)
    assert Machines(1, alone={0: 0.5}).judged().compatible == ("n0",)
    judgement = Machines(1, gpus={(0, 2): 0.9}).judged()
    assert _accused(judgement) == {("slow-node", FleetSubject(nodes=("n0",), gpu=2))}


def test_a_slow_gpu_is_named_and_its_node_is_not_good() -> None:
    judgement = Machines(6, gpus={(4, 1): 0.9}).judged()
    assert _accused(judgement) == {("slow-node", FleetSubject(nodes=("n4",), gpu=1))}
    assert _states(judgement)["n4"] == "slow"


def test_a_slow_node_is_one_finding_and_not_one_for_each_of_its_gpus() -> None:
    judgement = Machines(6, gpus={(4, gpu): 0.9 for gpu in range(4)}).judged(GEMM)
    assert _accused(judgement) == {("slow-node", FleetSubject(nodes=("n4",)))}


def test_a_node_that_is_slow_now_and_then_is_found_and_said_to_be() -> None:
    class Sometimes(Machines):
        def values(self, round_: Round, name: str, ids: tuple[int, ...]) -> npt.NDArray[np.float64]:
            values = super().values(round_, name, ids)
            if name == "rate" and ids == (5,):
                values[1::4] *= 0.7
            return values

    judgement = Sometimes(8).judged(RATE)
    (found,) = judgement.slow
    assert found.subject == FleetSubject(nodes=("n5",))
    assert found.intermittent
    assert found.often == pytest.approx(0.25)


def test_a_single_slow_repeat_accuses_nobody() -> None:
    class Once(Machines):
        def values(self, round_: Round, name: str, ids: tuple[int, ...]) -> npt.NDArray[np.float64]:
            values = super().values(round_, name, ids)
            if name == "rate" and ids == (5,) and round_.stage == "each":
                values[0] *= 0.5
            return values

    judgement = Once(8).judged(RATE)
    assert not judgement.slow
    assert _states(judgement)["n5"] == "good"


def test_the_whole_fleet_being_slower_later_accuses_nobody() -> None:
    def drift(round_: Round, name: str, ids: tuple[int, ...]) -> float:
        return 0.9 if round_.stage == "confirm" else 1.0

    judgement = Machines(8, alone={2: 0.92}, network={3: 0.9}, factor=drift).judged()
    assert {one.subject.nodes[0] for one in judgement.slow} == {"n2", "n3"}


def test_less_than_the_minimum_effect_is_no_accusation_however_certain() -> None:
    judgement = Machines(8, alone={2: 0.985}, network={3: 0.98}, noise=0.0005).judged()
    assert not judgement.slow
    assert len(judgement.compatible) == 8


def test_a_measure_that_varies_too_much_to_judge_is_not_an_accusation() -> None:
    assert not Machines(8, alone={2: 0.95}, noise=0.08).judged().slow


def test_a_node_that_never_answers_is_unmeasured_and_no_part_of_pairs() -> None:
    class Silent(Machines):
        def readings(self, round_: Round) -> list[Reading]:
            return [one for one in super().readings(round_) if "n3" not in one.group]

    machines = Silent(8, alone={5: 0.9})
    judgement = machines.judged()
    assert _accused(judgement) == {("slow-node", FleetSubject(nodes=("n5",)))}
    assert _states(judgement)["n3"] == "unmeasured"
    assert not any("n3" in pair for round_ in machines.rounds if round_.stage == "pairs" for pair in round_.groups)


def test_missing_repeats_are_not_slow_ones() -> None:
    class Gaps(Machines):
        def values(self, round_: Round, name: str, ids: tuple[int, ...]) -> npt.NDArray[np.float64]:
            values = super().values(round_, name, ids)
            if ids == (3,) and name == "rate":
                values[0] = np.nan
            return values[: 1 if ids == (4,) and name == "gemm" else None]

    judgement = Gaps(8).judged()
    assert not judgement.outliers
    states = _states(judgement)
    assert (states["n3"], states["n4"], states["n5"]) == ("unmeasured", "unmeasured", "good")
    (standing,) = (one for one in judgement.nodes if one.name == "n3")
    assert "rate" in standing.why


def test_a_pair_that_gives_nothing_is_measured_again_and_never_called_slow() -> None:
    def dead(round_: Round, name: str, ids: tuple[int, ...]) -> float:
        return float("nan") if ids in ((1, 4), (4, 1)) else 1.0

    judgement = Machines(6, factor=dead).judged()
    assert not judgement.slow
    (found,) = judgement.outliers
    assert (found.code, found.outcome, found.repeats) == ("slow-link", "inconclusive", 0)
    assert len({"n1", "n4"} & set(judgement.compatible)) == 1


def test_nothing_measured_at_all_is_no_evidence() -> None:
    class Dead(Machines):
        def readings(self, round_: Round) -> list[Reading]:
            return []

    judgement = Dead(4).judged()
    assert not judgement.outliers
    assert set(_states(judgement).values()) == {"unmeasured"}
    assert judgement.compatible == ()


def test_nodes_that_are_slow_only_together_are_halved() -> None:
    def together(round_: Round, name: str, ids: tuple[int, ...]) -> float:
        return float("nan") if len(ids) > 2 and {1, 2} <= set(ids) else 1.0

    machines = Machines(8, factor=together)
    judgement = machines.judged(BANDWIDTH)
    (found,) = judgement.together
    assert {"n1", "n2"} <= set(found.nodes)
    assert np.isnan(found.value)
    assert found.reference == pytest.approx(100, rel=0.02)
    assert not judgement.slow
    assert not set(found.nodes) <= set(judgement.compatible)
    assert [round_.stage for round_ in judgement.rounds].count("whole") == 1


def test_where_all_together_are_fine_nothing_is_halved() -> None:
    stages = [round_.stage for round_ in Machines(8).judged(BANDWIDTH).rounds]
    assert stages[-1] == "whole"
    rules = Rules(whole=None, rounds=3)
    assert [one.stage for one in Machines(8, rules=rules).judged(BANDWIDTH).rounds] == ["pairs"] * 3


def test_the_best_nodes_come_first() -> None:
    machines = Machines(5, alone={0: 0.99, 3: 1.02, 4: 0.985}, noise=0.0005)
    assert machines.judged(RATE).compatible[0] == "n3"
    assert machines.judged(RATE).compatible[-1] == "n4"


def test_readings_that_are_added_again_give_the_same_rounds_and_judgement() -> None:
    fleet = Fleet(8, "slow network", "normal", 2, np.random.default_rng(3))
    first, kept = Search(fleet.nodes, (RATE, BANDWIDTH)), []
    while (round_ := first.next()) is not None:
        assert first.next() is round_
        readings = (
            [
                Reading(one.measure, one.group, one.values)
                for one in fleet.measure(Round(round_.stage, round_.groups, ("busbw",), round_.repeats))
            ]
            if len(round_.groups[0]) > 1
            else [Reading("rate", group, [1.0] * round_.repeats) for group in round_.groups]
        )
        kept.append((round_, readings))
        first.add(readings)
    again = Search(fleet.nodes, (RATE, BANDWIDTH))
    for round_, readings in kept:
        assert again.next() == round_
        again.add(readings)
    assert repr(again.judgement()) == repr(first.judgement())


def test_a_search_in_progress_accuses_nobody() -> None:
    machines = Machines(6, alone={2: 0.8})
    search = Search(machines.nodes, (RATE,))
    search.add(machines.readings(search.next()))  # type: ignore[arg-type]
    judgement = search.judgement()
    assert not judgement.complete
    assert not judgement.slow
    (suspect,) = judgement.outliers
    assert suspect.outcome == "suspected"
    assert _states(judgement)["n2"] == "inconclusive"


def test_readings_of_another_round_are_refused_by_name() -> None:
    search = Search(["a", "b"], (RATE,))
    with pytest.raises(ValueError, match="rate of \\('c',\\) is not in the round"):
        search.add([Reading("rate", ("c",), [1.0])])
    search.add([])
    with pytest.raises(ValueError, match="complete"):
        search.add([])
    with pytest.raises(ValueError, match="names a node twice"):
        Search(["a", "a"], (RATE,))


def test_with_one_round_of_pairs_a_slow_pair_is_settled_by_swaps() -> None:
    judgement = Machines(8, network={3: 0.85}, rules=Rules(rounds=1)).judged(BANDWIDTH)
    assert _accused(judgement) == {("slow-node", FleetSubject(nodes=("n3",)))}


def test_a_node_near_the_smallest_effect_is_used_and_not_accused() -> None:
    machines = Machines(8, alone={3: 0.971}, noise=0.02)
    machines.rng = np.random.default_rng(1)
    judgement = machines.judged(RATE)
    (suspect,) = [one for one in judgement.outliers if one.subject == FleetSubject(nodes=("n3",))]
    assert (suspect.outcome, suspect.tolerable) == ("inconclusive", True)
    assert -0.06 < suspect.low < -0.03 < suspect.effect
    assert _states(judgement)["n3"] == "good"
    assert judgement.compatible[-1] == "n3"


def test_a_node_that_may_be_twice_as_slow_as_what_counts_is_not_used() -> None:
    judgement = Machines(8, alone={3: 0.95}, noise=0.01).judged(RATE)
    assert "n3" not in judgement.compatible
