"""From records to a decision and its reports: diagnose, decide, write; with the remaining time while it runs."""

from __future__ import annotations

import codecs
import hashlib
import json
import math
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from validator.errors import disk_errors
from validator.files import Tree, replace_file
from validator.history.page import node_before
from validator.history.store import read_history
from validator.model.fleet import Fleet
from validator.model.plan import PhasePlan, Plan
from validator.model.record import ValidationRecord
from validator.model.verdict import PhaseReport, RemainingTime, ValidationReport
from validator.pipeline.evaluate import assemble, judge
from validator.pipeline.inspect import since_last_go
from validator.plan import make_plan
from validator.plan.eta import Eta
from validator.report.charts import record_charts
from validator.report.exports import render_junit, render_recommended_env
from validator.report.handover import good_nodes, ticket
from validator.report.html import render_html
from validator.report.machine_ticket import machine_ticket, recognized_causes
from validator.report.markdown import render_markdown
from validator.report.specs import ChartData
from validator.runs import replay
from validator.runs.folder import HAND_OVER, RENDERINGS, Header, ReportPaths, RunFolder
from validator.runs.journal import Event
from validator.times import parse_time, utc_now


@dataclass(frozen=True)
class Finished:
    """A judged validation: its folder, its report, and where the report was written."""

    folder: Path
    report: ValidationReport
    paths: ReportPaths
    had_ended: bool = False
    """Whether it had finished before: there was nothing to resume."""

    @property
    def text(self) -> str:
        """result.json."""
        return _content(self.paths.result)

    @property
    def markdown(self) -> str:
        """report.md."""
        return _content(self.paths.markdown)

    @property
    def runbook(self) -> tuple[str, Header]:
        """The runbook's text as it was read at the start, and the header, which says from where."""
        folder = RunFolder.open(self.folder)
        with folder.tree() as tree:
            return tree.text("runbook.yaml"), folder.header


def _content(path: Path) -> str:
    with Tree(path.parent) as tree:
        return tree.text(path.name)


def report(run_dir: Path) -> Finished:
    """Judge a run folder again from disk and replace its reports.

    Raises:
        FolderError: when `run_dir` is not a run folder.
        Unable: when the reports cannot be written.
    """
    folder = RunFolder.open(run_dir)
    with disk_errors(folder.root, command=f"validator report {folder.root}"):
        _say_where_edited(folder)
        result, paths = rerender(folder)
    return Finished(folder.root, result, paths)


def _say_where_edited(folder: RunFolder) -> None:
    """A runbook.yaml that is not the one that was run has no effect, which who edited it does not expect."""
    if replay.is_shared(folder):  # cleaned of names, and not the file that was read
        return
    try:
        with folder.tree() as tree:
            text = tree.read("runbook.yaml")
    except OSError:
        return
    if folder.header.runbook_sha256 not in (hashlib.sha256(mark + text).hexdigest() for mark in (b"", codecs.BOM_UTF8)):
        sys.stderr.write(
            "runbook.yaml was changed after the run and is not read: the run is judged by the runbook that was run, in "
            "run.json. A new criterion needs a new run.\n"
        )


def render(
    folder: RunFolder,
    record: ValidationRecord,
    phases: tuple[PhaseReport, ...],
    end: replay.RunEnd,
    *,
    into: Path | None = None,
) -> tuple[ValidationReport, ReportPaths]:
    """Name causes, decide, and write result.json and its renderings, into `into`, by default the run folder."""
    judged = assemble(folder, record, phases, end)
    if judged.decision == "IN_PROGRESS":
        judged = judged.model_copy(update={"outlook": _remaining_time_of(folder)})
    elif not replay.is_shared(folder):  # the folders beside it belong to its receiver
        try:
            judged = judged.model_copy(update={"since": since_last_go(folder, judged)})
            judged = judged.model_copy(update={"fleet": _with_past(folder, judged.fleet)})
        except Exception as error:  # noqa: BLE001 -- another run's folder is no part of this decision
            sys.stderr.write(f"earlier runs cannot be compared with: {type(error).__name__}: {error}\n")
    return judged, write_all(judged, record_charts(record, phases), into or folder.root)


def _with_past(folder: RunFolder, fleet: Fleet | None) -> Fleet | None:
    """What earlier validations beside this one say of its nodes: for information, no decision rests on it."""
    if fleet is None or fleet.engine == "local":
        return fleet
    started = folder.header.started
    earlier = [entry for entry in read_history(folder.root.parent) if entry.started < started]
    nodes = (node.model_copy(update={"before": node_before(earlier, node.name)}) for node in fleet.nodes)
    return fleet.model_copy(update={"nodes": tuple(nodes)})


