"""Processes in /proc and on a GPU: those of the validation and others, each named once."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from validator.system import processes
from validator.system.processes import OtherProcesses, ProcessId, Stat, read_proc, read_stat
from validator.system.xid import XidWatch

TOKEN = "3f" * 16

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


def on_gpu(*pids: int) -> dict[int, float | None]:
    return dict.fromkeys(pids, 512.0)


def test_a_file_that_comes_in_pages_is_read_to_its_end() -> None:
    """One read of a list in /proc returns one page, however much is asked for."""
    whole = read_proc("/proc/self/maps")
    assert len(whole) > os.sysconf("SC_PAGE_SIZE")
    assert b"[stack]" in whole


@pytest.fixture
def no_reaper() -> Iterator[None]:
    """Other tests make this process the reaper of its descendants, which would take an orphan in."""
    libc, held = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(held), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    yield
    libc.prctl(_PR_SET_CHILD_SUBREAPER, held.value, 0, 0, 0)


@pytest.fixture
def marked(no_reaper: None) -> Iterator[int]:
    """A process that carries the token and does not descend from this one."""
    code = "import os,sys;p=os.fork();p and (print(p),sys.exit());os.setsid();sys.stdout.close();os.read(0,1)"
    environment = {**os.environ, "VALIDATOR_RUN_TOKEN": TOKEN}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    pid = int(process.stdout.readline())
    process.wait()
    yield pid
    process.stdin.close()
    process.stdout.close()


def test_what_a_process_writes_is_named_and_what_it_reads_is_not(tmp_path: Path) -> None:
    with (tmp_path / "written").open("w") as written, (tmp_path / "written").open() as read:
        found = dict(processes.written_files(os.getpid()))
        assert found[f"/proc/{os.getpid()}/fd/{written.fileno()}"] == str(tmp_path / "written")
        assert f"/proc/{os.getpid()}/fd/{read.fileno()}" not in found
    assert processes.written_by(f"/proc/{os.getpid()}/fd/nothing") == ""
    assert list(processes.written_files(2**22 + 1)) == []


def test_own_processes_are_those_with_the_token_and_descendants(tmp_path: Path, marked: int) -> None:
    path = tmp_path / "gpu_processes.jsonl"
    others = OtherProcesses(TOKEN, path)
    assert others.count(0, on_gpu(marked, os.getpid()), lambda pid: "python") == 0
    assert not path.exists()
    unmarked = OtherProcesses("00" * 16, path)
    assert unmarked.count(0, on_gpu(marked, os.getpid()), lambda pid: "/usr/bin/python3") == 1
    (line,) = map(json.loads, path.read_text().splitlines())
    assert (line["gpu"], line["pid"], line["name"], line["used_mib"]) == (0, marked, "/usr/bin/python3", 512)


def test_another_process_is_named_whenever_it_appears(tmp_path: Path) -> None:
    path = tmp_path / "gpu_processes.jsonl"
    others = OtherProcesses(TOKEN, path)
    assert [others.count(0, on_gpu(*pids), lambda pid: "") for pids in ((1,), (1,), (), (1,))] == [1, 1, 0, 1]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["pid"] for line in lines] == [1, 1]
    assert lines[0]["name"] == Path("/proc/1/comm").read_text().strip()


def test_pids_of_another_namespace_are_not_counted(tmp_path: Path) -> None:
    """In a container NVML reports the host's pids: a trainer's own process looks like one that does not exist."""
    missing = 2**22 + 17
    others = OtherProcesses(TOKEN, tmp_path / "x.jsonl")
    assert others.count(0, on_gpu(missing), lambda pid: "") == 0
    assert others.count(0, on_gpu(missing, os.getpid()), lambda pid: "") == 1


def test_driver_events_are_reported_once_from_the_start_of_the_watch(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("4,1,5000000,-;NVRM: Xid (PCI:0000:3b:00): 48, before\n")
    watch = XidWatch(log)
    assert watch.latest() is None
    with log.open("a") as file:
        file.write("4,2,6000000,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n6,3,7,-;eth0: up\n")
    assert watch.latest() == 79
    assert watch.latest() is None
    watch.close()
    watch.close()
    assert XidWatch(tmp_path / "none").latest() is None


def test_the_cpu_time_of_the_validation_and_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = 2**22 + 7  # above the highest pid there is
    pids = {"own": os.getpid(), "child": none, "kernel": none + 1, "worker": none + 2, "other": none + 3}
    others = OtherProcesses(TOKEN, tmp_path / "x.jsonl")

    def used(**now: float | tuple[float, float]) -> float | None:
        stats = []
        for name, times in now.items():
            cpu_s, waited_s = times if isinstance(times, tuple) else (times, 0.0)
            parent = os.getpid() if name == "child" else 1
            kernel = name in ("kernel", "worker")
            stats.append(Stat(ProcessId(pids[name], 1), name, "R", parent, 1, cpu_s, waited_s, kernel))
        monkeypatch.setattr(processes, "all_stats", lambda: iter(stats))
        return others.own_cpu_seconds()

    assert used(own=5.0, kernel=5.0, worker=40.0, other=100.0) is None
    assert used(own=6.0, kernel=5.5, worker=40.0, other=300.0) == 1.5
    assert used(own=6.0, kernel=5.5, other=500.0, child=2.0) == 2.0, "a kernel thread that ends takes nothing back"
    assert used(own=(6.0, 2.75), kernel=5.5) == 0.75, "what the child used is counted once, to its end"
    assert used(own=(6.5, 7.75), kernel=5.5) == 5.5, "of a child that lived between two looks the parent knows"
    assert used(own=(7.0, 7.75), kernel=5.5, child=1.0) == 1.5
    assert used(own=(8.0, 7.75), kernel=5.5) == 1.0, "for a child nobody waited"


def test_the_memory_of_the_runs_processes(tmp_path: Path) -> None:
    """Of those with the token and of what they start, also with an empty environment; not of the validator's own."""
    others = OtherProcesses(TOKEN, tmp_path / "x.jsonl")
    hold = "import sys; x = bytearray(b'x' * (30 << 20)); print(flush=True); sys.stdin.read()"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}], env={{}})"
    with ExitStack() as stack:

        def run(code: str, **more: str) -> None:
            child = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **more}
            )
            stack.callback(child.communicate)
            assert child.stdout is not None
            child.stdout.readline()

        run(hold)
        others.own_cpu_seconds()
        assert others.run_memory(None) is None
        run(start, **{processes.TOKEN_VARIABLE: TOKEN})
        others.own_cpu_seconds()
        held = others.run_memory(None)
        assert held is not None
        assert 30 << 20 < held < 60 << 20


