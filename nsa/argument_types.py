"""Argument types for argparse whose errors say what a number must be; for the commands other than training."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from nsa.config import BELOW_ONE, NOT_NEGATIVE, POSITIVE, Range

__all__ = ["not_negative", "not_negative_int", "positive", "positive_int", "share"]


def _number(kind: type[int] | type[float], within: Range) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            expected = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text}: expected {expected}") from None
        if objection := within.objection(value):
            raise argparse.ArgumentTypeError(f"{text}: {objection}")
        return value

    return parse


positive_int = _number(int, POSITIVE)
not_negative_int = _number(int, NOT_NEGATIVE)
positive = _number(float, POSITIVE)
not_negative = _number(float, NOT_NEGATIVE)
share = _number(float, BELOW_ONE)
