"""A run that goes on is the run that never stopped; a broken checkpoint is passed over, and said."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from nsa.checkpoint import CheckpointError, find_newest, load_checkpoint, save_checkpoint
from nsa.telemetry.files import AppendCsv, cut_csv_after
from tests.nsa.conftest import Rows, Train
from tests.nsa.ranks import Ranks, RankServer, is_running
from tests.nsa.steps import at_step, has_rows
from tests.processes import wait_until


def column(table: list[dict[str, str]], name: str) -> list[str]:
    return [row[name] for row in table]


def test_resume_repeats_the_uninterrupted_run_bit_by_bit(tmp_path: Path, train: Train, rows: Rows, capsys: Any) -> None:
    settings = ["--steps", "20", "--warmup-steps", "4", "--save-every", "5", "--keep-checkpoints", "9"]
    assert train(tmp_path / "whole", *settings) == 0
    assert train(tmp_path / "cut", *settings) == 0
    for newer in (15, 20):  # as if the run had been killed at step 13
        for suffix in ("pt", "json"):
            (tmp_path / "cut" / "checkpoints" / f"step_{newer:08}.{suffix}").unlink()
    assert train(tmp_path / "cut", *settings, "--resume") == 0
    said = capsys.readouterr().out
    assert "[resume] going on from step 10 of step_00000010.pt" in said
    assert "[resume] training.csv: 10 rows after step 10 dropped" in said
    whole, cut = (rows(tmp_path / name / "training.csv") for name in ("whole", "cut"))
    for name in ("step", "loss", "lr", "grad_norm", "tokens"):
        assert column(whole, name) == column(cut, name)


def test_resume_without_a_checkpoint_starts_over_and_says_so(
    tmp_path: Path, train: Train, rows: Rows, capsys: Any
) -> None:
    assert train(tmp_path, "--steps", "3") == 0
    assert train(tmp_path, "--steps", "4", "--resume") == 0
    assert "the beginning: no sound checkpoint was found" in capsys.readouterr().out
    assert column(rows(tmp_path / "training.csv"), "step") == ["1", "2", "3", "4"]


def kill_when(process: Ranks, condition: Callable[[], bool]) -> None:
    """Kill the run at its moment, before which it must not end by itself."""
    wait_until(
        lambda: condition() or not is_running(process.pids[0]), "the moment to kill it", timeout_s=120, every_s=0.005
    )
    process.kill()
    assert process.wait() == [None]


def test_resume_after_sigkill(
    tmp_path: Path, train: Train, rows: Rows, tiny: list[str], rank_server: RankServer
) -> None:
    settings = ["--steps", "60", "--save-every", "7", "--val-every", "9", "--val-batches", "1"]
    out = tmp_path / "killed"
    process = rank_server.start_alone("nsa.train", [*tiny, *settings, "--out", str(out)])
    csv = out / "training.csv"
    kill_when(process, lambda: has_rows(csv, 17))
    assert train(out, *settings, "--resume") == 0
    assert train(tmp_path / "whole", *settings) == 0
    for file in ("training.csv", "val.csv"):
        killed, whole = rows(out / file), rows(tmp_path / "whole" / file)
        for name in ("step", "loss" if file == "training.csv" else "val_loss"):
            assert column(killed, name) == column(whole, name)
    wall_s = [float(x) for x in column(rows(csv), "wall_s")]
    assert wall_s == sorted(wall_s)
    assert json.loads((out / "env.json").read_text())["resumed_from"]["step"] >= 7


def state(step: int) -> dict[str, Any]:
    return {"schema_version": 1, "step": step, "weights": torch.full((3,), float(step))}


@pytest.mark.parametrize("damage", ["truncated", "flipped", "no manifest"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path, damage: str) -> None:
    save_checkpoint(tmp_path, state(5), step=5, keep=3)
    newest = save_checkpoint(tmp_path, state(10), step=10, keep=3)
    content = newest.read_bytes()
    if damage == "truncated":
        newest.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        newest.write_bytes(content[:-300] + bytes([content[-300] ^ 1]) + content[-299:])
    else:
        newest.with_suffix(".json").unlink()
    said: list[str] = []
    found = find_newest(tmp_path, say=said.append)
    assert found is not None
    assert load_checkpoint(found)["step"] == 5
    assert len(said) == 1
    assert "step_00000010.pt is passed over" in said[0]


def test_only_the_newest_are_kept_and_leftovers_go(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "step_00000001.tmp123").write_bytes(b"half a checkpoint of a killed writer")
    for step in (1, 2, 3, 4):
        save_checkpoint(tmp_path, state(step), step=step, keep=2)
    assert sorted(p.name for p in folder.iterdir()) == [
        "step_00000003.json",
        "step_00000003.pt",
        "step_00000004.json",
        "step_00000004.pt",
    ]


def test_a_foreign_file_is_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint"):
        load_checkpoint(path)
    torch.save({"weights": 1}, path)
    with pytest.raises(CheckpointError, match="not a checkpoint of schema 1"):
        load_checkpoint(path)


def test_another_runs_checkpoint_is_refused(tmp_path: Path, train: Train, capsys: Any) -> None:
    assert train(tmp_path, "--steps", "2", "--save-final") == 0
    assert train(tmp_path, "--steps", "4", "--resume", "--seed", "7", "--n-layers", "3") == 2
    said = capsys.readouterr().err
    assert "seed=7 but step_00000002.pt was trained with seed=1337" in said
    assert "n_layers=3" in said


@pytest.mark.parametrize(
    "changed",
    ["some text to learn from, again and again\n" * 60, "some text to learn much, again and again\n" * 50],
    ids=["longer", "of the same length"],
)
def test_changed_data_is_refused(tmp_path: Path, train: Train, capsys: Any, changed: str) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some text to learn from, again and again\n" * 50)
    data = ["--data", "local", "--data-path", str(text)]
    assert train(tmp_path / "out", "--steps", "2", "--save-final", *data) == 0
    text.write_text(changed)
    assert train(tmp_path / "out", "--steps", "4", "--resume", *data) == 2
    assert "the data is no longer what step_00000002.pt was trained on" in capsys.readouterr().err


def test_rows_after_the_checkpoint_are_cut_and_a_torn_line_too(tmp_path: Path) -> None:
    path = tmp_path / "training.csv"
    path.write_text("step,loss\n1,5\n2,4\n3,3\n4,2")
    assert cut_csv_after(path, 2) == 2
    assert path.read_text() == "step,loss\n1,5\n2,4\n"
    path.write_text("step,loss\n1,5\n2,4\n3")
    assert cut_csv_after(path, 9) == 1
    assert path.read_text() == "step,loss\n1,5\n2,4\n"
    path.write_text("step,lo")
    assert cut_csv_after(path, 9) == 1
    assert path.read_text() == ""


def test_a_file_keeps_the_columns_it_began_with(tmp_path: Path) -> None:
    path = tmp_path / "training.csv"
    path.write_text("step,loss,old\n1,5,x\n")
    file = AppendCsv(path, ("step", "new", "loss"))
    file.row({"step": 2, "new": 7, "loss": 4.0})
    file.close()
    assert path.read_text() == "step,loss,old\n1,5,x\n2,4,\n"


def test_an_interrupted_save_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    save_checkpoint(tmp_path, state(1), step=1, keep=2)
    monkeypatch.setattr("nsa.checkpoint.os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, state(2), step=2, keep=2)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step_00000001.json", "step_00000001.pt"]


def test_a_newer_one_that_was_passed_over_never_costs_the_one_just_written(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(10), step=10, keep=1)
    newest = save_checkpoint(tmp_path, state(20), step=20, keep=2)
    newest.write_bytes(newest.read_bytes()[:100])
    save_checkpoint(tmp_path, state(15), step=15, keep=1)
    found = find_newest(tmp_path, say=lambda text: None)
    assert found.name == "step_00000015.pt"
    assert sorted(p.name for p in found.parent.iterdir()) == ["step_00000015.json", "step_00000015.pt"]


def test_checkpoints_of_another_run_are_not_mixed_with_new_ones(tmp_path: Path, train: Train, capsys: Any) -> None:
    assert train(tmp_path, "--steps", "5", "--save-final") == 0
    (tmp_path / "training.csv").unlink()
    assert train(tmp_path, "--steps", "2", "--save-final") == 2
    assert "step_00000005.pt is another run's: choose another out" in capsys.readouterr().err


@contextmanager
def files_up_to(n_bytes: int) -> Iterator[None]:
    """What a full disk does, to large files alone: writing beyond the limit is an OSError."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_that_finds_no_room_ends_the_run_and_takes_nothing_along(
    tmp_path: Path, train: Train, capsys: Any
) -> None:
    assert train(tmp_path, "--steps", "3", "--save-final") == 0
    size = (tmp_path / "checkpoints" / "step_00000003.pt").stat().st_size
    with files_up_to(size // 2):
        assert train(tmp_path, "--steps", "9", "--resume", "--save-every", "5") == 1
    said = capsys.readouterr().err
    assert "the checkpoint of step 5 could not be written" in said
    assert "go on from the one before by --resume" in said
    assert "Traceback" not in said
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step_00000003.json", "step_00000003.pt"]
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert (metrics["status"], metrics["step"]) == ("error", 5)
    assert "could not be written" in metrics["why"]
    assert train(tmp_path, "--steps", "9", "--resume", "--save-every", "5") == 0


def test_what_is_set_on_resume_is_what_runs(
    tmp_path: Path, train: Train, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's load_state_dict brings the saved betas and decay along; the new ones would stand in env.json alone."""
    assert train(tmp_path, "--steps", "2", "--save-final") == 0
    seen: list[Any] = []
    at_step(monkeypatch, 3, lambda run: seen.extend(run.optimizer.param_groups))
    changed = ["--weight-decay", "0.5", "--beta1", "0.7", "--beta2", "0.8", "--adam-eps", "1e-3"]
    assert train(tmp_path, "--steps", "3", "--resume", *changed) == 0
    assert [group["weight_decay"] for group in seen] == [0.5, 0.0]
    assert {(group["betas"], group["eps"]) for group in seen} == {((0.7, 0.8), 1e-3)}
    said = capsys.readouterr().out
    assert "other settings than before: weight_decay=0.5 (was 0.01), beta1=0.7 (was 0.9)" in said
    assert "steps=3 (was 2)" in said


def test_the_first_sign_of_life_after_a_resume_knows_its_step(
    tmp_path: Path, train: Train, beats: Callable[..., list[dict[str, Any]]]
) -> None:
    assert train(tmp_path, "--steps", "2", "--save-final") == 0
    assert train(tmp_path, "--steps", "3", "--resume") == 0
    for msg in ("boot", "loader_ready"):
        assert [r["step"] for r in beats(tmp_path) if r["msg"] == msg] == [0, 2]


def test_two_processes_never_share_a_folder(
    tmp_path: Path,
    train: Train,
    rank_server: RankServer,
    tiny: list[str],
    rows: Rows,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = ["--steps", "100000", "--out", str(tmp_path)]
    process = rank_server.start_alone("nsa.train", [*tiny, *settings])
    csv = tmp_path / "training.csv"
    wait_until(lambda: has_rows(csv, 2), "its first steps")
    for extra in ([], ["--resume"]):
        with monkeypatch.context() as patch:
            patch.setattr("nsa.outdir.LOCK_GRACE_S", 0.0)
            assert train(tmp_path, "--steps", "3", *extra) == 2
        assert f"out={tmp_path} is being written to by another process" in capsys.readouterr().err
    process.kill()
    process.wait()
    assert train(tmp_path, "--steps", "3", "--resume") == 0
    assert column(rows(csv), "step") == ["1", "2", "3"]


def test_another_number_of_sequences_a_step_is_refused_with_its_factors(
    tmp_path: Path, train: Train, capsys: Any
) -> None:
    assert train(tmp_path, "--steps", "2", "--save-final") == 0
    assert train(tmp_path, "--steps", "4", "--resume", "--accum", "3") == 2
    assert "global_batch_size=6 (batch_size × accum × processes) but step_00000002.pt" in capsys.readouterr().err


def test_a_run_with_nothing_left_to_train_leaves_its_checkpoint_alone(tmp_path: Path, train: Train) -> None:
    assert train(tmp_path, "--steps", "3", "--save-final") == 0
    checkpoint = tmp_path / "checkpoints" / "step_00000003.pt"
    before = checkpoint.stat().st_mtime_ns
    assert train(tmp_path, "--steps", "3", "--save-final", "--resume") == 0
    assert checkpoint.stat().st_mtime_ns == before


def test_what_an_earlier_start_said_of_its_end_goes_when_the_run_goes_on(
    tmp_path: Path, train: Train, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["--save-final", "--aux-every", "1"]
    assert train(tmp_path, "--steps", "3", *settings) == 0
    assert train(tmp_path, "--steps", "5", "--resume", "--aux-every", "1") == 0
    (tmp_path / ".anomaly_type").write_text("nan_loss\n")
    left: list[str] = []
    names = (".anomaly_type", "metrics.json")
    at_step(monkeypatch, 4, lambda run: left.extend(name for name in names if (tmp_path / name).exists()))
    assert train(tmp_path, "--steps", "4", "--resume", "--aux-every", "1") == 0
    assert left == []
    for name in ("training", "k_stats"):
        assert column(rows(tmp_path / f"{name}.csv"), "step") == ["1", "2", "3", "4"]


def test_a_checkpoint_brings_no_code_along(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"schema_version": 1, "step": 1, "data": Path("of a class that is not among plain values")}, path)
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint"):
        load_checkpoint(path)
