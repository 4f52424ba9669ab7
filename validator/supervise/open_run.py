"""A run that is open, followed by another process than its runner: latest values, samples of the machine, ends of logs.

The files of a run are cleaned of secrets when it has ended. Until then a log is shown only where the secrets are known
that its program was given: those in the environment and the arguments of the process that the journal names, which
proves by the validation's token that it is the one.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from validator.files import Tree, reading_below
from validator.model.plan import RunSpec
from validator.runs.folder import RunFolder
from validator.runs.journal import Event
from validator.runs.replay import started_runs
from validator.secrets.masking import Mask, known_secrets
from validator.supervise.follow import RunFollower, Tail
from validator.supervise.launch import STEP_FILE
from validator.supervise.watchdog import Pace
from validator.system.processes import TOKEN_VARIABLE, cmdline, environ
from validator.text import MISSING, clean, format_duration, format_quantity

Values = tuple[tuple[str, str], ...]
"""Labels and texts."""

_JOIN_BYTES = 256 << 10
"""How far back a run's files are read when they begin to be followed."""

_NEWEST = 10
"""Rows of a file that are read at each look, the latest: a column that is not in every row is shown a little later."""

LOG_LINES = 200
_SHOWN_BYTES = 64 << 10
_BEFORE_BYTES = 32 << 10
"""Read before what is shown: a key of several lines is recognized by its first."""

_MAX_LOGS = 100
_LIST_S = 5.0
_NONE = "It has no log yet."
_WITHHELD = (
    "Its logs are shown when it has ended: the secrets that its program was given cannot be read, so none is removed."
)
_SAMPLE_BYTES = 16 << 10
_OLD_S = 15.0
"""Age from which a sample is said to be old: one is taken every second, or every few."""

_HOST = (
    ("CPU", "host_cpu_pct", "%"),
    ("CPU of other programs", "host_other_cpu_pct", "%"),
    ("Memory available", "host_mem_available_mib", "GiB"),
)
_GPU = (
    ("Utilization", "util_pct", "%"),
    ("Memory", "mem_used_mib", "GiB"),
    ("Power", "power_w", "W"),
    ("Temperature", "temperature_c", "°C"),
)
_LINE_END = re.compile(rb"[\r\n]")
_REPORTED = (
    ("toks_per_s", "Rate", "tok/s"),
    ("step_time_s", "Step time", "s"),
    ("loss", "Loss", ""),
    ("grad_norm", "Gradient norm", ""),
    ("gpu_mem_alloc_mib", "GPU memory", "MiB"),
)
_INDEX = re.compile(r"gpu(\d{1,3})_util_pct")


@dataclass(frozen=True)
class LiveGpu:
    """The latest sample of one GPU."""

    index: int
    values: Values


@dataclass(frozen=True)
class MachineSample:
    """The latest sample of the machine. `age` is empty while it is fresh."""

    host: Values = ()
    gpus: tuple[LiveGpu, ...] = ()
    age: str = ""

    def texts(self) -> Iterator[tuple[str, str]]:
        """Each text by its name."""
        yield "age", self.age
        for label, value in self.host:
            yield f"host {label}", value
        for gpu in self.gpus:
            for label, value in gpu.values:
                yield f"gpu{gpu.index} {label}", value


@dataclass
class MachineSamples:
    """Follows the samples that the runner of a local run writes; `out` is its folder below the run folder `root`."""

    root: Path
    out: str
    _tail: Tail | None = None
    _cells: Mapping[str, str] = field(default_factory=dict)

    def latest(self) -> MachineSample:
        """The latest sample; empty before the first."""
        path = self.root / self.out / "logs" / "telemetry.csv"
        self._tail = self._tail or Tail(path, root=self.root, skip_to_last_bytes=_SAMPLE_BYTES)
        for line in self._tail.lines()[-1:]:
            names = self._tail.first_line.decode("utf-8", "replace").split(",")
            self._cells = dict(zip(names, line.decode("utf-8", "replace").split(","), strict=False))
        gpus = sorted(int(found[1]) for name in self._cells if (found := _INDEX.fullmatch(name)))
        age_s = time.time() - (_cell_number(self._cells.get("ts")) or time.time())
        return MachineSample(
            tuple(self._shown("", _HOST)) if self._cells else (),
            tuple(LiveGpu(index, tuple(self._shown(f"gpu{index}_", _GPU))) for index in gpus),
            f"{format_duration(age_s)} ago" if age_s > _OLD_S else "",
        )

    def _shown(self, prefix: str, columns: Sequence[tuple[str, str, str]]) -> Iterator[tuple[str, str]]:
        for label, name, unit in columns:
            value = _cell_number(self._cells.get(prefix + name))
            shown = None if value is None else value / 1024 if unit == "GiB" else value  # the columns are in MiB
            yield label, MISSING if shown is None else format_quantity(shown, unit)


def _cell_number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


class LogTail(NamedTuple):
    """The end of a log of an open run, and the names of all its logs; without a text, `why` there is none."""

    name: str = ""
    names: tuple[str, ...] = ()
    text: str = ""
    why: str = ""


