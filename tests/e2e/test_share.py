"""A shared run folder names nobody, is judged like the original, and says what it lacks."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import socket
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.folders import run_folder
from tests.processes import python

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


TRAINER = """
import argparse, json, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--out", type=pathlib.Path)
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)
rows = "".join(f"{s},{2 - s / 100},0.1,{100 + s % 3}\\n" for s in range(1, args.steps + 1))
(args.out / "training.csv").write_text("step,loss,lr,toks_per_s\\n" + rows)
beat = {"pid": 1, "rank": 0, "msg": "progress", "note": "." * 80}
beats = [json.dumps({"ts": time.time() + s / 1000, "step": s, **beat}) for s in range(1, args.steps + 1)]
(args.out / "heartbeat_rank0.jsonl").write_text("\\n".join(beats) + "\\n")
"""
RUNBOOK = """\
schema: 1
name: tiny
trainer:
  command: ["{trainer}"]
  args: {{steps: "{{steps}}", out: "{{out}}"}}
  metrics: {{csv: training.csv, heartbeat: "heartbeat_rank{{rank}}.jsonl"}}
defaults: {{nproc: 0, timeout: 60s, warmup_steps: 10}}
phases:
  - {{id: baseline, kind: train, steps: 90, accept: [toks_per_s.mean >= 10, loss.last < loss.first]}}
