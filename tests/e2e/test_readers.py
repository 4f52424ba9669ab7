"""`metrics: NAME` for trainers as they are: printed on two streams, drawn as a bar, logged into files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.folders import result_of

_HEAD = """\
import json, sys, time
steps, out, bad = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "nan"
def loss(step): return float("nan") if bad and step > 60 else 3 / step ** 0.5
"""

_HF = """
def bar(step):
    sys.stderr.write(f"\\r{100 * step // steps:3}%|##   | {step}/{steps} [00:{step // 50:02}<00:01, 50.0it/s]")
bar(0)
for step in range(1, steps + 1):
    time.sleep(0.01)
    if step % 10 == 3:
        bar(step)
    if step % 2 == 0:
        sys.stderr.write("\\r" + " " * 40 + "\\r")
        shown, norm = ("0", "nan") if bad and step > 60 else (f"{loss(step):.4g}", "1.1")
        print({"loss": shown, "grad_norm": norm, "learning_rate": "1e-05", "epoch": f"{step / 20:.4g}"}, flush=True)
        sys.stderr.write("\\r")
        bar(step)
print({"train_runtime": "2", "train_samples_per_second": "9", "train_loss": "1.5", "epoch": f"{steps / 20:.4g}"})
"""
"""A bar that lags on standard error, and dictionaries of every second step on standard output."""

_LIGHTNING = """
for step in range(1, steps + 1):
    time.sleep(0.01)
    epoch, done = (step - 1) // 50, (step - 1) % 50 + 1
    shown = f"[00:00<00:01, 90.0it/s, v_num=0, train_loss={loss(step):.3f}]"
    print(f"\\rEpoch {epoch}: {2 * done:3}%|##   | {done}/50 {shown}", end="", flush=True)
"""

_TITAN = """
for step in range(1, steps + 1):
    time.sleep(0.01)
    print(f"step: {step:2}  loss: {loss(step):8.5f}  grad_norm:  1.5000  memory:  0.98GiB(1.03%)  "
          f"tps: {9000 + step % 7:,}  tflops: 0.02  mfu: 0.00%", file=sys.stderr, flush=True)
    if step % 50 == 0:
        print(f"validate step: {step:2}  loss: 99.00000  memory:  0.98GiB(1.03%)  tps: 1", file=sys.stderr, flush=True)
"""

_JSONL = """
with open(out + "/log.jsonl", "w", buffering=1) as file:
    for step in range(1, steps + 1):
        time.sleep(0.01)
        file.write(json.dumps({"global_step": step, "train": {"loss": loss(step)}, "timestamp": time.time()}) + "\\n")
"""

_TWICE = _JSONL + "import shutil; shutil.copy(out + '/log.jsonl', out + '/again.jsonl')"

RATE_OF_A_BUSY_MACHINE = ("no-steady-state", "rate-shift", "busy-host")
"""Warnings that the tests beside this one can cause; any other would be of what was read."""

TRAINERS = {"hf-trainer": _HF, "lightning": _LIGHTNING, "torchtitan": _TITAN, "jsonl": _JSONL}


def run(cli, workdir: Path, trainer: str, metrics: str, *, nan: bool = False) -> tuple[int, dict]:
    (workdir / "theirs.py").write_text(_HEAD + trainer, encoding="utf-8")
    (workdir / "theirs.yaml").write_text(
        f"""\
schema: 1
name: theirs
trainer:
  command: [theirs.py, "{{steps}}", "{{out}}", {"nan" if nan else "sound"}]
  metrics: {metrics}
  tokens_per_step: 100
defaults: {{nproc: 0, timeout: 2m, warmup_steps: 20, watchdog: {{interval: 0.1s}}}}
phases:
  - {{id: baseline, kind: train, steps: 200, accept: [loss.last < loss.first, toks_per_s.mean >= 100 tok/s]}}
""",
        encoding="utf-8",
    )
    answer = cli("run", "theirs.yaml")
    return answer.rc, result_of(workdir)


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_is_read_as_it_is(cli, workdir: Path, name: str) -> None:
    code, result = run(cli, workdir, TRAINERS[name], name)
    assert (code, result["decision"]) == (0, "GO"), result["why"]
    found = {one["code"] for one in result["findings"]}
    assert found <= {"config-unknown", *RATE_OF_A_BUSY_MACHINE}


@pytest.mark.parametrize("name", TRAINERS)
def test_a_nan_stops_the_run_while_it_runs(cli, workdir: Path, name: str) -> None:
    code, result = run(cli, workdir, TRAINERS[name], name, nan=True)
    assert (code, result["decision"]) == (1, "NO_GO")
    assert "the loss is nan at step 6" in result["why"]


def test_what_is_found_twice_is_no_go(cli, workdir: Path) -> None:
    code, result = run(cli, workdir, _TWICE, "jsonl")
    assert code != 0
    (finding,) = [one for one in result["findings"] if one["code"] == "missing-evidence"]
    assert "files: {jsonl: " in finding["message"]


def test_the_file_that_is_named_is_read_alone(cli, workdir: Path) -> None:
    assert run(cli, workdir, _TWICE, "{reader: jsonl, files: {jsonl: log.jsonl}}")[0] == 0


def test_a_name_that_no_reader_has_is_answered_by_the_nearest(cli, workdir: Path) -> None:
    (workdir / "a.yaml").write_text(
        "schema: 1\nname: a\ntrainer: {command: [a.py], metrics: nanogtp}\nphases: [{id: a, kind: train, steps: 9}]\n"
    )
    answer = cli("check", "a.yaml")
    assert answer.rc == 2
    assert "did you mean nanogpt?" in answer.out + answer.err
    assert "a.yaml:3:" in answer.out + answer.err


def test_files_that_the_trainer_cannot_know_the_place_of_are_a_problem(cli, workdir: Path) -> None:
    (workdir / "a.yaml").write_text(
        "schema: 1\nname: a\ntrainer: {command: [a.py, '{steps}'], metrics: tensorboard}\n"
        "phases: [{id: a, kind: train, steps: 9, accept: [loss.last < 9]}]\n"
    )
    answer = cli("check", "a.yaml")
    assert answer.rc == 2
    assert "the trainer is never given its output folder" in answer.out + answer.err


def test_a_rate_that_follows_from_no_declared_tokens_is_a_problem(cli, workdir: Path) -> None:
    (workdir / "a.yaml").write_text(
        "schema: 1\nname: a\ntrainer: {command: [a.py, '{steps}', '{out}'], metrics: hf-trainer}\n"
        "phases: [{id: a, kind: train, steps: 9, accept: [toks_per_s.mean > 9]}]\n"
    )
    answer = cli("check", "a.yaml")
    assert answer.rc == 2
    assert "declare trainer.tokens_per_step" in answer.out + answer.err
