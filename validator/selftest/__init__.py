"""Self-proof: faults are brought about on purpose, and verdict, cause, processes and evidence must come out right.

A user runs `validator selftest` on the machine that is to be validated before trusting what it will say. Every case
goes through the command line in a process of its own, as a real validation does; nothing is judged by a shortcut.
"""

from __future__ import annotations

from validator.selftest.cases import CASES
from validator.selftest.run import Outcome, Selftest, run_selftest

__all__ = ["CASES", "Outcome", "Selftest", "run_selftest"]
