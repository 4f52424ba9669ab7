"""What a validation costs the training it watches: rate under `validator run` against bare torchrun, and CPU time.

    python -m benchmarks.overhead --config h200_125m_2k --nproc 2 --steps 80 --repeats 4
    python -m benchmarks.overhead --config tiny_cpu --nproc 0 --steps 200

Both sides train with the same command, in turn (ABBA), so that a drift of the machine hits both alike. A rate is
tokens over wall time behind the warm-up, from the trainer's own table. The runner's CPU time is that of its own process
and its guardian while the trainer runs, from /proc, so that reading the runbook and drawing the report do not count.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["main"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Watched:
    """One run under the validator: its rate, and what the runner used while the trainer ran."""

    toks_per_s: float
    cpu_s: float
    wall_s: float


def _arguments(args: argparse.Namespace, out: Path | str, steps: int | str) -> list[str]:
    return [
        "--config",
        args.config,
        "--data",
        "synthetic",
        "--steps",
        str(steps),
        "--out",
        str(out),
        "--save-every",
        "0",
    ]


def _bare(args: argparse.Namespace, out: Path) -> float:
    launch = [sys.executable]
    if args.nproc:
        launch += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(args.nproc)]
    command = [*launch, "-m", "nsa.train", *_arguments(args, out, args.steps)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return _rate(out / "training.csv", args.warmup_steps)


def _rate(path: Path, warmup_steps: int) -> float:
    """Tokens over wall time of the steps behind the warm-up."""
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if int(row["step"]) >= warmup_steps]
    tokens = float(rows[-1]["tokens"]) - float(rows[0]["tokens"])
    return tokens / (float(rows[-1]["wall_s"]) - float(rows[0]["wall_s"]))


def _watched(args: argparse.Namespace, folder: Path) -> Watched:
    folder.mkdir()
    runbook = folder / "overhead.yaml"
    trainer = {"config": args.config, "data": "synthetic", "steps": "{steps}", "out": "{out}", "save-every": 0}
    phase = {"id": "train", "kind": "train", "steps": args.steps}
    defaults = {"nproc": args.nproc, "timeout": "20m", "warmup_steps": args.warmup_steps}
    book = {"schema": 1, "name": "overhead", "trainer": {"args": trainer}, "defaults": defaults, "phases": [phase]}
    runbook.write_text(json.dumps(book))
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    command = [sys.executable, "-m", "validator", "run", str(runbook), "--out", str(folder / "reports")]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    began = ended = None
    while process.poll() is None:
        now = (time.monotonic(), _cpu_s(process.pid))
        events = _events(folder)
        if began is None and "attempt_started" in events:
            began = now
        if began is not None and "attempt_ended" not in events:
            ended = now
        time.sleep(0.1)
    if began is None or ended is None:
        raise SystemExit(f"validator run ended with exit code {process.returncode} before a trainer had run")
    (table,) = folder.glob("reports/*/runs/train/r1/training.csv")
    return Watched(_rate(table, args.warmup_steps), ended[1] - began[1], ended[0] - began[0])


def _events(folder: Path) -> str:
    journal = next(iter(folder.glob("reports/*/journal.jsonl")), None)
    return "" if journal is None else journal.read_text()


def _cpu_s(pid: int) -> float:
    """CPU time of a process and of its guardian; the trainer's processes do not count."""
    pids = [pid]
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pids += [int(one) for one in children if b"guardian" in Path(f"/proc/{one}/cmdline").read_bytes()]
    except OSError:
        pass
    return sum(_own_cpu_s(one) for one in pids)


def _own_cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit code is 1 when a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="tiny_cpu")
    parser.add_argument("--nproc", type=int, default=0, help="processes under torchrun; 0 is plain python")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup-steps", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--least-ratio", type=float, default=0.995)
    parser.add_argument("--most-cpu", type=float, default=0.01, help="share of a core")
    parser.add_argument("--json", action="store_true", dest="as_json")
    args = parser.parse_args(arguments)
    bare: list[float] = []
    watched: list[Watched] = []
    with tempfile.TemporaryDirectory(prefix="overhead-") as name:
        for repeat in range(args.repeats):
            for side in ("bare", "watched") if repeat % 2 == 0 else ("watched", "bare"):
                if side == "bare":
                    bare.append(_bare(args, Path(name) / f"bare{repeat}"))
                else:
                    watched.append(_watched(args, Path(name) / f"watched{repeat}"))
    rates = [one.toks_per_s for one in watched]
    ratio = statistics.mean(rates) / statistics.mean(bare)
    core = sum(one.cpu_s for one in watched) / sum(one.wall_s for one in watched)
    if args.as_json:
        print(json.dumps({"ratio": ratio, "core_share": core, "bare": bare, "watched": rates}))
    else:
        print(f"{args.config}, {args.nproc or 1} process(es), {args.steps} steps, {args.repeats} runs a side, in turn")
        print(f"bare       {statistics.mean(bare):12,.0f} tok/s ± {statistics.pstdev(bare):,.0f}")
        print(f"validator  {statistics.mean(rates):12,.0f} tok/s ± {statistics.pstdev(rates):,.0f}")
        print(f"ratio      {ratio:12.4f} (at least {args.least_ratio})")
        print(f"runner     {core:12.2%} of a core (at most {args.most_cpu:.0%})")
    return 0 if ratio >= args.least_ratio and core <= args.most_cpu else 1


if __name__ == "__main__":
    sys.exit(main())
