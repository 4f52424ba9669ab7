"""A small runbook of plain Python, with something of everything that a resumed validation must get right."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_runbook"]

_TRAINER = '''
"""A trainer that takes its time: a rate of 1000 tokens/s whatever the machine, so that every decision is the same."""
import argparse, json, os, time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--out", type=Path, required=True)
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)
step_s = 0.004 if os.environ.get("BUCKET") == "2" else 0.008
table = (args.out / "training.csv").open("w", buffering=1)
beats = (args.out / "heartbeat_rank0.jsonl").open("w", buffering=1)
table.write("step,loss,lr,toks_per_s,step_time_s\\n")
for step in range(1, args.steps + 1):
    time.sleep(step_s)
    table.write(f"{step},{2 - step / args.steps:.4f},0.1,{8 / step_s + step % 3:.1f},{step_s}\\n")
    beat = {"ts": time.time(), "pid": os.getpid(), "rank": 0, "step": step, "msg": "progress"}
    beats.write(json.dumps(beat) + "\\n")
(args.out / "bucket.txt").write_text(os.environ.get("BUCKET", "none"))
'''

_RUNBOOK = """\
schema: 1
name: plain
trainer:
  command: ["{trainer}"]
  args: {{steps: "{{steps}}", out: "{{out}}"}}
  metrics: {{csv: training.csv, heartbeat: "heartbeat_rank{{rank}}.jsonl"}}
hardware: {{gpus: 0, disk_free: 1 MiB}}
defaults: {{nproc: 0, timeout: 60s, warmup_steps: 5}}
phases:
  - {{id: preflight, kind: preflight}}
  - {{id: words, kind: command, run: "echo it is 42", stdout: 'is (?P<it>\\d+)', accept: [metrics.it == 42]}}
  - {{id: baseline, kind: train, steps: 60, accept: [loss.last < loss.first]}}
  - id: buckets
    kind: sweep
    steps: 40
    over: {{env.BUCKET: [1, 2]}}
    repeats: 4
    choose: {{highest: toks_per_s.mean, tie: toks_per_s.stdev, adopt: true}}
  - {{id: again, kind: train, needs: [buckets], steps: 60, accept: [loss.last < 1.5]}}
"""


def write_runbook(folder: Path) -> Path:
    """Write trainer and runbook into `folder`; returns the runbook. It takes about three seconds."""
    trainer = folder / "trainer.py"
    trainer.write_text(_TRAINER, encoding="utf-8")
    runbook = folder / "plain.yaml"
    runbook.write_text(_RUNBOOK.format(trainer=trainer), encoding="utf-8")
    return runbook
