"""A shared run folder names nobody, is judged like the original, and says what it lacks."""

from __future__ import annotations

import gzip
import json
import re
import socket
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.folders import run_folder

PLANTED = (
    "miriam",
    "gpu-host-17",
    "10.20.30.40",
    "fe80::42:acff:fe11:2",
    "0a:1b:2c:3d:4e:5f",
    "GPU-1a2b3c4d-1111-2222-3333-444455556666",
    "00000000:3B:00.0",
    "1650123456789",
    "hf_zq19abcdefghijklmnopqrstuv",
    "zq-password",
    "/scratch/lab",
    "miriam@lab.example.org",
)
NVIDIA_SMI = f"""<?xml version="1.0" ?>
<nvidia_smi_log><gpu id="{PLANTED[6]}"><product_name>NVIDIA A100</product_name><serial>{PLANTED[7]}</serial>
<uuid>{PLANTED[5]}</uuid><pci><pci_bus>3B</pci_bus><pci_bus_id>{PLANTED[6]}</pci_bus_id></pci></gpu></nvidia_smi_log>
"""
LOG = f"""gpu-host-17:4711:4711 [0] NCCL INFO Bootstrap : Using eth0:{PLANTED[2]}<0>
inet6 {PLANTED[3]} ether {PLANTED[4]} on {PLANTED[6]}
login with password=zq-password and {PLANTED[8]} for {PLANTED[11]}
  File "/home/miriam/code/train.py", line 3
"""


@pytest.fixture
def original(cli, train_runbook, workdir: Path) -> Path:
    """A run folder that holds a name of every kind, in every kind of file."""
    assert cli("run", str(train_runbook(accept=("toks_per_s.mean >= 10", "loss.last < loss.first")))).rc == 0
    folder = run_folder(workdir)
    moved = folder.rename(folder.with_name(folder.name.replace(socket.gethostname(), "gpu-host-17")))
    for path in (moved / "run.json", moved / "environment.json", moved / "journal.jsonl"):
        text = path.read_text()
        path.write_text(re.sub(rf"(?<![\w./]){re.escape(socket.gethostname())}(?![\w./])", "gpu-host-17", text))
    environment = json.loads((moved / "environment.json").read_text())
    environment["host"] = "gpu-host-17"
    environment["env"]["HF_HOME"] = "/home/miriam/.cache/hf"
    environment["gpus"] = {"gpu0": {"uuid": PLANTED[5], "pci_bus_id": PLANTED[6], "serial": PLANTED[7]}}
    (moved / "environment.json").write_text(json.dumps(environment))
    header = json.loads((moved / "run.json").read_text())
    header["cwd"], header["python"] = "/home/miriam/code", "/scratch/lab/venv/bin/python"
    (moved / "run.json").write_text(json.dumps(header))
    run = moved / "runs" / "baseline" / "r1"
    (run / "env.json").write_text(json.dumps({"hostname": "gpu-host-17", "config_file": "/scratch/lab/a.yaml"}))
    (run / "logs" / "stdout.log").write_text(LOG)
    (run / "logs" / "nccl.gpu-host-17.log").write_text(LOG)
    (moved / "preflight").mkdir(exist_ok=True)
    (moved / "preflight" / "nvidia_smi.xml").write_text(NVIDIA_SMI)
    (run / "model.pt").write_bytes(b"\0miriam" * 1000)
    return moved


