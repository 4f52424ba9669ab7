"""Two validations, or two runs, compared: settings, metrics with intervals, criteria and findings.

Pure: it is given what was judged on either side and reads no file.
"""

from __future__ import annotations

from validator.compare.contrast import contrast
from validator.compare.metrics import Side, run_side, validation_side

__all__ = ["Side", "contrast", "run_side", "validation_side"]
