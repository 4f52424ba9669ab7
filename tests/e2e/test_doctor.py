"""`validator doctor`: what a machine can validate, and what keeps it from the rest."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.validator.system.answers import Card, FakeNvml
from validator.engine.look import _would_start
from validator.model.cluster import Cluster
from validator.pipeline.doctor import Capability, Examination, Fitness, examination_lines, examine
from validator.supervise.lock import MachineLock, holders
from validator.system import nvml


def test_a_machine_without_gpus_can_run_the_cpu_runbook(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    answer = cli("doctor", "--json")
    found = answer.json
    states = {one["runbook"]: one for one in found["runbooks"]}
    assert states["ddp_2xa100"]["state"] == "impossible"
    assert "needs 2 GPUs" in states["ddp_2xa100"]["reasons"][0]
    facts = {fact["name"]: fact for fact in found["facts"]}
    assert facts["torch"]["ok"] is True
    assert facts["Disk"]["ok"] is True
    assert answer.rc == found["exit_code"] == (0 if states["smoke_cpu"]["state"] == "ready" else 4)


def test_the_screen_names_the_next_command(cli) -> None:
    answer = cli("doctor")
    assert "Bundled runbooks" in answer.out
    assert "Next    validator" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 140


def test_gpus_of_another_kind_are_unfit_not_impossible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(*(Card(uuid=f"GPU-{number}") for number in range(2)))
    report = nvml.read_gpus(nvml=fake, environment={})
    monkeypatch.setattr("validator.pipeline.doctor.read_gpus", lambda: report)
    monkeypatch.setattr("validator.system.preflight.read_gpus", lambda: report)
    states = {one.runbook: one for one in examine(reports=tmp_path).runbooks}
    other = states["ddp_2xh200"]
    assert other.state == "unfit"
    assert any("H200" in reason for reason in other.reasons)
    assert not any("H200" in reason for reason in states["ddp_2xa100"].reasons)


def test_a_held_lock_is_named_and_a_dead_holder_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with MachineLock(["cpu"]) as lock:
        lock.name(tmp_path / "run")
        locks = [fact for fact in examine(reports=tmp_path).facts if fact.name == "Locks"]
        assert "cpu is held by process" in locks[0].value
        assert str(tmp_path / "run") in locks[0].value
    assert holders() == {}
    (tmp_path / "validator" / "cpu.lock").write_text(json.dumps({"pid": 2**22 + 1}))
    assert holders() == {}, "one that was killed holds nothing"


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    disk = next(fact for fact in examine(reports=tmp_path).facts if fact.name == "Disk")
    assert disk.ok is False
    assert "--out" in disk.fix


def test_a_torch_that_every_process_compiles_again_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images whose packages were installed without bytecode, and that forbid to write any: seconds of every start."""
    torch = tmp_path / "torch"
    (torch / "__pycache__").mkdir(parents=True)
    monkeypatch.setattr("validator.pipeline.doctor._folder_of", lambda package: torch)
    monkeypatch.setattr("sys.pycache_prefix", None)

    def told() -> list[Capability]:
        return [one for one in examine(reports=tmp_path).facts if one.name == "Bytecode"]

    monkeypatch.setattr("sys.dont_write_bytecode", False)
    assert not told()
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    (found,) = told()
    assert found.ok is None
    assert "PYTHONDONTWRITEBYTECODE is set" in found.value
    assert f"-m compileall -q {torch}" in found.fix
    (torch / "__pycache__" / "version.cpython-312.pyc").touch()
    assert not told()


def test_the_nodes_of_a_runbook_are_looked_at(cli, tmp_path: Path) -> None:
    runbook = tmp_path / "nodes.yaml"
    text = "schema: 1\nname: nodes\nphases: [{id: all, kind: preflight}]\n"
    runbook.write_text(text + "cluster: {engine: local, nodes: 2}\n", encoding="utf-8")
    answer = cli("doctor", str(runbook))
    assert answer.rc == 0
    assert answer.out.count("ms there and back") == 2
    runbook.write_text(text, encoding="utf-8")
    answer = cli("doctor", str(runbook))
    assert answer.rc == 2
    assert "has no cluster" in answer.err


def test_nodes_that_fail_are_what_is_mended_next(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = "sbatch: error: Unable to contact slurm controller (connect failure)"
    for errors, fix in ((silent, ""), ("sbatch: error: invalid partition specified: x", "change cluster.slurm")):
        done = subprocess.CompletedProcess((), 1, "", errors)
        monkeypatch.setattr("validator.engine.look.ask", lambda *_, done=done, **__: done)
        row = _would_start(Cluster(engine="slurm", nodes=2))
        assert (row.ok, row.fix.partition(",")[0]) == (False, fix)
    runbooks = (Fitness("acceptance", "ready"),)
    for ok, said in (
        (False, "a ✕ under Nodes, then: validator doctor 'my pair.yaml'"),
        (True, "validator run 'my pair"),
    ):
        node = (Capability("n1", "answers", ok),)
        examined = Examination((Capability("Disk", "free"),), runbooks, node, "my pair.yaml")
        assert said in examination_lines(examined, width=100, color=False)[-1]
