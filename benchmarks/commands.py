"""What the validator costs where nothing trains: trivial phases, a long history, secrets taken out of logs.

    python -m benchmarks.commands                        # all three, a minute
    python -m benchmarks.commands --parts phases,masking

Prints a line for each figure. Wall times of commands hold the start of Python, with its byte code there; `cpu` is the
processor time of a command and of all that it started, which a busy machine stretches less.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.validator.history.folders import make_run
from validator.secrets.masking import Mask

PHASES, FOLDERS, REPEATS = 10, 1000, 3
SECRET = "s3cr3tVALUE0123456789"
LOGS = {
    "lines alike but for figures": "{i},{x:.4f},0.001,{y:.1f}\n",
    "lines with telling words": "step {i} loss {x:.4f} tokens: {y:.0f} token_acc={x:.2f} saved state_key={i}\n",
}


@dataclass(frozen=True)
class Cost:
    """One command: seconds it took, processor seconds, and what it printed."""

    wall_s: float
    cpu_s: float
    out: str


def _cost(folder: Path, *arguments: str) -> Cost:
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "PYTHONPATH": str(Path(__file__).parents[1])}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "validator", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout)


def _told(what: str, costs: Sequence[Cost]) -> str:
    wall = sorted(cost.wall_s for cost in costs)
    cpu = sorted(cost.cpu_s for cost in costs)
    return f"{what}: {wall[0]:.2f} to {wall[-1]:.2f} s, cpu {cpu[0]:.2f} to {cpu[-1]:.2f} s ({len(costs)} times)"


def phases(folder: Path) -> None:
    """Phases that each run `true`, from the command's start to its end."""
    runs = "".join(
        f"  - {{id: p{number}, kind: command, run: 'true', accept: [outcome.rc == 0]}}\n" for number in range(PHASES)
    )
    (folder / "trivial.yaml").write_text(f"schema: 1\nname: trivial\nphases:\n{runs}", encoding="utf-8")
    _, *costs = (_cost(folder, "run", "trivial.yaml") for _ in range(REPEATS + 1))
    print(_told(f"{PHASES} phases that run `true`", costs), flush=True)


def history(folder: Path) -> None:
    """`validator history` over many run folders, with its index and without; both must answer the same."""
    for number in range(FOLDERS):
        make_run(folder / "reports", number)
    built = _cost(folder, "history", "--json")
    indexed = [_cost(folder, "history", "--json") for _ in range(REPEATS)]
    anew = [_cost(folder, "history", "--json", "--rebuild") for _ in range(REPEATS)]
    if any(json.loads(cost.out) != json.loads(built.out) for cost in (*indexed, *anew)):
        raise SystemExit("history answers otherwise from its index than from the folders")
    print(_told(f"history of {FOLDERS} folders, from the index", indexed))
    print(_told(f"history of {FOLDERS} folders, read again", anew), flush=True)


def masking(folder: Path) -> None:
    """How fast a log without secrets is gone over, in blocks of some MB."""
    del folder
    mask = Mask([SECRET])
    for what, line in LOGS.items():
        block = "".join(line.format(i=i, x=1 + i % 977 / 977, y=4e4 + i % 89) for i in range(60_000)).encode()
        taken = []
        for _ in range(REPEATS):
            began = time.process_time()
            if mask.block(block) != block:
                raise SystemExit(f"a log without secrets was changed: {what}")
            taken.append(len(block) / (time.process_time() - began) / 1e6)
        print(f"{what}: {min(taken):.0f} to {max(taken):.0f} MB per second of processor time", flush=True)


PARTS: dict[str, Callable[[Path], None]] = {"phases": phases, "history": history, "masking": masking}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the parts that were asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated; all if not given")
    names = parser.parse_args(argv).parts.split(",")
    if unknown := sorted(set(names) - set(PARTS)):
        parser.error(f"--parts {','.join(unknown)}: expected some of {', '.join(PARTS)}")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            PARTS[name](Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
