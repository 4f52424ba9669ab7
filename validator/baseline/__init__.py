"""Bounds from good runs: what a runbook should ask of the next run, and the edit that writes it there.

Pure: it is given judged reports and the text of a runbook.
"""

from __future__ import annotations

from validator.baseline.bounds import Bound, bounds_of
from validator.baseline.edit import CannotEdit, with_bounds

__all__ = ["Bound", "CannotEdit", "bounds_of", "with_bounds"]
