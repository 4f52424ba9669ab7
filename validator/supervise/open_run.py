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
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from validator.files import Tree, reading_below
from validator.model.pattern import parse_number
from validator.model.plan import RunSpec
from validator.runs.folder import RunFolder
from validator.runs.journal import Event
from validator.runs.replay import started_runs
from validator.secrets.masking import Mask, known_secrets
from validator.supervise.follow import RunFollower
from validator.supervise.launch import STEP_FILE
from validator.supervise.tail import Tail
from validator.supervise.watchdog import Pace
from validator.system.processes import TOKEN_VARIABLE, cmdline, environ
from validator.text import MISSING, clean, format_duration, format_quantity

Values = tuple[tuple[str, str], ...]
"""Labels and texts."""

_JOIN_BYTES = 256 << 10
"""How far back a run's files are read when they begin to be followed."""

_NEWEST = 3
"""Rows of a file that are read at each look, the latest: a column that is not in every row is shown a little later."""

LOG_LINES = 200
_SHOWN_BYTES = 64 << 10
_BEFORE_BYTES = 32 << 10
"""Read before what is shown: a key of several lines is recognized by its first."""

_MAX_LOGS = 100
_MAX_WALKED = 2000
_SAMPLE_BYTES = 16 << 10
_OLD_S = 15.0
"""Age from which a sample is said to be old: one is taken every second, or every few."""

_HOST = {"CPU": "host_cpu_pct", "CPU of others": "host_other_cpu_pct", "Memory available": "host_mem_available_mib"}
_GPU = {"Utilization": "util_pct", "Memory": "mem_used_mib", "Power": "power_w", "Temperature": "temperature_c"}
_UNITS = {"pct": ("%", 1), "mib": ("GiB", 1024), "w": ("W", 1), "c": ("°C", 1)}
"""Units and what columns hold for one of them, by the ends of columns' names."""

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
class MachineSample:
    """The latest sample of the machine, and of each GPU by its index. `age` is empty while it is fresh."""

    host: Values = ()
    gpus: tuple[tuple[int, Values], ...] = ()
    age: str = ""


class LogTail(NamedTuple):
    """The end of a log of an open run, and the names of all its logs; `withheld` where its secrets are not known."""

    name: str = ""
    names: tuple[str, ...] = ()
    text: str = ""
    withheld: bool = False


