"""What to do next: the step in the banner of the page, and the command in the last line of the terminal."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from validator.errors import ExitCode
from validator.model.catalogue import MIN_REPEATS
from validator.model.expression import open_reference
from validator.model.findings import DISTURBED
from validator.model.verdict import PhaseReport, ValidationReport, Verdict
from validator.report.elements import anchor
from validator.report.page import FindingView, LabeledValue, NextStep
from validator.text import clean, one_line


def next_step(report: ValidationReport, findings: Sequence[FindingView]) -> NextStep | None:
    """The step, its source and its place in the page; None while the validation is in progress.

    It comes from the first finding that forbids GO, or beside a GO from what costs much of the time or warns of the
    training itself; else from the first one about a required phase that did not pass, those that failed first; else
    from that phase's own criteria. A phase that was only too short needs more steps, whatever was found about its rate,
    but for other programs, which widen its intervals. `findings` are in the order in which the page shows them.
    """
    if report.decision == "IN_PROGRESS":
        return None
    if report.exit_code == ExitCode.INTERRUPTED:
        return NextStep("Phases", "The validation was interrupted: resume it. No completed run is repeated.", "#phases")
    numbered = list(enumerate(findings, start=1))
    if report.decision == "GO":
        for number, finding in numbered:
            if finding.costly:
                return _of_finding(number, finding, report)
        for number, finding in numbered:
            if finding.severity == "warning" and finding.code in _OF_TRAINING and finding.next_step:
                return _of_finding(number, finding, report)
        return NextStep("Recommended settings", _start(report), "#recommended")
    unmet = _unmet(report)
    for number, finding in numbered:
        if finding.severity == "veto" and finding.next_step:
            return _of_finding(number, finding, report)
    for phase in unmet:
        place = anchor("phase", phase.id)
        by_cause = sorted(numbered, key=lambda one: one[1].code not in _ENDS) if _unfinished(phase) else numbered
        about = [
            (number, one)
            for number, one in by_cause
            if one.severity == "warning" and place in (one.anchor, *one.also) and one.next_step
        ]
        explaining = [(number, one) for number, one in about if _may_explain(one, phase)]
        if explaining:
            number, finding = _rather_measured(explaining)
            return _of_finding(number, finding._replace(anchor=place), report)
    return _phase_step(unmet[0], report) if unmet else None


_OF_TRAINING = (
    *("diverging", "fused-unstable", "gate-collapse", "nan-loss", "nonfinite-values", "random-data-floor"),
    *("repeated-data", "zero-grad", "zero-loss", "dead-parameter"),
)
"""Warnings that what is trained may not be what is wanted: a longer run with the same settings is no answer to them."""

_ENDS = ("crashed", "ended-early", "oom", "disk-full", "port-in-use", "nccl-error", "over-budget")
"""Findings that say why a run did not come to its end; whatever else was noticed did not end it."""


def _rather_measured(found: Sequence[tuple[int, FindingView]]) -> tuple[int, FindingView]:
    """The first finding; before other programs, which steps may have waited for, one that these do not cause."""
    if found[0][1].code != "busy-host":
        return found[0]
    others = {*_OF_TRAINING, *_ENDS, "loader-bound", "memory-growth"}
    return next((one for one in found if one[1].code in others), found[0])


def _may_explain(finding: FindingView, phase: PhaseReport) -> bool:
    """Whether the finding can be why the phase is open: other programs change no loss, and make a phase too short. A
    soak whose rate fell is failed only where they do not explain the fall.

    What waits for bounds alone is open for no finding, but a run that was disturbed is to be repeated first.
    """
    unmet = [item for item in phase.criteria if item.required and item.status == phase.status]
    if waits_for_bounds(phase):
        return finding.code in DISTURBED
    if unmet and all(map(_of_memory, unmet)):
        return finding.code in _ENDS  # neither other programs nor a rate make memory grow
    if finding.code == "busy-host" and any(
        item.id == f"{phase.id}.sustained_rate" and item.status == "FAIL" for item in unmet
    ):
        return False
    if finding.code == "busy-host":
        return not unmet or any(not item.text.startswith("loss.") for item in unmet)
    return too_short(phase) is None


def _of_memory(item: Verdict) -> bool:
    return item.id.endswith(".sustained_memory")


def _unfinished(phase: PhaseReport) -> bool:
    """Whether a run of the phase failed, or ended before its steps were done."""
    ends = (f"{phase.id}.exit", f"{phase.id}.steps")
    return any(item.required and item.status == "FAIL" and item.id in ends for item in phase.criteria)


def _start(report: ValidationReport) -> str:
    """What a GO allows, by whether a comparison chose an arm."""
    chosen = any(phase.comparison is not None and phase.comparison.recommended for phase in report.phases)
    return f"Start the training run with the {'settings that were chosen here' if chosen else 'declared settings'}."


def _of_finding(number: int, finding: FindingView, report: ValidationReport) -> NextStep:
    """The step of a finding, with its message. A warning need not be why the phase is open, which is said before."""
    phase = next((one for one in report.phases if anchor("phase", one.id) == finding.anchor), None)
    veto = finding.severity == "veto"
    reasons = () if veto or phase is None or phase.status in ("FAIL", "PASS") else _reasons(phase, report)
    reasons = (*reasons, *_unsaid("Cause" if veto else "Finding", finding.message, report))
    about = phase.id if phase else None
    return NextStep(finding.code, finding.next_step, f"#finding-{number}", reasons, about, finding.command)


def _reasons(phase: PhaseReport, report: ValidationReport) -> tuple[LabeledValue, ...]:
    """Why a phase did not pass, by its first required criterion that did not."""
    unmet = [item for item in phase.criteria if item.required and item.status == phase.status]
    return _unsaid("Failed" if phase.status == "FAIL" else "Missing", unmet[0].message, report) if unmet else ()


def _unsaid(name: str, text: str, report: ValidationReport) -> tuple[LabeledValue, ...]:
    """A reason, unless the decision's sentence already says it."""
    return (LabeledValue(name, clean(text)),) if text and text.rstrip(".") not in report.why else ()


