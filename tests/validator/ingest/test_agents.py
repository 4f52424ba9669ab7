"""Agents print what episodes reach, and often no loss: lines of episodes, of libraries, and boxes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.validator.diagnose.cases import of_folder
from validator.ingest import collect_dir
from validator.model.print_tables import with_rows
from validator.model.result import Result

ROWS = 120


def reached(i: int) -> float:
    return round(10 + i + random.Random(i).gauss(0, 2), 2)


def box(*rows: tuple[str, object]) -> str:
    rule = "-" * 37
    return "\n".join([rule, *(f"| {name:<22} | {value!s:<8} |" for name, value in rows), rule])


def stable_baselines(i: int) -> str:
    rollout = (("rollout/", ""), ("   ep_len_mean", 22.2), ("   ep_rew_mean", reached(i)))
    time = (
        ("time/", ""),
        ("   fps", 1234),
        ("   iterations", i),
        ("   time_elapsed", i),
        ("   total_timesteps", 2048 * i),
    )
    train = (("train/", ""), ("   loss", 7.04), ("   policy_gradient_loss", -0.01)) if i > 1 else ()
    return box(*rollout, *time, *train)


AGENTS: dict[str, tuple[str, Callable[[int], str], int]] = {
    "REINFORCE": (
        "episodes of an agent",
        lambda i: f"Episode {10 * i}\tLast reward: 13.00\tAverage reward: {reached(i):.2f}",
        10,
    ),
    "DQN": ("episodes of an agent", lambda i: f"episode: {i}/500, score: {reached(i)}, e: 0.95", 1),
    "with a loss": (
        "episodes of an agent",
        lambda i: f"[Episode {i}] total reward: {reached(i)} | loss 0.5231 | best reward: 999.0",
        1,
    ),
    "CleanRL": (
        "CleanRL",
        lambda i: f"global_step={128 * i}, episodic_return=[{reached(i)}]" + ("\nSPS: 1042" if i % 7 == 0 else ""),
        128,
    ),
    "A2C": (
        "pytorch-a2c-ppo-acktr",
        lambda i: (
            f"Updates {i}, num timesteps {512 * i}, FPS 1396 \n Last 10 training episodes: mean/median reward "
            f"{reached(i)}/25.5, min/max reward 10.0/69.0\n"
        ),
        1,
    ),
    "Stable-Baselines3": ("table with names", stable_baselines, 2048),
    "baselines": (
        "table with names",
        lambda i: box(
            ("eplenmean", 200), ("eprewmean", reached(i)), ("fps", 900), ("misc/nupdates", i), ("loss/vf", 2.1)
        ),
        1,
    ),
    "Spinning Up": (
        "table with names",
        lambda i: box(("Epoch", i), ("AverageEpRet", reached(i)), ("StdEpRet", 3.0), ("LossPi", 0.0), ("Time", 4.3)),
        1,
    ),
}


def read(name: str, folder: Path, reached_at: Callable[[int], int] = lambda i: i) -> Result:
    line = AGENTS[name][1]
    (folder / "train.log").write_text("\n".join(line(reached_at(i)) for i in range(1, ROWS + 1)) + "\n")
    return collect_dir(folder / "train.log")


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_is_read_by_what_its_episodes_reach(name: str, tmp_path: Path) -> None:
    form, _, stride = AGENTS[name]
    result = read(name, tmp_path)
    assert result.evidence.printed is not None
    assert result.evidence.printed.format == form
    found = result.series["mean_reward"]
    assert found.steps.tolist() == [stride * i for i in range(1, ROWS + 1)]
    assert found.values.tolist() == pytest.approx([reached(i) for i in range(1, ROWS + 1)])
    assert "diverging" not in of_folder(tmp_path / "train.log")


@pytest.mark.parametrize("name", ["REINFORCE", "CleanRL"])
def test_an_agent_that_unlearns_is_a_veto(name: str, tmp_path: Path) -> None:
    _, line, _ = AGENTS[name]
    lines = [line(i) for i in range(1, ROWS + 1)]
    fallen = [old.replace(str(reached(i)), str(reached(1))) for i, old in enumerate(lines, 1) if i > ROWS // 2]
    (tmp_path / "train.log").write_text("\n".join([*lines[: ROWS // 2], *fallen]) + "\n")
    assert "diverging" in of_folder(tmp_path / "train.log")


def test_steps_that_a_box_rounds_to_three_digits_are_counted_on() -> None:
    """The logger of guided diffusion prints step 1210 as 1.21e+03, and 12,340 as 1.23e+04."""
    lines = "\n".join(
        box(("loss", f"{3 / (i + 1):.3g}"), ("step", f"{10 * i:.3g}"), ("samples", "1e+05")) for i in range(2000)
    )
    rows = [text for _, text in with_rows(enumerate(lines.split("\n"))) if text.startswith("⊞")]
    assert [row.split()[1] for row in rows] == [f"step={10 * i}" for i in range(2000)]
    gap = [box(("loss", "0.3"), ("step", value)) for value in ("0", "10", "2e+03", "20")]
    rows = [text for _, text in with_rows(enumerate("\n".join(gap).split("\n"))) if text.startswith("⊞")]
    assert [row.split()[1] for row in rows] == ["step=0", "step=10", "step=20"]


@pytest.mark.parametrize(
    "line",
    [
        "Episode {i} finished after 23 timesteps",
        "======================",
        "| step | {i} |",
        "Best return of episode {i}",
    ],
)
def test_other_lines_about_episodes_and_boxes_are_no_rows(line: str, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("\n".join(line.replace("{i}", str(i)) for i in range(40)) + "\n")
    assert not collect_dir(tmp_path / "train.log").series
