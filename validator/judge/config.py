"""Whether the config that was asked for is the one that ran, by the trainer's own account."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from validator.model.record import RunRecord
from validator.model.settings import flat_name

__all__ = ["differences", "is_stated", "same_value"]

_UNDECIDED = frozenset({"", "auto", "none", "null", "default"})
"""Requests that leave the choice to the trainer."""

_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})


def same_value(requested: object, effective: object) -> bool:
    """Whether two settings mean the same: `1e-3` and 0.001, `true` and `on`, `BF16` and `bf16`."""
    left, right = str(requested).strip().lower(), str(effective).strip().lower()
    if left == right:
        return True
    try:
        return math.isclose(float(left), float(right), rel_tol=1e-6)
    except ValueError:
        return (left in _TRUE and right in _TRUE) or (left in _FALSE and right in _FALSE)


def differences(run: RunRecord) -> dict[str, tuple[Any, Any]] | None:
    """Settings whose effective value is not the requested one: name to (requested, effective).

    What was asked for is what the plan passed and what the trainer says that it was asked. Settings that the trainer
    does not list as effective are not compared. None when the trainer gives no effective config.

    A variant of an audit restricts `scaled_dot_product_attention`, which a trainer need not use at all: that it then
    restricts nothing is what the audit finds out, not a config that was ignored.
    """
    if run.result is None or not run.result.effective:
        return None
    effective = {flat_name(key): value for key, value in run.result.effective.items()}
    asked: dict[str, Any] = {}
    for source in (run.result.requested or {}, run.spec.requested):
        asked |= _stated({flat_name(key): value for key, value in source.items()})
    if run.spec.kind == "audit":
        asked.pop("sdpa", None)
    return {
        key: (value, effective[key])
        for key, value in asked.items()
        if key in effective and not isinstance(effective[key], (dict, list)) and not same_value(value, effective[key])
    }


def _stated(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if is_stated(key, value)}


def is_stated(key: str, value: object) -> bool:
    """Whether a setting was really chosen, not left to the trainer; `out` is a path, which it may make absolute."""
    return value is not None and str(value).strip().lower() not in _UNDECIDED and key not in ("out", "data_path")
