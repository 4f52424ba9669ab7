"""Causes that a phase, or several runs together, show; each beside a healthy twin. Figures are of real incidents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.validator.diagnose.cases import UNCERTAIN, healthy, of_validation, run_of, steady, validation
from tests.validator.ingest.folders import START_S, outcome, write_csv, write_logs
from validator.diagnose import CODES, diagnose, diagnose_run, engine
from validator.diagnose.engine import findings_table
from validator.model.findings import ANSWERS
from validator.model.record import RunRecord
from validator.model.result import ScalarValue
from validator.model.runbook import TrainerMetrics
from validator.model.verdict import ArmComparison, Check, ComparedArm, PhaseReport, Verdict

CATALOGUE = {
    *("config-ignored", "superlinear-in-seq", "setting-to-blame", "not-significant", "vacuous-sweep"),
    *("impossible-scaling", "no-steady-state", "host-bound", "comm-bound", "slow-not-hung", "hang", "eta-wrong"),
    *("stale-halt", "mixed-runs", "foreign-results", "skipped-as-pass", "silent-audit", "noop-compression"),
    *("unit-mismatch", "nan-loss", "zero-grad", "dead-parameter", "gate-collapse", "random-data-floor"),
    *("warmup-exceeds-run", "oom", "low-headroom", "memory-growth", "straggler", "loader-bound", "throttled"),
    *("unhealthy-gpu", "leftover-process", "port-in-use", "nccl-error", "disk-full", "fused-unstable"),
    "selection-mismatch",
}


def test_every_code_of_the_catalogue_has_a_rule() -> None:
    assert set(CODES) >= CATALOGUE
    assert len({id(one) for one in engine._RULES}) == len(engine._RULES), "a module imports a rule of another"


def test_the_page_of_findings_is_current() -> None:
    page = Path(__file__).parents[3] / "docs" / "findings.md"
    assert page.read_text(encoding="utf-8").endswith("\n\n" + findings_table()), "run make reference"


def test_the_codes_that_a_runbook_may_accept_are_those_of_the_rules() -> None:
    assert set(ANSWERS) == set(CODES)
    assert list(ANSWERS) == sorted(ANSWERS)


# ---------------------------------------------------------------------------------------------------------- tests


def junit_run(folder: Path, *, passed: int, skipped: int = 0, failed: str = "") -> RunRecord:
    folder.mkdir()
    cases = "".join(f'<testcase name="ok{i}"/>' for i in range(passed))
    cases += "".join(f'<testcase name="s{i}"><skipped message="no CUDA"/></testcase>' for i in range(skipped))
    cases += f'<testcase name="{failed}"><failure message="differs"/></testcase>' if failed else ""
    (folder / "junit.xml").write_text(f"<testsuite>{cases}</testsuite>")
    return run_of(folder, kind="pytest", launcher="python", nproc=0, ended=outcome(rc=1 if failed else 0))


def pytest_phase(run: RunRecord, **changes: Any) -> dict[str, Any]:
    return {"phases": {"sanity": [run]}, "kinds": {"sanity": {"kind": "pytest", "targets": ["x"], **changes}}}


def test_skipped_as_pass(tmp_path: Path) -> None:
    """The only CUDA test was skipped, and pytest ended with 0."""
    run = junit_run(tmp_path / "a", passed=3, skipped=1)
    finding = of_validation(validation(**pytest_phase(run)))["skipped-as-pass"]
    assert (finding.severity, finding.evidence[0].text) == ("veto", "s0: no CUDA")
    assert of_validation(validation(**pytest_phase(run, allow_skipped=True))) == {}
    assert of_validation(validation(**pytest_phase(junit_run(tmp_path / "b", passed=3)))) == {}


def test_no_test_at_all_is_no_pass_even_where_skips_are_allowed(tmp_path: Path) -> None:
    run = junit_run(tmp_path / "a", passed=0, skipped=2)
    assert "skipped-as-pass" in of_validation(validation(**pytest_phase(run, allow_skipped=True)))


def test_selection_mismatch(tmp_path: Path) -> None:
    """Parity passes on all patterns but `gaps`."""
    run = junit_run(tmp_path / "a", passed=5, failed="test_selection_v2_equiv[gaps]")
    finding = of_validation(validation(**pytest_phase(run)))["selection-mismatch"]
    assert (finding.severity, "NSA_SEL_RANGES_V2=0" in finding.next_step) == ("veto", True)
    other = junit_run(tmp_path / "b", passed=5, failed="test_causality")
    assert of_validation(validation(**pytest_phase(other))) == {}


def test_a_veto_in_a_phase_that_decides_nothing_is_a_warning(tmp_path: Path) -> None:
    run = junit_run(tmp_path / "a", passed=3, skipped=1)
    finding = of_validation(validation(**pytest_phase(run, required=False)))["skipped-as-pass"]
    assert finding.severity == "warning"


def test_a_veto_in_a_run_that_only_leaves_evidence_is_a_warning(tmp_path: Path) -> None:
    bad = healthy(tmp_path / "bad", losses=[float("nan")] * 60)
    for role, severity in (("measure", "veto"), ("nsys", "warning")):
        run = run_of(bad, id="profile/nsys/r1", phase="profile", kind="profile", role=role)
        assert of_validation(validation({"profile": [run]}))["nan-loss"].severity == severity


def test_silent_audit(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    asked = {"env": {"NSA_SDPA_AUDIT": "1"}}
    finding = of_validation(validation({"audit": [run_of(folder, **asked)]}))["silent-audit"]
    assert "is missing" in finding.evidence[0].text
    (folder / "sdpa_audit.json").write_text('{"schema_version": 1, "cmp": {}}')
    assert "silent-audit" in of_validation(validation({"audit": [run_of(folder, **asked)]}))
    (folder / "sdpa_audit.json").write_text('{"schema_version": 1, "cmp": {"flash": 24}}')
    assert of_validation(validation({"audit": [run_of(folder, **asked)]})) == {}


# --------------------------------------------------------------------------------------------------------- sweeps


BUCKETS = "env.NSA_DDP_BUCKET_MB"


def sweep(tmp_path: Path, *, effective: Sequence[float], grad_bytes: int, **more: Any) -> list[RunRecord]:
    runs = []
    for asked, ran in zip((25, 50, 100), effective, strict=True):
        ran_with = {"ddp_bucket_mb": ran}
        folder = healthy(
            tmp_path / f"b{asked}", effective=ran_with, rate=845.0 + asked / 50, env={"grad_bytes": grad_bytes}
        )
        runs.append(run_of(folder, id=f"buckets/{asked}/r1", arm=str(asked), settings={BUCKETS: asked}, **more))
    return runs


def sweep_phase(runs: list[RunRecord]) -> dict[str, Any]:
    over = {"kind": "sweep", "steps": 60, "over": {BUCKETS: [25, 50, 100]}, "choose": {"highest": "toks_per_s.mean"}}
    return {"phases": {"buckets": runs}, "kinds": {"buckets": over}}


def test_a_sweep_over_gradients_that_fit_one_bucket_is_vacuous(tmp_path: Path) -> None:
    """0.97 MiB of gradients."""
    runs = sweep(tmp_path, effective=(25.0, 50.0, 100.0), grad_bytes=1_017_118)
    finding = of_validation(validation(**sweep_phase(runs)))["vacuous-sweep"]
    assert "0.97 MiB of gradients fit one bucket of 25 MiB" in finding.message


def test_a_swept_setting_that_never_reached_the_trainer_is_vacuous(tmp_path: Path) -> None:
    runs = sweep(tmp_path, effective=(25.0, 25.0, 25.0), grad_bytes=500_000_000)
    finding = of_validation(validation(**sweep_phase(runs)))["vacuous-sweep"]
    assert "every run had ddp_bucket_mb = 25.0" in finding.message


def test_a_sweep_that_reached_the_trainer_is_not_vacuous(tmp_path: Path) -> None:
    runs = sweep(tmp_path, effective=(25.0, 50.0, 100.0), grad_bytes=157_000_000)
    assert of_validation(validation(**sweep_phase(runs))) == {}


def compared(outcome_: Any, *, recommended: str | None = None) -> PhaseReport:
    arms = tuple(
        ComparedArm(arm=a, settings={}, run_means=m, mean=sum(m) / len(m), ci_low=None, ci_high=None, stdev=None)
        for a, m in (("25", (869.5,)), ("50", (297.0, 835.0)))
    )
    comparison = ArmComparison(
        metric="toks_per_s.mean",
        unit="tok/s",
        direction="highest",
        arms=arms,
        outcome=outcome_,
        recommended=recommended,
        min_effect=0.02,
        message="25 and 50 cannot be told apart with 1 and 2 runs.",
    )
    return PhaseReport(id="buckets", kind="sweep", title="b", status="PASS", comparison=comparison)


def test_not_significant(tmp_path: Path) -> None:
    record = validation(**sweep_phase(sweep(tmp_path, effective=(25.0, 50.0, 100.0), grad_bytes=157_000_000)))
    finding = of_validation(record, [compared("not_decidable")])["not-significant"]
    assert finding.severity == "info"
    assert finding.evidence[1].text == "50: runs 297, 835 tok/s"
    assert "four times" in finding.next_step
    assert of_validation(record, [compared("significant", recommended="25")]) == {}


def test_a_veto_in_an_arm_that_nobody_is_advised_to_use_is_a_warning(tmp_path: Path) -> None:
    runs = sweep(tmp_path, effective=(25.0, 50.0, 100.0), grad_bytes=157_000_000)
    losses = [float("nan")] * 60
    bad = healthy(tmp_path / "bad", losses=losses, effective={"ddp_bucket_mb": 50.0})
    runs[1] = run_of(bad, id="buckets/50/r1", arm="50", settings={BUCKETS: 50})
    record = validation(**sweep_phase(runs))
    assert of_validation(record, [compared("significant", recommended="25")])["nan-loss"].severity == "warning"
    assert of_validation(record, [compared("significant", recommended="50")])["nan-loss"].severity == "veto"


def test_the_same_cause_in_many_runs_is_said_once(tmp_path: Path) -> None:
    runs = []
    for i in range(4):
        folder = healthy(tmp_path / f"r{i}", effective={"warmup_steps": 2000})
        runs.append(run_of(folder, id=f"baseline/r{i}"))
    findings = [f for f in diagnose(validation({"baseline": runs}), []) if f.code == "warmup-exceeds-run"]
    assert len(findings) == 1
    assert "baseline/r1, baseline/r2, baseline/r3" in findings[0].message


def test_the_same_cause_in_many_phases_is_said_once_unless_it_vetoes(tmp_path: Path) -> None:
    settings = {"effective": {"warmup_steps": 2000}, "losses": [float("nan")] * 60}
    phases = {name: [run_of(healthy(tmp_path / name, **settings), id=f"{name}/r1")] for name in ("baseline", "soak")}
    findings = diagnose(validation(phases), [])
    warm_up = [f for f in findings if f.code == "warmup-exceeds-run"]
    assert [f.run for f in warm_up] == ["baseline/r1"]
    assert "The same holds for soak/r1" in warm_up[0].message
    assert [f.phase for f in findings if f.code == "nan-loss"] == ["baseline", "soak"]


# ---------------------------------------------------------------------------------------------------- several runs


def single_and_double(tmp_path: Path, *, single: float, double: float) -> dict[str, list[RunRecord]]:
    both = run_of(healthy(tmp_path / "two", rate=double), id="baseline/r1")
    alone = run_of(healthy(tmp_path / "one", rate=single, ranks=1), id="single/r1", nproc=1)
    return {"baseline": [both], "single": [alone]}


SINGLE = {"single": {"kind": "train", "steps": 60, "scaling_against": "baseline"}}


@pytest.mark.parametrize(("single", "factor"), [(334.0, "1.27"), (228.0, "1.8")])
def test_impossible_scaling(tmp_path: Path, single: float, factor: str) -> None:
    """847 tok/s on two GPUs against 228–334 on one: 1.27 to 1.86 times as fast for each."""
    record = validation(single_and_double(tmp_path, single=single, double=847.0), kinds=SINGLE)
    finding = of_validation(record)["impossible-scaling"]
    assert (finding.severity, finding.phase) == ("veto", "single")
    assert f"{factor}" in finding.message


def test_scaling_whose_interval_reaches_what_is_possible_is_only_a_warning(tmp_path: Path) -> None:
    record = validation(single_and_double(tmp_path, single=440.0, double=847.0), kinds=SINGLE)
    judged = {"scaling.efficiency": ScalarValue(value=1.08, ci_low=0.97, ci_high=1.2)}
    report = PhaseReport(id="single", kind="train", title="s", status="PASS", scalars=judged)
    assert of_validation(record, [report])["impossible-scaling"].severity == "warning"


def test_scaling_that_could_not_be_measured_vetoes_nothing(tmp_path: Path) -> None:
    """Two processes on a busy machine, by short windows: the ratio of their means says nothing for certain."""
    record = validation(single_and_double(tmp_path, single=310.0, double=847.0), kinds=SINGLE)
    judged = {"scaling.efficiency": ScalarValue(value=None, note="not measured: too few samples")}
    report = PhaseReport(id="single", kind="train", title="s", status="PASS", scalars=judged)
    finding = of_validation(record, [report])["impossible-scaling"]
    assert (finding.severity, finding.confidence) == ("warning", "low")


def lengths(tmp_path: Path, points: dict[int, float], *, tell: bool = True, **more: Any) -> dict[str, list[RunRecord]]:
    phases = {}
    for length, rate in points.items():
        folder = tmp_path / f"s{length}"
        if tell:
            healthy(folder, rate=rate, ranks=1, effective={"seq_len": length, **more})
            phases[f"s{length}"] = [run_of(folder, id=f"s{length}/r1", nproc=1, requested={"seq_len": length})]
        else:
            write_csv(folder, steady(rate=rate), header=False)
            asked = {"seq_len": length, "batch_size": 1}
            csv = TrainerMetrics(csv="training.csv")
            phases[f"s{length}"] = [run_of(folder, id=f"s{length}/r1", nproc=1, requested=asked, metrics=csv)]
    return phases


def test_superlinear_in_seq(tmp_path: Path) -> None:
    """260 tok/s at 512 tokens, 17 at 2,048: 15 times slower per token at four times the length."""
    finding = of_validation(validation(lengths(tmp_path, {512: 260.0, 2048: 17.0})))["superlinear-in-seq"]
    assert "to the power 3.0" in finding.message
    assert "15.3 times as long" in finding.message
    assert finding.confidence == "medium"


def test_three_lengths_on_a_line_make_it_certain(tmp_path: Path) -> None:
    phases = lengths(tmp_path, {512: 260.0, 1024: 66.0, 2048: 17.0})
    assert of_validation(validation(phases))["superlinear-in-seq"].confidence == "high"


@pytest.mark.parametrize("slow", [800.0, 560.0])
def test_growth_as_attention_has_it_is_healthy(tmp_path: Path, slow: float) -> None:
    assert of_validation(validation(lengths(tmp_path, {512: 900.0, 2048: slow}))) == {}


def test_a_rate_that_ignores_the_length(tmp_path: Path) -> None:
    """844 to 852 tok/s at 1,024 and 847 at 2,048, and no effective config."""
    phases = lengths(tmp_path, {1024: 848.0, 2048: 847.0}, tell=False)
    finding = of_validation(validation(phases))["config-ignored"]
    assert (finding.severity, finding.confidence) == ("warning", "medium")
    told = lengths(tmp_path / "told", {1024: 848.0, 2048: 847.0})
    assert of_validation(validation(told)) == {}
    other = lengths(tmp_path / "other", {1024: 900.0, 2048: 847.0}, tell=False)
    assert set(of_validation(validation(other))) == {*UNCERTAIN, "clock-unverified"}


def test_setting_to_blame(tmp_path: Path) -> None:
    """The production config at 23 tok/s, a custom one at 847: two settings differ."""
    production = {"batch_size": 2, "accum": 2, "grad_checkpointing": True}
    custom = {"batch_size": 1, "accum": 1, "grad_checkpointing": True}

    def run(folder: str, rate: float, config: dict[str, Any], id: str) -> list[RunRecord]:
        return [run_of(healthy(tmp_path / folder, rate=rate, effective=config), id=id, requested=config)]

    runs = {"baseline": run("p", 23.0, production, "baseline/r1"), "custom": run("c", 847.0, custom, "custom/r1")}
    finding = of_validation(validation(runs))["setting-to-blame"]
    assert "differ in 2 settings: batch_size 1 → 2, accum 1 → 2" in finding.message
    runs["custom"] = run("d", 847.0, {**production, "accum": 1}, "custom/r1")
    alone = of_validation(validation(runs))["setting-to-blame"]
    assert (alone.confidence, "the only difference is accum 1 → 2" in alone.message) == ("high", True)
    runs["custom"] = run("e", 30.0, custom, "custom/r1")
    assert of_validation(validation(runs)) == {}


def test_more_processes_on_the_same_cores_are_slower_each_and_no_setting_is_to_blame(tmp_path: Path) -> None:
    phases = single_and_double(tmp_path, single=900.0, double=600.0)
    assert of_validation(validation(phases, kinds=SINGLE)) == {}


# --------------------------------------------------------------------------------------------------------- machine


@pytest.mark.parametrize(
    ("check", "code", "severity"),
    [
        ("gpu_ecc", "unhealthy-gpu", "veto"),
        ("gpu_remapped_rows", "unhealthy-gpu", "veto"),
        ("gpu_processes", "leftover-process", "warning"),
        ("gpu_throttle", "throttled", "warning"),
        ("disk", "disk-full", "warning"),
    ],
)
def test_failed_checks_of_the_machine_have_a_cause(tmp_path: Path, check: str, code: str, severity: str) -> None:
    def preflight(status: Any) -> Any:
        one = Check(id=check, title=check, status=status, observed="3", expected="0", message="3 where 0 is right.")
        kinds = {"preflight": {"kind": "preflight"}}
        return validation({"preflight": []}, kinds=kinds, checks={"preflight": [one]})

    assert of_validation(preflight("FAIL"))[code].severity == severity
    assert of_validation(preflight("PASS")) == {}


@pytest.mark.parametrize(
    ("xids", "grown", "severity", "words"),
    [
        (["", "79"], {}, "veto", "Xid 79, the GPU has fallen off the bus"),
        (["31", "63"], {}, None, ""),
        ([], {"GPU 1 ecc_uncorrected": 2}, "veto", "GPU 1 counted 2 ecc uncorrected under load"),
        ([], {"mlx5_3:1 link_downed": 1}, "warning", "mlx5_3:1 counted 1 link downed under load"),
        ([], {"GPU 0 pcie_replays": 12}, None, ""),
    ],
)
def test_what_a_gpu_or_link_reports_during_a_run_is_found(
    tmp_path: Path, xids: list[str], grown: dict[str, int], severity: str | None, words: str
) -> None:
    folder = healthy(tmp_path / "run")
    (folder / "logs").mkdir(exist_ok=True)
    rows = "".join(f"{1.0 + n},{code}\n" for n, code in enumerate(xids))
    (folder / "logs/telemetry.csv").write_text(f"ts,xid\n{rows}")
    counters = {"schema_version": 1, "seconds": 60.0, "before": {}, "after": grown}
    (folder / "logs/counters.json").write_text(json.dumps(counters))
    found = of_validation(validation({"baseline": [run_of(folder)]})).get("unhealthy-gpu")
    assert (found and found.severity) == severity
    assert found is None or words in found.message


def test_communication_is_acquitted_where_it_cannot_be_the_cause(tmp_path: Path) -> None:
    """157 MB of gradients in a step of 105 s."""

    def judged(rate: float, status: Any) -> dict[str, Any]:
        run = run_of(healthy(tmp_path / f"{rate}{status}", rate=rate))
        verdict = Verdict(id="baseline.1", text="toks_per_s.mean >= 2000", required=True, status=status)
        report = PhaseReport(id="baseline", kind="train", title="b", status=status, criteria=(verdict,))
        return of_validation(validation({"baseline": [run]}), [report])

    assert "157 MB of gradients need at most 0.16 s" in judged(39.0, "FAIL")["not-comm-bound"].message
    assert judged(39.0, "PASS") == {}
    assert judged(1900.0, "FAIL") == {}  # 2.2 s a step: it might be


def sampled(folder: Path, *, gpu_pct: float, mask: int = 0) -> Path:
    """A healthy run with a sample of the machine every five seconds; step k ends about 4.85 × k seconds in."""
    healthy(folder)
    rows = "".join(f"{START_S + 3 + 5 * i},12,{gpu_pct},{mask if 30 <= i < 40 else 0}\n" for i in range(60))
    (folder / "logs").mkdir()
    (folder / "logs/telemetry.csv").write_text("ts,host_cpu_pct,gpu0_util_pct,gpu0_throttle_mask\n" + rows)
    return folder


def test_host_bound_by_telemetry(tmp_path: Path) -> None:
    """The GPU at 18 to 29 % while Python keeps its cores busy."""
    machine = {"cpu": {"cores_logical": 16}}
    for name, gpu_pct, expected in (("a", 24.0, {"host-bound"}), ("b", 97.0, set())):
        run = run_of(sampled(tmp_path / name, gpu_pct=gpu_pct))
        assert set(of_validation(validation({"baseline": [run]}, environment=machine))) == expected
        idle_host = {"cpu": {"cores_logical": 4}}
        assert of_validation(validation({"baseline": [run]}, environment=idle_host)) == {}


def test_a_gpu_that_throttled_while_it_was_measured(tmp_path: Path) -> None:
    run = run_of(sampled(tmp_path / "r", gpu_pct=97, mask=0x40))
    finding = of_validation(validation({"baseline": [run]}))["throttled"]
    assert "hardware thermal slowdown in steps 31–" in finding.message
    capped = run_of(sampled(tmp_path / "s", gpu_pct=97, mask=0x04))  # the power cap is how a GPU is meant to run
    assert of_validation(validation({"baseline": [capped]})) == {}


# ---------------------------------------------------------------------------------------------------------- bounds


def test_a_run_without_a_result_and_a_phase_without_runs_are_no_trouble(tmp_path: Path) -> None:
    run = run_of(healthy(tmp_path / "r"))
    pending = RunRecord(run.spec, None, None)
    assert of_validation(validation({"baseline": [pending], "later": []})) == {}
    assert diagnose_run(pending) == ()


def test_possible_scaling(tmp_path: Path) -> None:
    record = validation(single_and_double(tmp_path, single=440.0, double=847.0), kinds=SINGLE)
    assert of_validation(record) == {}


def test_ten_thousand_lines_of_other_text_raise_no_finding(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    lines = [
        f"[{i}] <b>step</b> {i} of ???? {{eta}} 50% faster x {'=' * (i % 90)} \x1b[2K\r {i:x}" for i in range(10_000)
    ]
    write_logs(folder, stdout="\n".join(lines), rank=0)
    assert of_validation(validation({"baseline": [run_of(folder)]})) == {}
