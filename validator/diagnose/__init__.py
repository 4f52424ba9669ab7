"""Evidence becomes causes: the failure playbook as rules, each with its confidence and the next step.

A rule speaks only when the record shows its cause. What cannot be known is said as information, never assumed fine.
"""

from __future__ import annotations

from validator.diagnose.engine import diagnose, diagnose_run
from validator.diagnose.table import CODES

__all__ = ["CODES", "diagnose", "diagnose_run"]
