"""Shared by the trainer's tests: a configuration so small that a step takes milliseconds, and ways to run it."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

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


@pytest.fixture
def torchrun() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the trainer under torchrun on this machine, on a port of torchrun's own choice."""

    def run(out: Path, *extra: str, nproc: int = 2) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc)]
        command += ["-m", "nsa.train", *TINY, "--out", str(out), *extra]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)

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
