"""Running validations as the service shows them, from what their runners write anyway: journal, result and logs.

One look serves every viewer. A run's files are followed as its own runner follows them; nothing is asked of the runner.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from validator.model.plan import RunSpec
from validator.model.verdict import Status, ValidationReport
from validator.pipeline.evaluate import result_in
from validator.report.elements import PENDING, status_view
from validator.report.page import StatusView
from validator.runs.folder import JOURNAL, RunFolder
from validator.runs.journal import Event
from validator.runs.replay import ending, events_of, last_runner, phase_end
from validator.service.index import RunIndex
from validator.service.stopping import StopHow, request_stop, works_on
from validator.supervise.lock import holders
from validator.supervise.open_run import LogTail, MachineSample, OpenRun, Values, open_run
from validator.text import clean, format_duration, format_time, one_line, plural
from validator.times import unix_seconds

_LOOK_S = 0.6
"""How long a look serves every page."""

_FORGET_S = 30.0
"""Without a look for so long, runs are joined again: what was written meanwhile would take many looks to read."""

_ENDED = StatusView("ENDED", "·", "muted")
_INTERRUPTED = StatusView("INTERRUPTED", "–", "warn")
_VIEWS = {view.word: view for view in (*map(status_view, get_args(Status)), PENDING, _ENDED, _INTERRUPTED)}

NOTES = 5
"""Events of the watchdog that are shown, the latest first."""


@dataclass(frozen=True)
class LivePhase:
    """A phase of a running validation; `took` is empty until it has ended."""

    id: str
    title: str
    status: str
    took: str = ""

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
        if self.step is None:
            return "no step yet"
        return f"step {self.step:,} of {self.steps:,}" if self.steps else f"step {self.step:,}"

    def texts(self) -> Iterator[tuple[str, str]]:
        """Each text by its name."""
        yield "step", self.progress
        yield "bar", str(self.step or 0)
        yield "watchdog", self.watchdog
        yield from self.values
        yield from self.machine.texts()


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
    stopping: StopHow | Literal[""]
    elapsed: str
    remaining: str
    phases: tuple[LivePhase, ...]
    run: LiveRun | None
    notes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[object, ...]:
        """What a page's elements depend on; all else of it is text in them."""
        named = tuple((phase.id, phase.status, phase.took) for phase in self.phases)
        run = self.run and (self.run.id, self.run.steps, self.run.logs, [name for name, _ in self.run.texts()])
        return self.folder, self.working, self.stopping, named, run, self.notes

    def texts(self) -> Iterator[tuple[str, str]]:
        """Each text that changes while the shape stays, by the name of the element that has it."""
        yield f"{self.folder} elapsed", self.elapsed
        yield f"{self.folder} remaining", self.remaining
        for name, value in self.run.texts() if self.run is not None else ():
            yield f"{self.folder} {name}", value


class LiveRuns:
    """What runs now below the folder of an index. Safe to use from several threads."""

    def __init__(self, index: RunIndex) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._followed: dict[str, _Followed] = {}
        self._looked = float("-inf")
        self._seen: tuple[Running, ...] = ()
        self._asked: dict[str, StopHow] = {}

    def stop(self, folder: Path, how: StopHow) -> None:
        """Ask the runner of a folder to end; raises as `request_stop` does."""
        request_stop(RunFolder.open(folder), how)
        with self._lock:
            self._asked[folder.name] = how
            self._looked = float("-inf")

    def look(self, *, fresh: bool = False) -> tuple[Running, ...]:
        """Every validation without a decision, a moment ago unless `fresh`: those worked on first, the latest first."""
        with self._lock:
            age_s = time.monotonic() - self._looked
            if fresh or age_s >= _LOOK_S:
                before = self._followed if age_s < _FORGET_S else {}
                names = {*self._index.open_folders(), *self._held()}
                self._followed = {name: before.get(name) or _Followed(self._index.reports / name) for name in names}
                found = (one.look(self._asked.get(name, "")) for name, one in self._followed.items())
                seen = sorted(filter(None, found), key=lambda one: (one.working, one.started), reverse=True)
                self._asked = {one.folder: one.stopping for one in seen if one.stopping}
                self._seen, self._looked = tuple(seen), time.monotonic()
            return self._seen

    def of(self, folder: str, *, fresh: bool = False) -> Running | None:
        """One of them by its folder; None where it has ended."""
        return next((one for one in self.look(fresh=fresh) if one.folder == folder), None)

    def log(self, folder: str, name: str) -> LogTail:
        """The end of a log of a folder's open run, of the first where there is none of this name."""
        with self._lock:
            one = self._followed.get(folder)
            return LogTail() if one is None or one.open is None else one.open.logs.tail(name)

    def _held(self) -> Iterator[str]:
        """Folders that the machine's locks name: a resumed validation has an old decision until its first report."""
        with suppress(OSError):
            for holder in holders().values():
                path = Path(str(holder.get("run_dir") or ""))
                if path.parent == self._index.reports and self._index.entry(path.name) is not None:
                    yield path.name


