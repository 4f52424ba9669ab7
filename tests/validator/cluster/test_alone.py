"""Nodes that trained alone, repeat by repeat: the slow one is found, and healthy ones are left alone."""

from __future__ import annotations

import numpy as np
import pytest

from validator.cluster.alone import outliers_alone, rates_of

SPREAD = 0.003


def rates(nodes: int, seed: int, *, slow: float = 0.0, node: int = 1) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(0.0, SPREAD, (nodes, 4))
    drawn[node] += np.log1p(-slow)
    return 100 * np.exp(drawn)


@pytest.mark.parametrize("slow", [0.1, 0.3])
@pytest.mark.parametrize("nodes", [4, 8, 64])
def test_a_slow_node_is_named_with_its_interval(nodes: int, slow: float) -> None:
    for seed in range(20):
        (one,) = outliers_alone(rates(nodes, seed, slow=slow), measure="steps per second")
        assert (one.outcome, one.subject.nodes) == ("confirmed", ("1",))
        assert one.low < one.effect < one.high < -0.03
        assert one.by == "none"  # nothing was measured again


@pytest.mark.parametrize("nodes", [4, 8, 64])
def test_healthy_nodes_are_not_accused(nodes: int) -> None:
    found = [outliers_alone(rates(nodes, seed), measure="steps per second") for seed in range(200)]
    assert not any(found)


def test_of_three_nodes_nothing_shows_which_is_slow() -> None:
    (one,) = outliers_alone(rates(3, 0, slow=0.1), measure="steps per second")
    assert (one.outcome, one.subject.nodes) == ("differs", ("1",))


def test_a_node_that_measured_nothing_is_not_called_slow() -> None:
    given = rates(5, 0)
    given[2] = 0.0
    assert outliers_alone(given, measure="steps per second") == []


def test_nodes_that_a_repeat_lacks_are_left_out() -> None:
    names, values = rates_of([{"n1": 1.0, "n2": 2.0}, {"n1": 3.0}])
    assert (names, values.tolist()) == (("n1",), [[1.0, 3.0]])
