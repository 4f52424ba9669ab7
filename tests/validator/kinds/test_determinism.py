"""The kind `determinism`: which GPU is named, and when it is the trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.validator.judge.samples import runbook
from tests.validator.kinds.machines import explained, found, judged
from validator.kinds.registry import loads
from validator.model.plan import RunSpec
from validator.model.verdict import PhaseReport
from validator.plan import plan_phase
from validator.runbook import RunbookError

LOSSES = [5.5, 5.4912345, 5.25]


def trained(folder: Path, losses: Callable[[str | None, int], list[float]], *, gpus: int) -> PhaseReport:
    """A phase of three steps; `losses` of an arm and a repeat."""
    return explained(folder, {"kind": "determinism", "steps": 3}, wrote(losses), gpus=gpus)[0]


def wrote(losses: Callable[[str | None, int], list[float]]) -> Callable[[RunSpec, Path], None]:
    """What a trainer leaves."""

    def write(spec: RunSpec, out: Path) -> None:
        lines = [f"{at},{loss!r},0.1,100" for at, loss in enumerate(losses(spec.arm, spec.repeat), start=1)]
        (out / "training.csv").write_text("\n".join(["step,loss,lr,toks_per_s", *lines]) + "\n")

    return write


def wrong(*where: tuple[str, int]) -> Callable[[str | None, int], list[float]]:
    """Losses of which the second is another in its last digit on these arms and repeats."""
    return lambda arm, repeat: [5.5, 5.4912346 if (arm, repeat) in where else 5.4912345, 5.25]


def test_each_gpu_runs_alone_and_twice(tmp_path: Path) -> None:
    book = runbook({"id": "it", "kind": "determinism", "steps": 3}, hardware={"gpus": 2}, defaults={"nproc": 2})
    runs = plan_phase(book, book.phases[0], run_dir=tmp_path).runs
    assert [(one.arm, one.repeat) for one in runs] == [("gpu0", 1), ("gpu1", 1), ("gpu0", 2), ("gpu1", 2)]
    assert {(one.env["CUDA_VISIBLE_DEVICES"], one.nproc) for one in runs} == {("0", 1), ("1", 1)}
    assert all("--deterministic" in one.argv for one in runs)


@pytest.mark.parametrize("gpus", [0, 1, 4])
def test_equal_losses_pass(tmp_path: Path, gpus: int) -> None:
    status, message = found(trained(tmp_path, wrong(), gpus=gpus), "same")
    assert status == "PASS"
    assert message.startswith(f"3 losses of {2 * max(1, gpus)} runs, on {'the CPU' if not gpus else 'GPU 0'}")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ([("gpu2", 2)], "GPU 2 differs from itself, at step 2, 5.4912345 and 5.4912346; the others do not."),
        (
            [("gpu3", 1), ("gpu3", 2)],
            "GPU 3 differs from the others, at step 2, 5.4912345 and 5.4912346: its arithmetic is not to be trusted.",
        ),
    ],
)
def test_a_gpu_that_computes_otherwise_is_named(tmp_path: Path, where: list[tuple[str, int]], said: str) -> None:
    status, message = found(trained(tmp_path, wrong(*where), gpus=4), "same")
    assert (status, message) == ("FAIL", said)


def test_of_two_gpus_that_differ_none_is_right(tmp_path: Path) -> None:
    status, message = found(trained(tmp_path, wrong(("gpu1", 1), ("gpu1", 2)), gpus=2), "same")
    assert (status, "nothing shows which is right" in message) == ("FAIL", True)


def test_a_trainer_that_differs_everywhere_accuses_no_gpu(tmp_path: Path) -> None:
    status, message = found(trained(tmp_path / "a", wrong(("gpu0", 1), ("gpu1", 2)), gpus=2), "same")
    assert (status, "The trainer is not deterministic" in message) == ("INCONCLUSIVE", True)
    alone = trained(tmp_path / "b", lambda arm, repeat: [5.5, 5.4 + repeat, 5.2], gpus=0)
    assert found(alone, "same")[0] == "INCONCLUSIVE"


def test_a_run_that_ends_early_or_says_nothing_is_no_pass(tmp_path: Path) -> None:
    def short(arm: str | None, repeat: int) -> list[float]:
        return LOSSES[: 3 if arm == "gpu0" else 2]

    assert found(trained(tmp_path / "a", short, gpus=2), "same")[0] == "FAIL"
    assert found(trained(tmp_path / "b", lambda arm, repeat: [], gpus=2), "same")[0] == "INCONCLUSIVE"
    silent = judged(tmp_path / "c", {"kind": "determinism", "steps": 3}, lambda out: None, gpus=2)
    assert found(silent, "same")[0] == "INCONCLUSIVE"


def test_a_trainer_of_ones_own_needs_a_seed() -> None:
    book = "schema: 1\nname: a\ntrainer: {{command: [t.py], args: {args}, metrics: {{csv: t.csv}}}}\nphases:\n"
    book += "  - {{id: d, kind: determinism, steps: 3}}\n"
    with pytest.raises(RunbookError, match="no seed is declared for phase d"):
        loads(book.format(args="{o: '{out}'}"))
    assert loads(book.format(args="{o: '{out}', rng-seed: 3}")).phases[0].kind == "determinism"