def rerender(folder: RunFolder) -> tuple[ValidationReport, ReportPaths]:
    """Judge a run folder again from what is on disk, and replace its reports.

    A sanitized copy whose result.json had to be written without white space keeps it so, since its size is bounded.
    A validation that ended while this was at work is judged once more: its last report must not be an earlier one's.
    """
    was_compact = replay.is_shared(folder) and replay.is_compact(folder)
    with replay.readable(folder) as unpacked:
        record, end = replay.reconstruct(unpacked), replay.end_of(folder)
    report, paths = render(folder, record, judge(record), end)
    if report.decision == "IN_PROGRESS" and replay.ending(replay.events_of(folder)):
        return rerender(folder)
    if not replay.last_runner(folder, replay.events_of(folder)).alive():
        shutil.rmtree(folder.drawing, ignore_errors=True)  # a runner that was killed could not
    if was_compact:
        replay.compact(folder)
    return report, paths


# How long a running validation will still take, by its journal: the same for its runner and for a reader.


def _remaining_time_of(folder: RunFolder) -> RemainingTime:
    """The remaining time of a run folder, now."""
    header = folder.header
    plan = make_plan(header.runbook, run_dir=folder.root, python=header.python, only=header.only, skip=header.skip)
    return remaining_time(plan, replay.events_of(folder), now=utc_now())


def remaining_time(plan: Plan, events: Sequence[Event], *, now: datetime) -> RemainingTime:
    """What remains at `now`, by what the runbook expects and by what the journal says was seen.

    The sessions of all runners are put end to end, so that the time in which nothing was run does not count.
    """
    eta, planned = Eta(plan), {phase.phase: phase for phase in plan.phases}
    passed_s = 0.0
    latest: Event | None = None
    every = tuple(replay.runner_sessions(events))
    for session in every:
        # What an earlier runner left out, or did not come to, is decided again.
        over = ("done",) if session is not every[-1] else ("done", "skipped", "not_run")
        for event in session:
            _follow(eta, planned, event, over=over, now_s=passed_s + max(0.0, event.mono - session[0].mono))
        passed_s += max(0.0, session[-1].mono - session[0].mono)
        latest = session[-1]
    if latest is not None:
        passed_s += _since(latest.ts, now)
    remaining = eta.remaining(now_s=passed_s)
    return RemainingTime(
        as_of=now.isoformat(timespec="seconds"),
        remaining_s=None if remaining is None else round(remaining.seconds, 1),
        at_least=remaining is not None and remaining.at_least,
    )


def _follow(eta: Eta, planned: dict[str, PhasePlan], event: Event, *, over: Sequence[str], now_s: float) -> None:
    phase = event.fields.get("phase")
    if event.event == "phase_started" and phase in planned:
        eta.phase_started(planned[phase], now_s=now_s)
    elif event.event == "phase_ended" and phase in planned and event.fields["state"] in over:
        eta.phase_finished(phase, now_s=now_s)
    elif event.event in ("run_started", "run_ended"):
        eta.run_progress(str(event.fields.get("run")), 1.0 if event.event == "run_ended" else None)


def _since(iso: str, now: datetime) -> float:
    """Seconds since a time of the journal; 0 when the clock was set back, or it says no time."""
    moment = parse_time(iso)
    return 0.0 if moment is None else max(0.0, (now - moment).total_seconds())


# The renderings of a report, each file written whole or not at all.


def write_all(report: ValidationReport, charts: ChartData, run_dir: Path) -> ReportPaths:
    """Write result.json, report.html, report.md, junit.xml and recommended.env into `run_dir`, and what is handed over
    about a cluster, or a machine that fails.

    result.json comes first: it is the truth, the others are renderings of it. Raises OSError when the disk refuses.
    """
    paths = ReportPaths(*(run_dir / name for name in RENDERINGS))
    replace_file(paths.result, render_json(report))
    replace_file(paths.html, render_html(report, charts))
    replace_file(paths.markdown, render_markdown(report))
    replace_file(paths.junit, render_junit(report))
    replace_file(paths.recommended_env, render_recommended_env(report))
    fleet = report.fleet
    texts = ("", machine_ticket(report))
    if fleet is not None:
        texts = good_nodes(fleet), ticket(fleet, report.run_id, recognized_causes(report))
    for name, text in zip(HAND_OVER, texts, strict=True):
        if text:
            replace_file(run_dir / name, text)
        else:
            (run_dir / name).unlink(missing_ok=True)
    return paths


def render_json(report: ValidationReport) -> str:
    """result.json: strict JSON, whatever the trainer put into its files.

    What JSON cannot write is null, but for `observed`, which says "NaN" or "Infinity".
    """
    return (
        json.dumps(
            _strict(report.model_dump(mode="python", by_alias=True)), indent=2, ensure_ascii=False, allow_nan=False
        )
        + "\n"
    )


def _strict(value: Any, key: str = "") -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return name if key == "observed" else None
    if isinstance(value, dict):
        return {str(name): _strict(item, str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return value if value is None or isinstance(value, (str, int, float)) else str(value)
