"""NSA against dense attention at equal steps: does sparse attention cost validation loss?

    python benchmarks/loss_parity.py --data-path DIR --out build/loss_parity      # minutes on two cores
    python benchmarks/loss_parity.py --data-path DIR --settings config=showcase   # any config of the trainer

Trains one model twice from the same seed on the same samples, with `attention=nsa` and `attention=dense`, by the real
trainer, and compares what it wrote to `val.csv`. Prints the curve as a table, writes `loss_parity.json`, and ends in
1 if the last ratio exceeds the bound.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

# 1 to 3 million parameters, several layers, and sequences long enough that every branch leaves something out: a query
# at the end sees 63 compressed tokens, 128 selected ones and 64 in its window, of 512.
MODEL = {
    "dim": 160, "n_layers": 5, "n_heads": 8, "n_kv_groups": 2, "d_k": 20, "d_v": 20,
    "l_cmp": 16, "d_cmp": 8, "l_sel": 16, "n_sel": 8, "w": 64,
    "seq_len": 512, "batch_size": 4, "lr": 2e-3, "warmup_steps": 30, "dtype": "fp32", "device": "cpu",
}  # fmt: skip


def train(attention: str, settings: dict[str, Any], out: Path, *, steps: int, val_every: int) -> dict[str, Any]:
    """One run of the trainer; its validation curve and parameter count."""
    chosen = {
        **settings, "attention": attention, "steps": steps, "val_every": val_every, "val_batches": 16,
        "data": "local", "seed": 1337, "out": out,
    }  # fmt: skip
    words = [word for name, value in chosen.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    done = subprocess.run([sys.executable, "-m", "nsa.train", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"training with {attention} attention failed:\n{(done.stdout + done.stderr)[-3000:]}")
    with (out / "val.csv").open(encoding="utf-8") as handle:
        curve = {int(row["step"]): float(row["val_loss"]) for row in csv.DictReader(handle)}
    env = json.loads((out / "env.json").read_text(encoding="utf-8"))
    return {"attention": attention, "params": env["params"], "val_loss": curve}


def main(argv: list[str] | None = None) -> int:
    """Train twice, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--data-path", required=True, help="text files or a folder of them")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--val-every", type=int, default=50)
    parser.add_argument("--bound", type=float, default=1.02, help="largest ratio of the last validation losses")
    parser.add_argument(
        "--settings", nargs="*", default=[], metavar="NAME=VALUE", help="of the trainer; config=… replaces the model"
    )
    parser.add_argument("--out", type=Path, default=Path("build/loss_parity"))
    args = parser.parse_args(argv)
    overrides = dict(word.split("=", 1) for word in args.settings)
    settings = {**({} if "config" in overrides else MODEL), **overrides, "data_path": args.data_path}
    runs = {
        kind: train(kind, settings, args.out / kind, steps=args.steps, val_every=args.val_every)
        for kind in ("nsa", "dense")
    }
    nsa, dense = runs["nsa"]["val_loss"], runs["dense"]["val_loss"]
    print(f"{runs['nsa']['params']:,} parameters with NSA, {runs['dense']['params']:,} with dense attention\n")
    print("| step | NSA | dense | ratio |\n|---|---|---|---|")
    for step in sorted(nsa.keys() & dense.keys()):
        print(f"| {step} | {nsa[step]:.4f} | {dense[step]:.4f} | {nsa[step] / dense[step]:.4f} |")
    last = max(nsa.keys() & dense.keys())
    ratio = nsa[last] / dense[last]
    result = {"schema_version": 1, "settings": settings, "bound": args.bound, "ratio": ratio, "runs": runs}
    (args.out / "loss_parity.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(ratio > args.bound)


if __name__ == "__main__":
    sys.exit(main())
