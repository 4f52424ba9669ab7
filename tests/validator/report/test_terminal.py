from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from tests.validator.report import pieces, samples
from validator.model.plan import PhasePlan, Plan, RunSpec
from validator.model.runbook import CommandPhase, Phase
from validator.model.verdict import Finding, PhaseReport, ValidationReport
from validator.report.terminal import make_observer
from validator.report.terminal.lines import phase_line, progress_cells, show, text_table, text_width, wants_color
from validator.report.terminal.live import LiveObserver
from validator.report.terminal.observer import Observer, PlainObserver
from validator.report.terminal.summary import inspection_lines, next_command, summary_lines
from validator.runs.folder import ReportPaths
from validator.supervise.monitor import Progress


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def paths(folder: str = "reports/x") -> ReportPaths:
    names = ("result.json", "report.html", "report.md", "junit.xml", "recommended.env")
    return ReportPaths(*(Path(folder) / name for name in names))


def spec(run: str, **more: object) -> RunSpec:
    values = {"id": run, "phase": run.split("/")[0], "kind": "train", "launcher": "python", "argv": ("python",)}
    return RunSpec(**{**values, "env": {}, "out": f"runs/{run}", "timeout_s": 60.0, **more})  # type: ignore[arg-type]


def planned(phase: str, *runs: str) -> PhasePlan:
    return PhasePlan(phase=phase, kind="train", runs=tuple(spec(run) for run in runs))


def phase(name: str) -> Phase:
    return CommandPhase(id=name, kind="command", run="true")


PLAN = Plan(runbook="smoke-cpu", phases=(planned("preflight"), planned("baseline", "baseline/r1"), planned("single")))


# -- the summary ------------------------------------------------------------------------------------------------------


def test_wide_signs_take_two_columns_and_combining_ones_none() -> None:
    assert text_width("日本e\u0301") == 5


@pytest.mark.parametrize("name", ["go", "no_go", "inconclusive", "in_progress", "hostile"])
@pytest.mark.parametrize("width", [80, 120])
def test_the_summary_fits_the_width(name: str, width: int) -> None:
    report = getattr(samples, name)()
    for line in summary_lines(report, paths(), width=width):
        longest = max((text_width(word) for word in line.split()), default=0)
        assert text_width(line) <= max(width, longest + 20) or line.startswith(("Command", "Report"))


def test_it_begins_with_the_decision_and_ends_with_what_to_type() -> None:
    lines = [line for line in summary_lines(samples.no_go(), paths(), width=200) if line]
    assert lines[0] == "NO-GO  smoke-cpu"
    assert lines[-4] == "Report  reports/x/report.html"
    assert lines[-3] == "Cause   The trainer ran [2, 128] in fp32 although [2, 512] in bf16 was requested."
    assert lines[-2] == "Next    Pass --seq_len 512 and check effective.seq_len in env.json."
    assert lines[-1].startswith("Command validator inspect reports/x/runs/baseline/r1")


def test_what_fails_comes_before_what_is_undecided_and_says_why() -> None:
    text = "\n".join(summary_lines(samples.no_go(), paths()))
    failed = text.index("observed 12,840 tok/s [12,773, 12,907], bound 39,000 tok/s, -67.1 %")
    assert failed < text.index("The whole interval lies below 39,000 tok/s.")
    undecided = text.index("The trainer wrote no gate_entropy_min")
    assert failed < undecided < text.index("VETO config-ignored") < text.index("WARNING oom")
    assert "It needs `baseline`, which ended FAIL." in text


def test_color_is_only_paint(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = summary_lines(samples.no_go(), paths(), color=False)
    colored = summary_lines(samples.no_go(), paths(), color=True)
    assert plain != colored
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in colored] == plain


def test_hostile_text_cannot_steer_the_terminal() -> None:
    text = "\n".join(summary_lines(samples.hostile(), paths()))
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)


def test_a_terminal_that_cannot_show_a_sign_still_gets_the_words() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    show(summary_lines, samples.no_go(), paths(), stream=stream)
    assert b"NO-GO  smoke-cpu" in raw.getvalue()


@pytest.mark.parametrize(
    ("report", "command"),
    [
        (samples.go(), ". reports/x/recommended.env"),
        (samples.trivial(1), "less reports/x/report.md"),
        (samples.inconclusive(), "validator run runbooks/smoke_cpu.yaml --only baseline --set baseline.steps=300"),
        (samples.in_progress(), "validator report reports/x"),
    ],
)
def test_the_next_command(report: ValidationReport, command: str) -> None:
    assert next_command(report, Path("reports/x")) == command


def test_after_a_crash_the_next_command_shows_the_log() -> None:
    crashed = samples.no_go()
    only_soak = crashed.model_copy(update={"phases": crashed.phases[-1:]})
    assert next_command(only_soak, Path("/a b")) == "tail -n 50 '/a b/runs/soak/r1/logs/stdout.log'"


