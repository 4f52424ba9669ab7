"""`init` carried out: the command is watched, the runbook written, or bounds are taken from a run."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from validator.baseline import value_of, without_criterion
from validator.errors import ExitCode, FolderError, UserError, disk_errors
from validator.files import replace_file
from validator.init.command import name_of, near
from validator.init.draft import (
    LEARNS,
    OPEN_STEPS,
    draft,
    rate_of,
    soak_lines,
    soak_steps,
    timeout_minutes,
    tokens_line,
    two_digits,
    yaml_text,
)
from validator.init.launch import launch_of
from validator.init.watched import WatchedCommand, watch
from validator.kinds.registry import loads
from validator.model.arguments import settings_in
from validator.model.expression import open_reference
from validator.model.resolve import series_of
from validator.model.runbook import Runbook, TrainPhase
from validator.model.settings import has_placeholder, tokens_of
from validator.model.verdict import RunReport, ValidationReport
from validator.pipeline.baseline import make_baseline
from validator.pipeline.evaluate import stored_report
from validator.runbook import RunbookError
from validator.runbook.load import LoadedRunbook
from validator.runs.folder import RunFolder, is_run_folder
from validator.stats.autocorrelation import SPAN_ROWS
from validator.stats.means import is_flat
from validator.text import format_number

Note = Callable[[str], None]
"""Takes a line about the progress."""


_UNEVEN = 0.05
"""Half the interval of a baseline's rate over its mean that a soak, which may be 10 % slower, can be compared with."""

_MOST_LONGER = 4.0
"""Times as many steps as a recorded baseline had that it may be given."""


class Exists(UserError):
    """A file that is not overwritten unless the user says so."""


@dataclass(frozen=True)
class InitRequest:
    """What the user asked for. `out` is the runbook to write, by default named after the program."""

    command: tuple[str, ...]
    seconds: float = 60.0
    out: Path | None = None
    force: bool = False
    lock: bool = True


@dataclass(frozen=True)
class Initiated:
    """A runbook that was written, and what was seen of the command that it is for."""

    path: Path
    text: str
    runbook: Runbook
    watched: WatchedCommand

    @property
    def exit_code(self) -> ExitCode:
        """0 where the runbook can be run as it is; 2 where a person must say first how the output is read."""
        return ExitCode.USAGE if self.watched.reading is None else ExitCode.GO

    def as_dict(self) -> dict[str, Any]:
        """What `init --json` prints."""
        watched, reading = self.watched, self.watched.reading
        return {
            "schema_version": 1,
            "runbook": str(self.path),
            "recognized": reading is not None,
            "seconds": round(watched.seconds, 1),
            "launcher": watched.command.launch.launcher,
            "nproc": watched.command.nproc,
            "command": list(watched.command.words),
            "settings": [{"name": one.name, "was": one.value, "written": one.written} for one in watched.command.ours],
            "notes": list(watched.notes()),
            "metrics": None if reading is None else dict(reading.metrics),
            "source": None if reading is None else reading.source,
            "guessed": reading is not None and reading.guessed,
            "rows": [] if reading is None else reading.sample(),
            "step_time_s": watched.step_s,
            "lines": list(watched.lines) if reading is None else [],
            "ended": watched.ended,
            "files": list(watched.files),
            "outside": list(watched.outside),
        }


def init(request: InitRequest, *, note: Note) -> Initiated:
    """Watch a command and write a runbook for it.

    Raises:
        Exists: when the runbook is there already; nothing has been started then.
        UserError: when the command starts nothing, or fails.
        Unable: when the machine or the disk refuses.
    """
    name = name_of(launch_of(request.command))
    path = request.out or Path(f"{name}.yaml")
    _require_free(path, force=request.force)
    watched = watch(request.command, seconds=request.seconds, lock=request.lock, note=note)
    text = draft(watched, name=name, base=_folder(path))
    runbook = loads(text, file=str(path))
    with disk_errors(path, command="validator init -- COMMAND"):
        replace_file(path, text)
    return Initiated(path, text, runbook, watched)


def _folder(path: Path) -> Path:
    return Path(os.path.abspath(path)).parent  # noqa: PTH100 - links stay as people chose