"""


def _validator(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    own = {"XDG_RUNTIME_DIR": str(folder), "NO_COLOR": "1"}
    return python("-m", "validator", *arguments, cwd=folder, env=own, timeout_s=300)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("share")


@pytest.fixture(scope="module")
def original(work: Path) -> Path:
    """A run folder that holds a name of every kind, in every kind of file."""
    (work / "trainer.py").write_text(TRAINER)
    (work / "tiny.yaml").write_text(RUNBOOK.format(trainer=work / "trainer.py"))
    ran = _validator(work, "run", "tiny.yaml")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    folder = run_folder(work)
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


@pytest.fixture(scope="module")
def copy(original: Path, work: Path) -> Path:
    """What `report --share` makes of it, beside it."""
    answer = _validator(work, "report", str(original), "--share")
    assert answer.returncode == 0, answer.stderr
    (found,) = original.parent.glob("*-shared")
    return found


def _texts(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            found[path.relative_to(folder).as_posix()] = data.decode()
    return found


def _result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def test_no_name_is_left_and_the_decision_is_the_same(original: Path, copy: Path, work: Path) -> None:
    for name, text in _texts(copy).items():
        for planted in (*PLANTED, socket.gethostname(), str(work), "/home/"):
            assert not re.search(rf"(?<![A-Za-z0-9]){re.escape(planted)}(?![A-Za-z0-9])", text), (name, planted)
            assert planted not in name
        if not name.endswith(".html"):
            assert not re.search(r"(?:^|[\s\"'=:(])/(?:home|root|tmp|usr|opt|scratch|data|work)\b", text), name
    ours, theirs = _result(copy), _result(original)
    assert ours["decision"] == theirs["decision"] == "GO"
    assert ours["phases"][0]["runs"][0]["metrics"]["toks_per_s"]["mean"] == pytest.approx(
        theirs["phases"][0]["runs"][0]["metrics"]["toks_per_s"]["mean"]
    )
    assert "gpu-host-17" not in copy.name


def test_the_same_name_is_the_same_in_every_file(copy: Path) -> None:
    texts = _texts(copy)
    host = json.loads(texts["run.json"])["host"]
    run = "runs/baseline/r1"
    assert texts[f"{run}/logs/stdout.log"].startswith(f"{host}:4711:4711 [0] NCCL INFO")
    assert json.loads(texts[f"{run}/env.json"])["hostname"] == host
    assert f"{run}/logs/nccl.{host}.log" in texts
    assert f"-{host}-" in json.loads(texts["run.json"])["run_id"]
    assert "<product_name>NVIDIA A100</product_name>" in texts["preflight/nvidia_smi.xml"]


def test_hashes_are_those_of_the_copy_and_what_is_left_out_is_named(copy: Path) -> None:
    result = _result(copy)
    for artifact in result["artifacts"]:
        assert artifact["sha256"] == sha256((copy / artifact["path"]).read_bytes()).hexdigest(), artifact["path"]
    form = json.loads((copy / "share.json").read_text())
    assert [one["path"] for one in form["left_out"]] == ["runs/baseline/r1/model.pt"]
    assert result["environment"]["shared_copy"]["left_out"].startswith("1 file")


def test_it_is_not_written_twice_and_out_belongs_to_it(original: Path, copy: Path, work: Path) -> None:
    again = _validator(work, "report", str(original), "--share")
    assert again.returncode == 2
    assert "holds something already" in again.stderr
    alone = _validator(work, "report", str(original), "--out", "x")
    assert alone.returncode == 2
    assert "--share" in alone.stderr


def test_a_copy_is_not_copied_again(copy: Path, work: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    again = _validator(work, "report", str(copy), "--share", "--out", "again")
    assert again.returncode == 2
    assert "a sanitized copy already" in again.stderr
    assert not (work / "again").exists()
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before, "what is refused changes nothing"


def test_a_copy_that_is_judged_again_grows_no_white_space(copy: Path, work: Path) -> None:
    from validator.runs.folder import RunFolder
    from validator.runs.replay import compact, is_compact

    result, folder = copy / "result.json", RunFolder.open(copy)
    whole = result.read_text(encoding="utf-8")
    assert _validator(work, "report", str(copy)).returncode in (0, 1, 3)
    assert not is_compact(folder), "one that had room for it keeps it"
    compact(folder)
    assert _validator(work, "report", str(copy)).returncode in (0, 1, 3)
    assert is_compact(folder)
    assert json.loads(result.read_text(encoding="utf-8")) == json.loads(whole)
    result.write_text(whole, encoding="utf-8")


def test_a_large_folder_is_packed_and_still_judged_alike(original: Path, copy: Path, work: Path) -> None:
    """Heartbeats are evidence: they are packed, never dropped; what no verdict is read from goes first."""
    from validator.pipeline.share import share
    from validator.pipeline.write import rerender
    from validator.runs.folder import RunFolder

    run = original / "runs" / "baseline" / "r1"
    (run / "mem_boot.txt").write_text("".join(f"{sha256(b'%d' % n).hexdigest()}\n" for n in range(20_000)))
    _, paths = rerender(RunFolder.open(original))
    limit = sum(path.stat().st_size for path in paths) + 120_000
    shared = share(original, out=work / "small", max_bytes=limit)
    left_out = {one.path.removesuffix(".gz") for one in shared.left_out}
    assert left_out == {"runs/baseline/r1/model.pt", "runs/baseline/r1/mem_boot.txt"}
    assert (work / "small/runs/baseline/r1/heartbeat_rank0.jsonl.gz").is_file()
    assert shared.bytes <= limit
    again = _validator(work, "report", "small")
    assert again.returncode == 0, again.stderr
    gaps = [
        _result(one)["phases"][0]["runs"][0]["scalars"]["heartbeat.max_gap_s"] for one in (work / "small", original)
    ]
    assert gaps[0] == gaps[1]


def test_a_received_folder_cannot_name_a_place_outside_of_it(copy: Path, work: Path, tmp_path: Path) -> None:
    """A packed name that is inside the folder through a link there leads elsewhere from where it is unpacked."""
    received = tmp_path / "received"
    shutil.copytree(copy, received)
    outside = tmp_path / "outside"
    outside.mkdir()
    deep = received / "a" / "b" / "c" / "d" / "e" / "f" / "g" / "h"
    deep.mkdir(parents=True)
    (received / "down").symlink_to("a/b/c/d/e/f/g/h")
    name = f"{outside.relative_to('/')}/planted.txt"
    (received / name).parent.mkdir(parents=True)
    (received / f"{name}.gz").write_bytes(gzip.compress(b"planted"))
    packed = ["down/" + "../" * 8 + name, f"{outside}/planted.txt"]
    (received / "share.json").write_text(json.dumps({"schema_version": 1, "packed": packed}))
    answer = _validator(work, "report", str(received))
    assert "Traceback" not in answer.stderr
    assert list(outside.iterdir()) == []


def test_a_form_does_not_waive_checksums(original: Path, copy: Path, work: Path, tmp_path: Path) -> None:
    for source, form in ((original, "{}"), (copy, None)):
        changed = tmp_path / source.name
        shutil.copytree(source, changed)
        if form is not None:
            (changed / "share.json").write_text(form)
        table = changed / "runs" / "baseline" / "r1" / "training.csv"
        assert _validator(work, "report", str(changed)).returncode == 0
        table.write_text(table.read_text().replace(",100\n", ",900\n"))
        answer = _validator(work, "report", str(changed))
        assert answer.returncode in (1, 3), "a table that was edited afterwards proves nothing"
        assert "changed after the run had ended" in (changed / "report.md").read_text()


def test_a_packed_bomb_is_refused(copy: Path, work: Path, tmp_path: Path) -> None:
    received = tmp_path / "received"
    shutil.copytree(copy, received)
    (received / "bomb.log.gz").write_bytes(gzip.compress(b"\0" * 200 * 2**20))
    (received / "share.json").write_text(json.dumps({"schema_version": 1, "packed": ["bomb.log"]}))
    answer = _validator(work, "report", str(received))
    assert answer.returncode == 2
    assert "unpacks to more than" in answer.stderr
