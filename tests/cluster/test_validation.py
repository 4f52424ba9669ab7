"""A validation of three nodes comes to the same decision on every engine, for the same faults."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.cluster.hosts import NODES
from tests.cluster.sites import Site

NODES_ALIKE = {"id": "nodes", "kind": "preflight"}
ALONE = {"id": "alone", "kind": "train", "on": "each", "steps": 30, "accept": ["loss.last < loss.first"]}
TOGETHER = {"id": "together", "kind": "train", "steps": 30, "accept": ["loss.last < loss.first"]}

MakeSite = Callable[[str], Site]
ENGINES = ("local", "ssh", "slurm", "job")


def engines(*always: str) -> pytest.MarkDecorator:
    """All engines, of which those run in every test run that have no other test of the kind."""
    rest = (pytest.param(one, marks=pytest.mark.long) for one in ENGINES if one not in always)
    return pytest.mark.parametrize("engine", [*always, *rest])


@engines("local", "slurm")
def test_the_same_faults_have_the_same_verdicts(engine: str, site_of: MakeSite) -> None:
    """n2 is slower by 30 %, then exits by itself, then dies with what runs on it."""
    site = site_of(engine)
    slow = {**ALONE, "id": "slow", "accept": ["nodes.min > 0.9"]}
    broken, cut = ({**TOGETHER, "id": name} for name in ("broken", "cut"))
    faults = {
        "slow": {"n2": {"slow": 1 / 0.7}},
        "broken": {"n2": {"at": 5, "exit": 7}},
        "cut": {"n2": site.dies("n2")},
    }
    running = site.start("run", str(site.write([slow, broken, cut], faults=faults)))
    site.kill("n2")
    ended = site.ended(running)
    assert (ended.code, ended.result["decision"]) == (1, "NO_GO"), ended.printed
    assert ended.statuses == {"slow": "FAIL", "broken": "FAIL", "cut": "INCONCLUSIVE"}
    assert "n2 is the slowest of" in " ".join(ended.failures("slow").values()), "who it is, not only how slow"
    assert "n2: exited with code 7" in ended.failures("broken")["broken.exit"]
    assert "n2 was lost" in ended.failures("cut")["cut.exit"]
    assert site.left() == []


@engines("ssh", "job")
def test_healthy_nodes_are_go_also_with_a_spare_one_in_place_of_one_that_dies(engine: str, site_of: MakeSite) -> None:
    site = site_of(engine)
    phases = [NODES_ALIKE, ALONE, TOGETHER, {**TOGETHER, "id": "after"}]
    running = site.start("run", str(site.write(phases, faults={"together": {"n2": site.dies("n2")}}, spare=1)))
    site.kill("n2")
    ended = site.ended(running)
    assert (ended.code, ended.result["decision"]) == (0, "GO"), ended.printed
    assert f"{NODES[3]} takes the place of n2: it was lost" in ended.printed
    assert site.left() == []
    assert ended.run is not None
    assert (ended.run / "runs/alone/r1/g2/training.csv").read_text().count("\n") == 31
    stamps = (ended.run / "runs/alone/r1/g2/arrivals.jsonl").read_text().splitlines()
    assert json.loads(stamps[-1])["step"] == 30, "by the node's own clock"
