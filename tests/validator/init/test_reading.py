"""Ways to read what a watched trainer writes, and what is said of a loss that no reader takes for one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.validator.init.test_draft import watched
from validator.ingest import collect_dir
from validator.init.draft import draft
from validator.init.length import printed_total
from validator.init.reading import TrialReading, _candidates, readings, unread_loss, unread_records
from validator.init.watched import _trial
from validator.kinds.registry import loads
from validator.model.metrics import TrainerMetrics
from validator.model.plan import RunSpec


def test_records_whose_steps_are_not_known_are_shown_with_their_keys(tmp_path: Path) -> None:
    """It said that one line was printed, and nothing of the file."""
    (tmp_path / "progress.jsonl").write_text('{"frames": 32, "ret": 0.5, "kl": 0.01, "note": "x"}\n' * 40)
    said = unread_records(tmp_path)
    assert "progress.jsonl has lines with the keys frames, ret, kl, and none that is known to count steps" in said
    assert "{reader: jsonl, names: {step: KEY, loss: KEY}}" in said
    assert said in list(replace(watched("t.py", None), unread=said).hints())
    (tmp_path / "progress.jsonl").write_text("[1, 2]\n{")
    assert unread_records(tmp_path) == ""


def test_nested_keys_of_records_outside_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a header, by a trainer whose own settings name its folder: the advice was a pattern for what it prints."""
    monkeypatch.chdir(tmp_path)
    header, row = {"config": {"lr": 0.1}, "ok": True}, {"progress": {"tick": 1}, "objective": {"eps_mse": 0.4}}
    (tmp_path / "telemetry.jsonl").write_text("\n".join(map(json.dumps, (header, row, row))) + '\n{"progress"')
    said = unread_records(tmp_path / "out", ["telemetry.jsonl"])
    assert "telemetry.jsonl has lines with the keys progress/tick, objective/eps_mse, and none" in said


def test_a_trainer_that_logs_no_loss_and_no_pace_is_read(tmp_path: Path) -> None:
    (tmp_path / "progress.jsonl").write_text(
        "".join(f'{{"update": {i}, "ep_reward_mean": {i}, "entropy": 1.7}}\n' for i in range(40))
    )
    spec = RunSpec(
        id="p/r1", phase="p", kind="train", launcher="python", argv=(), env={}, out=tmp_path.name, timeout_s=60
    )
    (best, *_) = readings(spec, run_dir=tmp_path.parent)
    assert dict(best.metrics) == {"reader": ["jsonl"]}
    assert (best.rows, best.last_step, best.has_loss, best.has_pace) == (40, 39, False, False)
    assert best.sample(1) == [{"step": 39, "ep_reward_mean": 39, "entropy": 1.7}]


def test_a_loss_beside_the_lines_of_a_library_is_read(tmp_path: Path) -> None:
    """DeepSpeed's lines were recognized, and `step 250 loss 4.1356` of the trainer beside them was read as no loss."""
    (tmp_path / "logs").mkdir()
    lines = []
    for i in range(1, 101):
        lines.append(f"step {i} loss {4 / i**0.2:.4f}")
        if i % 10 == 0:
            front = f"[2026-03-04 05:06:{i // 2:02},100] [INFO] "
            lines.append(f"{front}[logging.py:96:log_dist] [Rank 0] step={i}, skipped=0, lr=[0.1], mom=[(0.9, 0.999)]")
            lines.append(
                f"{front}[timer.py:260:stop] epoch=0/micro_step={i}/global_step={i}, RunningAvgSamplesPerSec=32.1, "
                "CurrSamplesPerSec=32.0, MemAllocated=0.42GB, MaxMemAllocated=0.97GB"
            )
    (tmp_path / "logs/stdout.log").write_text("\n".join(lines) + "\n")
    spec = RunSpec(
        id="p/r1", phase="p", kind="train", launcher="python", argv=(), env={}, out=tmp_path.name, timeout_s=60
    )
    (best, *_) = readings(spec, run_dir=tmp_path.parent)
    assert best.has_loss
    assert best.series["loss"].steps.tolist() == list(range(1, 101))
    assert unread_loss(best, tmp_path) == ""


