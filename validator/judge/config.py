"""Whether the config that was asked for is the one that ran, by the trainer's own account."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from validator.model.record import RunRecord
from validator.model.settings import flat_name

__all__ = ["differences", "is_stated", "same_value", "untold"]

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

_WHOLE = re.compile(r"[+-]?\d+")

_TOGGLES = "NSA_"
"""Variables that begin so stand for a setting; others (`NCCL_DEBUG`) may be named like one and mean something else."""

_PLACES = frozenset({"out", "data_path", "config"})
"""Settings that name a place; a trainer may tell them in other words than it was given."""


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

    What was asked for is what the plan passed, as an argument or as a variable `NSA_…`, and what the trainer says that
    it was asked. Settings that the trainer does not list as effective are not compared (`untold` names them). None when
    the trainer gives no effective config.

    A variant of an audit restricts `scaled_dot_product_attention`, which a trainer need not use at all: that it then
    restricts nothing is what the audit finds out, not a config that was ignored.
    """
    if run.result is None or not run.result.effective:
        return None
    found: dict[str, tuple[Any, Any]] = {}
    for key, value in _asked(run).items():
        name = _told_as(key, run.result.effective)
        ran = None if name is None else run.result.effective[name]
        if name is not None and not isinstance(ran, (dict, list)) and not same_value(value, ran):
            found[flat_name(name)] = (value, ran)
    return found


def _told_as(key: str, effective: Mapping[str, Any]) -> str | None:
    """The key under which a trainer tells a setting: the same, else the only one that differs in `_` and capitals."""
    for alike in (flat_name, _squashed):
        names = [name for name in effective if alike(name) == alike(key)]
        if names:
            return names[0] if len(names) == 1 else None
    return None


def _asked(run: RunRecord) -> dict[str, Any]:
    """What was asked for, by name: the trainer's account of it, the variables over it, the arguments over these."""
    assert run.result is not None
    # A variable that tells the arms apart is left to their comparison, for which "vacuous" is an answer.
    given = {key: value for key, value in run.spec.env.items() if f"env.{key}" not in run.spec.settings}
    toggles = {key[len(_TOGGLES) :].lower(): value for key, value in given.items() if key.startswith(_TOGGLES)}
    asked: dict[str, Any] = {}
    asked |= {flat_name(key): value for key, value in (run.result.requested or {}).items() if is_stated(key, value)}
    for source in (toggles, run.spec.requested):
        asked |= {flat_name(key): value for key, value in source.items() if _is_declared(flat_name(key), value)}
    if run.spec.kind == "audit":
        asked.pop("sdpa", None)
    return asked


def untold(run: RunRecord) -> tuple[str, ...]:
    """Arguments that the plan passed and that a trainer which tells its effective config leaves out of it.

    A trainer that tolerates flags it does not know would leave out just these.
    """
    effective = None if run.result is None else run.result.effective
    if not effective:
        return ()
    return tuple(
        flat_name(key)
        for key, value in run.spec.requested.items()
        if _is_declared(flat_name(key), value) and flat_name(key) not in _PLACES and _told_as(key, effective) is None
    )


def _is_declared(key: str, value: object) -> bool:
    """Whether a runbook chose the setting."""
    return str(value).strip().lower() not in _LEFT_OPEN and key not in ("out", "data_path")


def is_stated(key: str, value: object) -> bool:
    """Whether a setting was really chosen, not left to the trainer; `out` is a path, which it may make absolute."""
    return value is not None and str(value).strip().lower() not in _UNDECIDED and key not in ("out", "data_path")
