"""Damaged folders of every kind: reading and diagnosing them ends in values, never in an exception."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutate import mutate_file
from tests.validator.diagnose.cases import healthy, run_of, validation
from tests.validator.ingest.folders import outcome, write_logs
from validator.diagnose import diagnose
from validator.ingest import collect_dir
from validator.model.record import Outcome
from validator.model.verdict import Finding

FILES = (
    "training.csv",
    "heartbeat_rank0.jsonl",
    "heartbeat_rank1.jsonl",
    "env.json",
    "metrics.json",
    "k_stats.csv",
    "sdpa_audit.json",
    "mem_step1.json",
    ".HALT",
    "junit.xml",
    "logs/ranks/none_abc/attempt_0/0/stdout.log",
    "logs/ranks/none_abc/attempt_0/0/error.json",
)

VALUES = st.sampled_from(
    [None, -1, 0, 1e308, float("nan"), "", "x" * 5000, True, [], {}, [[1]], {"a": {"b": []}}, 10**40]
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "r"
    healthy(folder, n=25, env={"tokenizer": {"vocab_size": 256}, "sources": {}, "dead_parameters": []})
    (folder / "k_stats.csv").write_text("step,k\n1,2\n")
    (folder / "sdpa_audit.json").write_text('{"cmp": {"flash": 1}}')
    (folder / "mem_step1.json").write_text('{"gpu_mem_total_mib": 81920}')
    (folder / "junit.xml").write_text('<testsuite><testcase name="a"/></testsuite>')
    (folder / ".HALT").write_text("x")
    write_logs(folder, stdout="step 5/25 ETA 3 h\nspeedup 9x\n", stderr="NCCL error\n", rank=0)
    (folder / "logs/ranks/none_abc/attempt_0/0/error.json").write_text('{"message": {"message": "x"}}')
    return folder


ENDS = (
    outcome(duration_s=300),
    outcome(rc=1),
    outcome(rc=None, reason="stalled", duration_s=900),
    outcome(rc=-15, reason="timeout", duration_s=0),
)


def look_at(folder: Path, ended: Outcome) -> tuple[Finding, ...]:
    collect_dir(folder)
    run = run_of(folder, ended=ended, requested={"seq_len": 2048}, env={"NSA_SDPA_AUDIT": "1"})
    findings = diagnose(validation({"baseline": [run], "again": [run]}), [])
    for finding in findings:
        finding.model_dump_json()  # fit to be written
    return findings


def test_any_damage_is_survived(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    for seed in range(60):
        draw = random.Random(seed)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        for _ in range(draw.randint(1, 5)):
            mutate_file(folder / draw.choice(FILES), draw, names=FILES)
        look_at(folder, draw.choice(ENDS))


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_in_the_trainers_account_is_survived(whole: Path, tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "r"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    for name in ("env.json", "metrics.json"):
        content = json.loads((folder / name).read_text())
        keys = sorted({*content, "mfu", "world_size", "tokens_per_step", "grad_bytes", "time_unix_s", "env", "sources"})
        for key in data.draw(st.lists(st.sampled_from(keys), max_size=3)):
            content[key] = data.draw(VALUES)
        for account in ("requested", "effective"):
            if isinstance(content.get(account), dict):
                for key in data.draw(st.lists(st.sampled_from(sorted(content[account]) or ["x"]), max_size=3)):
                    content[account][key] = data.draw(VALUES)
        (folder / name).write_text(json.dumps(content))
    look_at(folder, data.draw(st.sampled_from(ENDS)))


@pytest.mark.parametrize("keep", FILES)
def test_any_file_alone_is_survived(whole: Path, tmp_path: Path, keep: str) -> None:
    folder = tmp_path / "r"
    (folder / keep).parent.mkdir(parents=True)
    shutil.copy(whole / keep, folder / keep)
    look_at(folder, ENDS[1])


ABSURD = ("1e308", "-1e308", "1e-320", "inf", "nan", "0", "-1", "", "9" * 400)


@pytest.mark.parametrize("value", ABSURD)
@pytest.mark.parametrize("column", ["step", "loss", "toks_per_s", "step_time_s", "grad_norm"])
def test_absurd_cells_are_survived(whole: Path, tmp_path: Path, column: str, value: str) -> None:
    """Their squares overflow, their sums are not finite, and no mean of nothing may be taken."""
    folder = tmp_path / "r"
    shutil.copytree(whole, folder)
    lines = (folder / "training.csv").read_text().splitlines()
    at = lines[0].split(",").index(column)
    for i in range(1, len(lines), 2):
        cells = lines[i].split(",")
        cells[at] = value
        lines[i] = ",".join(cells)
    (folder / "training.csv").write_text("\n".join(lines) + "\n")
    for ended in ENDS:
        look_at(folder, ended)


@pytest.mark.parametrize(
    ("key", "value"),
    [("vocab_size", -1), ("vocab_size", 0), ("world_size", 10**12), ("tokens_per_step", 1e308), ("steps", 10**30)],
)
def test_absurd_accounts_are_survived(whole: Path, tmp_path: Path, key: str, value: float) -> None:
    folder = tmp_path / "r"
    shutil.copytree(whole, folder)
    content = json.loads((folder / "env.json").read_text())
    (content if key in content else content["effective"])[key] = value
    (folder / "env.json").write_text(json.dumps(content))
    look_at(folder, ENDS[0])
