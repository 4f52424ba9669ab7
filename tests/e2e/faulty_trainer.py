"""A trainer that goes wrong on request, in plain Python: what a validator must never call GO.

python faulty_trainer.py --steps 50 --out DIR --fault exit|no-csv|nan|ignore-sigterm|none
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--fault", default="none")
parser.add_argument("--step-s", type=float, default=0.01)  # paced, so that a busy machine stays steady
args = parser.parse_args()

if args.fault == "ignore-sigterm":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
args.out.mkdir(parents=True, exist_ok=True)
table = None
if args.fault != "no-csv":
    table = (args.out / "training.csv").open("w", buffering=1)
    table.write("step,loss,lr,toks_per_s\n")
heartbeat = (args.out / "heartbeat_rank0.jsonl").open("w", buffering=1)
for step in range(1, args.steps + 1):
    began = time.perf_counter()
    time.sleep(args.step_s)
    if args.fault == "exit" and step == 6:
        sys.exit("out of luck after step 5")
    loss = float("nan") if args.fault == "nan" and step > 5 else 2.0 - step / args.steps
    if table:
        table.write(f"{step},{loss},0.1,{100 / (time.perf_counter() - began):.1f}\n")
    beat = {"ts": time.time(), "pid": os.getpid(), "rank": 0, "step": step, "msg": "progress", "loss": loss}
    heartbeat.write(json.dumps(beat) + "\n")
