"""The decision: computed from verdicts and findings, never authored; and the settings that the evidence recommends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from validator.kinds.registry import kind_of
from validator.model.catalogue import MIN_REPEATS
from validator.model.record import PhaseRecord
from validator.model.remedy import Remedy
from validator.model.runbook import Runbook, Setting, SoakPhase
from validator.model.settings import extends, has_placeholder, setting_text
from validator.model.verdict import (
    Decision,
    Extension,
    Finding,
    PhaseReport,
    Recommendation,
    RemedyReport,
    RunReport,
    Status,
)
from validator.text import format_duration, format_percent, listed

_SHORT_RUN_S = 120.0
"""Of the longest run: from here on a GO says nothing of its length. Leaks and drift take minutes to show."""


def with_remedies(report: PhaseReport, record: PhaseRecord, judge: Callable[[PhaseRecord], PhaseReport]) -> PhaseReport:
    """The report of a phase with every go at it, each judged by the same criteria.

    Args:
        report: the phase as decided.
        judge: judges another go at the phase.
    """
    if not record.tried:
        return report
    goes = []
    for tried in record.tried:
        judged = judge(replace(record, runs=tried.runs, tried=(), remedy=tried.remedy))
        goes.append(_go(tried.remedy, judged, decides=False))
    decided = _go(record.remedy, report, decides=True)
    goes.insert(len(goes) if record.remedy is not None else 0, decided)
    message = report.message if record.state == "interrupted" else _message(report, goes)
    return report.model_copy(update={"remedies": tuple(goes), "message": message})


def _go(remedy: Remedy | None, judged: PhaseReport, *, decides: bool) -> RemedyReport:
    own = None if remedy is None else remedy.name
    return RemedyReport(
        name=own,
        settings={} if remedy is None else remedy.settings,
        keeps_config=remedy is None or remedy.keeps_config(kind_of(judged.kind).free),
        decides=decides,
        status=judged.status,
        message=judged.message,
        runs=tuple(run.id for run in judged.runs if run.remedy == own),
    )


def _message(report: PhaseReport, goes: list[RemedyReport]) -> str:
    deciding = next(go for go in goes if go.decides)
    if deciding.name is not None:
        first = goes[0].message.rstrip(".")
        return f"{report.message.rstrip('.')}, after remedy {deciding.name}; before it: {first}."
    helped = [go for go in goes if go.name is not None and go.status == "PASS"]
    if helped:
        settings = settings_text(helped[0].settings)
        return f"{report.message} With remedy {helped[0].name} ({settings}) it passes; the declared config does not."
    names = listed([str(go.name) for go in goes if go.name is not None])
    return f"{report.message} Remedies tried without effect: {names}."


def settings_text(settings: Mapping[str, object]) -> str:
    """`NSA_DDP_BUCKET_MB=50, steps=50`."""
    pairs = [f"{key.split('.', 1)[-1]}={value}" for key, value in settings.items()]
    return ", ".join(pairs) or "no setting"


def trigger_of(record: PhaseRecord) -> str:
    """Why a phase failed, in the words of `on_failure`: a stall, another bad end, or a criterion."""
    outcomes = [run.outcome for run in record.runs if run.outcome is not None]
    if any(outcome.reason in ("stalled", "timeout") for outcome in outcomes):
        return "stall"
    return "error" if any(not outcome.ok for outcome in outcomes) else "criterion"


# The decision: computed from verdicts and findings, never authored; and the settings that the evidence recommends.


def decide(
    phases: Sequence[PhaseReport], findings: Sequence[Finding] = (), *, pending: bool | Sequence[str] = False
) -> tuple[Decision, str]:
    """The decision and one sentence that says why.

    GO only if every required phase passed, which needs every required criterion of it, if one of them asked for
    something that could fail, and no veto stands. NO-GO only
    if something required failed: a veto says that the evidence cannot be trusted, not that it is bad. `pending`
    names the phases that are still to come, or says that some are.
    """
    if pending:
        names = [] if isinstance(pending, bool) else list(pending)
        return "IN_PROGRESS", f"Still pending: {listed(names)}." if names else "The validation has not finished."
    required = [phase for phase in phases if phase.required]
    vetoes = [finding for finding in findings if finding.severity == "veto"]
    failed = _with_status(required, "FAIL")
    if failed:
        return "NO_GO", _because(failed, "failed")
    if vetoes:
        return "INCONCLUSIVE", f"{vetoes[0].code}: {vetoes[0].message.rstrip('.')}.{_further(vetoes[1:])}"
    if not required:
        return "INCONCLUSIVE", "No phase of the runbook is required, so nothing was decided."
    open_phases = [phase for phase in required if phase.status != "PASS"]
    if open_phases:
        words = {"INCONCLUSIVE": "is inconclusive", "NOT_RUN": "did not run", "SKIPPED": "was skipped"}
        first = open_phases[0]
        state = (
            "is not proven" if first.ran and first.status == "SKIPPED" else words.get(first.status, "did not finish")
        )
        return "INCONCLUSIVE", _because(open_phases, state)
    if not any(phase.asks for phase in required):
        return "INCONCLUSIVE", (
            "No required phase asks for anything that could fail on what it measures, so nothing was decided; give one "
            "a criterion."
        )
    count = sum(verdict.required for phase in required for verdict in phase.criteria)
    checks = sum(check.required for phase in required for check in phase.checks)
    noun = "phase" if len(required) == 1 else "phases"
    passed = (
        f"All {count + checks} required criteria and checks of {len(required)} {noun} passed; no finding forbids it."
    )
    return "GO", f"{passed}{_unseen(required, findings)}"


def _unseen(phases: Sequence[PhaseReport], findings: Sequence[Finding]) -> str:
    """What a GO does not cover, in sentences: a loss that no trainer reported, a rate that nothing confirms, what shows
    after minutes, a criterion that any worse run passes, and time that is lost although all criteria allow it."""
    blind = [
        one.id for one in phases if any(v.id == f"{one.id}.finite" and v.status == "SKIPPED" for v in one.criteria)
    ]
    said = f" No loss is read ({listed(blind)}), so NaN or divergence would not be seen." if blind else ""
    if word := _about(phases, [one for one in findings if one.code == "clock-unverified"]):
        said += (
            f" The level of toks_per_s ({listed(word)}) is the trainer's own word; set trainer.tokens_per_step to have "
            "it checked."
        )
    trained = [(took_s, one.id) for one in phases for run in one.runs if (took_s := _trained_s(run)) is not None]
    if trained and max(trained)[0] < _SHORT_RUN_S:
        took_s, longest = max(trained)
        said += f" The longest run ({longest}) took {format_duration(took_s)}: leaks and drifts that take minutes are "
        said += "not covered."
    backwards = [one for one in findings if one.code == "wrong-way-bound" and one.severity == "warning"]
    said += "".join(f" But {one.message}" for one in backwards)
    costly = [one for one in findings if one.costly]
    if where := _about(phases, costly):
        lost, codes = max(one.lost or 0.0 for one in costly), dict.fromkeys(one.code for one in costly)
        said += f" But {format_percent(lost)} of the time ({listed(where)}) is lost, and nothing shows that this is "
        said += f"meant: {listed(list(codes))}."
    return said


def _trained_s(run: RunReport) -> float | None:
    """How long a run with steps took; None for another one."""
    took_s = (run.outcome or {}).get("duration_s")
    return float(took_s) if "steps.done" in run.scalars and isinstance(took_s, (int, float)) else None


def _about(phases: Sequence[PhaseReport], findings: Sequence[Finding]) -> list[str]:
    """The phases of whose runs these findings are."""
    runs = {run for one in findings for run in (one.run, *one.also) if run}
    return [phase.id for phase in phases if any(run.id in runs for run in phase.runs)]


def _further(vetoes: Sequence[Finding]) -> str:
    """The other vetoes by code, each with the runs or phases that it is about."""
    places: dict[str, list[str]] = {}
    for veto in vetoes:
        places.setdefault(veto.code, []).extend(filter(None, (veto.run or veto.phase,)))
    named = [f"{code} ({listed(list(dict.fromkeys(where)))})" if where else code for code, where in places.items()]
    return f" Further vetoes: {', '.join(named)}." if named else ""


def _with_status(phases: Sequence[PhaseReport], status: Status) -> list[PhaseReport]:
    return [phase for phase in phases if phase.status == status]


def _because(phases: Sequence[PhaseReport], words: str) -> str:
    """The first phase's own reason, and the names of the others."""
    first = phases[0]
    others = [phase.id for phase in phases[1:]]
    also = f" Also not passed: {listed(others)}." if others else ""
    return f"Phase {first.id} {words}: {first.message}{also}" if first.message else f"Phase {first.id} {words}.{also}"


