"""Trainer throughput: the real `nsa.train`, run as a user runs it, read from its own files.

    python benchmarks/train.py                                   # a CPU table in under a minute
    python benchmarks/train.py --shapes 2048x32,32768x2 --dense  # 125M on the GPUs here, dense beside it
    python benchmarks/train.py --telemetry                       # everything on against everything off
    python benchmarks/train.py --start --shapes ''                # the first step with empty kernel caches, then full

Rates are tokens over wall time after the warm-up; `first step` counts from the process's start to the end of
its first optimizer step, imports and compilation included.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

WARM_UP_STEPS = 10
SMALL_TOKENS = 8192


@dataclass(frozen=True)
class _Ran:
    """What a run left: when it was started (Unix seconds), CSV rows, env.json, rank 0's heartbeats, its `[start]`."""

    began: float
    rows: list[dict[str, str]]
    env: dict[str, Any]
    beats: list[dict[str, Any]]
    start: str

    @property
    def first_step_s(self) -> float:
        """From the process's start to the end of its first step."""
        return float(next(b["ts"] for b in self.beats if b["msg"] == "progress")) - self.began


def _run(command: list[str], out: Path, env: dict[str, str] | None = None) -> _Ran:
    """Run a trainer, with `env` added to the environment."""
    began = time.time()
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, check=False, env=os.environ | (env or {})
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    with (out / "training.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    beats = [json.loads(line) for line in (out / "heartbeat_rank0.jsonl").read_text().splitlines()]
    start = next((line for line in done.stdout.splitlines() if line.startswith("[start]")), "")
    return _Ran(began, rows, json.loads((out / "env.json").read_text()), beats, start)


def _steady_step_s(rows: list[dict[str, str]], steady: list[dict[str, str]]) -> float:
    """Mean seconds per step over the steady rows: a median would hide whatever only some of the steps pay for."""
    before = rows[rows.index(steady[0]) - 1]
    n_steps = int(steady[-1]["step"]) - int(before["step"])
    return (float(steady[-1]["wall_s"]) - float(before["wall_s"])) / n_steps


def measure(label: str, settings: list[str], *, nproc: int, steps: int) -> dict[str, Any]:
    """One run of the trainer with `settings` on `nproc` processes; a row of the table."""
    launcher = [sys.executable, "-m"]
    if nproc > 1:
        launcher += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc), "-m"]
    command = [*launcher, "nsa.train", *settings, "--steps", str(steps)]
    with tempfile.TemporaryDirectory() as folder:
        ran = _run(command, Path(folder) / "out")
    rows, env = ran.rows, ran.env
    steady = [r for r in rows[1:] if int(r["step"]) > min(WARM_UP_STEPS, steps // 2)]
    step_s = _steady_step_s(rows, steady)
    toks_per_s = env["tokens_per_step"] / step_s
    flops, peak = env["flops_per_token"], env["peak_flops"]
    return {
        "label": label,
        "world": nproc,
        "tokens_per_step": env["tokens_per_step"],
        "step_ms": step_s * 1e3,
        "toks_per_s_per_gpu": toks_per_s / nproc,
        "mfu": toks_per_s * flops["nsa"] / peak if peak else None,
        "mfu_dense_equivalent": toks_per_s * flops["dense_equivalent"] / peak if peak else None,
        "peak_gib": float(rows[-1]["gpu_mem_peak_mib"]) / 1024 if rows[-1]["gpu_mem_peak_mib"] else None,
        "first_step_s": ran.first_step_s,
        "start": ran.start,
        "loss_last": float(rows[-1]["loss"]),
        "steps": len(rows),
        "prefill": env["effective"]["prefill"],
    }


def measure_start(settings: list[str], *, repeats: int = 2) -> list[dict[str, Any]]:
    """The first step's end with caches that are empty, then `repeats` times with those that this filled."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TRITON_CACHE_DIR": f"{folder}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        for i in range(1 + repeats):
            command = [sys.executable, "-m", "nsa.train", *settings, "--steps", "2"]
            ran = _run(command, Path(folder) / f"out{i}", caches)
            label = "kernel caches empty" if i == 0 else "kernel caches full"
            found.append({"label": label, "first_step_s": ran.first_step_s, "start": ran.start})
    return found


def _plans(args: argparse.Namespace) -> list[tuple[str, list[str]]]:
    extra = args.extra.split()
    plans = []
    for shape in filter(None, args.shapes.split(",")):
        seq_len, batch = shape.split("x")
        small = args.small_extra.split() if int(seq_len) * int(batch) <= SMALL_TOKENS else []
        base = ["--config", args.config, "--seq-len", seq_len, "--batch-size", batch, *extra, *small]
        plans.append((f"nsa {shape}", base))
        if args.dense:
            plans.append((f"dense {shape}", [*base, "--attention", "dense"]))
        if args.telemetry:
            off = ["--no-aux-stats", "--log-every", "10", "--heartbeat-s", "3600"]
            on = ["--nvtx", "--tensorboard"] if importlib.util.find_spec("tensorboard") else ["--nvtx"]
            plans += [(f"nsa {shape} telemetry off", [*base, *off]), (f"nsa {shape} telemetry full", [*base, *on])]
    return plans


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    columns = {
        "label": "run",
        "world": "processes",
        "step_ms": "ms/step",
        "toks_per_s_per_gpu": "tokens/s per process",
        "mfu": "MFU (NSA)",
        "mfu_dense_equivalent": "MFU (dense eq.)",
        "peak_gib": "peak GiB",
        "first_step_s": "first step, s",
        "prefill": "prefill",
    }
    lines = ["| " + " | ".join(columns.values()) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = []
        for name in columns:
            value = row[name]
            digits = 3 if name.startswith("mfu") else 1
            cells.append("–" if value is None else f"{value:,.{digits}f}" if isinstance(value, float) else str(value))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, and write JSON if asked."""
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="h200_125m_2k" if on_gpu else "tiny_cpu")
    parser.add_argument("--shapes", default="2048x32" if on_gpu else "128x2", help="SEQ_LENxBATCH, comma-separated")
    parser.add_argument("--nproc", default="1", help="numbers of processes, comma-separated")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--dense", action="store_true", help="the same trainer with dense attention beside it")
    parser.add_argument("--telemetry", action="store_true", help="telemetry off and full beside it")
    parser.add_argument("--start", action="store_true", help="also time the first step, kernel caches empty and full")
    parser.add_argument("--extra", default="", help="further settings of nsa.train, in one string")
    parser.add_argument(
        "--small-extra",
        default="--compile --cuda-graph" if on_gpu else "",
        help=f"the same for shapes of at most {SMALL_TOKENS:,} tokens, where the host is the limit",
    )
    parser.add_argument("--json", type=Path, help="also write the rows here")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows, starts = [], []
    if args.start:
        starts = measure_start(["--config", args.config, *args.extra.split()])
        for found in starts:
            print(f"{found['label']}: first step after {found['first_step_s']:.1f} s; {found['start']}", flush=True)
    for nproc in (int(n) for n in args.nproc.split(",")):
        for label, settings in _plans(args):
            rows.append(measure(label, settings, nproc=nproc, steps=args.steps))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    if rows:
        print(table(rows))
    if args.json:
        record = {"torch": torch.__version__, "rows": rows, "starts": starts}
        args.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
