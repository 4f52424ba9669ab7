"""Settings that were asked for and not used, or used in vain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.validator.diagnose.cases import (
    UNCERTAIN,
    healthy,
    of_folder,
    of_run,
    of_validation,
    run_of,
    steady,
    validation,
)
from tests.validator.ingest.folders import write_csv, write_env, write_logs
from validator.diagnose.rule import RunFacts
from validator.diagnose.unknown import config_unknown
from validator.model.runbook import TrainerMetrics
from validator.model.verdict import Finding


def test_config_ignored_by_the_trainers_own_account(tmp_path: Path) -> None:
    """847 tok/s "at S=2048" was one layer at [8, 128] in fp32."""
    ran = {"seq_len": 128, "batch_size": 8, "n_layers": 1, "dtype": "fp32"}
    folder = healthy(tmp_path / "r", rate=847, effective=ran)
    finding = of_run(folder, requested={"seq-len": 2048, "batch_size": 1, "dtype": "BF16"})["config-ignored"]
    assert (finding.severity, finding.confidence) == ("veto", "high")
    assert "seq_len 2048 requested, 128 effective" in finding.message
    assert {e.where for e in finding.evidence} == {"effective.seq_len", "effective.batch_size", "effective.dtype"}


@pytest.mark.parametrize(
    "requested",
    [
        {"seq-len": "2048", "dtype": "BF16", "lr": "2e-4", "out": "/elsewhere", "config": "m7c_125m"},
        {"seq_len": 2048.0, "prefill": "auto", "unheard_of": 7},
    ],
)
def test_a_setting_is_the_same_however_it_is_spelled(tmp_path: Path, requested: dict[str, object]) -> None:
    assert of_run(healthy(tmp_path / "r"), requested=requested) == {}


def test_what_was_left_to_the_trainer_is_not_ignored(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    write_env(
        folder,
        requested={"accum": 1, "opt_fused": "auto", "ffn_dim": None, "seq_len": 2048},
        effective={"accum": 4, "opt_fused": "on", "ffn_dim": 2048, "seq_len": 2048},
        sources={"accum": "default", "seq_len": "cli"},
        world_size=2,
    )
    assert "config-ignored" not in of_run(folder)


def test_an_ignored_setting_that_leaves_the_work_alone_is_a_warning(tmp_path: Path) -> None:
    assert of_run(healthy(tmp_path / "r"), requested={"prefill": "triton"})["config-ignored"].severity == "warning"


def test_another_number_of_ranks_is_another_config(tmp_path: Path) -> None:
    assert of_run(healthy(tmp_path / "r", ranks=1), nproc=2)["config-ignored"].severity == "veto"


def test_rate_times_step_time_betrays_an_ignored_length(tmp_path: Path) -> None:
    """Without an effective config: 1,024 tokens a step where 2 × 2,048 were asked for."""
    folder = tmp_path / "r"
    times = [1024 / r for r in steady()]
    write_csv(folder, steady(), step_time_s=times)
    asked = {"seq_len": 2048, "batch_size": 1}
    only = TrainerMetrics(csv="training.csv")
    finding = of_run(folder, requested=asked, metrics=only)["config-ignored"]
    assert (finding.severity, finding.confidence) == ("veto", "medium")
    write_csv(folder, steady(), step_time_s=[4096 / r for r in steady()])
    assert set(of_run(folder, requested=asked, metrics=only)) == {*UNCERTAIN, "not-judged"}


def test_noop_compression(tmp_path: Path) -> None:
    asked = {"ddp_compress": "bf16"}
    ran = healthy(tmp_path / "a", effective={"ddp_compress": "bf16"}, env={"weight_dtype": "bfloat16"})
    assert "bfloat16 already" in of_run(ran, requested=asked)["noop-compression"].message
    declined = healthy(tmp_path / "b")
    found = of_run(declined, requested=asked)
    assert set(found) == {"noop-compression"}
    fine = healthy(tmp_path / "c", effective={"ddp_compress": "bf16"})
    assert of_run(fine, requested=asked) == {}
    assert of_run(healthy(tmp_path / "d"), requested={"ddp_compress": "off"}) == {}


@pytest.mark.parametrize("name", ["recompile_limit", "cache_size_limit", "accumulated_recompile_limit"])
def test_a_compiler_that_gave_up_is_named(tmp_path: Path, name: str) -> None:
    """As torch writes it, with ten more lines that say which function and why."""
    folder = healthy(tmp_path / "r")
    place = "W1121 20:57:19.645 5148 torch/_dynamo/convert_frame.py:1994] [28/8]"
    write_logs(folder, stderr=f"{place} torch._dynamo hit config.{name} (8)\n")
    finding = of_run(folder)["uncompiled"]
    assert finding.severity == "warning"
    assert f"config.{name} (8)" in finding.evidence[0].text
    write_logs(folder, stderr="step 3: the dynamo hit its recompile_limit nowhere\n")
    assert of_run(folder) == {}


def test_warmup_exceeds_run(tmp_path: Path) -> None:
    """2,000 warm-up steps in a run of 300."""
    finding = of_run(healthy(tmp_path / "r", n=300, effective={"warmup_steps": 2000}), steps=300)["warmup-exceeds-run"]
    assert "reaches 15 %" in finding.message


def test_a_rate_that_rises_to_the_last_row_shows_a_warmup_that_is_too_long(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    rows = [f"{i},{3 - i / 100},{1e-6 * i},845" for i in range(1, 61)]
    (folder / "training.csv").write_text("\n".join(rows) + "\n")
    assert of_folder(folder)["warmup-exceeds-run"].confidence == "medium"


def test_sequential_prefill_at_length(tmp_path: Path) -> None:
    slow = healthy(tmp_path / "r", effective={"prefill": "sequential"})
    assert "NSA_PREFILL_BATCHED=1" in of_run(slow)["host-bound"].next_step
    assert of_run(slow, settings={"env.NSA_PREFILL_BATCHED": 0}) == {}  # the arm of an A/B that is meant to be slow
    assert of_run(healthy(tmp_path / "s", effective={"prefill": "sequential", "seq_len": 256})) == {}


@pytest.mark.parametrize(("at", "slower", "severity"), [(90, 1.0, "info"), (90, 1.2, "warning"), (3, 1.0, "warning")])
def test_a_compiler_that_gave_up_beside_the_training_step(
    tmp_path: Path, at: int, slower: float, severity: str
) -> None:
    """Sampling between two steps met the limit; the steps after it take as long as before."""
    lines = [
        f"step {step} loss {4 + 2 / step:.4f} time {1e3 * (slower if step > at else 1) + step % 7:.2f}ms"
        for step in range(1, 201)
    ]
    lines[at:at] = [
        "W1121 20:57:19.645 5148 torch/_dynamo/convert_frame.py:1994] torch._dynamo hit config.recompile_limit (8)"
    ]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    assert of_folder(tmp_path / "train.log")["uncompiled"].severity == severity


def test_a_config_that_is_not_reported_is_said_to_be_unknown(tmp_path: Path) -> None:
    write_csv(tmp_path / "r", steady(), header=False)
    finding = of_folder(tmp_path / "r")["config-unknown"]
    assert finding.severity == "info"


# Trainers without env.json that print their settings before the first step, as they were recorded.

_NANOGPT = """\
Overriding: batch_size = 12
Overriding: n_layer = 4
Overriding: learning_rate = 0.001
Overriding config with config/late.py:
# left over from another experiment
batch_size = {batch}
tokens per iteration will be: 256
num decayed parameter tensors: 18, with 802,944 parameters
"""
_HF = """\
INFO - __main__ - Training/evaluation parameters TrainingArguments(
gradient_accumulation_steps=1,
learning_rate=0.0005,
max_steps=60,
per_device_train_batch_size={batch},
seed=43,
)
[INFO|configuration_utils.py:768] >> Model config GPT2Config {{
  "n_layer": 12,
[INFO|trainer.py:2372] 2026-11-22 16:38:54,493 >>   Instantaneous batch size per device = {batch}
[INFO|trainer.py:2377] 2026-11-22 16:38:54,493 >>   Total optimization steps = 60
"""
_TITLE = """\
INFO - __main__ -   Instantaneous batch size per device = {batch}
INFO - __main__ -   Total train batch size (w. parallel, distributed & accumulation) = 16
INFO - __main__ -   Total optimization steps = 60
"""
_NANOGPT_ARGV = "train.py --batch_size=12 --n_layer=4 --learning_rate=1e-3 config/late.py"
_HF_ARGV = "run_clm.py --per_device_train_batch_size 8 --learning_rate 5e-4 --seed 42 --max_steps 60"
_TITLE_ARGV = "x.py --per_device_train_batch_size 8 --max_train_steps 60 --output_dir o"


def _printing(tmp_path: Path, text: str, argv: str) -> dict[str, Finding]:
    """Findings on a run whose log begins with `text` and goes on with twenty rows that name other settings too."""
    rows = [f"step {i} loss {3 - i / 100:.3f} batch_size: {i}\n" for i in range(1, 61)]
    tmp_path.mkdir(exist_ok=True)
    write_logs(tmp_path, stdout=text + "".join(rows))
    metrics = TrainerMetrics(stdout="step {step} loss {loss}")
    return of_run(tmp_path, argv=("python", *argv.split()), metrics=metrics, nproc=0)


@pytest.mark.parametrize(
    ("text", "argv", "asked", "printed"),
    [(_NANOGPT, _NANOGPT_ARGV, 12, 4), (_HF, _HF_ARGV, 8, 2), (_TITLE, _TITLE_ARGV, 8, 1)],
)
def test_settings_that_a_trainer_prints_are_compared_with_its_command(
    tmp_path: Path, text: str, argv: str, asked: int, printed: int
) -> None:
    """Without env.json a batch of another size than the command's was a run like any other."""
    name = "batch_size" if "--batch_size" in argv else "per_device_train_batch_size"
    finding = _printing(tmp_path / "a", text.format(batch=printed), argv)["config-ignored"]
    assert (finding.severity, finding.confidence) == ("veto", "medium")
    assert f"{name} {asked} requested, {printed} printed" in finding.message
    assert finding.evidence[0].where.startswith("line ")
    assert "config-ignored" not in _printing(tmp_path / "b", text.format(batch=asked), argv)


@pytest.mark.parametrize("nproc", [0, 2])
def test_half_a_batch_of_one_rank_is_not_that_of_all(tmp_path: Path, nproc: int) -> None:
    """On two ranks 2 in place of 4 was taken for a share of 4, and `config-unknown` did not name it either."""
    rows = "".join(f"step {i} loss {3 - i / 100:.3f}\n" for i in range(1, 61))
    found = {}
    for batch in (2, 4):
        (tmp_path / str(batch)).mkdir()
        write_logs(tmp_path / str(batch), stdout=_TITLE.format(batch=batch) + rows)
        argv = ("x.py", "--per_device_train_batch_size", "4", "--max_train_steps", "60")
        metrics = TrainerMetrics(stdout="step {step} loss {loss}")
        found[batch] = of_run(tmp_path / str(batch), argv=argv, metrics=metrics, nproc=nproc)
    assert "per_device_train_batch_size 4 requested, 2 printed" in found[2]["config-ignored"].message
    assert "config-ignored" not in found[4]


def test_a_number_that_may_mean_the_same_leaves_its_setting_unknown(tmp_path: Path) -> None:
    rows = "".join(f"step {i} loss {3 - i / 100:.3f}\n" for i in range(1, 61))
    write_logs(tmp_path, stdout="n_head = 2\nbatch_size = 16\n" + rows)
    argv, metrics = ("train.py", "--batch_size=8", "--n_head=2"), TrainerMetrics(stdout="step {step} loss {loss}")
    record = run_of(tmp_path, argv=argv, metrics=metrics, nproc=2)
    assert "config-ignored" not in of_run(tmp_path, argv=argv, metrics=metrics, nproc=2)
    run = RunFacts.of(record, {})
    assert run is not None
    (said,) = config_unknown.look(replace(run, undecided=("args.batch_size", "args.n_head")))
    assert "is not known: args.batch_size." in said.message, "16 may be that of both ranks, or of one"


@pytest.mark.parametrize(
    "line",
    [
        "batch_size = 16 (2 ranks)",  # of all ranks
        "command: train.py --batch_size=4 --n_layer=2",  # a command that is repeated
        "global_batch_size = 4, batch_size_eval: 4, my.batch_size: 4",  # other settings
        "learning_rate: 1e-06",  # still to rise
        "n_layer: auto, batch_size: 4x2",  # no number
        "step time 4, batch size of the evaluation 4",
    ],
)
def test_lines_that_only_look_like_settings(tmp_path: Path, line: str) -> None:
    text = f"n_head = 2\n{line}\n"
    rows = [f"step {i} loss {3 - i / 100:.3f}\n" for i in range(1, 61)]
    write_logs(tmp_path, stdout=text + "".join(rows))
    argv = ("train.py", "--batch_size=8", "--n_layer=4", "--n_head=2", "--learning_rate=1e-3")
    metrics = TrainerMetrics(stdout="step {step} loss {loss}")
    assert "config-ignored" not in of_run(tmp_path, argv=argv, metrics=metrics, nproc=2)


def test_one_line_alone_that_contradicts_is_a_warning(tmp_path: Path) -> None:
    """Some other part of the program may share the name, as `max_length` of a config for generation does."""
    argv = "train.py --max_length=512 --lr=1e-3"
    finding = _printing(tmp_path, 'Generate config {\n  "max_length": 20\n}\n', argv)["config-ignored"]
    assert (finding.severity, finding.confidence) == ("warning", "low")


CARD = {"name": "NVIDIA H200", "nvlinks_active": 18, "fabric": {"ready": True}}


@pytest.mark.parametrize(
    ("env", "gpus", "said"),
    [
        ({"NCCL_P2P_DISABLE": "1"}, 2, "NCCL_P2P_DISABLE=1: GPUs of one host reach each other through its memory."),
        ({"NCCL_P2P_LEVEL": "LOC"}, 2, "NCCL_P2P_LEVEL=LOC"),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, 2, "; NCCL_SHM_DISABLE=1"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, 2, "nothing overlaps"),
        ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, 2, "one queue"),
        ({"NCCL_NVLS_ENABLE": "0"}, 8, "NVLink switches"),
        ({"NCCL_NVLS_ENABLE": "0"}, 2, None),
        ({"NCCL_P2P_DISABLE": "0", "NCCL_P2P_LEVEL": "NVL", "CUDA_DEVICE_MAX_CONNECTIONS": "8"}, 2, None),
        ({"NCCL_SHM_DISABLE": "1"}, 2, None),
        ({"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}, 2, None),
        ({"NCCL_P2P_DISABLE": "1"}, 0, None),
        ({"NCCL_P2P_DISABLE": "1"}, 1, None),
    ],
)
def test_a_variable_that_slows_collectives_is_information(
    tmp_path: Path, env: dict[str, str], gpus: int, said: str | None
) -> None:
    run = run_of(healthy(tmp_path / "r", ranks=gpus or 2), nproc=gpus or 2)
    machine = {"gpus": {f"gpu{at}": CARD for at in range(gpus)}, "env": env}
    found = of_validation(validation({"baseline": [run]}, environment=machine))
    assert ("slow-collectives" in found) == (said is not None)
    if said is not None:
        assert found["slow-collectives"].severity == "info"
        assert said in found["slow-collectives"].message
