"""A trainer of plain Python whose steps end when they are due: a rate of 50 steps/s, also on a machine with other work.

`--faults` names a JSON file: phase, then node, to what is wrong there. `slow` multiplies the time of a step, of every
step or of each `every`-th; at step `at` the node leaves a file with the pid of its agent (`mark`), exits with a code
(`exit`), stays where it is (`hang`), or fills a file until there is no room (`fill`). What leaves a mark happens once.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path

STEP_S = 0.02
_MOST_MIB = 64


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--faults", type=Path, required=True)
    args = parser.parse_args()
    node = os.environ.get("VALIDATOR_NODE") or os.environ["SLURMD_NODENAME"]
    rank = int(os.environ.get("NODE_RANK", "0"))
    phase = args.out.parts[args.out.parts.index("runs") + 1]
    fault = json.loads(args.faults.read_text()).get(phase, {}).get(node, {})
    if Path(fault.get("mark", "/nowhere")).exists():
        fault = {}  # it befalls a node once
    table = None
    if rank == 0:
        table = (args.out / "training.csv").open("w", buffering=1)
        table.write("step,loss,lr,step_time_s\n")
    if "at" in fault:
        faulthandler.register(signal.SIGUSR1, file=(args.out / f"stackdump_{rank}.txt").open("w"))
    beats = (args.out / f"heartbeat_rank{rank}.jsonl").open("w", buffering=1)
    due = last = time.perf_counter()
    for step in range(1, args.steps + 1):
        due += STEP_S * (1.0 if step % fault.get("every", 1) else fault.get("slow", 1.0))
        time.sleep(max(0.0, due - time.perf_counter()))
        now = time.perf_counter()
        if table is not None:
            table.write(f"{step},{3 - step / args.steps:.4f},0.1,{now - last:.6f}\n")
        last = now
        beat = {"ts": time.time(), "pid": os.getpid(), "rank": rank, "step": step, "msg": "progress"}
        beats.write(json.dumps(beat) + "\n")
        if step != fault.get("at"):
            continue
        if "mark" in fault:
            Path(fault["mark"]).write_text(str(os.getppid()))
        if "fill" in fault:
            with (args.out / fault["fill"]).open("wb") as file:
                for _ in range(_MOST_MIB):
                    file.write(bytes(1 << 20))
        if "hang" in fault:
            time.sleep(fault["hang"])
        if "exit" in fault:
            print("a fan is broken", file=sys.stderr)
            return int(fault["exit"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