def test_after_a_veto_alone_the_same_is_run_again() -> None:
    veto = Finding(code="x", severity="veto", confidence="high", phase="sanity", message="m", next_step="n")
    report = samples.go().model_copy(update={"decision": "NO_GO", "findings": (veto,)})
    again = "validator run runbooks/smoke_cpu.yaml --set baseline.steps=300"
    assert next_command(report, Path("reports/x")) == again


# -- observers --------------------------------------------------------------------------------------------------------


def test_the_observer_suits_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert isinstance(make_observer(stream=io.StringIO()), PlainObserver)
    assert isinstance(make_observer(stream=Screen()), LiveObserver)
    assert type(make_observer(quiet=True, stream=Screen())) is Observer
    ascii_only = Screen()
    monkeypatch.setattr(ascii_only, "encoding", "ascii", raising=False)
    assert isinstance(make_observer(stream=ascii_only), PlainObserver)
    assert wants_color(Screen())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_color(Screen())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_color(Screen())
    assert isinstance(make_observer(stream=Screen()), PlainObserver)


def progress(**more: object) -> Progress:
    values = {"run": "baseline/r1", "state": "running", "step": 120, "steps": 300, "loss": 3.2142}
    more = {"toks_per_s": 12_840.0, "mem_mib": 812.4, "heartbeat_age_s": 0.4, "elapsed_s": 20.0, "eta_s": 31.0, **more}
    return Progress(**{**values, **more})  # type: ignore[arg-type]


def test_a_line_has_the_time_of_a_step_where_there_is_no_rate() -> None:
    assert "12,840 tok/s" in progress_cells(progress(step_time_s=0.25))
    assert "0.25 s a step" in progress_cells(progress(step_time_s=0.25, toks_per_s=None))


def test_a_run_on_nodes_that_ended_shows_no_count_of_steps_that_are_still_to_arrive() -> None:
    """Four passed runs of 60 steps ended at step 33, 48, 34 and 60."""
    ended = progress(state="ended", step=33, steps=60, eta_s=0.6)
    cells = progress_cells(ended.ended_on_nodes())
    assert not [cell for cell in cells if cell.startswith(("step", "ETA"))]
    assert progress(state="ended", step=60, steps=60).ended_on_nodes().step == 60
    assert progress(step=33, steps=60).ended_on_nodes().step == 33


def test_a_run_that_hangs_has_no_time_left_but_the_time_without_a_step() -> None:
    """A trainer that hung was shown with "ETA 0.0 s" until the watchdog's limit."""
    hung = progress(eta_s=None, overdue_s=70.0)
    assert progress_cells(hung)[-2:] == ["ETA –", "no step for 1 min 10 s"]
    screen = Screen()
    with LiveObserver(stream=screen) as observer:
        observer.started(PLAN, Path("reports/x"))
        observer.phase_started(phase("baseline"), PLAN.phases[1])
        observer.run_progress(hung)
        Console(file=(drawn := io.StringIO()), width=120).print(observer._render())
    assert "no step for 1 min 10 s" in drawn.getvalue()


def test_plain_lines_make_sense_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    with PlainObserver(stream=out) as observer:
        observer.started(PLAN, Path("reports/x"))
        observer.phase_started(phase("preflight"), PLAN.phases[0])
        observer.phase_finished(pieces.preflight())
        observer.phase_started(phase("baseline"), PLAN.phases[1])
        observer.run_progress(progress(state="starting", step=None, toks_per_s=None, loss=None, eta_s=None))
        observer.run_progress(progress())
        observer.run_progress(progress(step=121))
        observer.note("retrying on another port")
        observer.phase_finished(pieces.baseline())
        observer.phase_finished(samples.no_go().phases[3])
        observer.finished(samples.go(), paths())
    lines = [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in out.getvalue().splitlines()]
    assert lines == [
        "smoke-cpu: 3 phases, 1 run, results in reports/x",
        "[1/3] preflight: command",
        "[1/3] ✓ PASS preflight (3/4 checks) in 1.8 s",
        "[2/3] baseline: command, 1 run",
        "  baseline/r1  starting  step –/300  memory 812 MiB  heartbeat 0.4 s ago  elapsed 20 s",
        "  baseline/r1  running  step 120/300  12,840 tok/s  loss 3.214  memory 812 MiB  heartbeat 0.4 s ago"
        "  elapsed 20 s  ETA 31 s",
        "  retrying on another port",
        "[2/3] ✓ PASS baseline (4/4 criteria) in 49 s",
        "[3/3] ○ NOT RUN single (0/1 criteria): It needs `baseline`, which ended FAIL.",
    ]
    assert capsys.readouterr().out.strip().startswith("GO  smoke-cpu"), "the result goes to stdout"


def test_a_resumed_validation_counts_on() -> None:
    out = io.StringIO()
    with PlainObserver(stream=out) as observer:
        observer.started(PLAN, Path("reports/x"))
        observer.phase_finished(pieces.preflight())
        observer.phase_started(phase("baseline"), PLAN.phases[1], spent_s=20.0)
    places = re.findall(r"\[\d/\d\] \S+ ?\S*", out.getvalue())
    assert places == ["[1/3] ✓ PASS", "[2/3] baseline: command,"]


