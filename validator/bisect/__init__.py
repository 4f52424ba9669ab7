"""Which of the settings that differ make one run slow, or fail, where another is fast: found by short runs.

validator bisect GOOD BAD
"""

from __future__ import annotations

from validator.bisect.answer import bisection_lines
from validator.bisect.work import BisectRequest, bisect, resume

__all__ = ["BisectRequest", "bisect", "bisection_lines", "resume"]
