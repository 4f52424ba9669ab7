"""The banner says what to do, and where in the page it stands."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.validator.report import pieces, samples
from tests.validator.report.pages import parse
from validator.errors import ExitCode
from validator.model.fleet import Fleet, FleetNode
from validator.model.result import ScalarValue
from validator.model.verdict import Finding, Needed, Status, ValidationReport
from validator.report.advice import next_command
from validator.report.build import build_page
from validator.report.html import render_html
from validator.report.markdown import render_markdown
from validator.report.specs import ChartData
from validator.report.terminal.summary import summary_lines
from validator.runs.folder import RENDERINGS, ReportPaths


def test_what_forbids_go_says_the_next_step() -> None:
    page = build_page(samples.no_go())
    assert (page.next_step.name, page.next_step.href) == ("config-ignored", "#finding-1")
    assert page.next_step.value == page.findings[0].next_step
    banner = next(s for s in parse(render_html(samples.no_go(), ChartData())).all("section", klass="banner"))
    assert banner.all("a")[-1].attributes["href"] == "#finding-1"
    assert "**Next step:**" in render_markdown(samples.no_go())


@pytest.mark.parametrize(("status", "word"), [("FAIL", "compare"), ("INCONCLUSIVE", "again"), ("NOT_RUN", "run")])
def test_without_a_finding_the_phase_that_stands_against_go_is_named(status: str, word: str) -> None:
    report = samples.no_go()
    against = next(phase for phase in report.phases if phase.required and phase.status != "PASS")
    phases = tuple(
        phase.model_copy(update={"status": status if phase.id == against.id else "PASS"}) for phase in report.phases
    )
    page = build_page(report.model_copy(update={"phases": phases, "findings": ()}))
    assert page.next_step.name == against.id
    assert word in page.next_step.value.lower()
    assert page.next_step.href == f"#{next(p.anchor for p in page.phases if p.id == against.id)}"


@pytest.mark.parametrize(
    ("text", "status", "nodes", "words"),
    [
        ("nodes.min >= 0.9", "FAIL", 3, "names the slow node"),
        ("enough nodes are left that are not slow", "FAIL", 4, "names the slow node"),
        ("enough nodes are left that are not slow", "INCONCLUSIVE", 3, "four nodes"),
        ("enough nodes are left that are not slow", "INCONCLUSIVE", 4, "what is missing"),
        ("loss.last < 3", "FAIL", 3, "No known cause"),
    ],
)
def test_a_phase_that_slow_nodes_alone_keep_open_says_so(text: str, status: Status, nodes: int, words: str) -> None:
    name = "baseline.slow" if text.startswith("enough") else "baseline.1"
    phase = pieces.baseline(status, criteria=(pieces.verdict(name, text, status),))
    named = tuple(FleetNode(name=f"n{n}", state="good") for n in range(nodes))
    more = {"wanted": 2, "min_effect": 0.02, "complete": True, "rounds": 1, "good": (), "measures": ()}
    fleet = Fleet(engine="ssh", nodes=named, **more)
    changed = {"decision": "NO_GO" if status == "FAIL" else "INCONCLUSIVE", "exit_code": 1, "findings": ()}
    report = samples.go().model_copy(update={**changed, "phases": (phase,), "fleet": fleet})
    step = build_page(report).next_step
    assert step is not None
    assert words in step.value


def test_what_costs_much_of_the_time_comes_first() -> None:
    """Also beside a GO, and before a busy machine: it lost 45 % of the time to pauses."""
    busy, stall = (
        Finding(
            code=code, severity="warning", confidence="high", phase="baseline", message=code, next_step=step, lost=lost
        )
        for code, step, lost in (("busy-host", "Wait.", None), ("periodic-stall", "Look at these steps.", 0.45))
    )
    go = samples.go()
    assert build_page(go.model_copy(update={"findings": (busy,)})).next_step.name == "Recommended settings"
    page = build_page(go.model_copy(update={"findings": (busy, stall)}))
    assert (page.next_step.name, page.next_step.value) == ("periodic-stall", "Look at these steps.")
    assert [one.code for one in page.findings] == ["periodic-stall", "busy-host"]
    assert [(one.name, one.value) for one in page.next_step.reasons] == [("Finding", "periodic-stall")]


@pytest.mark.parametrize("code", ["diverging", "repeated-data", "zero-grad"])
def test_a_warning_of_the_training_itself_is_the_next_step_of_a_go(code: str) -> None:
    """Beside a loss of the validation that rose from 3.6 to 5.2 it said to start the training run."""
    warning = Finding(
        code=code, severity="warning", confidence="high", phase="baseline", message="It rises.", next_step="Look."
    )
    page = build_page(samples.go().model_copy(update={"findings": (warning,)}))
    assert (page.next_step.name, page.next_step.value, page.next_step.href) == (code, "Look.", "#finding-1")
    noted = warning.model_copy(update={"severity": "info"})
    page = build_page(samples.go().model_copy(update={"findings": (noted,)}))
    assert page.next_step.name == "Recommended settings"


def too_short(open_for: str | None, *, declared: str = "toks_per_s.mean >= 9000") -> ValidationReport:
    """A phase of which one criterion has too little to go by, and of which something about its pace was noticed."""
    run = pieces.run_report("baseline", scalars={"steps.done": ScalarValue(value=300.0, unit="", source=None)})
    criteria = (
        pieces.verdict("baseline.exit", "every run ends by itself with exit code 0"),
        pieces.verdict("baseline.1", declared, "INCONCLUSIVE", open_for=open_for, message="Not measured: too few."),
    )
    phase = pieces.baseline("INCONCLUSIVE", run=run, criteria=criteria)
    slow = Finding(
        code="host-bound", severity="warning", confidence="medium", phase="baseline", message="m", next_step="Profile."
    )
    return samples.go().model_copy(
        update={"decision": "INCONCLUSIVE", "exit_code": 3, "phases": (phase,), "findings": (slow,)}
    )


@pytest.mark.parametrize(("open_for", "word"), [("rows", "more steps"), ("interval", "four repeats")])
def test_a_phase_that_is_too_short_is_to_be_longer_whatever_its_pace(open_for: str, word: str) -> None:
    step = build_page(too_short(open_for)).next_step
    assert (step.name, step.href) == ("baseline", "#phase-baseline")
    assert word in step.value


def test_a_phase_that_had_its_repeats_is_asked_for_steps() -> None:
    """It was extended to four runs, and the advice was four repeats."""
    report = too_short("interval")
    (phase,) = report.phases
    report = report.model_copy(update={"phases": (phase.model_copy(update={"runs": 4 * phase.runs}),)})
    step = build_page(report).next_step
    assert step is not None
    assert "twice as many steps" in step.value
    assert next_command(report, Path("reports/x"), step).endswith("--set baseline.steps=600")


@pytest.mark.parametrize(
    ("most", "needed", "more"),
    [
        (400, None, "baseline.repeats=4"),
        (600, None, "baseline.steps=600"),
        (396, 792, "baseline.repeats=4"),
        (900, 792, "baseline.steps=792"),
    ],
)
def test_no_more_steps_are_asked_for_than_the_trainer_does(most: int, needed: int | None, more: str) -> None:
    """The command that the report named was refused: 792 steps, where the trainer does 396 at most."""
    report = too_short("rows")
    (phase,) = report.phases
    if needed is not None:
        lacks = Needed(steps={"baseline": needed})
        criteria = tuple(one.model_copy(update={"needed": lacks} if one.open_for else {}) for one in phase.criteria)
        phase = phase.model_copy(update={"criteria": criteria})
    book = report.runbook.model_copy(update={"max_steps": most})
    report = report.model_copy(update={"phases": (phase,), "runbook": book})
    step = build_page(report).next_step
    assert step is not None
    assert (f"The trainer does {most:,} steps at most" in step.value) is ("repeats" in more)
    assert next_command(report, Path("reports/x"), step).endswith(f"--set {more}")


def test_a_check_that_failed_says_itself_what_to_do() -> None:
    """Its message has the fix, and the step said that no known cause was recognized."""
    report, found = samples.go(), pieces.preflight()
    failed = found.checks[0].model_copy(update={"status": "FAIL", "message": "Usable cores: 1, fewer than 2."})
    phase = found.model_copy(update={"status": "FAIL", "checks": (failed, *found.checks[1:])})
    changed = {"decision": "NO_GO", "exit_code": 1, "findings": (), "phases": (phase, *report.phases[1:])}
    step = build_page(report.model_copy(update=changed)).next_step
    assert step is not None
    assert (step.phase, step.value) == ("preflight", "Do what the failed check asks for, then validate again.")


def test_what_is_open_for_another_reason_is_explained_by_what_was_noticed() -> None:
    step = build_page(too_short(None)).next_step
    assert (step.name, step.value) == ("host-bound", "Profile.")


@pytest.mark.parametrize(("status", "code"), [("FAIL", "rate-shift"), ("INCONCLUSIVE", "busy-host")])
def test_other_programs_do_not_explain_a_fall_of_the_rate_that_failed(status: Status, code: str) -> None:
    """They used the CPU before the fall as well, and the next step was to end them."""
    criteria = (pieces.verdict("baseline.sustained_rate", "the run does not lastingly become slower", status),)
    phase = pieces.baseline(status, criteria=criteria)
    busy, shift = (
        Finding(code=one, severity="warning", confidence="high", phase="baseline", message="m", next_step=one)
        for one in ("busy-host", "rate-shift")
    )
    decision = "NO_GO" if status == "FAIL" else "INCONCLUSIVE"
    changed = {"decision": decision, "exit_code": 1, "phases": (phase,), "findings": (busy, shift)}
    step = build_page(samples.go().model_copy(update=changed)).next_step
    assert step is not None
    assert step.name == code


def test_neither_other_programs_nor_a_rate_explain_that_memory_grows() -> None:
    """A leak that failed the soak had "End the other programs" as the next step."""
    criteria = (
        pieces.verdict("soak.sustained_memory", "the memory on the host does not grow until it is full", "FAIL"),
    )
    phase = pieces.baseline("FAIL", criteria=criteria)
    found = tuple(
        Finding(code=one, severity="warning", confidence="high", phase="baseline", message="m", next_step=one)
        for one in ("busy-host", "rate-shift")
    )
    changed = {"decision": "NO_GO", "exit_code": 1, "phases": (phase,), "findings": found}
    step = build_page(samples.go().model_copy(update=changed)).next_step
    assert step is not None
    assert step.value.startswith("Look for what grows with every step")


@pytest.mark.parametrize(("other", "first"), [("loader-bound", True), ("diverging", True), ("host-bound", False)])
def test_what_other_programs_do_not_cause_comes_before_them(other: str, first: bool) -> None:
    """The trainer printed that its loader stalled, and the next step was to end other programs."""
    criteria = (pieces.verdict("baseline.sustained_rate", "the run does not lastingly become slower", "INCONCLUSIVE"),)
    found = tuple(
        Finding(code=one, severity="warning", confidence="high", phase="baseline", message="m", next_step=one)
        for one in ("busy-host", "no-steady-state", other)
    )
    phase = pieces.baseline("INCONCLUSIVE", criteria=criteria)
    changed = {"decision": "INCONCLUSIVE", "exit_code": 3, "phases": (phase,), "findings": found}
    step = build_page(samples.go().model_copy(update=changed)).next_step
    assert step is not None
    assert step.name == (other if first else "busy-host")


@pytest.mark.parametrize(
    ("report", "more"),
    [
        (too_short("rows"), "baseline.steps=600"),
        (too_short(None), "baseline.steps=300"),
        (too_short("rows", declared="steps.done == 300"), "baseline.steps=300"),
    ],
)
def test_the_next_command_does_not_ask_for_the_same_again(report: ValidationReport, more: str) -> None:
    command = f"validator run runbooks/smoke_cpu.yaml --only baseline --set {more}"
    assert next_command(report, Path("reports/x")) == command


def test_the_next_step_names_the_phase_that_is_too_short() -> None:
    """A soak that is open because its baseline was short: twice as many steps of the soak would decide nothing."""
    report = too_short("interval")
    needed = Needed(steps={"warm-base": 1200})
    (phase,) = report.phases
    criteria = (phase.criteria[0], phase.criteria[1].model_copy(update={"needed": needed}))
    report = report.model_copy(update={"phases": (phase.model_copy(update={"criteria": criteria}),)})
    step = build_page(report).next_step
    assert "about 1,200 steps for warm-base" in step.value
    command = (
        "validator run runbooks/smoke_cpu.yaml --only baseline --only warm-base --set baseline.steps=300 "
        "--set warm-base.steps=1200"
    )
    assert next_command(report, Path("reports/x"), step) == command


def test_a_phase_that_counts_its_own_steps_leaves_those_of_another_to_be_named() -> None:
    """The text named 800 steps for the baseline, and the command repeated what had been run."""
    report = too_short("interval")
    (phase,) = report.phases
    more = phase.criteria[1].model_copy(update={"needed": Needed(steps={"warm-base": 800, "baseline": 600})})
    criteria = (pieces.verdict("baseline.2", "steps.done == 300"), more)
    report = report.model_copy(update={"phases": (phase.model_copy(update={"criteria": criteria}),)})
    command = next_command(report, Path("reports/x"), build_page(report).next_step)
    assert command.endswith("--only baseline --only warm-base --set baseline.steps=300 --set warm-base.steps=800")


def test_a_trainer_that_came_to_its_own_end_is_asked_for_what_it_did() -> None:
    """The text named `--set baseline.steps=50`, and the command repeated what had been run."""
    report = too_short("interval")
    (phase,) = report.phases
    said = "The trainer ended by itself with exit code 0 after 50 steps: --steps 50, or --set baseline.steps=50 where …"
    ended = pieces.verdict(
        "baseline.steps", "every run does all its steps", "INCONCLUSIVE", message=said, observed=50.0
    )
    report = report.model_copy(update={"phases": (phase.model_copy(update={"criteria": (ended, *phase.criteria)}),)})
    assert next_command(report, Path("reports/x")).endswith(" --only baseline --set baseline.steps=50")


def test_a_run_that_was_made_shorter_is_to_have_all_its_steps() -> None:
    report = too_short("rows", declared="loss.last <= 0.668")
    (phase,) = report.phases
    short = phase.criteria[1].model_copy(update={"needed": Needed(steps={"baseline": 400})})
    phase = phase.model_copy(update={"criteria": (phase.criteria[0], short)})
    step = build_page(report := report.model_copy(update={"phases": (phase,)})).next_step
    assert step is not None
    assert step.value == "Only the length is insufficient: validate again with 400 steps for baseline."
    assert next_command(report, Path("reports/x"), step).endswith(" --only baseline --set baseline.steps=400")


def waiting(code: str, severity: str = "warning", **typed: object) -> ValidationReport:
    """A phase that lacks nothing but its bound, in a run of which something was found."""
    item = pieces.verdict("b.1", "toks_per_s.mean >= ? tok/s", "INCONCLUSIVE", observed=9.0, message="Still open.")
    phase = pieces.baseline("INCONCLUSIVE", criteria=(item,))
    found = Finding(code=code, severity=severity, confidence="high", phase="baseline", message="m", next_step="Fix it.")
    report = samples.go()
    book = report.runbook.model_copy(update={"path": "no such/sim.yaml", "overrides": (), **typed})
    changes = {"decision": "INCONCLUSIVE", "exit_code": 3, "phases": (phase,), "findings": (found,), "runbook": book}
    return report.model_copy(update=changes)


TYPED = ("--steps", "500", "--", "python", "my train.py", "--dt", "0.02")


@pytest.mark.parametrize(
    ("report", "name", "command"),
    [
        (
            waiting("busy-host", command=TYPED),
            "busy-host",
            "validator run --steps 500 -- python 'my train.py' --dt 0.02",
        ),
        (waiting("unit-mismatch", "veto"), "unit-mismatch", "validator run 'no such/sim.yaml'"),
        (waiting("missing-evidence", "veto", only=("baseline",)), "missing-evidence", "--only baseline"),
        (
            waiting("throttled", overrides=("env.A=b c",)),
            "throttled",
            "validator run 'no such/sim.yaml' --set 'env.A=b c'",
        ),
        (waiting("host-bound", command=TYPED), "baseline", "validator init --from-run reports/x"),
    ],
)
def test_bounds_come_from_no_run_that_was_disturbed_or_vetoed(
    report: ValidationReport, name: str, command: str
) -> None:
    """The text said to run it again, and the command took bounds from that very run."""
    step = build_page(report).next_step
    assert step is not None
    assert step.name == name
    assert next_command(report, Path("reports/x"), step).endswith(command)


def test_a_disturbed_run_is_repeated_with_everything_that_was_typed() -> None:
    """A soak of 1,000 steps was proposed again without --set, which is one of 18,000."""
    report = too_short(None)
    found = report.findings[0].model_copy(update={"code": "busy-host"})
    typed = {"overrides": ("soak.steps=1000", "trainer.args.name=it's"), "skip": ("profile",)}
    book = report.runbook.model_copy(update=typed)
    report = report.model_copy(update={"findings": (found,), "runbook": book})
    command = next_command(report, Path("my runs/x"), build_page(report).next_step)
    given = ["--out", "my runs", "--skip", "profile", "--set", "soak.steps=1000", "--set", "trainer.args.name=it's"]
    assert shlex.split(command) == ["validator", "run", "runbooks/smoke_cpu.yaml", *given]


def test_a_command_that_is_too_short_is_run_again_with_more_steps() -> None:
    report = too_short("rows")
    report = report.model_copy(update={"runbook": report.runbook.model_copy(update={"command": TYPED})})
    assert next_command(report, Path("reports/x")) == "validator run --steps 600 -- python 'my train.py' --dt 0.02"


def test_a_go_starts_the_long_run_with_the_settings_that_were_chosen_if_any_were() -> None:
    report: ValidationReport = samples.go()
    undecided = report.model_copy(update={"phases": samples.inconclusive().phases})
    for one, settings in ((report, "that were chosen here"), (undecided, "the declared settings")):
        step = build_page(one).next_step
        assert step is not None
        assert step.href == "#recommended"
        assert settings in step.value
    assert build_page(samples.in_progress()).next_step is None


def test_what_was_interrupted_is_to_be_resumed() -> None:
    report = samples.inconclusive().model_copy(update={"exit_code": ExitCode.INTERRUPTED})
    step = build_page(report).next_step
    assert step is not None
    assert "resume" in step.value
    assert next_command(report, Path("x"), step) == "validator run --resume x"


def test_the_terminal_names_the_step_of_the_page_and_a_command_about_the_same_phase() -> None:
    """A finding about a later phase, and a phase before it that is merely open."""
    first = pieces.baseline("INCONCLUSIVE", criteria=(pieces.verdict("b.1", "loss.last < 3", "INCONCLUSIVE"),))
    failed = samples.no_go().phases[-1]
    report = samples.no_go().model_copy(update={"phases": (first, failed), "findings": samples.no_go().findings[:1]})
    step = build_page(report).next_step
    assert step is not None
    assert (step.name, step.phase) == ("oom", "soak")
    lines = summary_lines(report, ReportPaths(*(Path("reports/x") / name for name in RENDERINGS)), width=200)
    assert lines[-2].startswith("Next    ")
    assert lines[-2].endswith(step.value)
    assert lines[-1] == "Command tail -n 50 reports/x/runs/soak/r1/logs/stdout.log"


@pytest.mark.parametrize(("name", "reason"), [("no_go", "Cause"), ("inconclusive", "Missing")])
def test_the_cause_or_what_is_missing_stands_before_the_step(name: str, reason: str) -> None:
    report = getattr(samples, name)()
    step = build_page(report).next_step
    assert step is not None
    assert [one.name for one in step.reasons] == [reason]
    banner = parse(render_html(report, ChartData())).all("section", klass="banner")[0].text
    assert banner.index(step.reasons[0].value) < banner.index(step.value)
    said = report.model_copy(update={"why": f"Because: {step.reasons[0].value}"})
    again = build_page(said).next_step
    assert again is not None
    assert again.reasons == (), "the decision's sentence says it already"


def test_a_warning_about_an_open_phase_is_no_answer_to_what_is_missing() -> None:
    step = build_page(too_short(None)).next_step
    assert step is not None
    assert [(one.name, one.value) for one in step.reasons] == [("Missing", "Not measured: too few."), ("Finding", "m")]


def test_a_sentence_is_said_once() -> None:
    page = build_page(samples.no_go())
    for group in page.phases:
        said = [row.message for row in group.rows if row.message and row.status.word != "PASS"]
        assert not [text for text in said if text in group.message]
    waiting = build_page(samples.in_progress())
    assert not any(row.message == group.message != "" for group in waiting.phases for row in group.rows)
    assert all(fact.name != "Exit code" for fact in waiting.facts), "it has none yet"


def test_a_finding_explains_every_phase_that_shows_it() -> None:
    """A drift that a phase passed with is why a later one failed."""
    passed, failed = pieces.baseline("PASS"), samples.no_go().phases[-1]
    drift = Finding(
        code="no-steady-state",
        severity="warning",
        confidence="high",
        phase=passed.id,
        run=f"{passed.id}/r1",
        also=(f"{failed.id}/r1",),
        message="m",
        next_step="End the other processes.",
    )
    report = samples.no_go().model_copy(update={"phases": (passed, failed), "findings": (drift,)})
    step = build_page(report).next_step
    assert step is not None
    assert (step.name, step.value, step.phase) == ("no-steady-state", "End the other processes.", failed.id)


@pytest.mark.parametrize(("code", "criterion"), [("crashed", "exit"), ("ended-early", "steps")])
def test_why_a_run_ended_comes_before_what_else_was_noticed(code: str, criterion: str) -> None:
    criteria = (pieces.verdict(f"baseline.{criterion}", "every run ends well", "FAIL"),)
    phase = pieces.baseline("FAIL", criteria=criteria)
    drift, crash = (
        Finding(code=one, severity="warning", confidence="high", phase=phase.id, message=one, next_step=one)
        for one in ("no-steady-state", code)
    )
    report = samples.no_go().model_copy(update={"phases": (phase,), "findings": (drift, crash)})
    assert build_page(report).next_step.name == code
    slow = phase.model_copy(update={"criteria": (pieces.verdict("baseline.1", "toks_per_s.mean >= 9", "FAIL"),)})
    assert build_page(report.model_copy(update={"phases": (slow,)})).next_step.name == "no-steady-state"