@pytest.mark.parametrize("every", [1, 10])
def test_a_text_file_that_says_more_than_the_bar_is_read(every: int, tmp_path: Path) -> None:
    """torchtune's bar was read, so its rate, its learning rate and its gradient norm were not."""
    (tmp_path / "logs").mkdir()
    bar = (
        f"\r1|{i}|Loss: {4 / i**0.2:.4f}: {i}%|█  | {i}/100 [00:{i // 2:02}<00:10,  1.98it/s]" for i in range(1, 101)
    )
    (tmp_path / "logs/stderr.log").write_text("".join(bar))
    (tmp_path / "log_1764356400.txt").write_text(
        "".join(
            f"Step {i} | loss:{4 / i**0.2} lr:0.01 tokens_per_second_per_gpu:{9100 + i % 7} grad_norm:0.5 \n"
            for i in range(every, 101, every)
        )
    )
    spec = RunSpec(
        id="p/r1", phase="p", kind="train", launcher="python", argv=(), env={}, out=tmp_path.name, timeout_s=60
    )
    (best, *_) = readings(spec, run_dir=tmp_path.parent)
    if every == 1:
        assert dict(best.metrics) == {"log": "log_*.txt", "reader": ["steps"]}
        assert {"loss", "lr", "grad_norm", "toks_per_s"} <= best.result.series.keys()
        assert printed_total(best, tmp_path) == 100
    else:
        assert dict(best.metrics) == {"reader": ["tqdm"]}


@pytest.mark.parametrize(
    ("line", "name"), [("[{i:05d}/600] recon: {v:.3f} kl: 1.5", " (recon)"), ("{i:6d} {v:11.6f}", "")]
)
def test_what_is_taken_for_the_loss_by_its_numbers_is_named(line: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    rows = (line.format(i=5 * i, v=40 / i**0.5) for i in range(1, 60))
    (tmp_path / "logs/stdout.log").write_text("\n".join(rows) + "\n")
    spec = RunSpec(
        id="p/r1", phase="p", kind="train", launcher="python", argv=(), env={}, out=tmp_path.name, timeout_s=60
    )
    (best, *_) = readings(spec, run_dir=tmp_path.parent)
    assert best.source == f"what it prints: numbers that rise like steps and fall like a loss{name}"


def as_read(folder: Path, line: str, **metrics: str) -> TrialReading:
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / "stdout.log").write_text("".join(line.format(i=i) + "\n" for i in range(1, 40)))
    return TrialReading(metrics, "it", collect_dir(folder, metrics=TrainerMetrics.model_validate(metrics)))


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('{{"step": {i}, "objective/loss": 3.{i:02}, "tokens_per_sec": 90}}', "objective/loss"),
        ('{{"step": {i}, "critic": {{"q_loss": NaN}}, "tokens_per_sec": 90}}', "q_loss"),
        ('{{"step": {i}, "tokens_per_sec": 90}}\n|  policy_gradient_loss    | -0.01 |', "policy_gradient_loss"),
        ('{{"step": {i}, "tokens_per_sec": 90}}\n~ loss 3.1 ~', "loss"),
        ('{{"step": {i}, "val_loss": 3.1, "eval/loss": 3.1, "tokens_per_sec": 90}}', ""),
        ('{{"step": {i}, "loss_scale": 65536, "tokens_per_sec": 90}}\nlossless 3, packet loss 0.1 %', ""),
        ('{{"step": {i}, "loss": 3.1, "aux_loss": 1.0, "tokens_per_sec": 90}}', ""),
    ],
)
def test_a_loss_that_is_not_read_is_named_with_the_way_to_read_it(line: str, key: str, tmp_path: Path) -> None:
    """`no_loss: true` had been written in silence, and a diverging loss was GO."""
    found = as_read(tmp_path, line, reader="records")
    said = unread_loss(found, tmp_path)
    assert said.split(" is read as no loss")[0] == key
    why = (
        "no known form of line has it beside a step" if key == "loss" else "its name may be that of a part of the loss"
    )
    assert (why in said) is bool(key)
    text = draft(replace(watched("t.py", found), unread=said), name="made", base=Path("/"))
    assert ("one is not read" in text) is bool(key)
    assert ("no_loss" in text) is not found.has_loss
    if key:
        pattern = said.split("stdout: '")[1].removesuffix("'")
        assert as_read(tmp_path, line, reader="records", stdout=pattern).has_loss
        assert loads(text).trainer.metrics.no_loss


