"""Does `validator bisect` find the settings to blame with the bundled trainer, and in how few runs?

    python -m benchmarks.bisecting                 both cases, a few minutes on two CPU cores
    python -m benchmarks.bisecting --case pair     one of them

Each case has a fast and a slow runbook that differ in eight settings. In `single` one variable, NSA_PREFILL_BATCHED=0,
makes the slow one slow; in `pair` two settings do, which alone change nothing: validating after every step, and many
batches of validation. Exit code 0 if exactly these are found, in at most twelve runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_RUNS = 12

RUNBOOK = """\
schema: 1
name: {name}
trainer:
  command: [-m, nsa.train]
  args: {{config: tiny_cpu, seq_len: 96, batch_size: 1, steps: "{{steps}}", out: "{{out}}"}}
defaults: {{nproc: 0, timeout: 5m, warmup_steps: 3, env: {env}}}
phases:
  - {{id: baseline, kind: train, steps: 12, args: {args}}}
"""

IDLE: dict[str, Any] = {
    "grad_clip": (1.0, 0.5),
    "lr": (0.003, 0.001),
    "weight_decay": (0.01, 0.1),
    "init_std": (0.02, 0.01),
    "rope_base": (10000.0, 50000.0),
    "keep_checkpoints": (2, 5),
    "aux_every": (10, 12),
}
"""Settings that cost no time, as (fast, slow)."""


@dataclass(frozen=True)
class Case:
    """What differs, as (fast, slow), and which of it is to blame."""

    args: dict[str, Any]
    env: dict[str, Any]
    causes: frozenset[str]


_SIX = dict(list(IDLE.items())[:6])
CASES = {
    "single": Case(IDLE, {"NSA_PREFILL_BATCHED": (1, 0)}, frozenset({"env.NSA_PREFILL_BATCHED"})),
    "pair": Case(
        {"val_every": (0, 1), "val_batches": (1, 60), **_SIX}, {}, frozenset({"args.val_every", "args.val_batches"})
    ),
}


def bisect(case: Case, folder: Path) -> dict[str, Any]:
    """Write both runbooks and let `validator bisect` tell them apart; its answer as JSON."""
    for end, name in enumerate(("fast", "slow")):
        args, env = ({key: both[end] for key, both in given.items()} for given in (case.args, case.env))
        text = RUNBOOK.format(name=name, args=json.dumps(args), env=json.dumps(env))
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "validator", "bisect", "fast.yaml", "slow.yaml", "--json", "--no-lock"]
    command += ["--statistic", "p50", "--steps", "12", "--warmup-steps", "3", "--max-runs", str(MOST_RUNS)]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 3):
        raise SystemExit(ended.stderr)
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def main() -> int:
    """Bisect, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=tuple(CASES), help="one case alone")
    chosen = parser.parse_args().case
    missed = 0
    for name, case in CASES.items():
        if chosen not in (None, name):
            continue
        with tempfile.TemporaryDirectory(prefix="validator-bisect-") as folder:
            answer = bisect(case, Path(folder))
        found = {setting["name"] for cause in answer["causes"] for setting in cause["settings"]}
        runs = sum(len(trial.get("values", (1,))) for trial in answer["trials"])
        right = found == case.causes and runs <= MOST_RUNS
        missed += not right
        print(
            f"{name}: {answer['outcome']}, {', '.join(sorted(found)) or 'nothing'} in {runs} runs "
            f"({answer['good_value']:.0f} against {answer['bad_value']:.0f} tok/s); {'right' if right else 'WRONG'}",
            flush=True,
        )
    return min(1, missed)


if __name__ == "__main__":
    raise SystemExit(main())
