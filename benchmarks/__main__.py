"""`make bench`: every benchmark that this machine can run, one after the other; the others are named, with the reason.

Each writes its own table. A benchmark that fails fails the whole, after the others have run.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Benchmark:
    """One command: module, arguments, and whether it needs a GPU."""

    module: str
    arguments: tuple[str, ...] = ()
    gpu: bool = False

    @property
    def command(self) -> tuple[str, ...]:
        return (sys.executable, "-m", f"benchmarks.{self.module}", *self.arguments)


BENCHMARKS = (
    Benchmark("attention", ("--parts", "speed,growth,ranges")),
    Benchmark("calibration"),
    Benchmark("commands"),
    Benchmark("train"),
    Benchmark("loss_parity", ("--data-path", sysconfig.get_path("stdlib"))),
    Benchmark("attention", ("--device", "cuda"), gpu=True),
    Benchmark("train", ("--shapes", "2048x32,32768x2,65536x1,2048x1"), gpu=True),
    Benchmark("dense", gpu=True),
    Benchmark("overhead", ("--config", "h200_125m_2k", "--nproc", "1", "--steps", "50", "--repeats", "2"), gpu=True),
)


def run(benchmarks: Sequence[Benchmark]) -> int:
    """Run them in turn; returns how many failed."""
    import torch

    failed = 0
    for benchmark in benchmarks:
        words = " ".join(("python", *benchmark.command[1:]))
        if benchmark.gpu and not torch.cuda.is_available():
            print(f"not run, it needs a CUDA device: {words}", flush=True)
            continue
        print(f"== {words}", flush=True)
        failed += subprocess.run(benchmark.command, check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(min(1, run(BENCHMARKS)))
