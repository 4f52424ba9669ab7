"""What docs/own-trainer.md advises for trainers that are not installed here works on what they write."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml

from validator.ingest.logs import series
from validator.ingest.read_log import ReadLog
from validator.ingest.table import read_table
from validator.kinds.registry import loads

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "own-trainer.md").read_text(encoding="utf-8")
TRAINERS = [yaml.safe_load(block)["trainer"] for block in re.findall(r"```yaml\n(trainer:.*?)```", PAGE, re.DOTALL)]

TITAN = (
    "[titan] 2026-01-01 - root - INFO - \x1b[31mstep: {n:2}  \x1b[32mloss: {x:7.4f}  \x1b[38;2;180;60;0mgrad_norm: 1.2"
)
LINES = {
    "torchtitan": TITAN + "  \x1b[33mmemory: 10.90GiB(11.50%)  \x1b[34mtps: 6,125  \x1b[36mtflops: 40.50\x1b[39m\n",
    "log_interval": "iter {n}: loss {x:.4f}, time 123.45ms, mfu 12.30%\n",
    "run.sh": "step {n:4}/99 | loss {x:f} (+nanz)| norm 0.5 (+nanz)| lr 1.00e-04 | 123.45 ms | 30.0% MFU | 999 tok/s\n",
    "pretrain_gpt": " [2026-01-01 00:{n}0:00] iteration {n:8}/      99 | elapsed time per iteration (ms): 9.5 "
    "| lm loss: {x:E} | loss scale: 1.0 | grad norm: 0.500 |\n",
    "--out": "[2026-01-01 00:{n}0:00,000] [INFO] epoch=0/micro_step={n}/global_step={n}, RunningAvgSamplesPerSec=9.5, "
    "CurrSamplesPerSec=8.5, MemAllocated=3.96GB\n",
    "fit.py": "{n}/99 - 1s - 12ms/step - accuracy: 0.5 - loss: {x:.4f}\n",
    "train.py": "step:{n}/99 train_loss:{x:.4f} train_time:{n}0234ms step_avg:nanms\n",
}


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda trainer: str(trainer["command"][:2]))
def test_each_is_a_sound_part_of_a_runbook(trainer: dict[str, object]) -> None:
    text = yaml.safe_dump(
        {"schema": 1, "name": "a", "trainer": trainer, "phases": [{"id": "a", "kind": "train", "steps": 99}]}
    )
    assert loads(text).trainer.args == {}, "the command says how many steps, and where to"


@pytest.mark.parametrize(
    "trainer", [one for one in TRAINERS if "stdout" in one["metrics"]], ids=lambda t: str(t["command"][:2])
)
def test_a_pattern_reads_the_lines_of_its_trainer(trainer: dict[str, dict[str, str]], tmp_path: Path) -> None:
    line = next(line for name, line in LINES.items() if name in " ".join(trainer["command"]))
    (tmp_path / "log").write_text("".join(line.format(n=n, x=3 / n) for n in (1, 2, 3)), encoding="utf-8")
    noted = ReadLog(tmp_path)
    table = series(tmp_path / "log", trainer["metrics"]["stdout"], noted)
    assert table is not None
    assert not noted.irregularities
    if "{loss}" in trainer["metrics"]["stdout"]:
        assert table.columns["loss"][0].tolist() == [1, 2, 3]
    assert {"step_time_s", "toks_per_s_per_rank"} & set(table.columns)
    assert all(len(steps) == 3 for name, (steps, _) in table.columns.items() if name not in table.derived)


def test_the_callback_writes_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = ModuleType("transformers")
    stub.TrainerCallback = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", stub)
    code = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "TrainerCallback" in block)
    scope: dict[str, type] = {}
    exec(code, scope)  # noqa: S102 -- the page's own code
    callback, args = scope["TrainingTable"](), SimpleNamespace(output_dir=str(tmp_path), logging_nan_inf_filter=True)
    state = SimpleNamespace(is_world_process_zero=True, num_input_tokens_seen=0, global_step=0)
    callback.on_train_begin(args, state, None)
    assert not args.logging_nan_inf_filter, "a NaN would be printed as 0.0"
    for step in (1, 2, 3):
        state.global_step, state.num_input_tokens_seen = step, 512 * step
        callback.on_log(args, state, None, logs={"loss": 3 / step, "learning_rate": 5e-5, "epoch": 0.1 * step})
    callback.on_log(args, state, None, logs={"train_runtime": 4.2, "train_loss": 0.5})
    callback.on_train_end(args, state, None)
    noted = ReadLog(tmp_path)
    table = read_table(tmp_path / "training.csv", noted)
    assert table is not None
    assert not noted.irregularities
    assert table.columns["loss"][1].tolist() == [3.0, 1.5, 1.0]
    args.logging_nan_inf_filter = True
    with pytest.raises(RuntimeError, match="hides a loss of NaN"):
        callback.on_log(args, state, None, logs={"loss": 0.0, "learning_rate": 5e-5})
    assert (table.columns["toks_per_s"][1] > 0).all()