def test_plain_lines_come_every_so_often_only() -> None:
    out = io.StringIO()
    observer = PlainObserver(stream=out, every_s=1000.0)
    for step in range(500):
        observer.run_progress(progress(step=step))
    assert len(out.getvalue().splitlines()) == 1


def test_the_live_table_fits_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    out = Screen()
    with LiveObserver(stream=out, color=False, refresh_hz=50) as observer:
        observer.started(PLAN, Path("reports/x"))
        observer.phase_started(phase("baseline"), PLAN.phases[1])
        observer.run_progress(progress(mem_mib=48_913.0, run="baseline/r1", note="looks slow\x1b[2J"))
        observer._live.refresh()
        observer.note("adopted NSA_DDP_BUCKET_MB=4")
        observer.phase_finished(pieces.baseline())
        observer.finished(samples.go(), paths())
    text = out.getvalue()
    assert "\x1b[2J" not in text
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", text)]
    assert max(map(text_width, lines)) <= 80
    table = next(i for i, line in enumerate(lines) if "tok/s" in line and "ETA" in line)
    row = lines[table + 1]
    for cell in ("baseline/r1", "running", "120/300", "12,840", "3.214", "48,913", "31 s"):
        assert cell in row
    assert any(line.startswith("next: preflight, single") for line in lines)
    assert any("✓ PASS" in line and "4/4 criteria" in line for line in lines)
    assert "GO  smoke-cpu" in capsys.readouterr().out


def test_the_live_table_shows_the_time_of_a_step_where_there_is_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    out = Screen()
    with LiveObserver(stream=out, color=False, refresh_hz=50) as observer:
        observer.started(PLAN, Path("reports/x"))
        observer.phase_started(phase("baseline"), PLAN.phases[1])
        observer.run_progress(progress(toks_per_s=None, step_time_s=0.0214))
        observer._live.refresh()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "s/step" in shown
    assert "tok/s" not in shown.partition("baseline/r1")[0].rpartition("state")[2]
    assert "0.0214" in shown
    assert "3.214" in shown


def test_the_live_table_gives_the_terminal_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    out = Screen()

    def interrupted() -> None:
        with LiveObserver(stream=out, color=False) as observer:
            observer.started(PLAN, Path("reports/x"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert out.getvalue().rfind("\x1b[?25h") > out.getvalue().rfind("\x1b[?25l"), "the cursor is visible again"


# -- tables -----------------------------------------------------------------------------------------------------------


def test_columns_are_aligned_and_nothing_is_cut() -> None:
    rows = [("a", "1", "short"), ("日本", "1,000", "a sentence that is much too long for the width it is given here")]
    lines = text_table(("Name", "Steps", "Note"), rows, width=40, numeric=("Steps",))
    assert lines[0] == "Name  Steps  Note"
    assert lines[1] == "a         1  short"
    assert lines[2].startswith("日本  1,000  a sentence")
    assert " ".join(" ".join(lines[2:]).split()).endswith("the width it is given here")


def test_inspection_shows_metrics_differences_and_findings() -> None:
    report = samples.no_go()

    run = report.phases[2].runs[0]
    text = "\n".join(inspection_lines(Path("runs/baseline/r1"), run, report.findings, None, width=100, color=False))
    assert re.search(r"toks_per_s +12,840 +269\.6 .*25–300 +\[12,773, 12,907\] +tok/s", text)
    assert re.search(r"seq_len +512 +128", text)
    assert text.index("VETO config-ignored") < text.index("WARNING oom")


def test_an_empty_folder_is_said_to_be_empty() -> None:
    run = pieces.run_report("x", metrics={}, scalars={}, requested=None, effective=None, warmup_end_step=None)
    text = "\n".join(inspection_lines(Path("empty"), run, (), None, width=100, color=False))
    assert "No series was found" in text
    assert "No finding." in text


def test_a_phase_that_failed_says_so_in_its_line() -> None:
    failed = PhaseReport(id="p", kind="train", title="p", status="FAIL", message="It crashed.")
    assert phase_line(failed) == "✕ FAIL p: It crashed."
    assert phase_line(failed.model_copy(update={"status": "PASS", "required": False})) == "✓ PASS p, not required"


def test_a_message_keeps_the_device_though_its_sentence_holds_both_numbers() -> None:
    said = "GPU 0: 13 wrong answers, first round 0, 1 element of the fp64 product. Have it replaced."
    wrong = pieces.verdict("baseline.right", "every answer is right", "FAIL", observed=13.0, bound=0.0, message=said)
    plain = pieces.verdict(
        "baseline.1", "x == 0", "FAIL", observed=12.0, bound=0.0, message="12 is not equal to 0. So."
    )
    report = samples.no_go().model_copy(
        update={"phases": (pieces.baseline("FAIL", criteria=(wrong, plain)),), "findings": ()}
    )
    text = " ".join(line.strip() for line in summary_lines(report, paths(), width=120))
    assert "GPU 0: 13 wrong answers" in text
    assert "12 is not equal to 0" not in text, "what was observed and the bound are in the line above"
