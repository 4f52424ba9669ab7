"""All cases of the self-proof: faults first, then runs with nothing wrong."""

from __future__ import annotations

from validator.selftest.case import Case
from validator.selftest.damaged import DAMAGED
from validator.selftest.figures import FIGURES
from validator.selftest.healthy import HEALTHY
from validator.selftest.live import LIVE
from validator.selftest.machinery import MACHINERY

__all__ = ["CASES"]

CASES: tuple[Case, ...] = (*LIVE, *DAMAGED, *FIGURES, *MACHINERY, *HEALTHY)
