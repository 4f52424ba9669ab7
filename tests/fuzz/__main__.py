"""Fuzz at length: `python -m tests.fuzz --cases 10000`. Exit code 0 if nothing raised and no damaged folder is GO.

`--hostile 10000` runs commands on as many hostile folders in forked workers instead, and `--by-process 500` of them
through the command line: no traceback, no hang, nothing outside the folder read or written. Set TMPDIR to a folder in
memory (/dev/shm): on a disk most of the time goes into removing what was made.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import subprocess
import tempfile
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tests.fuzz.folders import FolderCase, Whole, play_folder
from tests.fuzz.hostile import MACHINE_BYTES, HostileCase, Place, import_everything, play_hostile
from tests.fuzz.runbooks import RunbookCase, play_runbook, sources


def folders(task: tuple[Path, int, int]) -> list[FolderCase]:
    """Cases `first` to `last` of damaged folders."""
    place, first, last = task
    warnings.simplefilter("error")
    place.mkdir()
    whole = Whole(place / "whole")
    return [play_folder(whole, place / "case", seed) for seed in range(first, last)]


def runbooks(task: tuple[Path, int, int]) -> list[RunbookCase]:
    """Cases `first` to `last` of damaged runbooks."""
    place, first, last = task
    warnings.simplefilter("error")
    place.mkdir()
    texts = sources()
    return [play_runbook(texts, place / "case.yaml", seed) for seed in range(first, last)]


def hostile(task: tuple[Path, int, int], *, by_process: bool = False) -> list[HostileCase]:
    """Cases `first` to `last` of commands on hostile folders."""
    place, first, last = task
    resource.setrlimit(resource.RLIMIT_DATA, (MACHINE_BYTES, MACHINE_BYTES))  # of the tricks as well
    import_everything()
    sound = Place(place)
    cases = []
    for seed in range(first, last):
        cases.append(play_hostile(sound, place / "scratch", seed, by_process=by_process))
        if cases[-1].problem:
            print(f"  seed {seed}, {cases[-1].command} after {cases[-1].done}: {cases[-1].problem}", flush=True)
        if len(cases) % 500 == 0:
            print(f"  {len(cases)} from seed {first}, {sum(bool(case.problem) for case in cases)} problems", flush=True)
    return cases


def run_hostile(count: int, first: int, jobs: int, *, by_process: bool) -> int:
    """Play hostile cases; returns how many went wrong."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="validator-fuzz-") as place, ProcessPoolExecutor(jobs) as pool:
        edges = [first + count * i // jobs for i in range(jobs + 1)]
        tasks = [(Path(place) / f"hostile{low}", low, high) for low, high in itertools.pairwise(edges)]
        cases = [case for part in pool.map(partial(hostile, by_process=by_process), tasks) for case in part]
        subprocess.run(["rm", "-rf", "--", *(str(task[0]) for task in tasks)], check=True)  # deeper than shutil can go
    bad = [case for case in cases if case.problem]
    codes = Counter(f"{case.command}: {case.code}" for case in cases)
    print(f"hostile: {len(cases)} cases in {time.monotonic() - began:.0f} s, {len(bad)} problems")
    print(f"  slowest {max(case.seconds for case in cases):.1f} s, largest {max(case.mib for case in cases)} MiB")
    print(f"  exit codes {dict(sorted(codes.items()))}")
    return len(bad)


def main() -> int:
    """Play all cases in two processes and say what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="of folders, and as many of runbooks")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--hostile", type=int, help="so many hostile folders in forked workers")
    parser.add_argument("--by-process", type=int, help="so many hostile folders through the command line")
    args = parser.parse_args()
    if args.hostile or args.by_process:
        bad = run_hostile(args.hostile, args.first, args.jobs, by_process=False) if args.hostile else 0
        bad += run_hostile(args.by_process, args.first, args.jobs, by_process=True) if args.by_process else 0
        return 1 if bad else 0
    problems, began = 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="validator-fuzz-") as place, ProcessPoolExecutor(args.jobs) as pool:
        for name, play in (("runbooks", runbooks), ("folders", folders)):
            edges = [args.first + args.cases * i // (4 * args.jobs) for i in range(4 * args.jobs + 1)]
            tasks = [(Path(place) / f"{name}{low}", low, high) for low, high in itertools.pairwise(edges)]
            cases = [case for part in pool.map(play, tasks) for case in part]
            bad = [case for case in cases if case.problem is not None]
            told: Counter[str] = Counter()
            for case in cases:
                label = case.outcome if isinstance(case, RunbookCase) else str(case.decision)
                told[label + (", damaged" if isinstance(case, FolderCase) and case.damaged else "")] += 1
            print(f"{name}: {len(cases)} cases in {time.monotonic() - began:.0f} s: {dict(told)}; {len(bad)} problems")
            for case in bad[:20]:
                print(f"  seed {case.seed}: {case.problem}")
            problems += len(bad)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