def test_the_ranks_of_a_run_are_counted_by_their_numbers(tmp_path: Path) -> None:
    """A worker has its rank's number, the launcher none; a rank that has ended counts no more."""
    token = "6b" * 16
    others = OtherProcesses(token, tmp_path / "x.jsonl")
    ranks: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:

        def start(**more: str) -> None:
            code = "print(flush=True); input()"
            environment = {**os.environ, processes.TOKEN_VARIABLE: token, **more}
            child = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
            stack.enter_context(child)
            stack.callback(child.kill)
            assert child.stdout is not None
            child.stdout.readline()
            ranks.append(child)

        def alive() -> int | None:
            others.own_cpu_seconds()
            return others.run_ranks()

        start()
        assert alive() is None
        for rank in ("0", "1", "1"):
            start(RANK=rank)
        assert alive() == 2
        for child in ranks[-2:]:
            child.kill()
            child.wait()
        assert alive() == 1


def test_a_process_seen_before_its_program_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between fork and exec it has its parent's environment. An agent starts it: it descends from nothing here."""
    token = "5a" * 16  # of its own: tests beside this one look at all processes
    others = OtherProcesses(token, tmp_path / "x.jsonl")
    hold = "x = bytearray(b'x' * (30 << 20)); print(flush=True); input()"
    environment = {processes.TOKEN_VARIABLE: token}
    begin = f"os.execve(sys.executable, [sys.executable, '-c', {hold!r}], {environment!r})"
    code = f"import os, sys; print(flush=True); input(); {begin}"
    with subprocess.Popen(
        [sys.executable, "-c", code], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def held() -> int | None:
            stat = read_stat(child.pid)
            assert stat is not None
            assert child.stdout is not None
            child.stdout.readline()
            monkeypatch.setattr(processes, "all_stats", lambda: iter([replace(stat, parent=1)]))
            others.own_cpu_seconds()
            return others.run_memory(None)

        assert held() is None
        child.stdin.write(b"\n")
        assert (held() or 0) > 30 << 20
        child.stdin.write(b"\n")


def test_a_process_that_has_ended_between_two_looks_is_counted(tmp_path: Path) -> None:
    others = OtherProcesses(TOKEN, tmp_path / "x.jsonl")
    others.own_cpu_seconds()
    burn = "import time\nwhile time.process_time() < 0.6: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    own = others.own_cpu_seconds()
    assert own is not None
    assert own >= 0.5
