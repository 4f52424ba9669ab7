"""`make bench`: the benchmarks that this machine can run in minutes, one after the other; the others, with the reason.

    python -m benchmarks                  all of them
    python -m benchmarks attention train  those alone

Each prints its own table. One that fails fails the whole, after the others have run: exit code 1. One that finds that
this machine cannot do it counts as not run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.machine import CANNOT

__all__ = ["BENCHMARKS", "BY_HAND", "Benchmark", "main", "run"]


@dataclass(frozen=True)
class Benchmark:
    """One command: module, arguments, and whether it needs a GPU."""

    module: str
    arguments: tuple[str, ...] = ()
    gpu: bool = False

    @property
    def command(self) -> tuple[str, ...]:
        return (sys.executable, "-m", f"benchmarks.{self.module}", *self.arguments)

    @property
    def words(self) -> str:
        """As a person would type it."""
        return " ".join(("python", *self.command[1:]))


BENCHMARKS = (  # short ones first: what is interrupted has told most of it
    Benchmark("train"),
    Benchmark("commands"),
    Benchmark("reading", ("--steps", "100000")),
    Benchmark("report"),
    Benchmark("calibration"),
    Benchmark("bounds"),
    Benchmark("lasting"),
    Benchmark("growth"),
    Benchmark("comparing", ("--trials", "1000")),
    Benchmark("findings"),
    Benchmark("fleet"),
    Benchmark("attention", ("--parts", "speed,growth,ranges")),
    Benchmark("loss_parity", ("--data-path", sysconfig.get_path("stdlib"))),
    Benchmark("attention", ("--device", "cuda"), gpu=True),
    Benchmark("decode_gpu", ("--out", "build/benchmarks"), gpu=True),
    Benchmark("train", ("--shapes", "2048x32,32768x2,65536x1,2048x1"), gpu=True),
    Benchmark("dense", gpu=True),
    Benchmark("overhead", ("--config", "h200_125m_2k", "--nproc", "1", "--steps", "50", "--repeats", "2"), gpu=True),
)
BY_HAND = {
    "bisecting": "it tells two rates apart, which a busy machine blurs",
    "decode_phases": "it looks into one kernel, on a GPU",
    "kernels_beside": "it times Hopper's own kernels beside Triton's, on a GPU",
    "kernels_compile": "it compiles every kernel, for GPUs that need not be there",
    "kernels_device": "it looks into the kernels, on a GPU",
    "kernels_memcheck": "it is for a memory checker, on a GPU",
    "kernels_sweep": "it looks for better tile sizes, on a GPU",
    "loss_by_position": "it compares two runs that were trained before",
    "loss_curve": "it compares runs that were trained before",
    "peers": "it needs other people's implementations, on a GPU",
    "serve_load": "its bars are those of a machine without other work",
    "prose_corpus": "it makes a corpus for loss_parity out of packages that it downloads",
}
"""Modules that are commands and yet not run here, with the reason."""


def _once(benchmark: Benchmark) -> str:
    """Run it; `done`, `not run` or `FAILED`."""
    print(f"== {benchmark.words}", flush=True)
    began = time.monotonic()
    code = subprocess.run(benchmark.command, check=False).returncode
    told = {0: "done", CANNOT: "not run"}.get(code, "FAILED")
    print(f"== {told}, exit code {code}, {time.monotonic() - began:.0f} s\n", flush=True)
    return told


def run(benchmarks: Sequence[Benchmark]) -> int:
    """Run them in turn; returns how many failed."""
    import torch

    told: dict[str, list[str]] = {"done": [], "not run": [], "FAILED": []}
    for benchmark in benchmarks:
        if benchmark.gpu and not torch.cuda.is_available():
            print(f"not run, it needs a CUDA device: {benchmark.words}", flush=True)
            told["not run"].append(benchmark.words)
        else:
            told[_once(benchmark)].append(benchmark.words)
    print("; ".join(f"{len(words)} {what}" for what, words in told.items()))
    for words in told["FAILED"]:
        print(f"FAILED: {words}")
    return len(told["FAILED"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run all, or the modules named; 1 if one failed, 2 for a module that is none, 130 when interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = sorted({one.module for one in BENCHMARKS})
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(known)}; all if none is given")
    chosen = parser.parse_args(argv).modules
    for name in chosen:
        if name not in known:
            by_hand = f"; run `python -m benchmarks.{name}` by hand: {BY_HAND[name]}" if name in BY_HAND else ""
            parser.error(f"MODULE is {name!r}, and not one of {', '.join(known)}{by_hand}")
    try:
        failed = run([one for one in BENCHMARKS if not chosen or one.module in chosen])
    except KeyboardInterrupt:
        print("benchmarks: interrupted", file=sys.stderr)
        return 130
    if not chosen:
        for name, why in BY_HAND.items():
            print(f"by hand, {why}: python -m benchmarks.{name}")
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())
