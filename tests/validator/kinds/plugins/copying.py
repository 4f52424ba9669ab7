"""A kind from outside, as CONTRIBUTING describes it: how fast does this machine copy memory?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from validator.kinds.base import Found, ImplicitCriterion, JudgedRun, Planner, ProcessKind, Seen, Site
from validator.model.catalogue import Scalar
from validator.model.phases import ProcessPhase
from validator.model.runbook import Runbook
from validator.runbook.problems import Problem

_PROGRAM = """
import json, sys, time
size, out = int(sys.argv[1]), sys.argv[2]
start = time.perf_counter()
copied = bytes(bytearray(size))
json.dump({"mb_s": size / 1e6 / (time.perf_counter() - start), "bytes": len(copied)}, open(out, "w"))
"""


class CopyPhase(ProcessPhase):
    """How fast is a block of memory copied?"""

    scalars = (Scalar("copy.mb_s", "MB/s", "rate of one copy"),)

    kind: Literal["copy"]
    size: int = Field(description="Bytes to copy.")
    at_least: float = Field(1.0, description="MB/s that the copy must reach.")


class Copy(ProcessKind[CopyPhase]):
    """One process that copies once."""

    schema = CopyPhase
    asks_unwritten = (("fast",), "the copy reaches `at_least`")

    def check(self, phase: CopyPhase, site: Site) -> Iterator[Problem]:
        """Nothing is copied in no time."""
        yield from super().check(phase, site)
        if phase.size < 1:
            message = f"size of {phase.id} is {phase.size}, which copies nothing"
            yield site.problem(message, "write size: 1000000", "size")

    def asks(self, phase: CopyPhase, runbook: Runbook) -> bool:
        """The copy can be slow."""
        return True

    def runs(self, phase: CopyPhase, planner: Planner) -> Iterator[Any]:
        """One run."""
        out = planner.values(phase, "r1")["out"]
        yield planner.process(phase, (planner.python, "-c", _PROGRAM, str(phase.size), f"{out}/copy.json"))

    def read(self, spec: Any, gathered: Any, log: Path | None) -> None:
        """The rate that the program wrote."""
        read = gathered.json_object(gathered.out / "copy.json", what="the record of the copy")
        if read is not None and isinstance(read[0].get("mb_s"), float):
            gathered.add_scalar("copy.mb_s", read[0]["mb_s"], read[1])

    def criteria(self, phase: CopyPhase, runbook: Runbook) -> Iterator[ImplicitCriterion]:
        """The copy is fast enough."""
        yield ImplicitCriterion("fast", f"copies {phase.at_least:g} MB/s", lambda run: _fast(run, phase.at_least))


def _fast(run: JudgedRun, at_least: float) -> Found:
    rate = run.number("copy.mb_s")
    if rate is None:
        return Found("INCONCLUSIVE", "The program wrote no rate.", None, at_least)
    where = (Seen(f"mb_s = {rate:.1f}", run.scalar_source("copy.mb_s")),)
    message = f"Copied {rate:.1f} MB/s of {at_least:g}."
    return Found("PASS" if rate >= at_least else "FAIL", message, rate, at_least, where)


KINDS = (Copy(),)