def _require_free(path: Path, *, force: bool) -> None:
    if path.exists() and not force:
        raise Exists(f"{path} exists; choose another with -o FILE, or pass --force")


@dataclass(frozen=True)
class TrialRunbook:
    """A runbook that was made for one run of a command, and what was seen of the command."""

    loaded: LoadedRunbook
    source: str


def runbook_for(request: InitRequest, *, steps: int | None, note: Note) -> TrialRunbook:
    """Watch a command and make the runbook by which it is judged once; nothing but its run folder will hold it.

    Raises:
        UserError: when the command starts nothing, fails, or writes nothing that is recognized.
        Unable: when the machine refuses.
    """
    watched = watch(request.command, seconds=request.seconds, lock=request.lock, note=note, to_its_end=steps is None)
    name = name_of(watched.command.launch)
    if watched.reading is None:
        hints = "; ".join(watched.hints())
        raise UserError(
            f"{watched.command.shown} wrote nothing in {watched.seconds:.0f} s that is recognized, so no run of it can "
            f"be judged. {'' if watched.ended else 'If it was still starting, give it longer: --seconds 5m. '}"
            "`validator init -- COMMAND` shows what was seen, and writes a runbook in which you say how its output is "
            "read" + (hints and f"; {hints}")
        )
    for hint in watched.hints():
        note(hint)
    path = Path(f"{name}.yaml")
    text = draft(watched, name=name, base=_folder(path), steps=steps, soak=False)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return TrialRunbook(LoadedRunbook(loads(text, file=str(path)), path, digest, text), watched.reading.source)


@dataclass(frozen=True)
class FromRun:
    """A runbook whose bounds come from a run, these bounds as text, codes of warnings that the run had, and sentences
    on bounds that may be too tight or too easy."""

    path: Path
    bounds: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def last_run(paths: Sequence[Path]) -> Path | None:
    """The last of several run folders, as `reports/*` names them, with the page that lists them; None where something
    else is among them. Names of run folders begin with the UTC time."""
    runs = [path for path in paths if is_run_folder(path)]
    others = [path for path in paths if path not in runs and path.name != "index.html"]
    return None if others else max(runs, key=lambda path: path.name, default=None)


def from_run(run: Path, *, out: Path | None, force: bool) -> FromRun:
    """Write the runbook of a run, with bounds from it, and a soak where it has none.

    Raises:
        FolderError: when the run is none, was bad, or measured nothing.
        Exists: when the runbook is there already.
        Unable: when it cannot be written.
    """
    folder = RunFolder.open(run)
    path = out or Path(f"{folder.header.runbook.name}.yaml")
    _require_free(path, force=force)
    report = stored_report(folder)
    _require_good(report)
    made = make_baseline([run], runbook=None, margin=0.02, allow_not_go=True)
    written = Path(folder.header.cwd, folder.header.runbook_path).parent
    text = with_tokens_line(_with_loss(made.text, report), folder.header.runbook, report)
    text = _moved(text, written, _folder(path))
    flat = _flat_losses(report)
    for phase, why in flat.items():
        text = without_criterion(text, phase, LEARNS, why=f"{why[:1].upper()}{why[1:]}.")
    ends = [one.expr for one in made.bounds if one.phase in flat and one.reference == "loss.last"]
    text, baseline, longer = with_more_rows(text, folder.header.runbook, report)
    end = ends[0] if ends else LEARNS
    text, short = with_soak(text, folder.header.runbook, report, learns=end, baseline=baseline)
    with disk_errors(path, command=f"validator init --from-run {run}"):
        replace_file(path, text)
    warnings = tuple(dict.fromkeys(one.code for one in report.findings if one.severity == "warning"))
    bounds = tuple(f"{one.phase}: {one.expr} {one.unit}".rstrip() for one in made.bounds)
    notes = (*made.notes, *(f"{phase}: {why}" for phase, why in flat.items()), *longer, *short)
    return FromRun(path, bounds, warnings, notes)


