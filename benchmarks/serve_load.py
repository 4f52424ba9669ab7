"""Does `validator serve` stay light and quick? Its cost beside one run, and its answers under load.

    python -m benchmarks.serve_load                 # load: 2,000 runs, 50 live viewers, 10 pushes of 20 MB at once
    python -m benchmarks.serve_load --cost 60       # CPU seconds of the server a minute, idle and with one viewer

Bars: pages within 200 ms in 95 % of cases, each change of a running validation at every viewer within 1 s in 99 %, at
most 300 MiB, and every push arrives; at most 0.5 % of a run's core seconds, idle and with one viewer. The run trains on
one core and writes 500 rows a second into a table, a heartbeat and a log. The CPU seconds of both are the kernel's; on
a machine that is busy the trainer writes as much with less, so the share of one core is printed as well.

Load is made by this process: viewers read events and nothing else, pages are asked for one after the other, and the
running validation is one whose runner is this process, so that it knows when a step was written. Pushes are those of
`validator push`, each a process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.validator.history.folders import BEGIN, make_run
from tests.validator.service.serving import make_running, spec

__all__ = ["main"]

TRAINER = """
import argparse, json, os, time
from pathlib import Path
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--out", type=Path)
given = parser.parse_args()
table, beats = ((given.out / name).open("w", buffering=1) for name in ("training.csv", "heartbeat_rank0.jsonl"))
table.write("step,loss,lr,grad_norm,toks_per_s,step_time_s\\n")
due = time.perf_counter()
for step in range(1, given.steps + 1):
    due, loss = due + 0.002, 3 + 1 / step
    while time.perf_counter() < due:
        sum(range(2000))
    table.write(f"{step},{loss:.6f},0.1,{0.5 + 1 / step:.4f},1000000.0,0.002\\n")
    beats.write(json.dumps({"ts": time.time(), "pid": os.getpid(), "rank": 0, "step": step, "msg": "progress"}) + "\\n")
    print(f"step {step} loss {loss:.6f} tok/s 1000000.0", flush=True)
"""
BOOK = """
schema: 1
name: load
trainer:
  command: [trainer.py]
  args: {steps: "{steps}", out: "{out}"}
  metrics: {csv: training.csv, heartbeat: "heartbeat_rank{rank}.jsonl"}