def settled(phases: Sequence[PhaseReport], findings: Sequence[Finding]) -> str | None:
    """Why no further run of a phase could make the decision GO, as a clause; None where one could.

    Args:
        phases: those that were judged before the current phase.
        findings: what is known of the validation so far.
    """
    failed = next((phase for phase in phases if phase.required and phase.status == "FAIL"), None)
    if failed is not None:
        return f"{failed.id} failed"
    veto = next((finding for finding in findings if finding.severity == "veto"), None)
    return None if veto is None else f"the veto {veto.code} forbids GO"


def recommend(
    phases: Sequence[PhaseReport], decision: Decision, *, runbook: Runbook, command: str | None = None
) -> Recommendation:
    """The settings worth using: of a GO the runbook's own environment, overlaid by the arms that won, and the command
    that they belong to; without a GO only what the validation chose itself, arms that won and remedies that helped.

    `because` holds one sentence for each comparison, whether or not it recommends anything, and for each remedy after
    which a phase passed that had failed as declared. A variable that holds a placeholder, such as the run's own folder,
    has no value outside of a run: `because` says that it is left out.
    """
    declared = runbook.defaults.env if decision == "GO" else {}
    env = {name: setting_text(value) for name, value in declared.items()}
    because: list[str] = []
    for phase in phases:
        env |= _remedied(phase, because)
        comparison = phase.comparison
        if comparison is None:
            continue
        because.append(f"{phase.id}: {comparison.message}")
        arm = next((one for one in comparison.arms if one.arm == comparison.recommended), None)
        if arm is None:
            continue
        env |= _variables(arm.settings)
        arguments = [
            f"{name.removeprefix('args.')}={value}" for name, value in arm.settings.items() if name.startswith("args.")
        ]
        if arguments:
            because.append(f"{phase.id}: pass {', '.join(arguments)} to the trainer.")
    unfilled = {name: value for name, value in env.items() if has_placeholder(value)}
    because += [f"{name} is left out: it holds a placeholder, which has a value only in a run." for name in unfilled]
    env = {name: value for name, value in env.items() if name not in unfilled}
    return Recommendation(env=env, command=command if decision == "GO" else None, because=tuple(because))


