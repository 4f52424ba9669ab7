"""Numbers with their provenance: the statistics of a series, scalars, and the files that they were read from."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from validator.model.base import Frozen

__all__ = ["Irregularity", "MetricStats", "ScalarValue", "SourceFile", "Span"]


class SourceFile(Frozen):
    """A file that numbers were read from. `path` is relative to the run folder."""

    path: str
    sha256: str
    bytes: int


class Span(Frozen):
    """First and last step of a window, both included."""

    first_step: int
    last_step: int


class MetricStats(Frozen):
    """A series summarized over its window. `stdev` is the population's, `ci_*` the 95 % interval of the mean."""

    unit: str
    n: int
    mean: float | None
    stdev: float | None
    cv: float | None
    ci_low: float | None
    ci_high: float | None
    min: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None
    first: float | None
    last: float | None
    window: Span | None
    source: str | None
    sha256: str | None
    note: str | None = None
    version: int = Field(1, description="Of the metric's definition; what has another version is not compared with it.")
    invalid: str | None = Field(None, description="Why not even the mean of these rows may be compared with others.")


class ScalarValue(Frozen):
    """A number or text known once per run. `ci_*` is the 95 % interval of a derived number, None for an exact one."""

    value: float | str | bool | None
    unit: str = ""
    source: str | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    note: str | None = None
    version: int = Field(1, description="Of the number's definition.")


@dataclass(frozen=True)
class Irregularity:
    """What a careful reader of an artifact would stop at: a truncated line, a second header, a step going back."""

    code: str
    message: str
    path: str
    line: int | None = None
