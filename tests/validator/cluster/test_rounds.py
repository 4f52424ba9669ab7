"""The rounds of the slow-node search: who is measured with whom."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from validator.cluster.rounds import logs_of, pair_rounds, slow_with_fast, swap_rounds


def _nodes(count: int) -> list[str]:
    return [f"n{number:03d}" for number in range(count)]


def _disjoint(pairs: tuple[tuple[str, ...], ...]) -> bool:
    ends = [end for pair in pairs for end in pair]
    return len(ends) == len(set(ends))


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 15, 16])
def test_a_tournament_measures_each_pair_once_in_the_fewest_rounds_of_disjoint_pairs(count: int) -> None:
    rounds = pair_rounds(_nodes(count), seed=3)
    pairs = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert sorted(map(sorted, pairs)) == sorted(map(list, combinations(_nodes(count), 2)))
    assert len(rounds) == (count - 1 if count % 2 == 0 else count)
    assert all(_disjoint(pairs) for pairs in rounds)
    assert {len(pairs) for pairs in rounds} == {count // 2}  # of odd nodes one sits out


def test_one_node_has_no_pairs() -> None:
    assert pair_rounds(["a"]) == []


def test_rounds_follow_from_the_seed_alone_and_not_from_the_order_of_the_nodes() -> None:
    assert pair_rounds(_nodes(9), 1) == pair_rounds(_nodes(9)[::-1], 1)
    assert pair_rounds(_nodes(9), 1) != pair_rounds(_nodes(9), 2)


def test_more_than_sixteen_nodes_get_three_rounds_and_then_the_slow_meet_the_fast() -> None:
    nodes = _nodes(40)
    rounds = pair_rounds(nodes)
    assert len(rounds) == 3
    measured = [pair for pairs in rounds for pair in pairs]
    last = slow_with_fast(nodes, measured)
    assert _disjoint(last)
    assert len(last) == 20
    assert {end for pair in last for end in pair} == set(nodes)
    assert not {frozenset(pair) for pair in last} & {frozenset(pair) for pair in measured}
    slow, fast = set(nodes[:20]), set(nodes[20:])
    assert all(pair[0] in slow and pair[1] in fast for pair in last)
    assert len(pair_rounds(nodes, most=2)) == 2


def test_a_suspect_is_swapped_between_known_good_partners_while_others_are_the_control() -> None:
    good = _nodes(6)
    rounds = swap_rounds(["bad"], [], good, count=4)
    partners = [next(end for end in pair if end != "bad") for pairs in rounds for pair in pairs if "bad" in pair]
    assert len(set(partners)) == 4  # another one in each round
    assert all(_disjoint(pairs) for pairs in rounds)
    assert all(len(pairs) == 3 for pairs in rounds)  # two pairs of known-good nodes beside it
    later = swap_rounds(["bad"], [], good, count=2, first=4)
    assert later == swap_rounds(["bad"], [], good, count=6)[4:]


def test_a_suspected_link_is_measured_and_its_ends_with_others_alternately() -> None:
    link = ("n000", "n001")
    rounds = swap_rounds([], [link], _nodes(6), count=4)
    assert [link in pairs for pairs in rounds] == [True, False, True, False]
    for pairs in rounds[1::2]:
        partners = {end: other for pair in pairs for end, other in (pair, pair[::-1])}
        assert partners["n000"] in _nodes(6)[2:]
        assert partners["n001"] in _nodes(6)[2:]


def test_links_that_share_a_node_are_measured_in_different_rounds() -> None:
    links = [("n000", "n001"), ("n000", "n002")]
    rounds = swap_rounds([], links, _nodes(8), count=4)
    assert all(any(link in pairs for pairs in rounds) for link in links)
    assert all(_disjoint(pairs) for pairs in rounds)


def test_what_is_no_positive_number_was_not_measured() -> None:
    logs = logs_of([100.0, 0.0, -3.0, np.nan, np.inf])
    assert np.isfinite(logs[:, 0]).tolist() == [True, False, False, False, False]
