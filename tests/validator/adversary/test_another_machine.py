"""Figures of another machine, or of two: none of them decides about this one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.validator.adversary.court import book, codes, finding, judged, laid_out, train, tried
from validator.errors import Unable
from validator.model.plan import RunSpec
from validator.pipeline.session import require_same_machine
from validator.runs.folder import RunFolder
from validator.runs.replay import events_of, started_runs
from validator.selftest.recorded_case import FakeRun, scatter

H200, A100 = "NVIDIA H200", "NVIDIA A100-SXM4-80GB"


def asking(text: str, name: str | None = None, gpus: int = 2) -> str:
    hardware = {"gpus": gpus, **({"name": name} if name else {})}
    return json.dumps({**json.loads(text), "hardware": hardware})


def machine(*names: str) -> dict[str, Any]:
    return {"gpus": {f"gpu{index}": {"name": name, "uuid": f"GPU-{index}"} for index, name in enumerate(names)}}


@pytest.mark.parametrize(
    ("ran_on", "declared", "have", "why"),
    [
        (A100, "H[12]00", (), "the runbook asks for 'H[12]00'"),
        (A100, None, (H200, H200), f"this machine has {H200}"),
        (H200, "A100.*80GB", (H200, H200), "the runbook asks for 'A100.*80GB'"),
        (H200, None, (f"{H200} NVL", f"{H200} NVL"), f"this machine has {H200} NVL"),
        ("A100", None, (H200, H200), f"this machine has {H200}"),
        ("A100", "H200", (A100, H200), "the runbook asks for 'H200'"),
    ],
)
def test_a_run_on_another_gpu_is_vetoed(
    tmp_path: Path, ran_on: str, declared: str | None, have: tuple[str, ...], why: str
) -> None:
    text = asking(book(), declared)
    report = tried(tmp_path, FakeRun(facts={"gpu_name": ran_on}), text, machine=machine(*have))
    assert report.decision == "INCONCLUSIVE", report.why
    assert why in finding(report, "foreign-results").message


def test_two_runs_on_two_kinds_of_gpu_are_vetoed(tmp_path: Path) -> None:
    def fake(spec: RunSpec) -> FakeRun:
        return FakeRun(
            rates=scatter(40_000.0, seed=spec.repeat), facts={"gpu_name": A100 if spec.repeat == 2 else H200}
        )

    report = tried(tmp_path, fake, asking(book(train(repeats=2))))
    assert report.decision == "INCONCLUSIVE", report.why
    assert finding(report, "foreign-results").message == (f"baseline/r2 trained on {A100}, and baseline/r1 on {H200}.")


def test_what_is_not_required_may_run_elsewhere(tmp_path: Path) -> None:
    def fake(spec: RunSpec) -> FakeRun:
        rates = scatter(40_000.0, seed=len(spec.phase))
        return FakeRun(rates=rates, facts={"gpu_name": A100 if spec.phase == "other" else H200})

    text = asking(book(train(), train("other", required=False)), "H200")
    report = tried(tmp_path, fake, text, machine=machine(H200, H200))
    assert (report.decision, "foreign-results" in codes(report)) == ("GO", False), report.why


def test_without_a_preflight_the_declared_gpu_is_asked_for_all_the_same(tmp_path: Path) -> None:
    """The trainer does not tell on which GPU it ran."""
    text = asking(book(), "A100")
    report = tried(tmp_path / "other", FakeRun(), text, machine=machine(H200, H200))
    assert (report.decision, codes(report, "veto")) == ("INCONCLUSIVE", {"config-ignored"}), report.why
    one = tried(tmp_path / "one", FakeRun(), text, machine=machine(A100, H200))
    assert one.decision == "INCONCLUSIVE", "one of the two that were asked for"


@pytest.mark.parametrize(
    ("ran_on", "declared", "have"),
    [
        (H200, "H200", (H200, H200)),
        (H200, None, (H200, H200)),
        (f"{H200} MIG 1g.18gb", "H200", (H200, H200)),
        (None, "H200", (H200, H200)),
        (None, "H200", (H200, H200, A100)),
        (H200, "H200", ()),
        ("A100-SXM4-80GB", "NVIDIA A100", (A100, A100)),
        ("a100", "A100.*80GB", (A100, A100)),
        ("A100 80GB", "A100.*80GB", (A100, A100)),
    ],
)
def test_the_declared_gpu_is_no_obstacle(
    tmp_path: Path, ran_on: str | None, declared: str | None, have: tuple[str, ...]
) -> None:
    report = tried(tmp_path, FakeRun(facts={"gpu_name": ran_on}), asking(book(), declared), machine=machine(*have))
    assert (report.decision, codes(report, "veto", "warning")) == ("GO", set()), report.why


def test_a_preflight_that_is_not_required_does_not_answer_for_the_gpu(tmp_path: Path) -> None:
    text = asking(book({"id": "preflight", "kind": "preflight", "required": False, "probe": False}, train()), "A100")
    report = tried(tmp_path, FakeRun(), text, machine=machine(H200, H200))
    assert "config-ignored" in codes(report, "veto")
    assert report.decision == "INCONCLUSIVE"


def test_what_was_measured_on_an_unknown_machine_is_not_resumed(tmp_path: Path) -> None:
    root = laid_out(tmp_path, FakeRun(), machine=machine(H200))
    assert judged(root).decision == "GO"
    folder = RunFolder.open(root)
    for text in (None, "{"):
        folder.environment.unlink(missing_ok=True)
        if text is not None:
            folder.environment.write_text(text, encoding="utf-8")
        with pytest.raises(Unable, match=r"environment\.json is missing or unreadable"):
            require_same_machine(folder, folder.header.runbook)
    lines = folder.journal.read_text(encoding="utf-8").splitlines(keepends=True)
    begun = [line for line in lines if '"run_ended"' not in line]
    folder.journal.write_text("".join(begun), encoding="utf-8")
    require_same_machine(folder, folder.header.runbook)  # nothing was measured yet, so nothing can be mixed


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"git": {"sha": "b" * 40}}, "the commit was changed"),
        ({"torch": "2.8.0"}, "torch was changed"),
        ({"git": {"sha": "a" * 40, "dirty": True}}, None),
        ({"git": None}, None),
    ],
)
def test_two_runs_of_two_trainers_are_vetoed(tmp_path: Path, facts: dict[str, Any], words: str | None) -> None:
    known = {"git": {"sha": "a" * 40, "dirty": False}, "torch": "2.9.0"}

    def fake(spec: RunSpec) -> FakeRun:
        return FakeRun(rates=scatter(40_000.0, seed=spec.repeat), facts=known | (facts if spec.repeat == 2 else {}))

    report = tried(tmp_path, fake, book(train(repeats=2)))
    assert report.decision == ("GO" if words is None else "INCONCLUSIVE"), report.why
    if words is not None:
        message = finding(report, "mixed-runs").message
        assert message == f"baseline/r2 did not run the trainer of baseline/r1: {words} between them."


@pytest.mark.parametrize(
    ("changes", "decision", "severity"),
    [
        ({"gpu_driver.version": "580.1 before, 590.2 now"}, "INCONCLUSIVE", "veto"),
        ({"packages.torch": "2.9.0 before, 2.9.1 now"}, "INCONCLUSIVE", "veto"),
        ({"env.NCCL_P2P_DISABLE": "none before, 1 now"}, "GO", "warning"),
        ({"system": "Linux 6.1 before, Linux 6.2 now", "host": "a before, b now"}, "GO", None),
        ("on the same machine and software", "GO", None),
    ],
)
def test_a_validation_that_was_resumed_under_another_driver_is_vetoed(
    tmp_path: Path, changes: object, decision: str, severity: str | None
) -> None:
    def fake(spec: RunSpec) -> FakeRun:
        time.sleep(0.005)  # so that the second run starts after the first in milliseconds, too
        return FakeRun(rates=scatter(40_000.0, seed=spec.repeat))

    root = laid_out(tmp_path, fake, book(train(repeats=2)))
    ended = [outcome for _, outcome in started_runs(events_of(RunFolder.open(root))) if outcome is not None]
    between = max(outcome.last.started for outcome in ended)
    for moment, found in ((between, severity), ("2001-01-01T00:00:00+00:00", None)):
        (root / "environment.json").write_text(json.dumps({"resumed": {moment: changes}}), encoding="utf-8")
        report = judged(root)
        assert [one.severity for one in report.findings if one.code == "mixed-runs"] == ([found] if found else [])
        assert report.decision == (decision if found else "GO"), report.why
