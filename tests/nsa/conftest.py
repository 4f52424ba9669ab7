"""Shared by the trainer's tests: a configuration so small that a step takes milliseconds, and ways to run it."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.nsa.ranks import Ranks, RankServer

Train = Callable[..., int]
StartRanks = Callable[..., Ranks]
TrainRanks = Callable[..., str]
Rows = Callable[[Path], list[dict[str, str]]]
Beats = Callable[..., list[dict[str, Any]]]
"""Types of the fixtures."""

_TINY_TEXT = """
    --dim 32 --n-layers 2 --n-heads 4 --n-kv-groups 2 --d-k 8 --d-v 8 --ffn-dim 64 --l-cmp 8 --d-cmp 4 --l-sel 8
    --n-sel 3 --w 8 --seq-len 32 --batch-size 2 --dtype fp32 --device cpu --threads 1 --lr 1e-3 --heartbeat-s 60
"""
TINY = _TINY_TEXT.split()


@pytest.fixture
def tiny() -> list[str]:
    """Command-line settings of the smallest useful run."""
    return list(TINY)


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own NSA_* variables or torchrun's must not reach the tests."""
    for name in list(os.environ):
        if name.startswith("NSA_") or name in ("CONFIG", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
            monkeypatch.delenv(name)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Leave torch's global thread count as it was."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def train(one_thread: None) -> Callable[..., int]:
    """Run the trainer in this process; returns its exit code."""

    def run(out: Path, *extra: str) -> int:
        from nsa.train import main

        return main([*TINY, "--out", str(out), *extra])

    return run


@pytest.fixture(scope="session")
def rank_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    """One server for all tests of this process."""
    server = RankServer(tmp_path_factory.mktemp("ranks"))
    yield server
    server.close()


@pytest.fixture
def start_ranks(rank_server: RankServer) -> Callable[..., Ranks]:
    """Start the trainer, or the program given, on two ranks without torchrun."""

    def start(out: Path, *extra: str, nproc: int = 2, program: str = "nsa.train") -> Ranks:
        return rank_server.start(program, [*TINY, "--out", str(out), *extra], nproc=nproc)

    return start


@pytest.fixture
def train_ranks(start_ranks: Callable[..., Ranks]) -> Callable[..., str]:
    """Train on two ranks to the end, which has to be a good one; returns what they said."""

    def run(out: Path, *extra: str, nproc: int = 2) -> str:
        ranks = start_ranks(out, *extra, nproc=nproc)
        codes = ranks.wait()
        assert codes == [0] * nproc, ranks.said
        return ranks.said

    return run


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file by column."""
    with path.open(encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def read_beats(out: Path, rank: int = 0) -> list[dict[str, Any]]:
    """The records of a rank's heartbeat file."""
    lines = (out / f"heartbeat_rank{rank}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture
def rows() -> Callable[[Path], list[dict[str, str]]]:
    """`read_rows`."""
    return read_rows


@pytest.fixture
def beats() -> Callable[..., list[dict[str, Any]]]:
    """`read_beats`."""
    return read_beats
