"""A trainer of the original kind: rows without a header, a heartbeat of rank 0 alone, no effective config."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.folders import result_of

_TRAINER = """
import json, os, sys, time
out, rank = sys.argv[sys.argv.index("--out") + 1], int(os.environ["RANK"])
if rank == 0:
    table = open(out + "/training.csv", "w", buffering=1)
    beats = open(out + "/heartbeat_rank0.jsonl", "w", buffering=1)
began = time.monotonic()
for step in range(1, 121):
    time.sleep(max(0.0, began + 0.02 * step - time.monotonic()))  # due times: a busy machine does not add up
    if rank == 0:
        table.write(f"{step},{2 - step / 200:.4f},0.0002,{49.5 + step % 3 * 0.1:.2f}\\n")
        beat = {"ts": time.time(), "iso": "-", "pid": os.getpid(), "rank": 0, "step": step, "msg": "progress"}
        beats.write(json.dumps(beat) + "\\n")
"""

_RUNBOOK = """\
schema: 1
name: original
trainer:
  command: ["{trainer}"]
  args: {{out: "{{out}}"}}
  metrics: {{csv: training.csv, heartbeat: "heartbeat_rank{{rank}}.jsonl", env: env.json}}
hardware: {{gpus: 0}}
defaults: {{nproc: 2, timeout: 2m, warmup_steps: 20}}
phases:
  - id: baseline
    kind: train
    steps: 120
    accept:
      - toks_per_s.mean >= 39 tok/s
      - loss.last < loss.first
      - effective.seq_len == 2048
      - straggler.score >= 0.75
"""


def test_it_is_judged_and_what_cannot_be_known_is_inconclusive(cli, workdir: Path) -> None:
    trainer = workdir / "original.py"
    trainer.write_text(_TRAINER, encoding="utf-8")
    (workdir / "original.yaml").write_text(_RUNBOOK.format(trainer=trainer), encoding="utf-8")
    answer = cli("run", "original.yaml")
    assert answer.rc == 3, answer.err
    result = result_of(workdir)
    assert result["decision"] == "INCONCLUSIVE"
    status = {criterion["text"]: criterion["status"] for criterion in result["phases"][0]["criteria"]}
    assert status["toks_per_s.mean >= 39 tok/s"] == "PASS"
    assert status["loss.last < loss.first"] == "PASS"
    assert status["every run does all its steps"] == "PASS"
    assert status["effective.seq_len == 2048"] == "INCONCLUSIVE"
    assert status["straggler.score >= 0.75"] == "INCONCLUSIVE"
    told = {finding["code"]: finding["message"] for finding in result["findings"]}
    assert "no heartbeat of rank 1" in told["missing-evidence"]
    assert "config-unknown" in told
