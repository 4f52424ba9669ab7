"""A command watched for a short while: started as a validation would start it, and ended when enough is known."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from validator.errors import ExitCode, UserError
from validator.ingest.log_files import find_logs, log_lines, tail
from validator.init.command import TrainerCommand, nproc_key, trainer_keys, understand
from validator.init.elsewhere import logs_elsewhere
from validator.init.launch import CommandLaunch, visible_gpus
from validator.init.length import printed_total, total_of_epochs
from validator.init.reading import (
    TrialReading,
    count_lines,
    first_lines,
    grown_files,
    readings,
    unread_loss,
    unread_records,
    what_is_missing,
)
from validator.model.plan import RunSpec
from validator.model.record import Outcome
from validator.model.runbook import Runbook
from validator.pipeline.session import RunContext, locked, open_runner
from validator.plan import plan_phase
from validator.secrets.masking import mask_of
from validator.supervise.feed import LogFeed
from validator.supervise.monitor import Progress
from validator.supervise.termination import Grace
from validator.supervise.wait import CancelToken
from validator.text import plural

ENOUGH_STEPS = 50
"""Steps below which a phase says little."""

ENOUGH_ROWS = 10
"""Two rows of the start, and eight more."""

_PATIENCE_S = 5.0
"""Shortest further time in which a loss, or a pace, may still appear."""

_HELP_S = 30.0
_TERM_S = 15.0
_LOOK_S = 0.25
_STEPS = 1000
"""Steps that the trainer is asked for where the command says none; it is ended long before."""

_ALL = 10**9
"""Steps of a trainer that no setting asks for a number of them: all that it does are read."""

_LOOKS = 3
"""Looks that see a further step: the time between them is that of the steps, by validator's own clock."""

_DONE = "enough was seen"

_REFUSED = re.compile(r"\bexists?\b|\bnot empty\b|\bnon-?empty\b", re.IGNORECASE)
"""What trainers say of an output folder that they do not write to: `File exists`, `already exists and is not empty`."""

_REFUSED_OPTION = re.compile(
    r"unrecognized (?:argument|option)|no such option|unknown (?:command line )?(?:option|flag|argument|config key)"
    r"|unexpected (?:option|argument|keyword)|could not (?:consume|override)|not used by the HfArgumentParser"
    r"|not in struct|invalid (?:choice|value)|(?:arguments|option) .*required|missing option",
    re.IGNORECASE,
)
"""What parsers say of a setting that they do not know, of a value that is none, or of a setting that is missing."""


class TrialInterrupted(UserError):
    """The user asked to stop while the command was watched; nothing is left running."""

    exit_code = ExitCode.INTERRUPTED


class CommandFailed(UserError):
    """The command ended by itself, not well, before it wrote anything that could be read. The message shows its end.

    `refuses_folder`: its last lines say of the output folder that it is there already, or not empty.
    """

    def __init__(self, message: str, *, refuses_folder: bool) -> None:
        super().__init__(message)
        self.refuses_folder = refuses_folder


