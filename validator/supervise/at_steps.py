"""Ending a run behind its steps: when they are done by what it writes, and what is a normal end then."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from validator.model.launching import steps_before
from validator.supervise.follow import Record
from validator.supervise.outcome_text import tail_of

_SLACK = 0.1
"""How far the furthest of several files may be beyond the steps, as a share of them, while another may never follow."""

_SLACK_STEPS = 20

_TERMINATED = frozenset({0, -15, 143})
"""Exit codes of a program that SIGTERM ends, or that handles it and ends well; 143 is how a shell says so."""

_KILLED = frozenset({-9, 137})

_SAYS_SIGTERM = {
    "torchrun": re.compile(r"SignalException: Process \d+ got signal: 15"),
    "accelerate": re.compile(r"SignalException: Process \d+ got signal: 15"),
    "deepspeed": re.compile(r"received SIGTERM, exiting"),
}
"""What a launcher that ends with 1 at SIGTERM writes then."""

_MPI_FAILED = re.compile(r"mpirun (?:noticed|detected) that|Primary job +terminated|MPI_ABORT was invoked")
"""What mpirun writes where a rank failed; at SIGTERM it ends with 1 and writes nothing."""


@dataclass
class _Reached:
    """The first two steps of one file, and the furthest."""

    first: int
    second: int | None = None
    furthest: int = 0

    def add(self, step: int) -> None:
        if self.second is None and step > self.first:
            self.second = step
        self.furthest = max(self.furthest, step)

    def end(self, steps: int, *, warmup_steps: int) -> int:
        """The last step that counts, as the file counts them."""
        stride = 1 if self.second is None else self.second - self.first
        return steps_before(self.first, stride, warmup_steps=warmup_steps) + steps


@dataclass
class StepCount:
    """Follows every file that reports steps: the run is done when each of them has `steps` steps."""

    steps: int
    warmup_steps: int = 0
    _files: dict[str, _Reached] = field(default_factory=dict)

    def follow(self, records: Iterable[Record]) -> None:
        """Take in what was read at a look."""
        for record in records:
            if record.step is not None:
                name = f"{record.source}/{record.rank}"
                self._files.setdefault(name, _Reached(record.step)).add(record.step)

    @property
    def done(self) -> bool:
        """Whether all steps are written: in every file, or in one that has gone on for long."""
        beyond = [reached.furthest - self._end(reached) for reached in self._files.values()]
        return bool(beyond) and (min(beyond) >= 0 or self.passed)

    @property
    def furthest(self) -> int:
        """The furthest step of any file."""
        return max((reached.furthest for reached in self._files.values()), default=0)

    @property
    def passed(self) -> bool:
        """Whether some file is far behind its last step that counts: how many a trainer does may be known by a few."""
        most = self.steps * _SLACK + _SLACK_STEPS
        return any(reached.furthest > self._end(reached) + most for reached in self._files.values())

    def counts(self, step: int | None) -> bool:
        """Whether a step is one that was asked for."""
        ends = [self._end(reached) for reached in self._files.values()]
        return step is None or not ends or step <= max(ends)

    def _end(self, reached: _Reached) -> int:
        return reached.end(self.steps, warmup_steps=self.warmup_steps)


def ended_as_asked(rc: int | None, *, launcher: str, killed: bool, out: Path) -> bool:
    """Whether a program that was sent SIGTERM behind its steps ended by that signal, or by the SIGKILL that followed.

    Args:
        killed: whether it was still there when its grace was over.
    """
    if rc in _TERMINATED or (killed and rc in _KILLED):
        return True
    if rc != 1:
        return False
    written = "\n".join(tail_of(out / "logs" / name) for name in ("stdout.log", "stderr.log"))
    if launcher == "mpirun":
        return _MPI_FAILED.search(written) is None
    says = _SAYS_SIGTERM.get(launcher)
    return says is not None and says.search(written) is not None
