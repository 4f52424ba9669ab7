"""A run of the bundled trainer that was stopped and resumed is one run, however long it rested."""

from __future__ import annotations

import json
from pathlib import Path

from tests.nsa.conftest import rank_server  # noqa: F401 - a fixture
from tests.nsa.ranks import RankServer
from tests.validator.diagnose.cases import of_folder


def test_a_resumed_run_is_no_other_run_and_its_rest_is_no_step(
    tmp_path: Path,
    rank_server: RankServer,  # noqa: F811
) -> None:
    """Nor is it another one where nothing is left to do."""
    out = tmp_path / "run"

    def train(steps: int, *extra: str) -> None:
        words = ["--config", "tiny_cpu", "--data", "synthetic", "--save-final", "true", "--out", str(out), *extra]
        assert rank_server.start_alone("nsa.train", [*words, "--steps", str(steps)]).wait() == [0]

    train(30)
    first = len((out / "heartbeat_rank0.jsonl").read_text().splitlines())
    train(60, "--resume")
    path = out / "heartbeat_rank0.jsonl"
    written = path.read_text()
    records = [json.loads(line) for line in written.splitlines()]
    assert (records[first]["msg"], records[first]["step"]) == ("boot", 30)
    for record in records[first:]:
        record["ts"] += 100.0  # as if it had been resumed that much later
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert not {"mixed-runs", "unit-mismatch"} & of_folder(out).keys()
    path.write_text(written)
    train(60, "--resume")
    assert "mixed-runs" not in of_folder(out)