@dataclass(frozen=True)
class WatchedCommand:
    """What was seen of a command.

    `reading` is the best way to read what it writes, None where none is known; `step_s` the time of a step by
    validator's clock; `total` the steps that the trainer does by itself, where it prints that; `most` those that it is
    known not to exceed, by its epochs or since it came to its own end; `limit` those beyond which it does not go,
    whatever it is given; `failure` how it ended where it ended by itself and not well; `lines` are the first ones of
    the `printed` that were printed, `files` those that grew in the output folder and `outside` those in the working
    folder; `unread` says which loss is read as none, or which records are; `ended`: it came to its end by itself.
    """

    command: TrainerCommand
    reading: TrialReading | None
    seconds: float
    step_s: float | None
    gpus: int
    failure: str | None = None
    lines: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    total: int | None = None
    most: int | None = None
    limit: int | None = None
    printed: int = 0
    unread: str = ""
    ended: bool = False

    @property
    def length_known(self) -> bool:
        """Whether anything says how many steps the trainer does by itself, or it is given them."""
        return self.command.length is not None or self.total is not None or self.most is not None

    @property
    def complete(self) -> bool:
        """Whether the loss and the pace are known."""
        return self.reading is not None and self.reading.complete

    def hints(self) -> Iterator[str]:
        """What is missing where nothing was recognized, or no loss, as far as that is known, and what to write."""
        yield from filter(None, (self.unread,))
        if self.reading is not None:
            return
        if 0 < self.printed < ENOUGH_ROWS:
            seen = plural(self.printed, "line")
            longer = "it ended by itself, so give it more to do" if self.ended else "give it longer (--seconds 5m)"
            yield f"it printed {seen}, and {ENOUGH_ROWS} are needed: {longer}"
        if missing := what_is_missing(self.lines):
            yield missing
        events = (path for path in (*self.files, *self.outside) if Path(path).name.startswith("events.out.tfevents."))
        if (path := next(events, None)) is not None:
            yield (
                f"it writes the TensorBoard file {path}: write metrics: tensorboard, and let the trainer write it "
                "below its output folder {out}"
            )
        elif (path := next(filter(_holds_metrics, self.outside), None)) is not None:
            yield (
                f"it writes {path} to its working folder, where other runs write too: give it a folder of its own, by "
                'a setting of its command or by cwd: "{out}" under trainer, with absolute paths'
            )

    def notes(self) -> Iterator[str]:
        """What a person should know of how the command was taken, and of how it ended."""
        yield from self.command.notes()
        yield from self.hints()
        if self.failure is not None:
            yield f"it did not come to its end while it was watched: {self.failure}"


@dataclass
class _TrialWatch:
    """Looks at what the command writes until it is enough, and then asks for the end."""

    command: TrainerCommand
    spec: RunSpec
    run_dir: Path
    cancel: CancelToken
    seconds: float
    before: Mapping[str, tuple[int, int]] | None
    """Files of the working folder at the start; None where it is known that the trainer writes elsewhere."""

    files: Mapping[str, tuple[int, int]]
    """The same, wherever it writes."""

    feed: LogFeed
    """Copies of the logs that it writes outside its output folder."""

    token: str
    """The mark of its processes."""

    to_its_end: bool = False
    """Whether a trainer whose length nobody says may come to its end: asked for more, it would have ended early."""

    next_s: float = 0.0
    walk_s: float = 0.0
    logs_s: float = 0.0
    outside_s: float | None = None
    enough_s: float | None = None
    steps: list[tuple[float, int]] = field(default_factory=list)

    def look(self, progress: Progress) -> None:
        """Called about once in `_LOOK_S`; a costly look is followed by a longer pause."""
        began = time.monotonic()
        if not self.cancel.requested and progress.elapsed_s >= self.seconds:
            self.cancel.request(_DONE)  # before the look, which may take long
        if self.cancel.requested or began < self.next_s:
            return
        self.feed.take()
        best = self.best()
        now = time.monotonic()
        self.next_s = now + max(_LOOK_S, 3 * (now - began))
        if best is not None:
            step = best.last_step
            if step is not None and (not self.steps or step > self.steps[-1][1]):
                self.steps.append((began, step))
        if not (best is not None and best.settled) and now >= self.logs_s:
            for path, size in logs_elsewhere(self.token, self.run_dir / self.spec.out, self.files):
                self.feed.hold(path, at=size)
            self.logs_s = now + max(1.0, 20 * (time.monotonic() - now))
        outside = self.before is not None and not (best is not None and best.complete) and self._writes_outside(now)
        if outside or (best is not None and self._enough(best, now)):
            self.cancel.request(_DONE)  # once: a second request is one that does not wait

    def best(self) -> TrialReading | None:
        """The best way to read what was written so far."""
        return next(iter(readings(self.spec, run_dir=self.run_dir, elsewhere=self.feed.paths)), None)

    def _enough(self, best: TrialReading, now: float) -> bool:
        if best.rows < ENOUGH_ROWS or len(self.steps) < _LOOKS:
            return False
        if self.to_its_end and self.known_length(best) is None:
            return False
        if best.complete and not best.guessed:
            return True
        self.enough_s = now if self.enough_s is None else self.enough_s
        began = now if not self.steps else self.steps[0][0]
        return now - self.enough_s >= max(_PATIENCE_S, (self.enough_s - began) / 2)

    def _writes_outside(self, now: float) -> bool:
        """Whether a logger's file has been growing in the working folder for a while."""
        if now >= self.walk_s and self.before is not None:
            found = any(map(_holds_metrics, grown_files(Path.cwd(), self.before)))
            self.walk_s = now + max(1.0, 20 * (time.monotonic() - now))
            if found and self.outside_s is None:
                self.outside_s = now
        return self.outside_s is not None and now - self.outside_s >= 2 * _PATIENCE_S

    def known_length(self, best: TrialReading, *, ended: bool = False) -> int | None:
        """Steps that the trainer does by itself: those of its setting, else the total that it prints."""
        length = _counting_as(best, self.command).length
        if length is not None:
            return length.count or _STEPS
        return self.most(best, ended=ended) or printed_total(best, self.run_dir / self.spec.out)

    def most(self, best: TrialReading, *, ended: bool = False) -> int | None:
        """Steps that it does not exceed: those that it had done where it `ended` by itself with exit code 0, before it
        was to; else those of all its epochs, which are an estimate."""
        seen = best.last_step
        given = _counting_as(best, self.command).length is not None
        if ended and seen is not None and (not given or seen + best.stride < (self.spec.steps or 0)):
            return seen
        return total_of_epochs(best, self.run_dir / self.spec.out, self.command.epochs, self.command.configs)

    @property
    def step_s(self) -> float | None:
        """Time of a step between the first look that saw one and the last."""
        if len(self.steps) < 2:
            return None
        (then, first), (now, last) = self.steps[0], self.steps[-1]
        return (now - then) / (last - first)


