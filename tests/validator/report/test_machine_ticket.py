"""The text for the provider of a single machine: what failed, on which card, against which bound, and how to see it."""

from __future__ import annotations

from tests.validator.kinds.machines import CARDS, machine
from tests.validator.report import samples
from validator.model.verdict import Check, Evidence, PhaseReport, ValidationReport, Verdict
from validator.report.html import render_html
from validator.report.machine_ticket import machine_ticket
from validator.report.markdown import render_markdown
from validator.report.specs import ChartData

WRONG = Verdict(
    id="burnin.right",
    text="every answer of every device is right",
    required=True,
    status="FAIL",
    observed=3.0,
    bound=0.0,
    message="GPU 1: 3 wrong answers, first round 19.",
    evidence=(Evidence(text="of sound cards (https://example.org/table)"),),
)
ECC = Check(
    id="gpu_ecc",
    title="ECC errors",
    status="FAIL",
    observed="GPU 3: 2 uncorrected",
    expected="none",
    message="GPU 3 reports errors.",
)


def report(*judged: Verdict | Check, kind: str = "burnin", required: bool = True) -> ValidationReport:
    phase = PhaseReport(
        id="burnin",
        kind=kind,
        title="Burn-in",
        status="FAIL",
        required=required,
        criteria=tuple(one for one in judged if isinstance(one, Verdict)),
        checks=tuple(one for one in judged if isinstance(one, Check)),
    )
    whole = samples.go()
    overrides = {"overrides": ("burnin.lasts=10s", "disk.path=/my data")}
    changes = {"environment": machine(4), "runbook": whole.runbook.model_copy(update=overrides)}
    return whole.model_copy(update={**changes, "phases": (phase,)})


def test_it_names_values_bounds_cards_and_commands() -> None:
    text = machine_ticket(report(WRONG, ECC))
    assert "Host node7" in text
    assert "driver 580.1" in text
    assert "1. Burn-in: every answer of every device is right\n   GPU 1: 3 wrong answers" in text
    assert "observed 3, expected 0" in text
    assert "source: of sound cards (https://example.org/table)" in text
    assert "--only burnin --set burnin.lasts=10s --set 'disk.path=/my data'" in text
    assert "2. Burn-in: ECC errors" in text
    assert f"GPU 1: NVIDIA H200, UUID {CARDS[1]}, serial number 1650, PCI 00000000:1B:00.0" in text
    assert f"UUID {CARDS[3]}" in text
    assert CARDS[0] not in text, "a card that nothing names is sound"


def test_what_is_the_users_own_or_passed_is_no_matter_for_a_provider() -> None:
    own = ECC.model_copy(update={"id": "package_numpy"})
    passed = WRONG.model_copy(update={"status": "PASS"})
    noted = WRONG.model_copy(update={"required": False})
    for one in (own, passed, noted):
        assert machine_ticket(report(one)) == ""
    assert machine_ticket(report(WRONG, kind="train")) == ""
    assert machine_ticket(report(WRONG, required=False)) == ""


def test_both_renderings_show_it() -> None:
    failed = report(WRONG)
    assert "For the provider" in render_html(failed, ChartData())
    assert "Text for the provider, also in ticket.txt" in render_markdown(failed)
    assert "For the provider" not in render_html(samples.go(), ChartData())