@dataclass
class _Followed:
    """One folder between looks: what was read of it, and the files of its open run."""

    root: Path
    open: OpenRun | None = None
    _folder: RunFolder | None = None
    _report: ValidationReport | None = None
    _stamps: tuple[object, object] = (None, None)
    _events: tuple[Event, ...] = ()
    _opened_by: tuple[Event, ...] | None = None

    def look(self, asked: StopHow | Literal[""]) -> Running | None:
        """The validation now; None where it has ended, or cannot be read. `asked` says how it was asked to stop."""
        try:
            folder = self._folder = self._folder or RunFolder.open(self.root)
            self._read(folder)
            return self._running(folder, asked)
        except Exception:  # noqa: BLE001 -- a folder that others wrote must not hide those that run
            return None

    def _running(self, folder: RunFolder, asked: StopHow | Literal[""]) -> Running | None:
        runner = last_runner(folder, self._events)
        working = works_on(runner, folder)  # also while it writes its last report
        undecided = self._report is None or self._report.decision == "IN_PROGRESS"
        if not working and (ending(self._events) is not None or not undecided):
            return None
        header = folder.header
        # Root's service sees runners of others, whose links lead nowhere.
        own = working and Path(f"/proc/{runner.pid}").stat().st_uid == os.getuid()
        return Running(
            folder=self.root.name,
            run_id=one_line(header.run_id),
            title=one_line(header.runbook.title or header.runbook.name, limit=200),
            runbook=one_line(header.runbook.name),
            host=one_line(runner.host, limit=100),
            started=format_time(header.started),
            working=working,
            stopping=asked if working else "",
            elapsed=format_duration(max(0.0, _seconds_since(header.started))),
            remaining=self._remaining() if working else "",
            phases=tuple(self._phases(folder, working=working)),
            run=self._run(folder, links=own) if working else None,
            notes=tuple(self._notes()),
        )

    def _read(self, folder: RunFolder) -> None:
        """Read journal and result again where they have changed."""
        with folder.tree() as tree:
            files = [tree.stat(name) if tree.has_file(name) else None for name in (JOURNAL, "result.json")]
            journal, result = (file and (file.st_mtime_ns, file.st_size) for file in files)
            if result != self._stamps[1]:
                self._report = None
                with suppress(OSError, ValueError):
                    self._report = result_in(tree)
        if journal != self._stamps[0]:
            self._events = events_of(folder)
        self._stamps = (journal, result)

    def _remaining(self) -> str:
        """What the runner expected when it drew its latest report, less what has passed since."""
        outlook = None if self._report is None else self._report.outlook
        if outlook is None or outlook.remaining_s is None:
            return "not known"
        left_s = outlook.remaining_s - _seconds_since(outlook.as_of)
        return f"{'at least' if outlook.at_least else 'about'} {format_duration(max(0.0, left_s))}"

    def _phases(self, folder: RunFolder, *, working: bool) -> Iterator[LivePhase]:
        judged = {phase.id: phase.status for phase in self._report.phases} if self._report else {}
        started = {str(event.fields.get("phase")) for event in self._events if event.event == "phase_started"}
        for phase in folder.header.runbook.phases:
            end = phase_end(self._events, phase.id)
            status = judged.get(phase.id)
            if end is not None:
                shown = _ENDED if status in (None, "RUNNING", "NOT_RUN") else status_view(status)
            elif phase.id in started:
                shown = status_view("RUNNING") if working else _INTERRUPTED
            else:
                shown = PENDING
            seconds = None if end is None else end.fields.get("duration_s")
            took = format_duration(seconds) if isinstance(seconds, (int, float)) else ""
            yield LivePhase(one_line(phase.id), one_line(phase.title or phase.id, limit=200), shown.word, took)

    def _run(self, folder: RunFolder, *, links: bool) -> LiveRun | None:
        """The run that is open, followed from the event that started it; over links where `links` says so."""
        if self._opened_by is not self._events:
            self.open, self._opened_by = open_run(folder, self._events, self.open, links=links), self._events
        if (one := self.open) is None:
            return None
        values, watchdog = one.look(), self._watchdog(one.spec)  # which says how far the follower is
        name, step, steps = one_line(one.spec.id), one.follower.step, one.spec.steps
        return LiveRun(name, step, steps, values, watchdog, one.samples.latest(), one.logs.names())

    def _watchdog(self, spec: RunSpec) -> str:
        """What the watchdog of the open run says; its events are among the notes."""
        if spec.watchdog is None:
            return "off"
        count = sum(event.event == "anomaly" and event.fields.get("run") == spec.id for event in self._events)
        found = plural(count, "event") if count else "nothing found"
        return found if spec.watchdog.halt else f"{found}, halts nothing"

    def _notes(self) -> Iterator[str]:
        seen = [event for event in self._events if event.event in ("anomaly", "nodes_lost")]
        for event in reversed(seen[-NOTES:]):
            what = event.fields.get("message") or f"lost: {event.fields.get('nodes')}"
            yield clean(f"{event.fields.get('run') or ''}: {what}", limit=400)


def _seconds_since(moment: str) -> float:
    return time.time() - (unix_seconds(moment) or 0.0)