def watch(
    command: Sequence[str], *, seconds: float, lock: bool, note: Callable[[str], None], to_its_end: bool = False
) -> WatchedCommand:
    """Start a command, look at what it writes, and end it; no process of it is left.

    One that writes its metrics to its working folder, and knows no other, is watched again in a folder of its own.
    `to_its_end`: where neither a setting nor a line says how long it is, all the `seconds` are waited for its end.

    Raises:
        UserError: when the command starts nothing, or ends badly before it wrote anything that could be read.
        TrialInterrupted: when the user asks to stop.
        Unable: when another validation holds the machine.
    """
    gpus = visible_gpus()
    with locked(_runbook({"id": "p", "kind": "preflight"}, hardware={"gpus": gpus}), enabled=lock) as held:
        held.name(Path.cwd())
        with _runner() as runner:
            understood = understand(command, help_of=partial(_help_text, runner, note))
        note(f"watching {understood.shown} for at most {seconds:g} s")
        try:
            seen = _watched(understood, seconds=seconds, gpus=gpus, to_its_end=to_its_end)
        except CommandFailed as failed:
            if not failed.refuses_folder or understood.folder is None:
                raise
            understood = understood.in_new_folder()
            note("it refuses an output folder that is there already; watching it again with a new one below it")
            seen = _watched(understood, seconds=seconds, gpus=gpus, to_its_end=to_its_end)
        log = Path(str((seen.reading.metrics if seen.reading is not None else {}).get("log", "")))
        if log.is_absolute() and not log.is_relative_to(Path.cwd()):
            return seen
        writes_here = understood.folder is None and any(map(_holds_metrics, seen.outside)) and not seen.complete
        if not log.is_absolute() and not writes_here:
            return seen
        if writes_here and seen.reading is not None and seen.reading.rows < 2:
            seen = replace(seen, reading=None)  # a line at the end is no record of a run: its metrics are elsewhere
        named = understood.in_named_folder() if writes_here else None
        for other in filter(None, (named, understood.in_its_folder())):
            how = "in a folder of its own" if other is not named else f"with {other.ours[-1].written}"
            note(f"it writes to its working folder; watching it again {how}")
            with suppress(CommandFailed):  # it needs what is beside it, or means something else by that setting
                again = _watched(other, seconds=seconds, gpus=gpus, to_its_end=to_its_end)
                if _is_better(again.reading, seen.reading, same_will_do=log.is_absolute()):
                    return again
    return seen


