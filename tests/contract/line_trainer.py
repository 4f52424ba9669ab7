"""A trainer that has nothing to do with this project: it learns a line by gradient descent, in plain Python.

    python line_trainer.py --steps 50 --out DIR                   writes training.csv and a heartbeat per rank
    python line_trainer.py --steps 50 --out DIR --report stdout   only prints

Under torchrun each rank learns from its own samples; rank 0 speaks for all.
"""

import argparse
import json
import os
import random
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--report", choices=["csv", "stdout"], default="csv")
parser.add_argument("--batch-size", type=int, default=2000)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

args.out.mkdir(parents=True, exist_ok=True)
table = (args.out / "training.csv").open("w", buffering=1) if args.report == "csv" and rank == 0 else None
heartbeat = (args.out / f"heartbeat_rank{rank}.jsonl").open("w", buffering=1) if args.report == "csv" else None
if table:
    table.write("step,loss,lr,toks_per_s\n")

samples = random.Random(args.seed * world + rank)
slope, offset = 0.0, 0.0
before = time.perf_counter()
for step in range(1, args.steps + 1):
    xs = [samples.uniform(-1, 1) for _ in range(args.batch_size)]
    errors = [slope * x + offset - (3 * x + 1) for x in xs]
    loss = sum(e * e for e in errors) / len(xs)
    slope -= args.lr * sum(2 * e * x for e, x in zip(errors, xs, strict=True)) / len(xs)
    offset -= args.lr * sum(2 * e for e in errors) / len(xs)

    now = time.perf_counter()
    rate, before = world * args.batch_size / (now - before), now
    if table:
        table.write(f"{step},{loss:.6f},{args.lr},{rate:.1f}\n")
    if heartbeat:
        record = {"ts": time.time(), "pid": os.getpid(), "rank": rank, "step": step, "msg": "progress", "loss": loss}
        heartbeat.write(json.dumps(record) + "\n")
    if args.report == "stdout" and rank == 0:
        print(f"step {step} loss {loss:.6f} tok/s {rate:.1f}", flush=True)
