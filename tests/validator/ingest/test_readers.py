"""Readers by name, on files that the real libraries wrote, and on what damages them."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.validator.ingest.folders import codes
from validator.ingest import collect_dir
from validator.ingest.readers.renditions import SUFFIX, rendition
from validator.ingest.readers.tensorboard import masked_crc32c
from validator.model.logged_names import logged_name
from validator.model.metrics import TrainerMetrics
from validator.model.readers import READERS, matcher
from validator.model.recipes import RECIPES, recognize
from validator.model.result import Result

LOGGED = Path(__file__).with_name("logged")
LOSSES = [3 / (i + 1) for i in range(36)]


def read(folder: Path, *readers: str, **metrics: Any) -> Result:
    return collect_dir(folder, metrics=TrainerMetrics(reader=readers, **metrics))


def copied(name: str, folder: Path) -> Path:
    shutil.copytree(LOGGED / name, folder / name)
    return folder / name


def steps(result: Result, name: str = "loss") -> list[int]:
    return list(map(int, result.series[name].steps))


def check_loop(result: Result, count: int, *, stride: int = 1, rel: float = 1e-6) -> None:
    """The loss of the loops that wrote the samples: NaN at their eighth row."""
    assert steps(result) == [stride * i for i in range(count)]
    values = result.series["loss"].values
    assert np.isnan(values[7])
    kept = [i for i in range(count) if i != 7]
    assert values[kept].tolist() == pytest.approx([LOSSES[i] for i in kept], rel=rel)


@pytest.mark.parametrize("name", ["tensorboard", "tensorboardX"])
def test_event_files_of_both_writers(name: str) -> None:
    result = read(LOGGED / name, "tensorboard")
    check_loop(result, 10)
    assert result.series["toks_per_s"].values.tolist() == [1000.0 + i for i in range(10)]
    assert (result.series["step_time_s"].values > 0.005).all(), "by the events' own times"
    assert codes(result) == set()


def test_a_wandb_run_counts_by_the_step_that_the_trainer_logs() -> None:
    result = read(LOGGED / "wandb-offline", "wandb-offline")
    check_loop(result, 36, stride=2)
    assert result.series["nested_a"].values.tolist() == list(range(36))
    assert {"step_time_s"} <= result.series.keys()
    assert codes(result) == set()
    assert "word" not in result.series


@pytest.mark.parametrize("missing", ["mlflow.db", "mlruns"])
def test_mlflows_two_stores_hold_the_same(missing: str, tmp_path: Path) -> None:
    folder = copied("mlflow-local", tmp_path)
    (shutil.rmtree if missing == "mlruns" else os.unlink)(folder / missing)
    result = read(folder, "mlflow-local")
    check_loop(result, 12)
    assert result.series["val_loss"].values.tolist() == [math.inf], "the database holds the largest float in its place"
    assert codes(result) == set()


def test_the_trainer_of_hugging_face_by_what_it_prints(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("stdout.log", "stderr.log"):
        shutil.copy(LOGGED / "hf-trainer" / name, tmp_path / "logs" / name)
    result = read(tmp_path, "hf-trainer")
    assert steps(result) == [1, 5, 10, 15, 20, 25]
    assert steps(result, "val_loss") == [5, 10, 15, 20, 25]
    state = json.loads((LOGGED / "hf-trainer" / "trainer_state.json").read_text())
    exact = [record["loss"] for record in state["log_history"] if "loss" in record]
    assert result.series["loss"].values.tolist() == pytest.approx(exact, rel=1e-3), "it prints four digits"
    shutil.copy(LOGGED / "hf-trainer" / "trainer_state.json", tmp_path)
    whole = read(tmp_path, "hf-trainer")
    assert whole.series["loss"].values.tolist() == exact, "the file is exact"
    assert codes(result) == codes(whole) == set()


def test_a_nan_that_its_filter_replaces_by_zero_is_a_nan(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("stdout.log", "stderr.log"):
        shutil.copy(LOGGED / "hf-trainer" / f"nan_{name}", tmp_path / "logs" / name)
    assert "'loss': '0', 'grad_norm': 'nan'" in (tmp_path / "logs" / "stdout.log").read_text()
    result = read(tmp_path, "hf-trainer")
    assert np.isnan(result.series["loss"].values).tolist() == [False] * 8 + [True] * 4


def test_a_long_epoch_tells_little_at_its_start(tmp_path: Path) -> None:
    """273 steps an epoch: by the second pair an epoch seemed to have 200 or 400, and a quarter of the rows fit none."""
    (tmp_path / "logs").mkdir()
    for name in ("stdout.log", "stderr.log"):
        shutil.copy(LOGGED / "hf-trainer" / f"long_epoch_{name}", tmp_path / "logs" / name)
    result = read(tmp_path, "hf-trainer")
    assert codes(result) == set()
    assert steps(result) == list(range(1, 46))


def test_both_streams_in_one_log_are_read_alike(tmp_path: Path) -> None:
    bars = (LOGGED / "hf-trainer" / "nan_stderr.log").read_bytes()
    lines = iter((LOGGED / "hf-trainer" / "nan_stdout.log").read_bytes().splitlines(keepends=True))
    parts = bars.split(b"\r\r")  # behind each clearing of the bar comes what is printed
    (tmp_path / "job.log").write_bytes(
        b"".join(part + b"\r" + next(lines, b"") + b"\r" for part in parts[:-1]) + parts[-1]
    )
    assert steps(read(tmp_path, "hf-trainer")) == list(range(1, 13))


def test_dictionaries_without_a_bar_have_no_step_and_that_is_reported(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    shutil.copy(LOGGED / "hf-trainer" / "stdout.log", tmp_path / "logs" / "stdout.log")
    result = read(tmp_path, "hf-trainer")
    assert not result.series
    assert codes(result) == {"missing-step", "no-match"}


def test_of_several_checkpoints_the_last_state_counts(tmp_path: Path) -> None:
    state = json.loads((LOGGED / "hf-trainer" / "trainer_state.json").read_text())
    for step in (10, 5):
        (tmp_path / f"checkpoint-{step}").mkdir()
        short = [one for one in state["log_history"] if one["step"] <= step]
        text = json.dumps({**state, "global_step": step, "log_history": short})
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(text)
    assert steps(read(tmp_path, "hf-trainer")) == [1, 5, 10]


def test_lightnings_table_comes_before_its_bar(tmp_path: Path) -> None:
    folder = copied("lightning", tmp_path)
    result = read(folder, "lightning")
    assert steps(result) == list(range(25))
    exact = result.series["loss"].values
    shutil.rmtree(folder / "lightning_logs")
    (folder / "rich.log").rename(folder / "rich.txt")
    bar = read(folder, "lightning")
    assert steps(bar) == list(range(1, 26)), "a bar counts from 1"
    assert bar.series["loss"].values.tolist() == pytest.approx(exact.tolist(), rel=6e-3), "in three digits"


def test_lightnings_rich_bar_is_one_line_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    shutil.copy(LOGGED / "lightning" / "rich.log", tmp_path / "logs" / "stdout.log")
    result = read(tmp_path, "lightning")
    assert result.series["loss"].values.tolist() == [0.217]
    assert "steps.done" not in result.scalars, "5 of the third epoch: nothing says how many went before"


PRINTED = {
    "nanogpt": "step 0: train loss 4.0, val loss 4.1\niter 0: loss 4.0000, time 900.00ms, mfu -100.00%\n"
    "iter 1: loss nan, time 50.00ms, mfu -100.00%\n",
    "torchtitan": "step:  1  loss:  8.1309  grad_norm:  1.5000  memory:  0.98GiB(1.03%)  tps: 2,540  tflops: 0.02\n"
    "validate step:  1  loss:  9.0000  memory:  0.98GiB(1.03%)  tps: 9,999\n"
    "step:  2  loss:     nan  grad_norm:     nan  memory:  0.98GiB(1.03%)  tps: 2,541  tflops: 0.02\n",
    "megatron": " [2026-01-01 00:00:01] iteration        1/     500 | consumed samples: 4 | elapsed time per iteration "
    "(ms): 812.9 | learning rate: 1.0E-04 | lm loss: 1.08E+01 | grad norm: 3.0 | number of nan iterations:   0 |\n"
    " [2026-01-01 00:00:02] iteration        2/     500 | consumed samples: 8 | elapsed time per iteration "
    "(ms): 81.9 | learning rate: 1.0E-04 | loss scale: 1.0 | number of nan iterations:   1 |\n",
    "llm.c": "step    1/100 | loss 4.1 (+nanz)| norm 3.2 (+nanz)| lr 3.00e-04 | 90.1 ms | 30.1% bf16 MFU | 5000 tok/s\n"
    "step    2/100 | loss nan (+nanz)| norm nan (+nanz)| lr 3.00e-04 | 91.1 ms | 30.1% bf16 MFU | 5100 tok/s\n",
}


@pytest.mark.parametrize("name", PRINTED)
def test_a_printed_nan_is_a_nan(name: str, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "stdout.log").write_text(PRINTED[name])
    result = read(tmp_path, name)
    assert np.isnan(result.series["loss"].values).tolist() == [False, True]
    assert "toks_per_s" not in result.series or name == "torchtitan", "a running mean is no rate"
    assert codes(result) == set()


def test_deepspeeds_mean_of_the_whole_run_is_no_rate(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    line = (
        "[2026-01-01 00:00:{n:02},000] [INFO] [timer.py:260:stop] epoch=0/micro_step={n}/global_step={n}, "
        "RunningAvgSamplesPerSec=9.5, CurrSamplesPerSec=8.5, MemAllocated=3.96GB, MaxMemAllocated=4GB\n"
    )
    (tmp_path / "logs" / "stdout.log").write_text("".join(line.format(n=n) for n in range(1, 9)))
    result = read(tmp_path, "deepspeed")
    assert set(result.series["samples_per_s"].values) == {8.5}
    assert set(result.series["step_time_s"].values) == {1.0}


def jsonl(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def test_json_lines_by_their_keys(tmp_path: Path) -> None:
    rows = ({"global_step": i, "train": {"loss": 4 - i / 10}, "tokens_per_sec": "1.5k"} for i in range(1, 9))
    (tmp_path / "log.jsonl").write_text(jsonl({"config": 1}, *rows))
    result = read(tmp_path, "jsonl")
    assert steps(result) == list(range(1, 9))
    assert set(result.series["toks_per_s"].values) == {1500.0}
    assert codes(result) == set()


@pytest.mark.parametrize(
    ("key", "values", "series", "found"),
    [
        ("time", [0.5 * i for i in range(1, 9)], "step_time_s", 0.5),
        ("step_time", [0.5 * i for i in range(1, 9)], "step_time_s", 0.5),
        ("step_time", [0.5, 0.6, 0.5, 0.6, 0.5, 0.6, 0.5, 0.6], "step_time_s", 0.6),
        ("elapsed_time", [f"0:00:{10 * i:02}" for i in range(1, 6)], "step_time_s", 10.0),
        ("timestamp", [1.7e9 + 2 * i for i in range(1, 9)], "step_time_s", 2.0),
        ("dt_ms", [250.0] * 8, "step_time_s", 0.25),
        ("step_ms", [250.0] * 8, "step_time_s", 0.25),
        ("dt", [0.25] * 8, "step_time_s", 0.25),
        ("iter_time", [0.25] * 8, "step_time_s", 0.25),
        ("train/dt", [0.5 * i for i in range(1, 9)], "step_time_s", 0.5),
        ("it/s", [4.0] * 8, "step_time_s", 0.25),
        ("time", [0.5, 0.6, 0.5, 0.6, 0.5, 0.6, 0.5, 0.6], "step_time_s", 0.6),
        ("time", [1.7e9 + 2 * i for i in range(1, 9)], "step_time_s", 2.0),
        ("time_ms", [250.0] * 8, "step_time_s", 0.25),
        ("time_ms", [1.7e12 + 2000 * i for i in range(1, 9)], "step_time_s", 2.0),
        ("time_ms", [500 * i for i in range(1, 9)], "step_time_s", 0.5),
        ("elapsed", [0.5 * i for i in range(1, 9)], "step_time_s", 0.5),
        ("elapsed", [9 + 0.5 * i for i in range(1, 9)], "step_time_s", 0.5),
        ("elapsed", [0.5, 0.6, 0.5, 0.6, 0.5, 0.6, 0.5, 0.6], "step_time_s", 0.6),
        ("avg_tokens_per_sec", [9.0] * 8, "toks_per_s", None),
        ("mean_step_time", [9.0] * 8, "step_time_s", None),
        ("train_samples_per_second", [9.0] * 8, "samples_per_s", None),
    ],
)
def test_times_and_means_are_taken_for_what_they_are(
    key: str, values: list[Any], series: str, found: float | None, tmp_path: Path
) -> None:
    rows = [{"step": i, "loss": 2, key: x} for i, x in enumerate(values, 1)]
    (tmp_path / "log.jsonl").write_text(jsonl(*rows))
    result = read(tmp_path, "jsonl")
    if found is None:
        assert series not in result.series
        return
    assert result.series[series].values[-1] == pytest.approx(found)
    if key not in ("train/dt", "it/s"):
        printed = tmp_path / "printed"
        (printed / "logs").mkdir(parents=True)
        text = jsonl(*rows) if "time" in key else jsonl(*rows).replace(" ", "")
        (printed / "logs" / "stdout.log").write_text(text)
        recipe = next(one for one in RECIPES if one.name == "records")
        again = collect_dir(printed, metrics=TrainerMetrics(stdout=recipe.pattern))
        assert again.series[series].values[-1] == pytest.approx(found), "printed it is read alike"


@pytest.mark.parametrize(
    ("record", "loss"),
    [
        ({"train/loss": 3.5, "tokens_per_sec": 900}, 3.5),
        ({"metrics": {"train/loss": 3.5, "optim/lr": 0.1}, "perf": {"mfu": 0.3}}, 3.5),
        ({"metrics.train.loss": 3.5}, 3.5),
        ({"metrics_train_loss": 3.5}, 3.5),
        ({"Loss/train": 3.5, "Loss/val": 9.0}, 3.5),
        ({"total_loss": 3.5}, 3.5),
        ({"total_loss": 9.0, "metrics": {"loss": 3.5}}, 3.5),
        ({"eval": {"loss": 9.0, "n": {"a": 1}}, "train": {"loss": 3.5}}, 3.5),
        ({"val/loss": 9.0, "train": {"loss": 3.5}}, 3.5),
        ({"device": {"id": 1}, "train": {"loss": 3.5}}, 3.5),
        ({"metrics": {"eval/loss": 9.0}}, None),
        ({"eval": {"metrics": {"loss": 9.0}}}, None),
        ({"val_loss": 9.0}, None),
        ({"critic/loss": 9.0, "loss_scale": 65536.0, "lossless": 1.0}, None),
    ],
)
def test_one_list_of_names_serves_files_and_printed_records(
    record: dict[str, Any], loss: float | None, tmp_path: Path
) -> None:
    """`train/loss` in JSON on standard output had been no loss: a diverging one was GO."""
    rows = [{"step": i, "tokens_per_sec": 900, **record} for i in range(1, 9)]
    for folder, file, reader in (("file", "log.jsonl", "jsonl"), ("printed", "logs/stdout.log", "records")):
        path = tmp_path / folder / file
        path.parent.mkdir(parents=True)
        path.write_text(jsonl(*rows))
        result = read(tmp_path / folder, reader)
        found = set(result.series["loss"].values) if "loss" in result.series else {None}
        assert (found, codes(result)) == ({loss}, set()), reader
    known = recognize(enumerate(jsonl(*rows).splitlines()))
    assert known is not None
    assert known[0].name == "records"


def test_two_files_with_one_series_are_an_error_with_its_fix(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(jsonl({"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}))
    (tmp_path / "other.jsonl").write_text(jsonl({"step": 1, "acc": 0.5}))
    result = read(tmp_path, "jsonl")
    (note,) = result.irregularities
    assert "loss" not in result.series
    assert "acc" in result.series
    assert note.code == "several-sources"
    assert "loss is in a.jsonl and in b.jsonl" in note.message
    assert "files: {jsonl: a.jsonl}" in note.message
    assert steps(read(tmp_path, "jsonl", files={"jsonl": "a.jsonl"})) == [1, 2]


def test_two_processes_that_wrote_event_files_side_by_side_are_an_error(tmp_path: Path) -> None:
    folder = copied("tensorboard", tmp_path)
    (own,) = folder.iterdir()
    shutil.copy(own, folder / f"{own.name}.1")
    result = read(folder, "tensorboard")
    assert not result.series
    assert "written at the same time, by two processes" in result.irregularities[0].message


def test_a_key_that_the_reader_does_not_know_is_named(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(jsonl(*({"step": i, "L/total": 3.0 / i} for i in range(1, 5))))
    assert "loss" not in read(tmp_path, "jsonl").series
    assert steps(read(tmp_path, "jsonl", names={"loss": "L/total"})) == [1, 2, 3, 4]


def test_names_says_which_key_of_a_record_counts_its_steps(tmp_path: Path) -> None:
    """It held for the columns of a CSV alone, and a file without a known step could not be read."""
    rows = [{"frames": 640 * i, "optimizer/count": i, "loss": 3.0 / i} for i in range(1, 5)]
    (tmp_path / "log.jsonl").write_text(jsonl(*rows))
    assert "loss" not in read(tmp_path, "jsonl").series
    result = read(tmp_path, "jsonl", names={"step": "optimizer/count"})
    assert steps(result) == steps(result, "frames") == [1, 2, 3, 4]
    assert result.scalars["steps.done"].value == 4


@pytest.mark.parametrize("key", ["update", "n_updates", "train/updates", "itr", "steps"])
def test_a_record_without_a_step_counts_its_updates(tmp_path: Path, key: str) -> None:
    """A trainer of reinforcement learning, which logs a reward and no loss, wrote nothing that was recognized."""
    rows = [{key: i, "env_frames": 32 * i, "ep_reward_mean": 0.1 * i, "policy_loss": -0.1} for i in range(40)]
    (tmp_path / "log.jsonl").write_text(jsonl(*rows))
    result = read(tmp_path, "jsonl")
    assert steps(result, "ep_reward_mean") == list(range(40))
    assert result.scalars["steps.done"].value == 40, "counted from 0"


def test_a_step_comes_before_a_count_of_updates(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(jsonl(*({"update": 4 * i, "step": i, "loss": 3.0 / i} for i in range(1, 5))))
    result = read(tmp_path, "jsonl")
    assert steps(result) == [1, 2, 3, 4]
    assert result.series["update"].values.tolist() == [4, 8, 12, 16]


def test_readers_combine_by_step(tmp_path: Path) -> None:
    shutil.copytree(LOGGED / "tensorboard", tmp_path / "tb")
    (tmp_path / "x.jsonl").write_text(jsonl(*({"step": i, "loss": 9.0, "acc": 0.5} for i in range(10))))
    first = read(tmp_path, "tensorboard", "jsonl")
    assert first.series["loss"].values[0] == 3.0
    assert steps(first, "acc") == list(range(10))
    assert read(tmp_path, "jsonl", "tensorboard").series["loss"].values[0] == 9.0, "the first one counts"


def truncated(data: bytes) -> bytes:
    return data[:-7]


def flipped(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


BINARY = [("tensorboard", "tensorboard"), ("wandb-offline", "wandb-offline")]


@pytest.mark.parametrize(("folder", "reader"), BINARY)
@pytest.mark.parametrize(("damage", "code"), [(truncated, "truncated-line"), (flipped, "garbage-row")])
def test_a_damaged_file_is_read_as_far_as_it_goes(
    folder: str, reader: str, damage: Callable[[bytes], bytes], code: str, tmp_path: Path
) -> None:
    (path,) = copied(folder, tmp_path).iterdir()
    path.write_bytes(damage(path.read_bytes()))
    result = read(path.parent, reader)
    assert code in codes(result)
    assert 3 < len(result.series["lr"].steps) < 37


@pytest.mark.parametrize("name", [name for name, reader in READERS.items() if reader.files_alone])
def test_no_file_at_all_is_missing_evidence(name: str, tmp_path: Path) -> None:
    (note,) = read(tmp_path, name).irregularities
    assert note.code == "missing-file"
    assert "below the run's output folder" in note.message


@pytest.mark.parametrize("name", ["events.out.tfevents.1", "run-a.wandb", "mlflow.db", "trainer_state.json", "a.jsonl"])
@pytest.mark.parametrize("kind", ["garbage", "empty", "fifo", "link", "folder"])
def test_nothing_in_a_folder_raises_or_blocks(name: str, kind: str, tmp_path: Path) -> None:
    folder, path = tmp_path / "run", tmp_path / "run" / name
    folder.mkdir()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "elsewhere").write_bytes(b'{"step": 1, "loss": 2}\n')
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(os.urandom(5000) if kind == "garbage" else b"")
    result = read(folder, *READERS)
    assert "loss" not in result.series
    assert codes(result)


def event(body: bytes, length: int | None = None) -> bytes:
    head = struct.pack("<Q", len(body) if length is None else length)
    return head + struct.pack("<I", masked_crc32c(head)) + body + struct.pack("<I", masked_crc32c(body))


def test_a_record_that_claims_to_be_huge_is_passed_over_without_memory(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(event(b"", length=2**62))
    assert codes(read(tmp_path, "tensorboard")) == {"truncated-line", "no-match"}


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"x" * (3 << 20) + b"\n" + jsonl({"step": 1, "loss": 2.0}).encode())
    result = read(tmp_path, "jsonl")
    assert steps(result) == [1]
    assert codes(result) == {"too-large"}


def test_globs_stay_in_their_folders() -> None:
    assert matcher("**/a.*").fullmatch("x/y/a.b")
    assert matcher("**/a.*").fullmatch("a.b")
    assert not matcher("*/a").fullmatch("x/y/a")
    assert not matcher("a.b").fullmatch("axb")


@pytest.mark.parametrize(
    ("key", "name"),
    [("Loss/train", "loss"), ("train/loss", "loss"), ("lm loss", "loss"), ("val/acc-1", "val_acc_1"), ("//", "value")],
)
def test_a_key_becomes_a_name_that_criteria_can_use(key: str, name: str) -> None:
    assert logged_name(key) == name


@pytest.mark.parametrize(("folder", "reader"), [*BINARY, ("mlflow-local", "mlflow-local")])
def test_a_copy_for_others_holds_the_same_as_text(folder: str, reader: str, tmp_path: Path) -> None:
    original, copy = copied(folder, tmp_path), tmp_path / "copy"
    shutil.rmtree(original / "mlruns", ignore_errors=True)
    copy.mkdir()
    for path in original.iterdir():
        text = rendition(path.name, path.read_bytes())
        assert text is not None
        assert "\0" not in text
        (copy / f"{path.name}{SUFFIX}").write_text(text)
    one, other = read(original, reader), read(copy, reader)
    assert one.series.keys() == other.series.keys()
    for name, series in one.series.items():
        np.testing.assert_array_equal(series.steps, other.series[name].steps)
        np.testing.assert_array_equal(series.values, other.series[name].values)
    assert codes(other) == set()


def test_the_flaws_of_a_file_are_in_its_copy_too(tmp_path: Path) -> None:
    (path,) = (LOGGED / "tensorboard").iterdir()
    text = rendition(path.name, flipped(path.read_bytes()))
    assert text is not None
    (tmp_path / f"{path.name}{SUFFIX}").write_text(text)
    assert codes(read(tmp_path, "tensorboard")) == {"garbage-row"}
    assert rendition("model.safetensors", b"\0\1") is None
    assert rendition("a.db", b"\0" * 100) is None
