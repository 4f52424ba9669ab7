"""What a bisection found: bisect.json."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from validator.model.base import Frozen

__all__ = ["BisectTrial", "Bisection", "BisectionOutcome", "Cause", "DifferingSetting"]

BisectionOutcome = Literal["explained", "no_difference", "not_in_settings", "budget_spent", "interrupted"]


class DifferingSetting(Frozen):
    """One setting that is not the same at both ends; None where an end leaves it to the trainer."""

    name: str
    good: str | int | float | bool | None
    bad: str | int | float | bool | None


class BisectTrial(Frozen):
    """One short run: good with these settings from bad. `share` of the difference is None when it gave no value."""

    number: int
    from_bad: tuple[str, ...]
    value: float | None
    ci_low: float | None = None
    ci_high: float | None = None
    share: float | None = None
    duration_s: float
    why: str | None = Field(None, description="Why it gave no value.")


class Cause(Frozen):
    """A setting of the explanation, or several that only run together.

    `share` is how much of the difference goes when it alone is put back, `alone` how much it shows without the others,
    `factor` what putting it back does to the metric. None where that was not run.
    """

    settings: tuple[DifferingSetting, ...]
    share: float | None = None
    alone: float | None = None
    factor: float | None = None


class Bisection(Frozen):
    """The whole answer. Shares are of the logarithm of good over bad, so that factors add up."""

    schema_version: Literal[1] = 1
    good: str
    bad: str
    metric: str
    unit: str
    outcome: BisectionOutcome
    message: str
    good_value: float | None = None
    bad_value: float | None = None
    differences: tuple[DifferingSetting, ...]
    causes: tuple[Cause, ...] = ()
    suspects: tuple[str, ...] = Field((), description="Where the cause is, when the search did not come to its end.")
    rest_share: float | None = Field(None, description="Share that all other settings show together.")
    uncertain: tuple[tuple[str, ...], ...] = Field((), description="Combinations too near the threshold to be sure of.")
    trials: tuple[BisectTrial, ...] = ()
    folder: str | None = None
