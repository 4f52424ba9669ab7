"""Fuzz at length: `python -m tests.fuzz --cases 10000`. Exit code 0 if nothing raised and no damaged folder is GO."""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.fuzz.folders import FolderCase, Whole, play_folder
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


def main() -> int:
    """Play all cases in two processes and say what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="of folders, and as many of runbooks")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
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
