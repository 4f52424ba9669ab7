"""The runbooks that come along, how they are found, and the documents made from the models."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from validator.judge.implicit import implicit_criteria
from validator.kinds.registry import json_schema, load, reference_markdown
from validator.model.arms_phases import SweepPhase
from validator.model.catalogue import METRICS
from validator.model.runbook import DataPhase, Runbook, TrainingPhase
from validator.model.schemas import SCALARS, SCHEMAS
from validator.model.traced_phases import AuditPhase
from validator.runbook import RunbookError, available, find
from validator.runbook.overrides import key_names

ROOT = Path(__file__).resolve().parents[3]
NAMES = [info.name for info in available()]


def test_the_declared_runbooks_are_there() -> None:
    assert {"smoke_cpu", "ddp_1gpu", "ddp_2xa100", "ddp_2xh200", "ddp_8xh100"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_runbook_is_sound_and_says_why(name: str) -> None:
    runbook = load(find(name)).runbook
    assert runbook.title
    assert runbook.description
    for phase in runbook.phases:
        assert phase.why, f"{name}.{phase.id} does not say what it is for"


def test_a_shipped_runbook_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = {find(name) for name in ("runbooks/smoke_cpu.yaml", "smoke_cpu.yaml", "smoke_cpu", "runbooks/smoke_cpu")}
    assert len(found) == 1
    assert found.pop().read_text() == (ROOT / "runbooks" / "smoke_cpu.yaml").read_text()


def test_a_file_of_ones_own_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "runbooks" / "smoke_cpu.yaml"
    own.parent.mkdir()
    own.write_text("mine")
    assert find("runbooks/smoke_cpu.yaml").read_text() == "mine"
    with pytest.raises(RunbookError, match=r"a folder, not a runbook(.|\n)*smoke_cpu\.yaml"):
        find("runbooks")


def test_a_runbook_that_is_not_there_names_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        RunbookError, match=r"smok\.yaml: there is no such file or runbook(.|\n)*did you mean smoke_cpu"
    ):
        find("smok.yaml")
    with pytest.raises(RunbookError, match="no such file"):
        find("elsewhere/smoke_cpu.yaml")


def test_the_smoke_test_needs_no_gpu_and_few_starts() -> None:
    runbook = load(find("smoke_cpu")).runbook
    assert runbook.hardware.gpus == 0
    assert [phase.id for phase in runbook.phases] == [
        *("preflight", "sanity", "baseline", "buckets", "single", "audit", "profile", "accumulation", "soak"),
    ]
    starts = 0
    for phase in runbook.phases:
        if isinstance(phase, TrainingPhase):
            arms = len(next(iter(phase.over.values()))) if isinstance(phase, SweepPhase) else 1
            starts += arms * (phase.repeats or 1)
    assert starts <= 10, "each start costs seconds, and the whole must end within two minutes"
    assert not any("tok/s" in item.expr for phase in runbook.phases for item in phase.accept), "no absolute rates"


def test_the_two_gpu_runbook_has_the_figures_it_was_written_for() -> None:
    runbook = load(find("ddp_2xa100")).runbook
    assert (runbook.hardware.gpus, runbook.hardware.name) == (2, "A100.*80GB")
    baseline, buckets, soak = runbook.phase("baseline"), runbook.phase("buckets"), runbook.phase("soak")
    assert "toks_per_s.mean >= 39 tok/s" in [item.expr for item in baseline.accept]
    assert isinstance(buckets, SweepPhase)
    assert buckets.over == {"env.NSA_DDP_BUCKET_MB": (25, 50, 100)}
    assert buckets.repeats == 4
    assert isinstance(soak, TrainingPhase)
    assert soak.steps == 1200


def test_the_two_gpu_runbooks_have_every_part_of_a_validation() -> None:
    kinds = {"preflight", "pytest", "train", "sweep", "audit", "command", "profile", "ab", "soak", "data"}
    for name in ("ddp_2xa100", "ddp_2xh200", "ddp_8xh100"):
        runbook = load(find(name)).runbook
        assert {phase.kind for phase in runbook.phases} == kinds
        audit = runbook.phase("sdpa_audit")
        assert isinstance(audit, AuditPhase)
        assert set(audit.variants) == {"plain", "flash_only", "no_flash"}
        assert all(phase.expected is not None for phase in runbook.phases)


def test_the_runbook_for_two_h200_ends_within_nine_minutes() -> None:
    phases = load(find("ddp_2xh200")).runbook.phases
    assert sum(phase.expected or 0.0 for phase in phases) <= 540


def test_streaming_is_not_required_where_the_hub_may_be_out_of_reach() -> None:
    phase = load(find("ddp_2xa100")).runbook.phase("fineweb")
    assert isinstance(phase, DataPhase)
    assert not phase.required


def test_the_reference_in_docs_is_current() -> None:
    current = (ROOT / "docs" / "runbook-reference.md").read_text(encoding="utf-8")
    assert current == reference_markdown(), "run make reference"


def test_the_table_of_kinds_names_each() -> None:
    page = (ROOT / "docs" / "writing-a-runbook.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert set(SCHEMAS) <= {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_the_reference_names_every_key_metric_and_scalar() -> None:
    text = reference_markdown()
    for model in SCHEMAS.values():
        for key in key_names(model):
            assert f"`{key}`" in text or f"`{key}:" in text
    for name in (*METRICS, *SCALARS):
        assert f"`{name}`" in text


def test_the_reference_names_the_id_of_every_criterion_that_is_not_written() -> None:
    text = reference_markdown()
    values = {
        "id": "a",
        "steps": 9,
        "over": {"args.a": [1, 2]},
        "change": {"args.a": 1},
        "arms": {"a": {}, "b": {}},
        "targets": ["a"],
        "run": "true",
        "choose": {"highest": "toks_per_s.mean"},
        "log_contains": ["x"],
        "ranges": ["x"],
    }
    runbook = Runbook.model_validate(
        {"schema": 1, "name": "x", "phases": [{"id": "a", "kind": "command", "run": "true"}]}
    )
    for kind, model in SCHEMAS.items():
        own = {"kind": kind, **{name: value for name, value in values.items() if name in model.model_fields}}
        for one in implicit_criteria(model.model_validate(own), runbook):
            assert f"`PHASE.{re.sub(r'[0-9]+', 'N', one.name)}`" in text


def test_the_schema_is_plain_json_and_knows_the_kinds() -> None:
    schema = json_schema()
    assert json.loads(json.dumps(schema)) == schema
    assert schema["$schema"].endswith("2020-12/schema")
    assert set(schema["properties"]) >= {"schema", "name", "phases"}
    assert {"TrainPhase", "SweepPhase", "AbPhase", "AuditPhase", "ProfilePhase", "SoakPhase", "DataPhase"} <= set(
        schema["$defs"]
    )
