"""Running validations as the service shows them, from what their runners write anyway: journal, result and logs.

One look serves every viewer. A run's files are followed as its own runner follows them; nothing is asked of the runner
but to end, by the same requests as by Ctrl-C.

A folder names its runner by pid, start and host, and may have come from anywhere. So a process counts as the runner
only while it also has the folder's journal open, and it is held by a handle before that is looked at: the kernel
cannot give its pid to another one meanwhile.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

from validator.errors import Unable
from validator.model.verdict import Status, ValidationReport
from validator.pipeline.evaluate import result_in
from validator.report.elements import PENDING, status_view
from validator.report.page import StatusView
from validator.runs.folder import JOURNAL, RunFolder, Runner
from validator.runs.journal import Event
from validator.runs.replay import ending, events_of, last_runner, phase_end
from validator.service.index import RunIndex
from validator.supervise.open_run import LogTail, MachineSample, OpenRun, Values, open_run
from validator.system.processes import catches, written_by, written_files
from validator.text import clean, format_duration, format_time, one_line, plural
from validator.times import unix_seconds

StopHow = Literal["stop", "halt"]
"""`stop` lets the trainer checkpoint within its grace period; `halt` waits for nothing."""

_BETWEEN_S = 0.5
"""Between two requests: signals of one number that wait together count as one."""

_LOOK_S = 0.6
"""How long a look serves every page."""

_FORGET_S = 30.0
"""Without a look for so long, runs are joined again: what was written meanwhile would take many looks to read."""

_INTERRUPTED = StatusView("INTERRUPTED", "–", "warn")
_VIEWS = {view.word: view for view in (*map(status_view, get_args(Status)), PENDING, _INTERRUPTED)}

NOTES = 5
"""Events of the watchdog that are shown, the latest first."""


@dataclass(frozen=True)
class LivePhase:
    """A phase of a running validation."""

    id: str
    title: str
    status: str

    @property
    def view(self) -> StatusView:
        """The status with its sign and tone."""
        return _VIEWS[self.status]


@dataclass(frozen=True)
class LiveRun:
    """The run of a trainer or program that is open: how far it is and its latest values, as texts."""

    id: str
    step: int | None
    steps: int | None
    values: Values
    watchdog: str = ""
    machine: MachineSample = field(default_factory=MachineSample)
    logs: tuple[str, ...] = ()

    @property
    def progress(self) -> str:
        """`step 1,200 of 5,000`."""
        of = f" of {self.steps:,}" if self.steps else ""
        return "no step yet" if self.step is None else f"step {self.step:,}{of}"


@dataclass(frozen=True)
class Running:
    """A validation that a runner works on, or, where `working` is false, one that was left without a decision.

    `stopping` says how this service asked it to stop.
    """

    folder: str
    run_id: str
    title: str
    runbook: str
    host: str
    started: str
    working: bool
    phases: tuple[LivePhase, ...]
    notes: tuple[str, ...] = ()
    stopping: StopHow | Literal[""] = ""
    elapsed: str = ""
    remaining: str = ""
    run: LiveRun | None = None

    @cached_property
    def shape(self) -> str:
        """What a page's elements depend on; all else of it is text in them."""
        run = self.run and (self.run.id, self.run.steps, self.run.logs)
        return repr((self.working, self.stopping, self.phases, self.notes, run, [*self.texts()]))

    def texts(self) -> dict[str, str]:
        """Each text that changes while the shape stays, by the name of the element that has it."""
        found = {"elapsed": self.elapsed, "remaining": self.remaining}
        if (run := self.run) is not None:
            found |= {"step": run.progress, "bar": str(run.step or 0), "watchdog": run.watchdog, **dict(run.values)}
            found |= {"age": run.machine.age, **{f"host {label}": value for label, value in run.machine.host}}
            found |= {f"gpu{index} {label}": value for index, of in run.machine.gpus for label, value in of}
        return {f"{self.folder} {name}": text for name, text in found.items()}