def _unmet(report: ValidationReport) -> list[PhaseReport]:
    """Required phases that did not pass: failed before inconclusive before not run."""
    order = ("FAIL", "INCONCLUSIVE", "SKIPPED", "NOT_RUN", "RUNNING")
    found = [phase for phase in report.phases if phase.required and phase.status != "PASS"]
    return sorted(found, key=lambda phase: order.index(phase.status))


def too_short(phase: PhaseReport) -> Literal["rows", "interval"] | None:
    """The only reason that a phase does not pass: too few rows for an answer, or an interval too wide for one."""
    unmet = [item for item in phase.criteria if item.required and item.status != "PASS"]
    unmet_checks = [check for check in phase.checks if check.required and check.status != "PASS"]
    open_for = {item.open_for for item in unmet}
    if phase.status != "INCONCLUSIVE" or not unmet or unmet_checks or None in open_for:
        return None
    return "rows" if "rows" in open_for else "interval"


def waits_for_bounds(phase: PhaseReport) -> bool:
    """Whether a phase lacks nothing but bounds that are still to be filled in."""
    unmet = [item for item in phase.criteria if item.required and item.status != "PASS"]
    measured = all(item.observed is not None for item in unmet)
    return bool(unmet) and measured and all(open_reference(item.text) is not None for item in unmet)


def _phase_step(phase: PhaseReport, report: ValidationReport) -> NextStep:
    """What to do where no finding has a next step."""
    checked = phase.status == "FAIL" and any(one.required and one.status == "FAIL" for one in phase.checks)
    status = "OPEN" if waits_for_bounds(phase) else "CHECK" if checked else phase.status
    short = too_short(phase)
    repeated = short == "interval" and len(phase.runs) >= MIN_REPEATS
    longer = (_what_is_needed(phase) if short else None) or _LONGER.get("repeated" if repeated else short or "")
    if longer and (most := report.runbook.max_steps) is not None and _wanted_steps(phase) > most:
        longer = _AT_MOST.format(most=most)
    leaks = phase.status == "FAIL" and any(_of_memory(one) and one.status == "FAIL" for one in phase.criteria)
    step = longer or _about_nodes(phase, report) or _STEPS.get("LEAK" if leaks else status, _STEPS["NOT_RUN"])
    place = f"#{anchor('phase', phase.id)}"
    return NextStep(one_line(phase.id), step, place, _reasons(phase, report), phase.id)


def _about_nodes(phase: PhaseReport, report: ValidationReport) -> str | None:
    """What to do where the phase is open for slow nodes alone; None where it is open for anything else."""
    unmet = [item for item in phase.criteria if item.required and item.status == phase.status]
    if not unmet or not all(item.id == f"{phase.id}.slow" or item.text.startswith("nodes.") for item in unmet):
        return None
    if phase.status == "FAIL":
        return _SLOW_NODE
    few = report.fleet is not None and len(report.fleet.nodes) < _MAJORITY
    return _FEW_NODES if few and phase.status == "INCONCLUSIVE" else None


_MAJORITY = 4
"""Nodes from which most of them show who is slow."""