@dataclass
class OpenRun:
    """A run of the folder `root` that was started and has not ended, and what is followed of its present attempt.

    `pid` is the process that it was started as, whose environment holds the token `marker`; `named` are the names that
    the runbook lists in `secrets`. No link leads to its samples and logs.
    """

    root: Path
    spec: RunSpec
    attempts: int
    follower: RunFollower
    pace: Pace
    telemetry: Tail
    pid: int = 0
    marker: str = ""
    named: Collection[str] = ()
    _cells: Mapping[str, str] = field(default_factory=dict)
    _sample: MachineSample = field(default_factory=MachineSample)
    _mask: Mask | None = None
    _names: tuple[str, ...] = ()
    _shown: dict[str, tuple[tuple[int, int], str]] = field(default_factory=dict)

    def look(self) -> Values:
        """Read what is new; the latest values, those of the terminal's live table, but for what is not reported."""
        now, latest = time.monotonic(), self.follower.latest
        with reading_below(self.root):
            self.pace.follow(self.follower.look(now=now), now)
        eta_s, silent_s = self.pace.eta_s(self.spec.steps, now), self.follower.heartbeat_age_s(now)
        left = MISSING if eta_s is None else f"about {format_duration(eta_s)}"
        reported = [(label, latest[name], unit) for name, label, unit in _REPORTED if name in latest]
        values = (("Left of this run", left), *((label, format_quantity(one, unit)) for label, one, unit in reported))
        return values if silent_s is None else (*values, ("Last sign of life", f"{format_duration(silent_s)} ago"))

    def sample(self) -> MachineSample:
        """The latest sample that the runner of a local run has written; empty before the first."""
        for line in self.telemetry.lines()[-1:]:
            names, cells = (one.decode("utf-8", "replace").split(",") for one in (self.telemetry.first_line, line))
            self._cells = dict(zip(names, cells, strict=False))
            gpus = sorted(int(found[1]) for name in names if (found := _INDEX.fullmatch(name)))
            of_gpus = tuple((index, tuple(self._quantities(f"gpu{index}_", _GPU))) for index in gpus)
            self._sample = MachineSample(tuple(self._quantities("", _HOST)), of_gpus)
        age_s = time.time() - (parse_number(self._cells.get("ts", "")) or time.time())
        return replace(self._sample, age=f"{format_duration(age_s)} ago" if age_s > _OLD_S else "")

    def _quantities(self, prefix: str, columns: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        for label, name in columns.items():
            value, (unit, size) = parse_number(self._cells.get(prefix + name, "")), _UNITS[name.rpartition("_")[2]]
            yield label, MISSING if value is None else format_quantity(value / size, unit)

    def logs(self) -> tuple[str, ...]:
        """The logs that are shown, by their paths below the run's `logs`."""
        self._mask, folder, found = self._mask or self._mask_now(), f"{self.spec.out}/logs/", list[str]()
        with suppress(OSError), Tree(self.root) as tree:
            logs = (one.path for one in islice(tree.walk(folder[:-1]), _MAX_WALKED) if one.kind == "file")
            found = [path.removeprefix(folder) for path in logs if path.endswith(".log")]
        found.sort(key=lambda name: (name.count("/"), name == "stderr.log", name))
        self._names = tuple(found[:_MAX_LOGS]) if self._mask else ()
        return self._names

    def log(self, name: str) -> LogTail:
        """The last lines of the log of this name, without secrets; where there is none of it, of the first log.

        The names are those of the last look at `logs`, which is not repeated here while there are some.
        """
        names = self._names or self.logs()
        if self._mask is None or not names:
            return LogTail(withheld=self._mask is None)
        chosen = name if name in names else names[0]
        with suppress(OSError), Tree(self.root) as tree, tree.open(f"{self.spec.out}/logs/{chosen}") as file:
            status = os.fstat(file.fileno())
            stamp = (status.st_size, status.st_mtime_ns)
            if self._shown.get(chosen, (None, ""))[0] != stamp:
                start = file.seek(max(0, status.st_size - _SHOWN_BYTES - _BEFORE_BYTES))
                data = file.read(_SHOWN_BYTES + _BEFORE_BYTES)
                whole = data if start == 0 else _LINE_END.split(data, maxsplit=1)[-1]
                self._shown[chosen] = stamp, _last_lines(whole, self._mask)
        return LogTail(chosen, names, self._shown.get(chosen, (None, ""))[1])

    def _mask_now(self) -> Mask | None:
        """What takes the run's secrets out; None where they cannot be known."""
        environment, words, step_file = environ(self.pid), cmdline(self.pid), f"{self.spec.out}/{STEP_FILE}"
        if environment.get(TOKEN_VARIABLE) != self.marker or not words:
            return None
        with Tree(self.root) as tree:
            if tree.has_file(step_file):  # a run across nodes: its program gets its secrets by it
                step = tree.json(step_file)
                environment, words = {**environment, **step["env"]}, (*words, *step["argv"])
        return Mask(known_secrets(environment, words, named=self.named))


def _last_lines(data: bytes, mask: Mask) -> str:
    """The last whole lines of a piece of a log as text; of a bar that is redrawn in place, what it shows now."""
    data = data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1].removesuffix(b"\n")
    before = b"".join(data.rsplit(b"\n", LOG_LINES)[:-LOG_LINES])
    data = data[max(0, len(before) - _BEFORE_BYTES) :]  # each line that is masked costs time
    lines = mask.block(data).decode("utf-8", "replace").split("\n")
    # Where lines became one, those before them are not shown instead: they may be the end of a key themselves.
    count = LOG_LINES - (data.count(b"\n") + 1 - len(lines))
    text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines[-max(1, count) :])
    shown = clean(text, limit=4 * len(text))
    return shown if len(shown) <= _SHOWN_BYTES else shown[-_SHOWN_BYTES:].partition("\n")[2]


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
    latest, telemetry = started[-1] if started else {}, root / spec.out / "logs" / "telemetry.csv"
    return OpenRun(
        root, spec, len(started), follower, Pace(started=time.monotonic()),
        Tail(telemetry, root=root, skip_to_last_bytes=_SAMPLE_BYTES),
        latest.get("pid") or 0, str(latest.get("marker")), folder.header.runbook.secrets,
    )  # fmt: skip
