"""Whether the config that was asked for is the one that ran, by the trainer's own account."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from validator.kinds.registry import kind_of
from validator.model.arguments import changes_arithmetic, may_change_nothing, may_show_at_first, settings_in
from validator.model.plan import RunSpec
from validator.model.record import RunRecord, ValidationRecord
from validator.model.result import Result
from validator.model.settings import flat_name, setting_text
from validator.text import listed

_UNDECIDED = frozenset({"", "auto", "none", "null", "default"})
"""Requests, by the trainer's account, that leave the choice to it."""

_LEFT_OPEN = frozenset({"", "auto", "default"})
"""The same in a runbook, where `none` is a choice like any other: `ddp-compress: none` asks for no compression."""

_NOTHING = frozenset({"none", "null", "off", "false", "no", "0", ""})
"""Ways to say that something is not used, where one of them is `none`."""

_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})

_DTYPES: Mapping[str, str] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "float64": "fp64",
    "double": "fp64",
}
"""Names that libraries give the same number format."""

_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
_WHOLE = re.compile(r"[+-]?\d+")

_TOGGLES = "NSA_"
"""Variables with this prefix represent a setting; others (`NCCL_DEBUG`) may share a name and mean another thing."""

_PLACES = frozenset({"out", "data_path", "config"})
"""Settings that name a place; a trainer may report them in another form than it was given."""


def same_value(requested: object, effective: object) -> bool:
    """Whether two settings mean the same, however they are spelled.

    `1e-3` and 0.001, `true` and `on`, `bf16` and `torch.bfloat16`, `tok.json` and `/data/tok.json`. Whole numbers are
    equal only if every digit is: a seed or a count of tokens is no measurement.
    """
    if isinstance(requested, (list, tuple)) and isinstance(effective, (list, tuple)):
        pairs = zip(requested, effective, strict=False)
        return len(requested) == len(effective) and all(same_value(asked, ran) for asked, ran in pairs)
    left, right = _spelled(requested), _spelled(effective)
    if left == right or ("none" in (left, right) and left in _NOTHING and right in _NOTHING):
        return True
    if _WHOLE.fullmatch(left) and _WHOLE.fullmatch(right):
        return int(left) == int(right)
    try:
        return math.isclose(float(left), float(right), rel_tol=1e-6)
    except ValueError:
        either = (left in _TRUE and right in _TRUE) or (left in _FALSE and right in _FALSE)
        return either or _same_path(str(requested).strip(), str(effective).strip())


def _spelled(value: object) -> str:
    """A setting in small letters, a number format by its short name."""
    text = str(value).strip().lower()
    return _DTYPES.get(text.removeprefix("torch."), text.removeprefix("torch."))


def _same_path(asked: str, ran: str) -> bool:
    """Whether one is the other made absolute."""
    short, long = sorted((asked, ran), key=len)
    return long.startswith("/") and not short.startswith("/") and long.endswith(f"/{short.removeprefix('./')}")


def _squashed(key: str) -> str:
    """What `seqlen`, `seqLen` and `seq_len` have in common."""
    return flat_name(key).replace("_", "").lower()


def differences(run: RunRecord) -> dict[str, tuple[Any, Any]] | None:
    """Settings whose effective value is not the requested one: name to (requested, effective).

    The requested value is what the plan passed, as an argument or as a variable `NSA_…`, and what the trainer reports
    as requested. Settings that the trainer does not list as effective are not compared (`unreported` names them). None
    when the trainer gives no effective config.

    What a kind of phase `restricts` is left out: that it had no effect is for the phase to find out.
    """
    if run.result is None or not run.result.effective:
        return None
    found: dict[str, tuple[Any, Any]] = {}
    for key, value in _asked(run).items():
        name = _reported_name(key, run.result.effective)
        ran = None if name is None else run.result.effective[name]
        if name is not None and not isinstance(ran, (dict, list)) and not same_value(value, ran):
            found[flat_name(name)] = (value, ran)
    return found


def _reported_name(key: str, effective: Mapping[str, Any]) -> str | None:
    """The key under which a trainer reports a setting: the same, else the only one that differs in `_` and capitals."""
    for alike in (flat_name, _squashed):
        names = [name for name in effective if alike(name) == alike(key)]
        if names:
            return names[0] if len(names) == 1 else None
    return None


def _asked(run: RunRecord) -> dict[str, Any]:
    """What was asked for, by name: the trainer's account of it, the variables over it, the arguments over these."""
    assert run.result is not None
    # A variable that distinguishes the arms is left to their comparison, for which "vacuous" is an answer.
    given = {key: value for key, value in run.spec.env.items() if f"env.{key}" not in run.spec.settings}
    toggles = {key[len(_TOGGLES) :].lower(): value for key, value in given.items() if key.startswith(_TOGGLES)}
    asked: dict[str, Any] = {}
    asked |= {flat_name(key): value for key, value in (run.result.requested or {}).items() if is_stated(key, value)}
    for source in (toggles, run.spec.requested):
        asked |= {flat_name(key): value for key, value in source.items() if _is_declared(flat_name(key), value)}
    return {name: value for name, value in asked.items() if name not in kind_of(run.spec.kind).restricts}


