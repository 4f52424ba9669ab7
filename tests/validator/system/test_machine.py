"""Host, software, snapshot and preflight on this machine and on made-up ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.processes import wait_until
from validator.model.runbook import Hardware, PreflightPhase, Runbook
from validator.model.verdict import Check
from validator.system.checks import git_checks, host_checks, package_checks
from validator.system.gpu_facts import GpuFacts, GpuReport
from validator.system.host import HostFacts, read_host
from validator.system.preflight import missing_hardware, preflight
from validator.system.snapshot import Capture, snapshot, start_captures
from validator.system.software import GitFacts, PackageError, git_facts, package_versions, requirement, satisfies

GIB = 2**30


def facts(**changes: Any) -> HostFacts:
    values: dict[str, Any] = {
        "cpu_model": "EPYC",
        "cores_logical": 8,
        "cores_allowed": 8,
        "cores_quota": None,
        "load_1m": 0.5,
        "memory_total_bytes": 64 * GIB,
        "memory_available_bytes": 60 * GIB,
        "memory_limit_bytes": None,
        "disk_total_bytes": 100 * GIB,
        "disk_free_bytes": 50 * GIB,
        "disk_path": "/",
    }
    return HostFacts(**{**values, **changes})


def host(declared: dict[str, Any], **changes: Any) -> dict[str, Check]:
    return {check.id: check for check in host_checks(Hardware.model_validate(declared), facts(**changes))}


def test_this_machine_is_read(tmp_path: Path) -> None:
    found = read_host(tmp_path / "not" / "there" / "yet")
    assert 1 <= found.usable_cores <= (os.cpu_count() or 1)
    assert found.memory_total_bytes == pytest.approx(psutil.virtual_memory().total, rel=0.01)
    assert 0 < found.disk_free_bytes <= found.disk_total_bytes
    assert found.disk_path == str(tmp_path)


def test_limits_of_a_container_count(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (cgroup / "pod" / "box").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/pod/box\n")
    (proc / "meminfo").write_text("MemTotal: 67108864 kB\nMemAvailable: 62914560 kB\n")
    (proc / "self" / "mounts").write_text(
        "/dev/sda1 / ext4 rw 0 0\nserver:/a /data nfs4 rw 0 0\nx /w fuse.sshfs rw 0 0\n"
    )
    (cgroup / "pod" / "cpu.max").write_text("150000 100000\n")
    (cgroup / "pod" / "box" / "cpu.max").write_text("max 100000\n")
    (cgroup / "pod" / "box" / "memory.max").write_text(f"{4 * GIB}\n")
    (cgroup / "pod" / "box" / "memory.current").write_text(f"{3 * GIB}\n")
    (cgroup / "pod" / "box" / "memory.stat").write_text(f"anon 5\ninactive_file {GIB}\n")
    found = read_host(tmp_path, proc=proc, cgroup=cgroup)
    assert found.mounts == {"/data": "nfs4", "/w": "fuse.sshfs"}
    assert found.cores_quota == 1.5
    assert found.usable_cores <= 1.5
    assert found.memory_usable_bytes == 2 * GIB, "what is left under the limit, file cache counted as free"


def test_limits_of_the_first_version_of_cgroups(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (cgroup / "cpu").mkdir(parents=True)
    (cgroup / "memory").mkdir()
    (proc / "self" / "cgroup").write_text("4:cpu,cpuacct:/\n3:memory:/\n")
    (cgroup / "cpu" / "cpu.cfs_quota_us").write_text("200000")
    (cgroup / "cpu" / "cpu.cfs_period_us").write_text("100000")
    (cgroup / "memory" / "memory.limit_in_bytes").write_text(str(2**63 - 4096))
    (cgroup / "memory" / "memory.usage_in_bytes").write_text("5")
    found = read_host(tmp_path, proc=proc, cgroup=cgroup)
    assert found.cores_quota == 2.0
    assert found.memory_limit_bytes is None


def test_what_is_declared_is_required_and_the_rest_recorded() -> None:
    undeclared = host({})
    assert {check.status for check in undeclared.values()} == {"PASS"}
    assert not any(check.required for check in undeclared.values())
    declared = host({"cpu_cores": 8, "memory": "60 GiB", "disk_free": "50 GiB"})
    assert {check.status for check in declared.values()} == {"PASS"}
    assert all(declared[name].required for name in ("cpu_cores", "memory", "disk"))


@pytest.mark.parametrize(
    ("declared", "changes", "check_id", "words"),
    [
        ({"cpu_cores": 8}, {"cores_quota": 4.0}, "cpu_cores", "fewer than 8; a quota of the container"),
        ({"cpu_cores": 8}, {"cores_allowed": 2}, "cpu_cores", "fewer than 8; the machine or its CPU affinity"),
        ({"memory": "61 GiB"}, {}, "memory", "60.0 GiB available, less than 61.0 GiB"),
        ({"memory": "1 GiB"}, {"memory_limit_bytes": 2**20}, "memory", "1.0 MiB available, less than 1.0 GiB"),
        ({"memory": "1 GiB"}, {"memory_available_bytes": None}, "memory", "not known"),
        ({"disk_free": "51 GiB"}, {}, "disk", "--out"),
        ({}, {"load_1m": 7.0}, "load", "88 % of the usable cores"),
    ],
)
def test_what_is_missing_says_what_to_do(
    declared: dict[str, Any], changes: dict[str, Any], check_id: str, words: str
) -> None:
    found = host(declared, **changes)
    assert [check.id for check in found.values() if check.status == "FAIL"] == [check_id]
    assert words in found[check_id].message


def phase(**more: Any) -> PreflightPhase:
    return PreflightPhase.model_validate({"id": "p", "kind": "preflight", **more})


def packages(*specs: str, gpus: int = 0, **versions: str) -> dict[str, str]:
    known: dict[str, str | None] = {**versions}
    found = package_checks(phase(packages=specs), known, python="py", gpus=gpus)
    return {check.id: f"{check.status} {check.message}" for check in found}


def test_packages_and_their_bounds() -> None:
    found = packages("torch>=2.6", "numpy", "absent>=1", "old<2", torch="2.13.0+cu128", numpy="2.1", old="2.0")
    assert found["package_torch"].startswith("PASS")
    assert found["package_numpy"].startswith("PASS")
    assert "FAIL absent is not installed for py; run py -m pip install 'absent>=1'" in found["package_absent"]
    assert "FAIL old 2.0 does not meet <2" in found["package_old"]
    assert packages("a==1==2")["package_a==1==2"].startswith("FAIL")


def test_a_cpu_build_of_torch_cannot_serve_gpus() -> None:
    assert packages(torch="2.13.0+cpu") == {}
    assert "built for the CPU alone" in packages(torch="2.13.0+cpu", gpus=1)["torch_cuda"]
    assert packages(torch="2.13.0+cu128", gpus=1)["torch_cuda"].startswith("PASS")


def test_requirements_are_read() -> None:
    assert requirement("torch >= 2.6, <3") == ("torch", "<3,>=2.6")
    assert satisfies("2.6.0rc1", ">=2.5")
    assert not satisfies("2.5.1", ">=2.6")
    with pytest.raises(PackageError, match="write it as name or name>=version"):
        requirement("torch>>2")


def test_versions_are_read_here_and_in_another_interpreter(tmp_path: Path) -> None:
    here = package_versions(sys.executable, ["pytest", "no-such-package"])
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    assert here["pytest"] == pytest.__version__
    assert here["no-such-package"] is None
    assert package_versions(str(tmp_path / "none"), ["pytest"]) == {"pytest": None}
    assert set(package_versions(str(other), ["pytest"])) == {"pytest"}


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-b", "trunk")
    git(tmp_path, "config", "user.email", "someone@example.org")
    git(tmp_path, "config", "user.name", "Someone")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "one")
    return tmp_path


def test_the_working_tree_is_read(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    clean = git_facts(repository)
    assert (clean.branch, clean.dirty, len(clean.sha or "")) == ("trunk", False, 40)
    (repository / "a").write_text("2")
    (repository / "b").write_text("new")
    assert (git_facts(repository).dirty, git_facts(repository).changed) == (True, 2)
    assert git_facts(tmp_path_factory.mktemp("plain")).why_none == "the folder is not in a git repository"


def test_a_repository_without_a_commit_is_reported_so() -> None:
    (found,) = git_checks(phase(), GitFacts(None, "main", dirty=True, changed=3))
    assert found.observed == "no commit yet on main, 3 changed files"


@pytest.mark.parametrize(
    ("declared", "found", "statuses"),
    [
        ({}, GitFacts("a" * 40, "main", dirty=False), {"git": "PASS"}),
        ({}, GitFacts("a" * 40, "main", dirty=True, changed=2), {"git": "PASS"}),
        ({"git_clean": True}, GitFacts("a" * 40, "main", dirty=True, changed=2), {"git": "FAIL"}),
        ({"git_branch": "main"}, GitFacts("a" * 40, "main", dirty=False), {"git": "PASS", "git_branch": "PASS"}),
        ({"git_branch": "main"}, GitFacts("a" * 40, "x", dirty=False), {"git": "PASS", "git_branch": "FAIL"}),
        ({}, GitFacts(why_none="git is not installed"), {"git": "SKIPPED"}),
        ({"git_clean": True}, GitFacts(why_none="git is not installed"), {"git": "FAIL"}),
    ],
)
def test_the_working_tree_is_judged_as_declared(
    declared: dict[str, Any], found: GitFacts, statuses: dict[str, str]
) -> None:
    assert {check.id: check.status for check in git_checks(phase(**declared), found)} == statuses


def book(**hardware: Any) -> Runbook:
    return Runbook.model_validate(
        {"schema": 1, "name": "test", "hardware": hardware, "phases": [{"id": "p", "kind": "preflight"}]}
    )


def test_the_snapshot_is_plain_and_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_plantedsecret0123456789")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("UNRELATED_THING", "private")
    before = set(sys.modules)
    text = json.dumps(snapshot(tmp_path, trainer_python=sys.executable))
    assert "plantedsecret" not in text
    assert "UNRELATED_THING" not in text
    found = json.loads(text)
    assert found["env"]["NCCL_ALGO"] == "Ring"
    assert found["packages"]["pytest"] == pytest.__version__
    assert found["cpu"]["cores_usable"] >= 1
    assert "torch" not in set(sys.modules) - before, "asking for its version must not import torch"


def test_preflight_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Capture] = []
    monkeypatch.setattr("validator.system.preflight.start_captures", lambda captures, folder: started.extend(captures))
    found = preflight(phase(packages=["pytest>=8"]), runbook=book(cpu_cores=1), run_dir=tmp_path)
    status = {check.id: check.status for check in found}
    assert (status["package_pytest"], status["cpu_cores"], status["disk"]) == ("PASS", "PASS", "PASS")
    assert all(check.message for check in found if check.required)
    has_torch = package_versions(sys.executable, ["torch"])["torch"] is not None
    assert ("collect_env.txt" in [capture.file for capture in started]) == has_torch


def test_missing_gpus_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_hardware(book(gpus=0)) is None
    monkeypatch.setattr(
        "validator.system.preflight.read_gpus", lambda: GpuReport(why_none="no NVIDIA driver is loaded")
    )
    sentence = missing_hardware(book(gpus=2, name="A100"))
    assert "needs 2 GPUs (A100), and this machine has none (no NVIDIA driver is loaded)" in sentence
    one = GpuReport(gpus=(GpuFacts(0, "GPU-1", "NVIDIA A100"),), hidden=1)
    monkeypatch.setattr("validator.system.preflight.read_gpus", lambda: one)
    assert missing_hardware(book(gpus=1)) is None
    assert "only 1: NVIDIA A100; 1 more are hidden by CUDA_VISIBLE_DEVICES" in str(missing_hardware(book(gpus=2)))


def test_captures_become_files_and_failures_say_so(tmp_path: Path) -> None:
    captures = [
        Capture("good.txt", (sys.executable, "-c", "print('token: abcdef'); print('fine')")),
        Capture("bad.txt", (sys.executable, "-c", "raise SystemExit(3)")),
        Capture("none.txt", ("/no/such/program",)),
    ]
    start_captures(captures, tmp_path / "preflight").join(30)
    read = {path.name: path.read_text() for path in (tmp_path / "preflight").iterdir()}
    assert read["good.txt"] == "token: [redacted]\nfine\n"
    assert "exited with code 3" in read["bad.txt"]
    assert "/no/such/program" in read["none.txt"]
    assert set(read) == {"good.txt", "bad.txt", "none.txt"}


def test_a_capture_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    sleeper = Capture("slow.txt", (sys.executable, "-c", "import time; time.sleep(60)"))
    started = time.monotonic()
    start_captures([sleeper], tmp_path, timeout_s=0.5).join(30)
    assert time.monotonic() - started < 20
    assert "took more than" in (tmp_path / "slow.txt").read_text()


def test_a_capture_does_not_outlive_its_process(tmp_path: Path) -> None:
    """Neither an ordinary end nor a SIGKILL leaves one behind."""
    mark = f"mark{os.getpid()}"
    program = (
        "import sys, time, pathlib\n"
        "from validator.system.snapshot import Capture, start_captures\n"
        f"slow = Capture('x.txt', (sys.executable, '-c', 'import time; time.sleep(60) # {mark}'))\n"
        f"start_captures([slow], pathlib.Path({str(tmp_path)!r}))\n"
        "time.sleep(1.0)\n"
        "print('up', flush=True)\n"
        "sys.argv[1:] and time.sleep(60)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30, capture_output=True)
    assert not sleepers(mark)
    held = subprocess.Popen([sys.executable, "-c", program, "stay"], stdout=subprocess.PIPE)
    held.stdout.readline()
    assert sleepers(mark)
    held.kill()
    held.wait()
    held.stdout.close()
    wait_until(lambda: not sleepers(mark), "the end of the capture")


def sleepers(mark: str) -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if any(f"time.sleep(60) # {mark}" in word for word in line) and not any(
            "start_captures" in word for word in line
        ):
            found.append(process.pid)
    return found