def _texts(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            found[path.relative_to(folder).as_posix()] = data.decode()
    return found


def _result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def test_no_name_is_left_and_the_decision_is_the_same(cli, original: Path, workdir: Path) -> None:
    answer = cli("report", str(original), "--share", "--out", "copy")
    assert answer.rc == 0, answer.err
    copy = workdir / "copy"
    for name, text in _texts(copy).items():
        for planted in (*PLANTED, socket.gethostname(), str(workdir), "/home/"):
            assert not re.search(rf"(?<![A-Za-z0-9]){re.escape(planted)}(?![A-Za-z0-9])", text), (name, planted)
            assert planted not in name
        if not name.endswith(".html"):
            assert not re.search(r"(?:^|[\s\"'=:(])/(?:home|root|tmp|usr|opt|scratch|data|work)\b", text), name
    ours, theirs = _result(copy), _result(original)
    assert ours["decision"] == theirs["decision"] == "GO"
    assert ours["phases"][0]["runs"][0]["metrics"]["toks_per_s"]["mean"] == pytest.approx(
        theirs["phases"][0]["runs"][0]["metrics"]["toks_per_s"]["mean"]
    )


def test_the_same_name_is_the_same_in_every_file(cli, original: Path, workdir: Path) -> None:
    cli("report", str(original), "--share", "--out", "copy")
    texts = _texts(workdir / "copy")
    host = json.loads(texts["run.json"])["host"]
    run = "runs/baseline/r1"
    assert texts[f"{run}/logs/stdout.log"].startswith(f"{host}:4711:4711 [0] NCCL INFO")
    assert json.loads(texts[f"{run}/env.json"])["hostname"] == host
    assert f"{run}/logs/nccl.{host}.log" in texts
    assert f"-{host}-" in json.loads(texts["run.json"])["run_id"]
    assert "<product_name>NVIDIA A100</product_name>" in texts["preflight/nvidia_smi.xml"]


def test_hashes_are_those_of_the_copy_and_what_is_left_out_is_named(cli, original: Path, workdir: Path) -> None:
    cli("report", str(original), "--share", "--out", "copy")
    copy = workdir / "copy"
    result = _result(copy)
    for artifact in result["artifacts"]:
        assert artifact["sha256"] == sha256((copy / artifact["path"]).read_bytes()).hexdigest(), artifact["path"]
    form = json.loads((copy / "share.json").read_text())
    assert [one["path"] for one in form["left_out"]] == ["runs/baseline/r1/model.pt"]
    assert result["environment"]["shared_copy"]["left_out"].startswith("1 file")


def test_the_copy_is_judged_again_anywhere(cli, original: Path, workdir: Path) -> None:
    cli("report", str(original), "--share", "--out", "copy")
    before = _result(workdir / "copy")
    again = cli("report", "copy")
    assert again.rc == 0, again.err
    after = _result(workdir / "copy")
    assert {k: v for k, v in after.items() if k != "artifacts"} == {k: v for k, v in before.items() if k != "artifacts"}


def test_without_out_it_lies_beside_the_run_and_is_not_written_twice(cli, original: Path) -> None:
    assert cli("report", str(original), "--share").rc == 0
    (copy,) = original.parent.glob("*-shared")
    assert "gpu-host-17" not in copy.name
    again = cli("report", str(original), "--share")
    assert again.rc == 2
    assert "holds something already" in again.err


def test_out_alone_is_bad_usage(cli, workdir: Path) -> None:
    answer = cli("report", ".", "--out", "x")
    assert answer.rc == 2
    assert "--share" in answer.err


def test_a_large_folder_is_packed_and_still_judged_alike(cli, original: Path, workdir: Path) -> None:
    """Heartbeats are evidence: they are packed, never dropped; what no verdict is read from goes first."""
    from validator.folder import RunFolder
    from validator.stages.reporting import rerender
    from validator.stages.share import share

    run = original / "runs" / "baseline" / "r1"
    (run / "mem_boot.txt").write_text("".join(f"{n:09d} {hash(str(n)):x}\n" for n in range(40_000)))
    report, paths = rerender(RunFolder.open(original))
    rendered = sum(path.stat().st_size for path in paths)
    shared = share(RunFolder.open(original), report, out=workdir / "small", max_bytes=rendered + 120_000)
    assert {one.path for one in shared.left_out} == {"runs/baseline/r1/model.pt", "runs/baseline/r1/mem_boot.txt"}
    assert (workdir / "small/runs/baseline/r1/heartbeat_rank0.jsonl.gz").is_file()
    assert shared.bytes <= rendered + 120_000
    again = cli("report", "small")
    assert again.rc == 0, again.err
    gap = _result(workdir / "small")["phases"][0]["runs"][0]["scalars"]["heartbeat.max_gap_s"]
    assert gap == _result(original)["phases"][0]["runs"][0]["scalars"]["heartbeat.max_gap_s"]
