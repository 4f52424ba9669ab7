"""`arrivals.jsonl`: when the supervisor saw each step reach the trainer's files, by its own monotonic clock."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
import numpy.typing as npt

from validator.collect.intake import Digest, Intake, blocks
from validator.collect.order import below_all_later
from validator.files import parse_json

__all__ = ["Arrivals", "read_arrivals"]

Arrivals = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]
"""Steps `[n]`, rising, and the seconds `[n]` after the attempt's start at which each had arrived."""


def read_arrivals(path: Path, intake: Intake, *, out: Path) -> dict[str, Arrivals]:
    """Stamps by source, named as results name files. Lines that are none are passed over and said once."""
    digest, odd = Digest(), 0
    found: dict[str, tuple[array[int], array[float]]] = {}
    try:
        for block in blocks(path, digest):
            for line in filter(None, block.splitlines()):
                try:
                    entry = parse_json(line)
                    steps, seconds = found.setdefault(str(entry["source"]), (array("q"), array("d")))
                    step, at = int(entry["step"]), float(entry["s"])
                    steps.append(step)
                    seconds.append(at)
                except (ValueError, KeyError, TypeError, OverflowError):
                    odd += 1
    except OSError as error:
        intake.note("unreadable", f"the arrival stamps cannot be read: {error.strerror or error}", path)
        return {}
    intake.add_source(path, sha256=digest.sha256, size=digest.size)
    if odd:
        intake.note("garbage-line", f"{odd} lines are no arrival stamps and were left out", path)
    return {intake.name(out / source): _rising(*columns) for source, columns in found.items()}


def _rising(steps: array[int], seconds: array[float]) -> Arrivals:
    """What was reported again after the trainer had gone back counts from when it came again."""
    at, when = np.array(steps, dtype=np.int64), np.array(seconds, dtype=np.float64)
    kept = below_all_later(at) & np.isfinite(when)
    at, when = at[kept], when[kept]
    sound = not len(when) or bool((np.diff(when) >= 0).all() and when[0] >= 0)
    return (at, when) if sound else (at[:0], when[:0])