def _remedied(phase: PhaseReport, because: list[str]) -> dict[str, str]:
    """The environment of the remedy that helped a phase which fails as declared.

    One of a phase that is not required stays a sentence: beside a GO, settings that were not declared have no place.
    """
    helped = next((go for go in phase.remedies if go.name is not None and go.status == "PASS"), None)
    if helped is None or helped.decides:
        return {}
    settings = settings_text(helped.settings)
    because.append(
        f"{phase.id}: passes with remedy {helped.name} ({settings}), not as declared; validate again with it."
    )
    if not phase.required:
        return {}
    return _variables(helped.settings)


def _variables(settings: Mapping[str, Setting]) -> dict[str, str]:
    """The environment that settings like `env.NAME` ask for."""
    return {key.removeprefix("env."): setting_text(value) for key, value in settings.items() if key.startswith("env.")}


# Whether a phase is worth extending, and by how many runs.


def extension_of(record: PhaseRecord, report: PhaseReport, *, runbook: Runbook) -> Extension | None:
    """The extension of a phase that has been run as planned; None when it is decided, or more runs would not decide.

    To four runs, from which their variation is measured, or to twice as many; a soak, which is long, by one run, if
    that would decide it. A phase is extended only when nothing but open intervals keeps it from passing, and only once.
    Where the interval is that of another phase, more runs of this one are of no use.
    """
    if not extends(runbook, record.phase) or record.extended is not None or report.status != "INCONCLUSIVE":
        return None
    if any(run.outcome is None or not run.outcome.ok for run in record.runs):
        return None
    held_up = [one for one in report.criteria if one.required and one.status != "PASS"]
    if not held_up or any(one.open_for is None for one in held_up):
        return None
    if any(one.needed is not None and one.needed.runs is None for one in held_up):
        return None
    runs, after = len(record.measured), max(MIN_REPEATS, 2 * len(record.measured))
    if isinstance(record.phase, SoakPhase):
        after = runs + 1
        if any(one.needed is None or (one.needed.runs or 0) > after for one in held_up):
            return None
    return Extension(criteria=tuple(one.id for one in held_up), runs_before=runs, runs_after=after)