_SLOW_NODE = "The reason names the slow node: look at it, or leave it out of the cluster, and validate again."
_FEW_NODES = (
    "Use four nodes or more: of two or three nothing shows which one is slow. Or give the phase a bound, such as "
    "nodes.min >= 0.9."
)


def _needed(phase: PhaseReport) -> tuple[dict[str, int], dict[str, int]]:
    """Phase to the steps, and to the repeats, without which the only reason that a phase does not pass stays."""
    steps: dict[str, int] = {}
    repeats: dict[str, int] = {}
    found = [item.needed for item in phase.criteria if item.required and item.status != "PASS" and item.needed]
    for one in found if too_short(phase) else ():
        steps |= {name: max(count, steps.get(name, 0)) for name, count in one.steps.items()}
        repeats |= one.repeats
    return steps, repeats


def _what_is_needed(phase: PhaseReport) -> str | None:
    """Which phase is to be longer, or to be repeated, by what its criteria name; None where they name nothing."""
    steps, repeats = _needed(phase)
    rows = too_short(phase) == "rows"
    parts = [f"{'' if rows else 'about '}{count:,} steps for {one_line(name)}" for name, count in steps.items()]
    parts += [f"{count} repeats of {one_line(name)}" for name, count in repeats.items()]
    text = " and ".join(parts)
    if rows:
        known = all(item.needed for item in phase.criteria if item.required and item.open_for == "rows")
        return f"Only the length is insufficient: validate again with {text}." if text and known else None
    return f"What was observed is too close to its bound for these runs: {text} would say more." if text else None


_LONGER = {
    "rows": "Only the length is insufficient: give this phase more steps, as many as the reason names, or "
    "four repeats, and validate again.",
    "interval": "What was observed is too close to its bound for so few runs: give this phase four repeats or more "
    "steps, and validate again.",
    "repeated": "What was observed is too close to its bound for what the repeats vary by: give this phase twice as "
    "many steps, and validate again.",
}


_AT_MOST = (
    "More rows, or more runs, would say more. The trainer does {most:,} steps at most (trainer.max_steps): repeat the "
    "phase, or give the trainer a greater length of its own, and correct trainer.max_steps."
)

_STEPS = {
    "FAIL": "No known cause was recognized. Inspect the evidence of what failed, or compare this run with a good one "
    "with `validator compare`.",
    "LEAK": "Look for what grows with every step: losses or outputs that are kept with their graphs, lists, caches, "
    "workers of the loader. tracemalloc, or torch.cuda.memory_snapshot, names where it is allocated.",
    "CHECK": "Do what the failed check asks for, then validate again.",
    "OPEN": "Write the bound that is still open, or let this run fill it in: the last line of the terminal, and of "
    "`validator report`, is the command.",
    "INCONCLUSIVE": "Supply what is missing, then validate again; the same run repeated until it passes "
    "proves nothing.",
    "NOT_RUN": "Run this phase: without it there is no decision.",
}


def next_command(report: ValidationReport, run_dir: Path, step: NextStep | None = None) -> str:
    """The command to type next, about the phase that `step` is about.

    Interrupted: resume. GO: use the settings, or read the report. Not GO: the command of the finding that the step is
    from; the same validation again where it was disturbed or a veto forbids to trust it; else inspect the run that
    prevents a GO, or repeat its phase.
    """
    if report.decision == "IN_PROGRESS":
        return f"validator report {shell_path(run_dir)}"
    if report.exit_code == ExitCode.INTERRUPTED:
        return f"validator run --resume {shell_path(run_dir)}"
    if report.decision == "GO":
        chosen = f". {shell_path(run_dir / 'recommended.env')}"
        return chosen if report.recommended.env else f"less {shell_path(run_dir / 'report.md')}"
    if step is not None and step.command:
        return step.command.replace("{run}", shell_path(run_dir))
    if step is not None and step.name in DISTURBED:
        return _run_again(report, run_dir)
    vetoed = any(finding.severity == "veto" for finding in report.findings)
    about = next((phase for phase in report.phases if step is not None and phase.id == step.phase), None)
    phase = about or _blocking_phase(report)
    if phase is None:
        return f"less {shell_path(run_dir / 'report.md')}"
    if waits_for_bounds(phase) and not vetoed:
        edit = f"validator baseline {shell_path(run_dir)} --edit {_quoted(report.runbook.path)} --allow-not-go"
        in_file = not report.runbook.command and Path(report.runbook.path).is_file()
        return edit if in_file else f"validator init --from-run {shell_path(run_dir)}"
    for run in phase.runs:
        outcome = run.outcome or {}
        ended_well = outcome.get("reason") == "at_steps" or (outcome.get("reason"), outcome.get("rc")) == ("exited", 0)
        if outcome and not ended_well and run.log:
            return f"tail -n 50 {shell_path(run_dir / run.log)}"
    if phase.status == "FAIL" and phase.runs and phase.runs[0].out and phase.runs[0].metrics:
        return f"validator inspect {shell_path(run_dir / phase.runs[0].out)}"
    others, sets = _more_steps(phase, report)
    return _run_again(report, run_dir, sets) if vetoed else _run_again(report, run_dir, sets, (phase.id, *others))