def _flat_losses(report: ValidationReport) -> dict[str, str]:
    """Phases whose loss did not fall beyond the noise of its rows, with a clause that says so."""
    found = {}
    for phase in report.phases:
        losses = [run.metrics["loss"] for run in phase.measured if "loss" in run.metrics]
        if losses and all(map(is_flat, losses)):
            first, last, noise = (
                format_number(one or 0.0) for one in (losses[0].first, losses[0].last, losses[0].noise)
            )
            found[phase.id] = (
                f"no fall of the loss is asked: it went from {first} to {last} nat, and one row varies by {noise}"
            )
    return found


def _require_good(report: ValidationReport) -> None:
    """A run whose values may be bounds ended GO, or waits for nothing but bounds."""
    flat = _flat_losses(report)
    veto = next((one.code for one in report.findings if one.severity == "veto"), None)
    unmet = [
        f"{phase.id}: {one.text}"
        for phase in report.phases
        if phase.required and phase.status != "SKIPPED"  # what ran gives bounds, the rest keeps its own
        for one in phase.criteria
        if one.required and one.status != "PASS" and open_reference(one.text) is None
        if phase.id not in flat or (one.text, one.status) != (LEARNS, "INCONCLUSIVE")
    ]
    why = f"the veto {veto}" if veto is not None else unmet[0] if unmet else None
    if why is not None or report.decision in ("NO_GO", "IN_PROGRESS"):
        raise FolderError(
            f"{report.run_id} is no measure for others: {why or report.why.rstrip('.')}; take a run that lacks nothing "
            "but its bounds"
        )


def _with_loss(text: str, report: ValidationReport) -> str:
    """The text without `no_loss`, which watching a command may have written, where a run did report a loss."""
    reported = any("loss" in run.metrics for phase in report.phases for run in phase.runs)
    return re.sub(r"(?m)^ +no_loss: true\b.*\n", "", text) if reported else text


def with_tokens_line(text: str, runbook: Runbook, report: ValidationReport) -> str:
    """The text with the line that asks for the tokens of a step, where a rate is read that nothing confirms."""
    rated = any("toks_per_s" in run.metrics for phase in report.phases for run in phase.runs)
    if not rated or "tokens_per_step" in text:
        return text
    settings = {
        **settings_in(runbook.trainer.command),
        **{name: str(one) for name, one in runbook.trainer.args.items()},
    }
    line = tokens_line(settings, ranks=max(1, runbook.defaults.nproc), printed=True)
    return re.sub(r"(?m)^trainer:[ \t]*(#.*)?\n", lambda head: f"{head[0]}{line}\n", text, count=1)


def _moved(text: str, written: Path, to: Path) -> str:
    """The text with the trainer's paths, relative to the folder `written`, as a runbook in the folder `to` has them."""
    if written == to or not written.is_absolute():  # a sanitized copy does not say where it was
        return text
    trainer = value_of(yaml.compose(text, Loader=yaml.SafeLoader), "trainer")
    files = value_of(trainer, "env_file")
    python = value_of(trainer, "python")
    nodes = [value_of(trainer, "workdir"), *(files.value if isinstance(files, yaml.SequenceNode) else [files])]
    if isinstance(python, yaml.ScalarNode) and ("/" in python.value or os.path.lexists(written / python.value)):
        nodes.append(python)
    found = [one for one in nodes if isinstance(one, yaml.ScalarNode) and not _fixed(one.value)]
    for node in sorted(found, key=lambda one: -one.start_mark.index):
        place = near(Path(os.path.normpath(written / node.value)), to)
        text = text[: node.start_mark.index] + yaml_text(place) + text[node.end_mark.index :]
    return text


def _fixed(place: str) -> bool:
    """Whether a path does not depend on where the runbook is."""
    return place.startswith(("/", "~")) or has_placeholder(place)


