"""Bounds from good runs, and the edit that writes them into a runbook. Pure: of judged reports and of a text."""

from validator.baseline.bounds import MetricBound, bounds_of, left_out
from validator.baseline.edit import CannotEdit, value_of, with_bounds, without_criterion

__all__ = ["CannotEdit", "MetricBound", "bounds_of", "left_out", "value_of", "with_bounds", "without_criterion"]