def _run_again(
    report: ValidationReport, run_dir: Path, sets: Mapping[str, int] | None = None, only: Sequence[str] = ()
) -> str:
    """The command that was typed, with everything that it was given; `sets` takes the place of its own settings.

    Args:
        sets: a setting as `--set` has it, to its value.
        only: the phases to run; those that were chosen, by default.
    """
    book, sets = report.runbook, sets or {}
    out = shell_path(run_dir.absolute().parent)
    words = ["validator run", *(() if out == "reports" else ("--out", out))]
    if book.command:
        end = book.command.index("--") if "--" in book.command else 0
        steps = next((value for name, value in sets.items() if name.endswith(".steps")), None)
        typed = dict(zip(book.command[:end:2], book.command[1:end:2], strict=False))
        typed |= {"--steps": str(steps)} if steps else {}
        options = [word for pair in typed.items() for word in pair]
        return " ".join((*words, *map(_quoted, (*options, *book.command[end:]))))
    kept = [one for one in book.overrides if one.partition("=")[0].strip().removeprefix("phases.") not in sets]
    pairs = [("--only", one) for one in only or book.only]
    pairs += [] if only else [("--skip", one) for one in book.skip]
    pairs += [("--set", one) for one in (*kept, *(f"{name}={value}" for name, value in sets.items()))]
    return " ".join((words[0], _quoted(book.path), *words[1:], *(f"{name} {_quoted(one)}" for name, one in pairs)))


def _quoted(text: str) -> str:
    """A word as a shell takes it, on one line."""
    return shlex.quote(one_line(text))


def _more_steps(phase: PhaseReport, report: ValidationReport) -> tuple[tuple[str, ...], dict[str, int]]:
    """The steps, or repeats, that would decide it, and the other phases that they are of.

    Where they are not known, twice as many: as many as before would be too few again. Repeats where the trainer does
    no more steps. A phase with a criterion on its number of steps keeps that number. As many as the trainer did, where
    it came to its own end before those that were asked for, and nothing says that it does more.
    """
    own = next((item for item in phase.criteria if item.id == f"{phase.id}.steps"), None)
    if own is not None and isinstance(own.observed, float) and f"--set {phase.id}.steps=" in own.message:
        return (), {f"{phase.id}.steps": round(own.observed)}
    most = report.runbook.max_steps
    if most is not None and _wanted_steps(phase) > most:
        return (), {f"{phase.id}.repeats": max(MIN_REPEATS, 2 * len(phase.runs))}
    counted = {one.id for one in report.phases if any("steps.done" in item.text for item in one.criteria)}
    needed, repeats = _needed(phase)
    settings = {f"{name}.steps": count for name, count in needed.items() if name not in counted}
    settings |= {f"{name}.repeats": count for name, count in repeats.items()}
    if settings:
        return tuple(dict.fromkeys(name for name in (*needed, *repeats) if name != phase.id)), settings
    twice = 0 if phase.id in counted or needed else _wanted_steps(phase)
    return (), {f"{phase.id}.steps": twice} if twice else {}


def _wanted_steps(phase: PhaseReport) -> int:
    """The most steps that would be asked for: those that are known to be needed, else twice as many as were done; 0
    where the length is not what lacks, or repeats are what is needed."""
    needed, repeats = _needed(phase)
    if needed or repeats or too_short(phase) is None:
        return max(needed.values(), default=0)
    steps = [run.scalars["steps.done"].value for run in phase.runs if "steps.done" in run.scalars]
    return 2 * round(steps[-1]) if steps and isinstance(steps[-1], float) else 0


def _blocking_phase(report: ValidationReport) -> PhaseReport | None:
    """The phase that prevents a GO most directly; where all required ones passed, that of the first veto."""
    vetoed = {finding.phase for finding in report.findings if finding.severity == "veto"}
    return next(iter(_unmet(report)), next((phase for phase in report.phases if phase.id in vetoed), None))


def shell_path(path: Path) -> str:
    """A path as it can be pasted: relative to the working directory when it lies below."""
    with contextlib.suppress(ValueError):
        path = path.absolute().relative_to(Path.cwd())
    text = one_line(path)
    return shlex.quote(text if not text.startswith("-") else f"./{text}")
