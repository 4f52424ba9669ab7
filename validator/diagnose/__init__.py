"""Evidence becomes causes: the failure playbook as rules, each with its confidence and the next step.

A rule reports a cause only where the record shows it. What cannot be known is information, never assumed to be fine.
"""

from __future__ import annotations

from validator.diagnose.engine import CODES, diagnose, diagnose_run

__all__ = ["CODES", "diagnose", "diagnose_run"]