def _is_better(found: TrialReading | None, than: TrialReading | None, *, same_will_do: bool) -> bool:
    if found is None or than is None:
        return found is not None
    return found.order < than.order or (same_will_do and found.order == than.order)


def _watched(command: TrainerCommand, *, seconds: float, gpus: int, to_its_end: bool) -> WatchedCommand:
    with _runner() as runner:
        spec = _trial(command, run_dir=runner.run_dir)
        before = grown_files(Path.cwd())
        outside = None if command.folder else before
        feed = LogFeed(None, runner.run_dir / spec.out)
        watcher = _TrialWatch(
            command, spec, runner.run_dir, runner.cancel, seconds, outside, before, feed, runner.token, to_its_end
        )
        began = time.monotonic()
        outcome = runner.carry_out(spec, mask=mask_of(spec), on_progress=watcher.look)
        _require_calm(runner.cancel)
        out = runner.run_dir / spec.out
        feed.take()
        best = watcher.best()
        failed = outcome.reason == "exited" and outcome.rc != 0
        if best is None and failed:
            raise _failure(command, outcome, out)
        strays = tuple(grown_files(Path.cwd(), before))
        return WatchedCommand(
            command=_counting_as(best, command),
            reading=best,
            seconds=time.monotonic() - began,
            step_s=watcher.step_s or _own_step_s(best),
            gpus=min(gpus, max(1, command.nproc)),
            failure=outcome.last.detail if failed else None,
            lines=tuple(first_lines(out)),
            printed=count_lines(out),
            ended=outcome.exited_well,
            unread=unread_records(out, strays) if best is None else unread_loss(best, out),
            files=tuple(grown_files(out)),
            outside=strays,
            total=None if best is None else _own_total(watcher, best, ended=outcome.exited_well),
            most=None if best is None else watcher.most(best, ended=outcome.exited_well),
            limit=None if best is None else _limit(watcher, best, ended=outcome.exited_well),
        )


def _own_total(watcher: _TrialWatch, best: TrialReading, *, ended: bool) -> int | None:
    """Steps that the trainer is known to do: its length where it says it or came to it, else those that were seen."""
    known = watcher.known_length(best, ended=ended)
    seen = best.last_step or 0
    return seen if known is None and watcher.to_its_end and seen >= ENOUGH_STEPS else known


def _limit(watcher: _TrialWatch, best: TrialReading, *, ended: bool) -> int | None:
    """Steps beyond which the trainer does not go, whatever it is given: those of its epochs, those that it came to by
    itself, or, where it is given no number of steps, the total that it prints."""
    most = watcher.most(best, ended=ended)
    if most is not None or _counting_as(best, watcher.command).length is not None:
        return most
    return watcher.known_length(best) or (best.last_step if ended else None)


def _counting_as(reading: TrialReading | None, command: TrainerCommand) -> TrainerCommand:
    """The command with the length that fits what its output calls a step."""
    if reading is None:
        return command
    if "{row}" in str(reading.metrics.get("stdout", "")):
        return command.by_lines()
    return command.by_epochs() if reading.by_epochs else command


def _holds_metrics(path: str) -> bool:
    """Whether a file is one of those that loggers write, by its name."""
    name = Path(path).name
    return Path(name).suffix in (".csv", ".jsonl", ".wandb") or name.startswith("events.out.tfevents.")