def with_more_rows(text: str, runbook: Runbook, report: ValidationReport) -> tuple[str, int | None, tuple[str, ...]]:
    """The text with a baseline of so many rows that what they span holds the error of their mean, its steps, and a line
    that says so.

    Only where the recorded run had fewer, and they vary too much for a soak to be compared with them.
    """
    found = _baseline_of(runbook, report)
    name = None if found is None else rate_of(frozenset(found[1].metrics))
    if found is None or name is None:
        return text, None, ()
    (phase, run), skipped = found, runbook.defaults.warmup_steps
    rate = run.metrics[name]
    half = ((rate.ci_high or 0.0) - (rate.ci_low or 0.0)) / 2
    if not rate.mean or rate.n >= SPAN_ROWS or half <= _UNEVEN * rate.mean:
        return text, phase.steps, ()
    steps = two_digits(skipped + (phase.steps - skipped) * min(SPAN_ROWS / rate.n, _MOST_LONGER), up=True)
    steps = min(steps, runbook.trainer.max_steps or steps)
    if steps <= phase.steps:
        return text, phase.steps, ()
    minutes = timeout_minutes(steps * (_step_s(phase, run) or 0.0))
    why = f"{rate.n} rows of {phase.steps:,} steps vary too much, by their interval {100 * half / rate.mean:.0f} %"
    lines = [f"steps: {steps}    # {why}"]
    if 60 * minutes > runbook.defaults.timeout:
        lines.append(f"timeout: {minutes}m")
    if _is_guess(runbook, phase) and not phase.steps_open:
        lines.append(OPEN_STEPS)
    head, mark, tail = text.partition("- id: baseline\n")
    pattern = rf"(?m)^( +)steps: {phase.steps}\b.*$"
    tail = re.sub(pattern, lambda line: "\n".join(line[1] + one for one in lines), tail, count=1)
    longer = _if_valid(head + mark + tail, text)
    if longer == text:
        return text, phase.steps, ()
    return longer, steps, (f"baseline: it has {steps:,} steps now, for {why}",)


def with_soak(
    text: str, runbook: Runbook, report: ValidationReport, *, learns: str = LEARNS, baseline: int | None = None
) -> tuple[str, tuple[str, ...]]:
    """The text with a soak behind its phases, where there is none and a phase of one run says how long it takes; and a
    line that says why there is none. It asks `learns` of the loss, and is at least twice as long as the baseline."""
    found = _baseline_of(runbook, report)
    if found is None:
        return text, ()
    phase, run = found
    step_s, most = _step_s(phase, run), runbook.trainer.max_steps
    wanted = soak_steps(baseline or phase.steps, step_s)
    steps = min(wanted, most or wanted)
    if steps <= (baseline or phase.steps):
        return text, (
            f"no soak: the trainer does {most:,} steps at most (trainer.max_steps), and the baseline has them",
        )
    minutes = timeout_minutes(steps * (step_s or 0.0))
    its_own = minutes if 60 * minutes > runbook.defaults.timeout else None
    guess = _is_guess(runbook, phase)
    known = series_of(runbook.trainer.metrics, tokens=tokens_of(runbook, phase) is not None)
    series = frozenset(known).intersection(run.metrics)
    lines = soak_lines(series, steps=steps, minutes=its_own, learns=learns, steps_open=guess)
    return _if_valid("\n".join((text.rstrip("\n"), "", *lines)) + "\n", text), ()


def _baseline_of(runbook: Runbook, report: ValidationReport) -> tuple[TrainPhase, RunReport] | None:
    """The phase of a runbook as `init` writes it, beside its settings, and a run of it; None for any other runbook."""
    phases = [phase for phase in runbook.phases if isinstance(phase, TrainPhase)]
    others = [phase for phase in runbook.phases if phase not in phases and phase.kind != "settings"]
    own = [phase.runs for phase in report.phases if phases and phase.id == phases[0].id]
    runs = [run for runs in own for run in runs if run.outcome is not None and run.metrics]
    if others or len(phases) != 1 or phases[0].id != "baseline" or not runs:
        return None
    return phases[0], runs[0]


def _is_guess(runbook: Runbook, phase: TrainPhase) -> bool:
    """Whether more steps than a run did may be more than the trainer does: they are passed to nobody."""
    trainer = runbook.trainer
    return phase.steps_open or (trainer.stop == "at_steps" and trainer.max_steps is None)


def _step_s(phase: TrainPhase, run: RunReport) -> float | None:
    seconds = (run.outcome or {}).get("duration_s")
    return float(seconds) / phase.steps if isinstance(seconds, (int, float)) and seconds > 0 else None


def _if_valid(text: str, before: str) -> str:
    """The text if it is a runbook, else that before, whose phases are not its end or laid out in another way."""
    try:
        loads(text)
    except RunbookError:
        return before
    return text
