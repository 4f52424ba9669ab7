"""Plays the cases, a few at a time, and gathers how they came out."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from validator.selftest.case import Case
from validator.selftest.outcome import Outcome, judge
from validator.selftest.stage import Stage

__all__ = ["Outcome", "Selftest", "default_jobs", "run_selftest"]


@dataclass(frozen=True)
class Selftest:
    """All outcomes in the order of the cases. `folder` is where files were kept; None when all were removed."""

    outcomes: tuple[Outcome, ...]
    duration_s: float
    folder: Path | None = None

    @property
    def ok(self) -> bool:
        """Whether there were cases and all of them came out right."""
        return bool(self.outcomes) and all(outcome.ok for outcome in self.outcomes)


def default_jobs() -> int:
    """Cases at a time: most of them wait more than they compute."""
    return max(2, min(8, len(os.sched_getaffinity(0)) + 1))


def run_selftest(
    cases: Sequence[Case],
    *,
    jobs: int | None = None,
    keep: Path | None = None,
    tell: Callable[[Outcome, int, int], None] | None = None,
) -> Selftest:
    """Play the cases and judge each.

    Args:
        jobs: how many at a time.
        keep: a folder that receives everything that every case left; without one, only that of wrong cases is kept.
        tell: called from this thread after each case with its outcome, how many are over, and how many there are.

    Raises:
        OSError: when no folder can be made to play in.
    """
    began = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="validator-selftest-")) if keep is None else keep
    root.mkdir(parents=True, exist_ok=True)
    order = sorted(cases, key=lambda case: -case.about_s)
    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor(jobs or default_jobs(), thread_name_prefix="selftest") as pool:
        waiting: set[Future[Outcome]] = {pool.submit(_play, case, root / case.name, keep is not None) for case in order}
        try:
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    outcome = future.result()
                    outcomes[outcome.case.name] = outcome
                    if tell is not None:
                        tell(outcome, len(outcomes), len(order))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    kept = keep is not None or any(not outcome.ok for outcome in outcomes.values())
    if not kept:
        shutil.rmtree(root, ignore_errors=True)
    ordered = tuple(outcomes[case.name] for case in cases)
    return Selftest(ordered, round(time.monotonic() - began, 2), root if kept else None)


def _play(case: Case, folder: Path, keep: bool) -> Outcome:
    if case.torch and importlib.util.find_spec("torch") is None:
        return Outcome(
            case, None, (), ("torch is not installed, and this case needs torchrun: pip install torch",), 0.0
        )
    if folder.exists():
        shutil.rmtree(folder)
    began, stage = time.monotonic(), Stage(folder, secrets.token_hex(8))
    try:
        played = case.play(stage)
        outcome = judge(case, stage, played, duration_s=time.monotonic() - began)
    except Exception as error:  # noqa: BLE001 - a case that cannot be played is wrong, and the others go on
        told = f"the case could not be played: {type(error).__name__}: {error}"
        outcome = Outcome(case, None, (), (told,), round(time.monotonic() - began, 2))
    finally:
        stage.close()
    if outcome.ok and not keep:
        shutil.rmtree(folder, ignore_errors=True)
        return outcome
    return replace(outcome, folder=folder)