def unreported(run: RunRecord) -> tuple[str, ...]:
    """Arguments that the plan passed and that are missing in the effective config that the trainer reports.

    A trainer that tolerates flags it does not know would leave out just these.
    """
    effective = None if run.result is None else run.result.effective
    if not effective:
        return ()
    return tuple(
        flat_name(key)
        for key, value in run.spec.requested.items()
        if _is_declared(flat_name(key), value)
        and flat_name(key) not in _PLACES
        and _reported_name(key, effective) is None
    )


def _is_declared(key: str, value: object) -> bool:
    """Whether a runbook chose the setting."""
    return str(value).strip().lower() not in _LEFT_OPEN and key not in ("out", "data_path")


def is_stated(key: str, value: object) -> bool:
    """Whether a setting was really chosen, not left to the trainer; `out` is a path, which it may make absolute."""
    return value is not None and str(value).strip().lower() not in _UNDECIDED and key not in ("out", "data_path")


# Settings that were tried with another value, where the trainer gives no account of its config.

Obeyed = Sequence[tuple[str, str]]
"""Pairs of a phase and a setting of which its runs have shown that the trainer obeys it."""


def obeyed_settings(validation: ValidationRecord) -> Obeyed:
    """Settings of which a phase has shown that the trainer obeys them: they changed what it does."""
    return _tried_settings(validation, "PASS")


def _tried_settings(validation: ValidationRecord, *statuses: str) -> Obeyed:
    return tuple(
        (record.phase.id, one.setting)
        for record in validation.phases
        for one in kind_of(record.phase.kind).effects(record.phase, record.runs)
        if one.status in statuses and "." in one.setting
    )


def obeyed_text(obeyed: Obeyed) -> str:
    """`phase settings shows by effect that it obeys args.lr and args.seq-len`."""
    phases = listed(list(dict.fromkeys(phase for phase, _ in obeyed)))
    return f"phase {phases} shows by effect that it obeys {listed(list(dict.fromkeys(name for _, name in obeyed)))}"


def undecided_settings(validation: ValidationRecord) -> tuple[str, ...]:
    """Numbers in the trainer's command and arguments of which no phase has shown whether it obeys them: `args.NAME`.

    Those that may change nothing, as the number of workers, are left out; those that the first losses show come first.
    """
    runbook = validation.runbook
    given = {flat_name(name): (name, text) for name, text in settings_in(runbook.trainer.command).items()}
    for layer in (runbook.trainer.args, runbook.defaults.args):
        given |= {flat_name(name): (name, setting_text(value)) for name, value in layer.items()}
    decided = _tried_settings(validation, "PASS", "FAIL")
    shown = {flat_name(setting.partition(".")[2]) for _, setting in decided if setting.startswith("args.")}
    left = [f"args.{name}" for flat, (name, text) in given.items() if flat not in shown and _NUMBER.fullmatch(text)]
    named = [key for key in left if not may_change_nothing(key)]
    return tuple(sorted(named, key=lambda key: not may_show_at_first(key)))


# Arms whose losses are the same digit for digit, although they differ in what changes the arithmetic.

_MIN_ROWS = 5
_COARSE_ROWS = 20
"""Rows that must agree where losses have two decimals: neighbors in a sweep may begin alike."""


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
        if varied and not all(map(may_change_nothing, varied)):
            yield Twins((one, other), varied, min(rows), any(map(changes_arithmetic, varied)))


def _same_rows(one: Result | None, other: Result | None) -> int:
    """Rows of equal losses at the same steps; 0 where any differs, or where too few would show it."""
    left, right = (None if result is None else result.series.get("loss") for result in (one, other))
    if left is None or right is None:
        return 0
    steps, here, there = np.intersect1d(left.steps, right.steps, return_indices=True)
    a, b = left.values[here], right.values[there]
    if not np.array_equal(a, b) or not np.isfinite(a).all() or len(np.unique(a)) < 3:
        return 0
    return len(steps) if len(steps) >= (_COARSE_ROWS if is_coarse(a) else _MIN_ROWS) else 0


def is_coarse(losses: npt.ArrayLike) -> bool:
    """Whether losses `[n]` are written with two decimals or fewer, so that equal ones say little."""
    return bool((np.abs(np.rint(100 * np.asarray(losses)) - 100 * np.asarray(losses)) < 1e-6).all())