class LiveRuns:
    """What runs now below the folder of an index. Safe to use from several threads."""

    def __init__(self, index: RunIndex) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._followed: dict[str, _Followed] = {}
        self._looked = float("-inf")
        self._seen: tuple[Running, ...] = ()

    def stop(self, folder: Path, how: StopHow) -> None:
        """Ask the runner of a folder to end; raises as `request_stop` does."""
        request_stop(RunFolder.open(folder), how)
        with self._lock:
            self._looked -= _LOOK_S
            if folder.name in self._followed:
                self._followed[folder.name].asked = how

    def look(self, *, fresh: bool = False) -> tuple[Running, ...]:
        """Every validation without a decision, a moment ago unless `fresh`: those worked on first, the latest first."""
        with self._lock:
            age_s = time.monotonic() - self._looked
            if fresh or age_s >= _LOOK_S:
                before = self._followed if age_s < _FORGET_S else {}
                paths = [self._index.reports / name for name in self._index.open_folders()]
                self._followed = {path.name: before.get(path.name) or _Followed(path) for path in paths}
                found = filter(None, [one.look() for one in self._followed.values()])
                self._seen = tuple(sorted(found, key=lambda one: (one.working, one.started), reverse=True))
                self._looked = time.monotonic()
            return self._seen

    def of(self, folder: str, *, fresh: bool = False) -> Running | None:
        """One of them by its folder; None where it has ended."""
        return next((one for one in self.look(fresh=fresh) if one.folder == folder), None)

    def log(self, folder: str, name: str) -> LogTail:
        """The end of a log of a folder's open run, of the first where there is none of this name."""
        with self._lock:
            one = self._followed.get(folder)
            return LogTail() if one is None or one.open is None else one.open.log(name)


@dataclass
class _Followed:
    """One folder between looks: what was read of it, the files of its open run, and how it was `asked` to stop."""

    root: Path
    open: OpenRun | None = None
    asked: StopHow | Literal[""] = ""
    _folder: RunFolder | None = None
    _report: ValidationReport | None = None
    _stamps: list[tuple[int, int]] = field(default_factory=list)
    _events: tuple[Event, ...] = ()
    _read_of: Running | None = None
    _link: str = ""

    def look(self) -> Running | None:
        """The validation now; None where it has ended, or cannot be read."""
        try:
            folder = self._folder = self._folder or RunFolder.open(self.root)
            self._read(folder)
            return self._running(folder)
        except Exception:  # noqa: BLE001 -- a folder that others wrote must not hide those that run
            return None

    def _running(self, folder: RunFolder) -> Running | None:
        if written_by(self._link) != str(folder.journal):  # of one that worked a moment ago the link alone is asked
            self._link = works_on(last_runner(folder, self._events), folder)
        working, read = bool(self._link), self._read_of  # it works also while it writes its last report
        undecided = self._report is None or self._report.decision == "IN_PROGRESS"
        if not working and (ending(self._events) is not None or not undecided):
            return None
        if read is None or read.working != working:
            read = self._read_of = self._as_read(folder, working=working)
        self.asked = self.asked if working else ""
        elapsed = format_duration(max(0.0, _seconds_since(folder.header.started)))
        remaining, run = (self._remaining(), self._run()) if working else ("", None)
        return replace(read, stopping=self.asked, elapsed=elapsed, remaining=remaining, run=run)

    def _as_read(self, folder: RunFolder, *, working: bool) -> Running:
        """What stays until the journal or the result changes; opens the run that is open."""
        header, runner = folder.header, last_runner(folder, self._events)
        if working:  # root's service sees runners of others, whose links lead nowhere
            own = Path(f"/proc/{runner.pid}").stat().st_uid == os.getuid()
            self.open = open_run(folder, self._events, self.open, links=own)
        return Running(
            folder=self.root.name,
            run_id=one_line(header.run_id),
            title=one_line(header.runbook.title or header.runbook.name, limit=200),
            runbook=one_line(header.runbook.name),
            host=one_line(runner.host, limit=100),
            started=format_time(header.started),
            working=working,
            phases=tuple(self._phases(folder, working=working)),
            notes=tuple(self._notes()),
        )

    def _read(self, folder: RunFolder) -> None:
        """Read journal and result again where they have changed."""
        paths = [f"{self.root}/{name}" for name in (JOURNAL, "result.json")]
        stamps = [(file.st_mtime_ns, file.st_size) for file in map(os.lstat, filter(os.path.lexists, paths))]
        if stamps == self._stamps:
            return
        self._report, self._stamps = None, stamps
        with suppress(OSError, ValueError), folder.tree() as tree:
            self._report = result_in(tree)
        self._events, self._read_of, self._link = events_of(folder), None, ""

    def _remaining(self) -> str:
        """What the runner expected when it drew its latest report, less what has passed since."""
        outlook = None if self._report is None else self._report.outlook
        if outlook is None or outlook.remaining_s is None:
            return "not known"
        left_s = outlook.remaining_s - _seconds_since(outlook.as_of)
        return f"{'at least' if outlook.at_least else 'about'} {format_duration(max(0.0, left_s))}"

    def _phases(self, folder: RunFolder, *, working: bool) -> Iterator[LivePhase]:
        judged = {one.id: status_view(one.status, pending=True) for one in self._report.phases} if self._report else {}
        started = {str(event.fields.get("phase")) for event in self._events if event.event == "phase_started"}
        for phase in folder.header.runbook.phases:
            view = judged.get(phase.id, PENDING)
            if phase.id in started and (view == PENDING or phase_end(self._events, phase.id) is None):
                view = status_view("RUNNING") if working else _INTERRUPTED
            yield LivePhase(one_line(phase.id), one_line(phase.title or phase.id, limit=200), view.word)

    def _run(self) -> LiveRun | None:
        """The run that is open, as far as it is now."""
        if (one := self.open) is None:
            return None
        found = [event for event in self._events if event.event == "anomaly" and event.fields.get("run") == one.spec.id]
        watchdog = "off" if one.spec.watchdog is None else plural(len(found), "event")
        name, values = one_line(one.spec.id), one.look()  # which says how far the follower is
        machine, logs = one.sample(), one.logs()
        return LiveRun(name, one.follower.step, one.spec.steps, values, watchdog, machine, logs)

    def _notes(self) -> Iterator[str]:
        seen = [event for event in self._events if event.event in ("anomaly", "nodes_lost")]
        for event in reversed(seen[-NOTES:]):
            what = event.fields.get("message") or f"lost: {event.fields.get('nodes')}"
            yield clean(f"{event.fields.get('run') or ''}: {what}", limit=400)


