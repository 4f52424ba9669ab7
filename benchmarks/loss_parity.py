"""NSA against dense attention at equal steps: does sparse attention cost validation loss?

    python benchmarks/loss_parity.py --data-path DIR --out build/loss_parity      # minutes on two cores
    python benchmarks/loss_parity.py --data-path DIR --settings config=showcase   # any config of the trainer
    python benchmarks/loss_parity.py --data-path DIR --seeds 1337 1 --together   # on a GPU with room

Trains one model twice from the same seed on the same samples, with `attention=nsa` and `attention=dense`, by the real
trainer, and compares what it wrote to `val.csv`. Prints the curve as a table, a row as soon as both have it, and says
how often the corpus was read: a text that is read again measures memory, not modeling. Writes `loss_parity.json`, and
ends in 1 if a last ratio exceeds the bound.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# 1 to 3 million parameters, several layers, and sequences long enough that every branch leaves something out: a query
# at the end sees 63 compressed tokens, 128 selected ones and 64 in its window, of 512.
MODEL = {
    "dim": 160, "n_layers": 5, "n_heads": 8, "n_kv_groups": 2, "d_k": 20, "d_v": 20,
    "l_cmp": 16, "d_cmp": 8, "l_sel": 16, "n_sel": 8, "w": 64,
    "seq_len": 512, "batch_size": 4, "lr": 2e-3, "warmup_steps": 30, "dtype": "fp32", "device": "cpu",
}  # fmt: skip
KINDS = ("nsa", "dense")
VAL_BATCHES = 16


@dataclass(frozen=True)
class Training:
    """A run of the trainer that was started: its folder and its process."""

    kind: str
    out: Path
    process: subprocess.Popen[bytes]

    def curve(self) -> dict[int, float]:
        """Validation loss by step, as far as it is written."""
        path = self.out / "val.csv"
        if not path.exists():
            return {}
        lines = path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()  # the last may be half written
        return {int(row["step"]): float(row["val_loss"]) for row in csv.DictReader(lines)}

    def failed(self) -> bool:
        """Whether it ended, and not well."""
        return bool(self.process.poll())

    def log(self) -> str:
        """The end of what it said."""
        return (self.out / "log.txt").read_text(encoding="utf-8", errors="replace")[-3000:]


def start(kind: str, settings: dict[str, Any], out: Path, *, steps: int, val_every: int, seed: int) -> Training:
    """Start the trainer with one kind of attention."""
    chosen = {
        **settings, "attention": kind, "steps": steps, "val_every": val_every, "val_batches": VAL_BATCHES,
        "data": "local", "seed": seed, "out": out,
    }  # fmt: skip
    words = [word for name, value in chosen.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    out.mkdir(parents=True, exist_ok=True)
    with (out / "log.txt").open("wb") as log:
        command = [sys.executable, "-m", "nsa.train", *words]
        return Training(kind, out, subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))


def train_pair(settings: dict[str, Any], out: Path, *, together: bool, **shared: int) -> dict[str, Training]:
    """Train both kinds, one after the other or at once; rows of the table appear while they run."""
    runs: dict[str, Training] = {}
    shown: set[int] = set()
    try:
        for kind in KINDS:
            runs[kind] = start(kind, settings, out / kind, **shared)
            if not together or kind == KINDS[-1]:
                _follow(runs, shown)
    finally:
        for run in runs.values():
            if run.process.poll() is None:
                run.process.terminate()
                run.process.wait()
    return runs


def _follow(runs: dict[str, Training], shown: set[int]) -> None:
    """Wait until every run ended, and print the steps that all kinds have reached."""
    running = True
    while running:
        running = any(run.process.poll() is None for run in runs.values())  # before reading: the last row is not missed
        if len(runs) == len(KINDS):
            curves = [run.curve() for run in runs.values()]
            for step in sorted(set.intersection(*(set(curve) for curve in curves)) - shown):
                nsa, dense = (curve[step] for curve in curves)
                print(f"| {step} | {nsa:.4f} | {dense:.4f} | {nsa / dense:.4f} |", flush=True)
                shown.add(step)
        for run in runs.values():
            if run.failed():
                raise SystemExit(f"training with {run.kind} attention failed:\n{run.log()}")
        time.sleep(0.2)


def facts(runs: dict[str, Training]) -> dict[str, Any]:
    """What was trained on what: sizes, curves, and how often the training text was read."""
    env = {kind: json.loads((run.out / "env.json").read_text(encoding="utf-8")) for kind, run in runs.items()}
    data, effective = env["nsa"]["data"], env["nsa"]["effective"]
    trained = env["nsa"]["tokens_per_step"] * effective["steps"]
    asked = VAL_BATCHES * env["nsa"]["world_size"] * effective["batch_size"] * effective["seq_len"]
    return {
        "seed": effective["seed"],
        "params": {kind: one["params"] for kind, one in env.items()},
        "data": data,
        "tokens_trained": trained,
        "epochs": trained / data["train_tokens"],
        "val_tokens_read": min(asked, data["val_tokens"]),
        "val_loss": {kind: run.curve() for kind, run in runs.items()},
    }


def compare(settings: dict[str, Any], out: Path, *, seed: int, together: bool, **shared: int) -> dict[str, Any]:
    """One pair of runs, as a table; what is known of it, with the `ratio` of the last validation losses."""
    print(f"seed {seed}\n\n| step | NSA | dense | ratio |\n|---|---|---|---|", flush=True)
    found = facts(train_pair(settings, out, together=together, seed=seed, **shared))
    curves = found["val_loss"]
    last = max(curves["nsa"].keys() & curves["dense"].keys())
    params = found["params"]
    print(
        f"\n{params['nsa']:,} parameters with NSA, {params['dense']:,} with dense attention; "
        f"{found['tokens_trained']:,} tokens trained, {found['epochs']:.2f} times the training text; "
        f"{found['data']['documents']:,} documents, validation on {found['val_tokens_read']:,} held-out tokens\n",
        flush=True,
    )
    return {**found, "last_step": last, "ratio": curves["nsa"][last] / curves["dense"][last]}


def main(argv: Sequence[str] | None = None) -> int:
    """Train pairs, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--data-path", required=True, help="text files, a folder of them or a glob pattern")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--val-every", type=int, default=50)
    parser.add_argument("--bound", type=float, default=1.02, help="largest ratio of the last validation losses")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1337], help="one pair of runs for each")
    parser.add_argument("--together", action="store_true", help="run the two of a pair at the same time")
    parser.add_argument(
        "--settings", nargs="*", default=[], metavar="NAME=VALUE", help="of the trainer; config=… replaces the model"
    )
    parser.add_argument("--out", type=Path, default=Path("build/loss_parity"))
    args = parser.parse_args(argv)
    overrides = dict(word.split("=", 1) for word in args.settings)
    settings = {**({} if "config" in overrides else MODEL), **overrides, "data_path": args.data_path}
    shared = {"steps": args.steps, "val_every": args.val_every}
    pairs = [
        compare(settings, args.out / f"seed_{seed}", seed=seed, together=args.together, **shared) for seed in args.seeds
    ]
    result = {"schema_version": 2, "settings": settings, "bound": args.bound, "pairs": pairs}
    (args.out / "loss_parity.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(max(pair["ratio"] for pair in pairs) > args.bound)


if __name__ == "__main__":
    sys.exit(main())