@dataclass
class RunLogs:
    """The logs of one attempt at a run, whose folder is `out` below the run folder `root`; no link leads to them.

    `pid` is the process that it was started as, whose environment holds the token `marker`; `named` are the names that
    the runbook lists in `secrets`.
    """

    root: Path
    out: str
    pid: int
    marker: str
    named: Collection[str] = ()
    _mask: Mask | None = None
    _names: tuple[str, ...] = ()
    _listed_s: float = float("-inf")
    _shown: dict[str, tuple[tuple[int, int], str]] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """The logs that are shown, by their paths below the run's `logs`, as they were a few seconds ago."""
        self._mask = self._mask or self._mask_now()
        if self._mask is None:
            return ()
        if time.monotonic() - self._listed_s >= _LIST_S:
            self._names, folder = (), f"{self.out}/logs"
            with suppress(OSError), Tree(self.root) as tree:
                logs = (one.path for one in tree.walk(folder) if one.kind == "file" and one.path.endswith(".log"))
                found = [path.removeprefix(f"{folder}/") for path in logs]
                found.sort(key=lambda name: (name.count("/"), name == "stderr.log", name))
                self._names = tuple(found[:_MAX_LOGS])
            self._listed_s = time.monotonic()
        return self._names

    def tail(self, name: str) -> LogTail:
        """The last lines of the log of this name, without secrets; where there is none of it, of the first log."""
        names = self.names()
        if self._mask is None or not names:
            return LogTail(why=_NONE if self._mask else _WITHHELD)
        chosen = name if name in names else names[0]
        with suppress(OSError), Tree(self.root) as tree, tree.open(f"{self.out}/logs/{chosen}") as file:
            status = os.fstat(file.fileno())
            stamp = (status.st_size, status.st_mtime_ns)
            if self._shown.get(chosen, (None, ""))[0] != stamp:
                start = file.seek(max(0, status.st_size - _SHOWN_BYTES - _BEFORE_BYTES))
                data = file.read(_SHOWN_BYTES + _BEFORE_BYTES)
                self._shown[chosen] = stamp, _last_lines(data if start == 0 else _from_a_line(data), self._mask)
        return LogTail(chosen, names, self._shown.get(chosen, (None, ""))[1])

    def _mask_now(self) -> Mask | None:
        """What takes the run's secrets out; None where they cannot be known."""
        environment, words = environ(self.pid), cmdline(self.pid)
        if environment.get(TOKEN_VARIABLE) != self.marker or not words:
            return None
        with Tree(self.root) as tree:
            if tree.has_file(f"{self.out}/{STEP_FILE}"):  # a run across nodes: its program gets its secrets by it
                step = tree.json(f"{self.out}/{STEP_FILE}")
                environment, words = {**environment, **step["env"]}, (*words, *step["argv"])
        return Mask(known_secrets(environment, words, named=self.named))


def _from_a_line(data: bytes) -> bytes:
    """A piece of a log without the line that it begins in."""
    found = _LINE_END.search(data)
    return b"" if found is None else data[found.end() :]


def _last_lines(data: bytes, mask: Mask) -> str:
    """The last whole lines of a piece of a log as text; of a bar that is redrawn in place, what it shows now."""
    data = data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1].removesuffix(b"\n")
    at = len(data)
    for _ in range(LOG_LINES):
        at = max(0, data.rfind(b"\n", 0, at))
    data = data if at <= _BEFORE_BYTES else _from_a_line(data[at - _BEFORE_BYTES :])
    lines = mask.block(data).decode("utf-8", "replace").split("\n")
    # Where lines became one, those before them are not shown instead: they may be the end of a key themselves.
    count = LOG_LINES - (data.count(b"\n") + 1 - len(lines))
    text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines[-max(1, count) :])
    shown = clean(text, limit=4 * len(text))
    return shown if len(shown) <= _SHOWN_BYTES else shown[-_SHOWN_BYTES:].partition("\n")[2]


class OpenRun(NamedTuple):
    """A run that was started and has not ended, and what is followed of its present attempt."""

    spec: RunSpec
    attempts: int
    follower: RunFollower
    pace: Pace
    samples: MachineSamples
    logs: RunLogs

    def look(self) -> Values:
        """Read what is new; the latest values, those of the terminal's live table, but for what is not reported."""
        now, latest = time.monotonic(), self.follower.latest
        with reading_below(self.logs.root):
            self.pace.follow(self.follower.look(now=now), now)
        eta_s, silent_s = self.pace.eta_s(self.spec.steps, now), self.follower.heartbeat_age_s(now)
        left = MISSING if eta_s is None else f"about {format_duration(eta_s)}"
        reported = [(label, latest[name], unit) for name, label, unit in _REPORTED if name in latest]
        values = (("Left of this run", left), *((label, format_quantity(one, unit)) for label, one, unit in reported))
        return values if silent_s is None else (*values, ("Last sign of life", f"{format_duration(silent_s)} ago"))


def open_run(
    folder: RunFolder, events: Sequence[Event], before: OpenRun | None, *, links: bool = True
) -> OpenRun | None:
    """The run that is open by the journal: the one before while it is the same attempt; None where none is.

    Its table and heartbeat may themselves be links, to where the runbook says, if `links`. No other link is followed.
    """
    opened = [spec for spec, outcome in started_runs(events) if outcome is None]
    if not opened:
        return None
    spec, root = opened[-1], folder.root
    started = [one.fields for one in events if one.event == "attempt_started" and one.fields.get("run") == spec.id]
    if before is not None and (before.spec, before.attempts) == (spec, len(started)):
        return before
    metrics = spec.metrics if links else spec.metrics.model_copy(update={"link_roots": ()})
    follower = RunFollower(
        root / spec.out, metrics, ranks=spec.ranks, skip_to_last_bytes=_JOIN_BYTES, newest=_NEWEST, root=root
    )
    latest, named = started[-1] if started else {}, folder.header.runbook.secrets
    logs = RunLogs(root, spec.out, latest.get("pid") or 0, str(latest.get("marker")), named)
    return OpenRun(spec, len(started), follower, Pace(started=time.monotonic()), MachineSamples(root, spec.out), logs)