@pytest.mark.parametrize(
    ("line", "series"),
    [("step {i} loss {value}", "loss"), ("global_step={i}, episodic_return=[{value}]", "mean_reward")],
)
def test_all_is_read_of_a_trainer_that_no_setting_asks_for_steps(tmp_path: Path, line: str, series: str) -> None:
    """What a quick one did beyond 1,000 steps was left out, and no phase might have more."""
    spec = _trial(watched("train.py", None).command, run_dir=tmp_path)
    log = tmp_path / spec.out / "logs/stdout.log"
    log.parent.mkdir(parents=True)
    rows = (line.format(i=i, value=2 + 1000 / (i + 1000)) for i in range(20, 20_001, 20))
    log.write_text("\n".join(rows) + "\n", encoding="utf-8")
    best = readings(spec, run_dir=tmp_path)[0]
    assert (best.last_step, best.rows) == (20_000, 1000)
    assert set(best.series) == {series}
    text = draft(watched("train.py", best), name="made", base=tmp_path)
    assert ("no_loss: true" in text) == (series != "loss")


@pytest.mark.parametrize(("first", "steps"), [(0, 61), (10, 60)])
def test_short_trials_end_behind_a_row(tmp_path: Path, first: int, steps: int) -> None:
    """Of 60 steps that are logged at 0, 10, …, 50 too many were not known, and nothing could be GO."""
    spec = _trial(watched("train.py --lr 0.1", None).command, run_dir=tmp_path)
    log = tmp_path / spec.out / "logs/stdout.log"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"step {i} loss {2 + 50 / (i + 50):.4f}\n" for i in range(first, 600, 10)), encoding="utf-8")
    best = readings(spec, run_dir=tmp_path)[0]
    book = loads(draft(watched("train.py --lr 0.1", best), name="made", base=tmp_path))
    (trial,) = (phase for phase in book.phases if phase.kind == "settings")
    assert trial.steps == steps


@pytest.mark.parametrize(
    ("printed", "events", "lightning"),
    [
        ("global_step=60, episodic_return=[15.]", "runs/ppo/events.out.tfevents.1.vm.0", False),
        ("global_step=60, episodic_return=[15.]", "logs/version_0/events.out.tfevents.1.vm.0", True),
        ("Epoch 0:  50%|##  | {i}/90 [00:01<00:01, 9.1it/s, loss=2.1]", "runs/ppo/events.out.tfevents.1.vm.0", True),
    ],
)
def test_event_files_of_others_are_not_lightnings(tmp_path: Path, printed: str, events: str, lightning: bool) -> None:
    """A healthy agent was vetoed for a bar of Lightning that it does not print, since its lines are known now."""
    for path, text in (("logs/stdout.log", printed), (events, "events")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(
            "".join(text.replace("{i}", str(i)) + "\n" for i in range(1, 31)), encoding="utf-8"
        )
    assert ({"reader": ["lightning"]} in [metrics for metrics, *_ in _candidates(tmp_path)]) is lightning


def test_the_log_of_a_validation_is_not_the_training(tmp_path: Path) -> None:
    """Of train.log and valid.log, of the same columns, the longer one was read."""
    spec = _trial(watched("train.py", None).command, run_dir=tmp_path)
    out = tmp_path / spec.out
    (out / "logs").mkdir(parents=True)
    (out / "logs/stdout.log").write_text("[ Epoch 0 ]\n", encoding="utf-8")
    for name, value in (("train.log", 2.0), ("valid.log", 11.0)):
        rows = "".join(f"{i},{value + 1 / (i + 1):.5f},7.1,0.33\n" for i in range(30))
        (out / name).write_text(f"epoch,loss,ppl,accuracy\n{rows}", encoding="utf-8")
    assert readings(spec, run_dir=tmp_path)[0].metrics["log"] == "train.log"
