"""Two ended runs compared by their validation losses: what is printed, drawn, and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.loss_curve import main, read_pair

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A run's folder as the trainer leaves it, with these validation losses by step."""

    def write(
        name: str, losses: dict[int, float], *, tokens: int = 4096, train_tokens: int = 99, **changes: Any
    ) -> Path:
        run = tmp_path / name
        run.mkdir()
        effective = {"seq_len": 64, "batch_size": 2, "accum": 1, "seed": 1337, "steps": 30, "lr": 6e-4, **changes}
        env = {"effective": effective, "data": {"train_tokens": train_tokens}}
        (run / "env.json").write_text(json.dumps(env))
        rows = [f"{step},{loss},{tokens},1.5" for step, loss in losses.items()]
        (run / "val.csv").write_text("\n".join(["step,val_loss,val_tokens,wall_s", *rows]) + "\n")
        return run

    return write


def test_the_ratio_is_that_of_the_first_to_the_yardstick(write: Write, capsys: Any, tmp_path: Path) -> None:
    first = write("a", {10: 2.0, 20: 1.5, 25: 1.2, 30: 1.01})
    second = write("b", {10: 2.5, 20: 1.5, 25: 1.0, 30: 1.00})
    svg = tmp_path / "curve.svg"
    assert main([f"prose={first},{second}", "--every", "20", "--svg", str(svg)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "| step | prose: dense | NSA | ratio |",
        "|---|---|---|---|",
        "| 10 | 2.5000 | 2.0000 | 0.8000 |",
        "| 20 | 1.5000 | 1.5000 | 1.0000 |",
        "| 30 | 1.0000 | 1.0100 | 1.0100 |",
    ]
    drawn = svg.read_text()
    assert all(word in drawn for word in ("prose", "sparse", "dense", "step"))
    assert main([f"prose={first},{second}", "--bound", "1.005"]) == 1, "the last ratio counts, and it is above"


def test_steps_that_one_run_lacks_are_left_out(write: Write) -> None:
    pair = read_pair(f"x={write('a', {10: 2.0, 20: 1.0})},{write('b', {20: 2.0, 30: 1.0})}")
    assert (pair.run, pair.yardstick) == ({20: 1.0}, {20: 2.0})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": 1}, "seed is 1337 in"),
        ({"steps": 40}, "steps is 30 in"),
        ({"lr": 1e-3}, "lr is 0.0006 in"),
        ({"train_tokens": 100}, "what was read is"),
        ({"tokens": 8192}, "different numbers of tokens"),
    ],
)
def test_runs_that_are_not_alike_are_refused(write: Write, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SystemExit, match=says):
        read_pair(f"x={write('a', {10: 2.0})},{write('b', {10: 2.0}, **changes)}")


def test_a_pair_may_differ_in_its_attention(write: Write) -> None:
    sparse, dense = write("a", {10: 2.0}, attention="nsa", phi="mlp"), write("b", {10: 2.0}, attention="dense")
    assert read_pair(f"x={sparse},{dense}").ratio(10) == 1.0


def test_what_cannot_be_read_is_named(write: Write, tmp_path: Path) -> None:
    run = write("a", {10: 2.0})
    with pytest.raises(SystemExit, match="give NAME=RUN,YARDSTICK"):
        read_pair(str(run))
    with pytest.raises(SystemExit, match=r"env\.json cannot be read"):
        read_pair(f"x={run},{tmp_path / 'none'}")
    with pytest.raises(SystemExit, match="no validated step in common"):
        read_pair(f"x={run},{write('b', {20: 2.0})}")
    (run / "val.csv").unlink()
    with pytest.raises(SystemExit, match="train with --val-every"):
        read_pair(f"x={run},{run}")