defaults: {nproc: 0, timeout: 2h}
phases: [{id: long, kind: train, steps: 2000000, accept: [loss.last < loss.first]}]
"""
PUSHED = """
schema: 1
name: pushed
phases: [{id: big, kind: command, run: "head -c 20000000 /dev/urandom > {out}/big.bin"}]
"""


@contextmanager
def started(work: Path, *arguments: str) -> Iterator[tuple[psutil.Process, str]]:
    """A server of `work/reports`, and its address."""
    command = [sys.executable, "-m", "validator", "serve", "--listen", "127.0.0.1:0", *arguments]
    with subprocess.Popen(command, cwd=work, env=_environment(work), stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            found = re.search(r"http://[\d.:]+/", server.stderr.readline())
            assert found, "the server did not start"
            yield psutil.Process(server.pid), found[0]
        finally:
            server.terminate()


def _environment(work: Path) -> dict[str, str]:
    own = dict.fromkeys(("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"), str(work))
    return {**os.environ, **own, "PYTHONPATH": str(Path(__file__).parents[1])}


def _answer(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return bytes(answer.read())


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    found = 0.0
    for one in processes:
        with suppress(psutil.Error):
            found += sum(one.cpu_times()[:2])
    return found


def cost(work: Path, seconds: float, repeats: int) -> bool:
    """CPU seconds of the server beside a real run; whether the bar is held."""
    (work / "trainer.py").write_text(TRAINER, encoding="utf-8")
    (work / "book.yaml").write_text(BOOK, encoding="utf-8")
    (work / "reports").mkdir()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    run = subprocess.Popen(
        [sys.executable, "-m", "validator", "run", "book.yaml"], cwd=work, env=_environment(work), **quiet
    )
    shares = []
    with started(work) as (server, address):
        try:
            while not (folder := _running(address, past=500)):
                time.sleep(1)
            for name, page in (("idle", None), ("Now", ""), ("page with log", f"runs/{folder}/")):
                with _viewer(address, page):
                    for _ in range(repeats):
                        shares.append(_share(name, seconds, server, psutil.Process(run.pid)))
        finally:
            run.terminate()
            run.wait(300)
    return max(shares) <= 0.005


def _running(address: str, *, past: int) -> str:
    """The folder of the run, once it has come past a step."""
    found = json.loads(_answer(address + "api/v1/running"))["running"]
    return str(found[0]["folder"]) if found and found[0]["run"] and (found[0]["run"]["step"] or 0) > past else ""


@contextmanager
def _viewer(address: str, page: str | None) -> Iterator[None]:
    """Somebody who looks at a page; None for nobody."""
    if page is None:
        yield
        return
    found = re.search(r'data-events="/([^"]+)"', _answer(address + page).decode())
    path = found[1].replace("&amp;", "&") if found else "events"
    events = urllib.request.urlopen(address + path, timeout=60)
    reading = threading.Thread(target=lambda: [None for _ in events], daemon=True)
    reading.start()
    time.sleep(3)
    try:
        yield
    finally:
        with suppress(OSError, AttributeError):
            events.fp.raw._sock.shutdown(2)
        reading.join(10)


def _share(name: str, seconds: float, server: psutil.Process, run: psutil.Process) -> float:
    def now() -> tuple[float, float, float]:
        return _cpu_s([server]), _cpu_s([run, *run.children(recursive=True)]), time.monotonic()

    before = now()
    time.sleep(seconds)
    spent, used, wall_s = (later - earlier for later, earlier in zip(now(), before, strict=True))
    mib = server.memory_info().rss / 2**20
    print(
        f"{name}: {spent:.2f} s of CPU in {wall_s:.0f} s, {spent / wall_s:.2%} of a core; "
        f"the run {used:.1f} s, {spent / used:.2%} of it; {mib:.0f} MiB",
        flush=True,
    )
    return spent / max(used, wall_s)


class Load:
    """What the viewers and pages see."""

    def __init__(self) -> None:
        self.written: list[float] = []
        self.late_s: list[float] = []
        self.page_s: list[float] = []
        self.mib = 0.0
        self.done = False

    def heard(self, since: int, text: str) -> int:
        """A viewer hears of a step; each that was written since the last one it heard of was late by so much."""
        found = re.search(r'step": "step ([\d,]+) of', text)
        if found is None:
            return since
        step, now = int(found[1].replace(",", "")), time.monotonic()
        self.late_s += [now - self.written[one] for one in range(since, min(step, len(self.written)))] if since else []
        return step


async def _view(load: Load, address: str) -> None:
    host, port = address.removeprefix("http://").rstrip("/").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
    writer.write(f"GET /events HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    heard = 0
    while not load.done:
        with suppress(asyncio.TimeoutError):
            heard = load.heard(heard, (await asyncio.wait_for(reader.readline(), 2)).decode())
    writer.close()


async def _write(load: Load, table: Path) -> None:
    with table.open("a", encoding="utf-8", buffering=1) as file:
        file.write("step,loss,lr,toks_per_s\n")
        while not load.done:
            load.written.append(time.monotonic())
            file.write(f"{len(load.written)},2.5,0.1,1000\n")
            await asyncio.sleep(0.05)


def _ask(load: Load, address: str, paths: Sequence[str]) -> None:
    while not load.done:
        for path in paths:
            began = time.monotonic()
            _answer(address + path)
            load.page_s.append(time.monotonic() - began)
            time.sleep(0.05)


def _weigh(load: Load, server: psutil.Process) -> None:
    while not load.done:
        load.mib = max(load.mib, server.memory_info().rss / 2**20)
        time.sleep(0.1)


def _pushed_runs(work: Path, count: int) -> list[Path]:
    """Real run folders of 20 MB, each under a name of its own."""
    (work / "pushed.yaml").write_text(PUSHED, encoding="utf-8")
    command = [sys.executable, "-m", "validator", "run", "pushed.yaml", "--out", "made"]
    subprocess.run(command, cwd=work, env=_environment(work), capture_output=True, check=False)
    made = next(path.parent for path in (work / "made").glob("*/result.json"))
    for number in range(count):
        other = made.with_name(f"{made.name[:-4]}{number:04d}")
        shutil.copytree(made, other)
        for path in (*other.glob("*.json"), *other.glob("*.jsonl")):
            path.write_text(path.read_text(encoding="utf-8").replace(made.name, other.name), encoding="utf-8")
        result = json.loads((other / "result.json").read_text(encoding="utf-8"))
        result["environment"]["host"] = "elsewhere"  # a service takes none of its own host
        (other / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return sorted(path for path in (work / "made").glob("*-0[0-9][0-9][0-9]") if path != made)


def load(work: Path, runs: int, viewers: int, pushes: int, seconds: float) -> bool:
    """Pages, events and memory under load; whether the bars are held."""
    reports, seen = work / "reports", Load()
    handed = _pushed_runs(work, pushes)
    for number in range(runs):
        make_run(reports, number, scale=1.0 + 0.001 * (number % 7), decision=("GO", "NO_GO")[number % 5 == 0])
    folder, journal = make_running(reports)
    run = spec(folder, steps=1_000_000)
    with journal, started(work) as (server, address):
        journal.append("run_started", run=run.id, as_it_is={"spec": run})
        group = "past?runbook=smoke-cpu&machine=2+x+NVIDIA+H200,+NVLink"
        one = f"runs/{BEGIN:%Y%m%dT%H%M%SZ}-ddp-2xa100-host-0000/"
        paths = ("", "past", "past?page=20", group, "fleet", one, f"runs/{folder.root.name}/", "api/v1/runs", "metrics")
        threads = [
            threading.Thread(target=_ask, args=(seen, address, paths)),
            threading.Thread(target=_weigh, args=(seen, server)),
        ]

        async def all_of_it() -> list[str]:
            views = [asyncio.create_task(_view(seen, address)) for _ in range(viewers)]
            writing = asyncio.create_task(_write(seen, folder.root / run.out / "training.csv"))
            await asyncio.sleep(3)
            for thread in threads:
                thread.start()
            command = (sys.executable, "-m", "validator", "push", "--to", address.rstrip("/"))
            out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "env": _environment(work)}
            began = time.monotonic()
            sent = [await asyncio.create_subprocess_exec(*command, str(path), **out) for path in handed]
            ended = await asyncio.gather(*(one.communicate() for one in sent))
            failed = [said.decode() for one, (said, _) in zip(sent, ended, strict=True) if one.returncode]
            took_s = time.monotonic() - began
            print(f"{len(sent) - len(failed)} of {len(sent)} pushes arrived in {took_s:.1f} s", *failed[:1], sep="\n")
            await asyncio.sleep(seconds)
            seen.done = True
            await asyncio.gather(*views, writing)
            return failed

        failed = asyncio.run(all_of_it())
        for thread in threads:
            thread.join()
    p95 = statistics.quantiles(seen.page_s, n=20)[-1]
    late = statistics.quantiles(seen.late_s, n=100)
    print(f"{len(seen.page_s)} pages: median {statistics.median(seen.page_s):.3f} s, p95 {p95:.3f} s")
    print(f"{len(seen.late_s)} events: median {late[49]:.2f} s, p99 {late[98]:.2f} s, latest {max(seen.late_s):.2f} s")
    print(f"memory: at most {seen.mib:.0f} MiB", flush=True)
    return p95 <= 0.2 and late[98] <= 1.0 and seen.mib <= 300 and not failed


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; 0 where the bars are held, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cost", type=float, metavar="SECONDS", help="measure the cost beside a run, so long each")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--pushes", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long pages are asked for after the pushes")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if given.cost is not None:
            return 0 if cost(work, given.cost, given.repeats) else 1
        return 0 if load(work, given.runs, given.viewers, given.pushes, given.seconds) else 1


if __name__ == "__main__":
    raise SystemExit(main())