def works_on(runner: Runner, folder: RunFolder) -> str:
    """The link in /proc by which the runner, where it lives on this machine, has the folder's journal open for writing.

    To read it is not enough: this server does, and a folder that was handed in may name the server as its runner.
    """
    opened = written_files(runner.pid) if runner.alive() else ()
    return next((link for link, path in opened if path == str(folder.journal)), "")


def request_stop(folder: RunFolder, how: StopHow) -> None:
    """Ask the runner of a folder to end: by one SIGTERM, or to `halt` by a second one, which skips every grace period.

    Raises:
        Unable: when no runner of this user works on the folder, or it does not catch signals (yet, or any more).
    """
    runner = last_runner(folder, events_of(folder))
    try:
        handle = os.pidfd_open(runner.pid)
    except OSError as error:
        raise Unable(f"{folder.header.run_id} is not running here: process {runner.pid}: {error.strerror}") from error
    try:
        if not works_on(runner, folder):
            raise Unable(f"{folder.header.run_id} is not running here: no process works on its journal")
        if not catches(runner.pid, signal.SIGTERM):
            raise Unable(f"{folder.header.run_id} is starting or ending, so that a signal would kill it; try again")
        with suppress(ProcessLookupError):  # it ended meanwhile, which is what was asked
            signal.pidfd_send_signal(handle, signal.SIGTERM)
            if how == "halt":
                time.sleep(_BETWEEN_S)
                if works_on(runner, folder) and catches(runner.pid, signal.SIGTERM):  # it may be ending by now
                    signal.pidfd_send_signal(handle, signal.SIGTERM)
    finally:
        os.close(handle)


def _seconds_since(moment: str) -> float:
    return time.time() - (unix_seconds(moment) or 0.0)
