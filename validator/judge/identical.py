"""Arms whose losses are the same digit for digit, although they differ in what changes the arithmetic."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from validator.model.plan import RunSpec
from validator.model.result import Result, Series
from validator.model.settings import setting_text

__all__ = ["Twins", "changes_arithmetic", "identical_arms", "is_coarse"]

_LEAST_ROWS = 5
_COARSE_ROWS = 20
"""Rows that must agree where losses have two decimals: neighbors in a sweep may begin alike."""

_ARITHMETIC = frozenset(
    {"batch", "accum", "accumulation", "lr", "rate", "schedule", "seed", "init", "std", "vocab"}
    | {"seq", "len", "length", "context", "ctx", "block", "width", "dim", "hidden", "embd", "ffn"}
    | {"model", "layer", "layers", "depth", "head", "heads"}
    | {"dtype", "precision", "bf16", "fp16", "fp32", "fp8", "amp"}
    | {"dropout", "decay", "wd", "beta", "momentum", "clip", "optimizer", "optim"}
)
"""Words of settings that change the arithmetic of a step."""

_BY_RIGHT = frozenset(
    {"bucket", "workers", "threads", "prefetch", "compile", "fused", "nccl", "log", "heartbeat", "port"}
    | {"checkpointing"}
)
"""Words of settings with which the same numbers may come out, bit for bit."""


@dataclass(frozen=True)
class Twins:
    """Two arms with the same losses, the settings in which they differ, and whether these change the arithmetic."""

    arms: tuple[str, str]
    settings: tuple[str, ...]
    rows: int
    arithmetic: bool

    @property
    def text(self) -> str:
        """A clause that says so."""
        return (
            f"arms {self.arms[0]} and {self.arms[1]} have the same loss in all of {self.rows} rows, digit for digit, "
            f"although {' and '.join(self.settings)} differ"
        )


def changes_arithmetic(name: str) -> bool:
    """Whether a setting (`args.batch-size`, `env.NSA_SEED`) makes another loss of the same step, by its words."""
    words = set(re.split(r"[^a-z0-9]+", name.partition(".")[2].lower() or name.lower()))
    return bool(words & _ARITHMETIC) and not words & _BY_RIGHT


def identical_arms(arms: Mapping[str, Sequence[tuple[RunSpec, Result | None]]]) -> Iterator[Twins]:
    """Pairs of arms whose runs of the same repeat wrote the same losses; settings known to allow that are left out."""
    for one, other in combinations(arms, 2):
        left, right = ({spec.repeat: (spec, result) for spec, result in arms[arm]} for arm in (one, other))
        rows = [_same_rows(left[repeat][1], right[repeat][1]) for repeat in left.keys() & right.keys()]
        if not rows or not all(rows):
            continue
        first, second = (next(iter(side.values()))[0].settings for side in (left, right))
        varied = tuple(
            name
            for name in sorted({*first, *second})
            if name not in first or name not in second or setting_text(first[name]) != setting_text(second[name])
        )
        words = [set(re.split(r"[^a-z0-9]+", name.lower())) for name in varied]
        if varied and not all(own & _BY_RIGHT for own in words):
            yield Twins((one, other), varied, min(rows), any(map(changes_arithmetic, varied)))


def _same_rows(one: Result | None, other: Result | None) -> int:
    """Rows of equal losses at the same steps; 0 where any differs, or where too few would show it."""
    left, right = (None if result is None else result.series.get("loss") for result in (one, other))
    if left is None or right is None:
        return 0
    return _equal(left, right)


def _equal(left: Series, right: Series) -> int:
    steps, here, there = np.intersect1d(left.steps, right.steps, return_indices=True)
    a, b = left.values[here], right.values[there]
    if not np.array_equal(a, b) or not np.isfinite(a).all() or len(np.unique(a)) < 3:
        return 0
    return len(steps) if len(steps) >= (_COARSE_ROWS if is_coarse(a) else _LEAST_ROWS) else 0


def is_coarse(losses: npt.ArrayLike) -> bool:
    """Whether losses `[n]` are written with two decimals or fewer, so that equal ones say little."""
    return bool((np.abs(np.rint(100 * np.asarray(losses)) - 100 * np.asarray(losses)) < 1e-6).all())
