"""Self-test: known faults are injected, and verdict, cause, processes and evidence must come out right.

A user runs `validator selftest` on the machine that is to be validated before trusting its decisions there. Every case
goes through the command line in a process of its own, as a real validation does; nothing is judged by a shortcut.
"""

from __future__ import annotations

from validator.selftest.cases import CASES
from validator.selftest.run import Selftest, run_selftest

__all__ = ["CASES", "Selftest", "run_selftest"]
