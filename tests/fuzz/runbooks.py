"""Damaged runbooks: each is read, or refused with places and fixes; none raises anything else."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.mutate import mutate_bytes
from validator.kinds.registry import load
from validator.plan import PlanError, make_plan
from validator.runbook import RunbookError

__all__ = ["RunbookCase", "play_runbook", "sources"]

_WORDS = (
    *("steps", "kind", "train", "accept", "needs", "over", "choose", "repeats", "timeout", "env", "args", "nproc"),
    *("30m", "-1", "1e999", "0", "[]", "{}", "~", "!!int x", "&a", "*a", "<<: *a", "'", '"', "toks_per_s.mean >= x"),
    *("loss.last < loss.first", "{steps}", "{nothing}", "{0}", "{a.b!r:>99999}", "\u202e", "yes", "2026-11-21", "1:30"),
)


@dataclass(frozen=True)
class RunbookCase:
    """What became of one damaged runbook: `read`, `refused`, or the `problem`."""

    seed: int
    outcome: str
    problem: str | None


def sources() -> list[bytes]:
    """The runbooks that come along."""
    return [path.read_bytes() for path in sorted((Path(__file__).parents[2] / "runbooks").glob("*.yaml"))]


def _mutated(data: bytes, draw: random.Random) -> bytes:
    for _ in range(draw.choice((1, 1, 2, 4))):
        if draw.random() < 0.5:
            data = mutate_bytes(data, draw)
            continue
        tokens = data.split(b" ")
        at = draw.randrange(len(tokens))
        word = draw.choice(_WORDS).encode() if draw.random() < 0.7 else draw.choice(tokens)
        tokens[at : at + draw.choice((0, 1, 1, 2))] = [word]
        data = b" ".join(tokens)
    return data


def play_runbook(texts: list[bytes], path: Path, seed: int) -> RunbookCase:
    """Damage a runbook as the seed says, and read it; what can still be read must also be planned."""
    draw = random.Random(seed)
    path.write_bytes(_mutated(draw.choice(texts), draw))
    try:
        loaded = load(path)
    except RunbookError as refused:
        lacking = [str(one) for one in refused.problems if not one.message or not one.fix]
        if lacking or not refused.problems:
            return RunbookCase(seed, "refused", f"a problem without place, words or fix: {lacking[:1]}")
        str(refused)
        return RunbookCase(seed, "refused", None)
    except Exception as error:  # the point of the exercise: whatever it is, it is a problem
        return RunbookCase(seed, "raised", f"{type(error).__name__}: {error}")
    try:
        make_plan(loaded.runbook, run_dir=Path("reports/RUN"), python="python", only=(), skip=())
    except PlanError:
        return RunbookCase(seed, "not planned", None)
    except Exception as error:
        return RunbookCase(seed, "raised", f"planning: {type(error).__name__}: {error}")
    return RunbookCase(seed, "read", None)
