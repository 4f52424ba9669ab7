"""Ranks that are slower than the others, always or now and then."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.validator.diagnose.cases import healthy, of_run
from tests.validator.ingest.folders import START_S
from validator.model.verdict import Finding

N = 200


def found(
    tmp_path: Path, *, ranks: int = 8, slow: float = 0.0, often: float = 1.0, cv: float = 0.01
) -> dict[str, Finding]:
    """What ranks show of which the last one is slower by a share, in a share of the steps."""
    folder = healthy(tmp_path / "r", n=N, ranks=ranks, losses=[4 + 1 / (i + 1) for i in range(N)])
    noise = random.Random(4)
    for rank in range(ranks):
        path = folder / f"heartbeat_rank{rank}.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for one in records:
            if one["msg"] == "progress":
                late = rank == ranks - 1 and noise.random() < often
                one["compute_time_s"] = 2.0 * (1 + cv * noise.gauss(0, 1)) * (1 + slow * late)
        path.write_text("\n".join(map(json.dumps, records)) + "\n")
    return of_run(folder, steps=N, nproc=ranks)


@pytest.mark.parametrize(
    ("slow", "often", "severity"), [(0.05, 1, "info"), (0.2, 1, "warning"), (0.5, 0.1, "info"), (1.0, 0.15, "warning")]
)
def test_a_rank_that_is_slower_than_the_median_of_the_others(
    tmp_path: Path, slow: float, often: float, severity: str
) -> None:
    """5 to 30 %, and one that is slow in a tenth of the steps, were missed. Compute time is two fifths of a step."""
    finding = found(tmp_path, slow=slow, often=often)["straggler"]
    assert finding.severity == severity
    assert "Rank 7 has" in finding.message
    assert ("% of the steps" in finding.message) == (often < 1)


def test_of_two_ranks_it_is_said_that_they_differ(tmp_path: Path) -> None:
    finding = found(tmp_path, ranks=2, slow=0.2)["straggler"]
    assert finding.message.startswith("Ranks 0 and 1 differ: rank 1 has 19.9 % higher compute time")


@pytest.mark.parametrize(("ranks", "cv"), [(2, 0.01), (8, 0.01), (8, 0.05)])
def test_ranks_that_are_alike_but_for_noise(tmp_path: Path, ranks: int, cv: float) -> None:
    assert "straggler" not in found(tmp_path, ranks=ranks, cv=cv, slow=0.01)


def test_without_times_of_ranks_it_is_said_that_stragglers_are_not_judged(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    for path in folder.glob("heartbeat_rank*.jsonl"):
        path.write_text(path.read_text().replace("compute_time_s", "other_time_s"))
    finding = of_run(folder)["not-judged"]
    assert (finding.severity, "stragglers" in finding.message) == ("info", True)


@pytest.mark.parametrize(
    ("alive", "gone"),
    [
        ([2] * 30 + [1] * 30, "1 of 2"),
        ([8] * 20 + [6] * 40, "2 of 8"),
        ([2] * 60, ""),
        ([2] * 58 + [1] * 2, ""),
        ([1] * 60, ""),
    ],
)
def test_a_rank_that_ends_while_the_others_go_on(tmp_path: Path, alive: list[int], gone: str) -> None:
    """With exit code 0 it ends nothing: rows went on to the last step, and the verdict was GO. At a run's end ranks end
    one after another."""
    folder = healthy(tmp_path / "r", rate=2048.0)
    (folder / "logs").mkdir(exist_ok=True)
    last_s = max(json.loads(line)["ts"] for line in (folder / "heartbeat_rank0.jsonl").read_text().splitlines())
    every_s = (last_s - START_S) / len(alive)
    rows = "".join(f"{START_S + every_s * (i + 0.5)},{count}\n" for i, count in enumerate(alive))
    (folder / "logs/telemetry.csv").write_text("ts,host_run_ranks\n" + rows)
    one = of_run(folder).get("rank-left")
    assert (one is not None) == bool(gone)
    if one is not None:
        assert one.severity == "veto"
        assert one.message.startswith(f"{gone} ranks ended at about step ")