@contextmanager
def _runner() -> Iterator[RunContext]:
    """What the command is started with, in a folder that is gone afterwards."""
    with (
        TemporaryDirectory(prefix="validator-init-", ignore_cleanup_errors=True) as folder,
        open_runner(Path(folder).resolve(), busy=lambda: f"another process works in {folder}") as runner,
    ):
        yield replace(runner, grace=Grace(term_s=_TERM_S))


def _runbook(phase: Mapping[str, Any], **more: Any) -> Runbook:
    return Runbook.model_validate({"schema": 1, "name": "init", "phases": [phase], **more})


def _trial(command: TrainerCommand, *, run_dir: Path) -> RunSpec:
    """The run that is watched, planned as a phase of the runbook would be, with the length of the command."""
    steps = _ALL if command.length is None else command.length.count or _STEPS
    silent = {"interval": f"{_LOOK_S}s", "first_step": "1d", "stall": "1d", "halt": False}
    runbook = _runbook(
        {"id": "watched", "kind": "train", "steps": steps, "warmup_steps": 0},
        trainer=trainer_keys(command, base=Path("/")),
        defaults={"nproc": nproc_key(command), "timeout": "1d", "watchdog": silent, "env": dict(command.launch.env)},
    )
    (spec,) = plan_phase(runbook, runbook.phases[0], run_dir=run_dir).runs
    return spec


def _help_text(runner: RunContext, note: Callable[[str], None], launch: CommandLaunch) -> str:
    """What a program of Python prints for --help; nothing where it does not end by itself soon."""
    words = [launch.python or sys.executable, *launch.words[: 2 if launch.words[0] == "-m" else 1], "--help"]
    note(f"asking {' '.join(words[1:])} which settings it has")
    escaped = [word.replace("{", "{{").replace("}", "}}") for word in words]
    env = {"COLUMNS": "200", **launch.env}
    runbook = _runbook({"id": "help", "kind": "command", "run": escaped, "env": env, "timeout": f"{_HELP_S}s"})
    (spec,) = plan_phase(runbook, runbook.phases[0], run_dir=runner.run_dir).runs
    outcome = runner.carry_out(spec, mask=mask_of(spec))
    _require_calm(runner.cancel)
    if not outcome.ok:
        return ""
    return "\n".join(text for path in find_logs(runner.run_dir / spec.out).printed for _, text in log_lines(path))


def _require_calm(cancel: CancelToken) -> None:
    """Raises TrialInterrupted when it was the user who asked for the end."""
    if cancel.requested and (cancel.why != _DONE or cancel.urgent):
        raise TrialInterrupted("interrupted; nothing is left running, and nothing was written")


def _failure(command: TrainerCommand, outcome: Outcome, out: Path) -> CommandFailed:
    """How a command ended that wrote nothing of use, with its last lines."""
    logs = find_logs(out)
    ends = (tail(path, lines=12) for path in reversed(logs.printed))
    last = next((lines for lines in ends if lines), ())
    shown = "".join(f"\n    {line}" for line in last)
    refused = any(_REFUSED_OPTION.search(line) for line in last)
    named = " and ".join(command.misspelled()) or "the setting that it names"
    what = f"The trainer does not take the command: mend {named}" if refused else "Mend what it names"
    fix = f"{what}. Once the command by itself prints steps, type this again."
    return CommandFailed(
        f"{command.shown}: {outcome.last.detail or 'it failed'}, before it wrote a step.{shown}\n{fix}",
        refuses_folder=any(str(out) in line and _REFUSED.search(line) is not None for line in last),
    )


def _own_step_s(reading: TrialReading | None) -> float | None:
    """The time of a step as the trainer itself says it."""
    times = None if reading is None else reading.series.get("step_time_s")
    return None if times is None or not len(times.values) else float(np.median(times.values))
