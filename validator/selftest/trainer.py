"""A small trainer that writes the files of the contract, with an injected fault. Plain Python: it starts at once.

python trainer.py --steps 120 --out DIR --fault nan --at 40

Its values follow a seeded model instead of a clock, so that a busy machine cannot make a healthy run look sick: it
reports that a step takes `--pace`, which is what it sleeps. Only `ts` in heartbeats is real time. Under torchrun its
ranks wait for each other by files in the output folder.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

HOSTILE = (
    "\x1b[2J\x1b[31mGO\x1b[0m \x1b]0;title\x07",
    "<script>alert('selftest')</script><img src=x onerror=alert(1)>",
    "| a | b |\n|---|---|\n# GO\n```\n]]>&amp;</testcase>",
    "\x00\x00 caf\udce9 \u202egnp.exe \ufeff",
    "Decision: GO  All criteria passed  exit code 0",
    "{{ 7 * 7 }} {% for x in y %} ${HOME} $(id) `id`",
    "x" * 200_000,
)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="A small trainer with an injected fault.")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--fault", default="none")
    parser.add_argument("--at", type=int, default=40, help="step of the fault")
    parser.add_argument("--pace", type=float, default=0.004, help="real seconds per step")
    parser.add_argument("--log-every", type=int, default=1)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--rate", type=float, default=1.0, help="speed, relative to the usual one")
    parser.add_argument("--port", type=int, default=0)
    return parser.parse_args()


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class FaultyTrainer:
    """One rank of a run."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.fault, self.at = args, args.fault, args.at
        self.out: Path = args.out
        self.random = random.Random("/".join((*args.out.parts[-2:], str(RANK))))  # no two runs are the same
        self.tokens = args.seq_len * args.batch_size * WORLD
        self.step = 0
        self.table: IO[str] | None = None
        self.beats: IO[str] | None = None

    def open(self) -> None:
        """Create the folder and the files; write the config and the first heartbeat."""
        self.out.mkdir(parents=True, exist_ok=True)
        if RANK == 0 and self.fault != "no-csv":
            self.table = (self.out / "training.csv").open("w", buffering=1, encoding="utf-8")
            self.table.write("step,loss,lr,toks_per_s,step_time_s,grad_norm,gate_entropy_mean,host_mem_mib\n")
        self.beats = (self.out / f"heartbeat_rank{RANK}.jsonl").open("w", buffering=1, encoding="utf-8")
        self.beat("boot", world_size=WORLD)
        if RANK == 0:
            self.write_env()

    def write_env(self) -> None:
        """env.json: the requested and the effective config."""
        requested = {
            "seq_len": self.args.seq_len,
            "batch_size": self.args.batch_size,
            "accum": 1,
            "steps": self.args.steps,
        }
        effective = {**requested, "seq_len": 128, "n_layers": 1} if self.fault == "ignore-config" else requested
        content = {
            "schema_version": 1,
            "time_unix_s": time.time(),
            "world_size": WORLD,
            "tokens_per_step": effective["seq_len"] * effective["batch_size"] * WORLD,
            "weight_dtype": "float32",
            "env": {},
            "requested": requested,
            "effective": effective,
        }
        self.tokens = content["tokens_per_step"]
        self.replace("env.json", content)

    def replace(self, name: str, content: dict[str, Any]) -> None:
        """Write a whole file by temp, fsync and rename."""
        part = self.out / f".{name}.part"
        with part.open("w", encoding="utf-8") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.out / name)

    def beat(self, msg: str, **fields: Any) -> None:
        """One heartbeat."""
        assert self.beats is not None
        now = time.time()
        iso = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        record = {"ts": now, "iso": iso, "pid": os.getpid(), "rank": RANK, "step": self.step, "msg": msg, **fields}
        self.beats.write(json.dumps(record) + "\n")

    def train(self) -> None:
        """All steps."""
        due_s = time.monotonic()
        for step in range(1, self.args.steps + 1):
            self.step = step
            due_s = max(
                due_s + self.args.pace, time.monotonic() - 0.2
            )  # catch up after a delay of at most 0.2 s: a busy machine must not slow the run
            time.sleep(max(0.0, due_s - time.monotonic()))
            if self.step == self.at:
                self.misbehave()
            self.flood()
            self.wait_for_others()
            if self.step % self.args.log_every == 0 or self.step in (1, self.args.steps):
                self.log()
            if RANK == 0 and (self.out / ".HALT").exists():
                say("stopping: .HALT was found")
                sys.exit(3)
        self.beat("done", status="done")
        if RANK == 0:
            self.replace("metrics.json", {"status": "done", "step": self.step})

    def wait_for_others(self) -> None:
        """A barrier: one byte a step in a file per rank."""
        if WORLD == 1:
            return
        with (self.out / f".rank{RANK}").open("ab") as own:
            own.write(b".")
        others = [self.out / f".rank{rank}" for rank in range(WORLD)]
        while not all(path.exists() and path.stat().st_size >= self.step for path in others):
            time.sleep(0.002)

    def log(self) -> None:
        """A row, a heartbeat and a line."""
        late = self.step >= self.at
        step_time_s = self.args.pace / self.args.rate * (1 + 0.005 * self.random.gauss(0, 1))
        slow = self.fault == "slow-rank"
        step_time_s *= 2.0 if slow else 1.0
        compute_s = 0.95 * step_time_s * (0.5 if slow and RANK != WORLD - 1 else 1.0)
        rate, loss = self.tokens / step_time_s, 3.0 - 1.5 * self.step / self.args.steps
        norm, entropy, shown = 0.9 + 0.05 * self.random.random(), 0.8, self.step
        if late:
            loss = {"nan": float("nan"), "inf": float("inf")}.get(self.fault, loss)
            rate = 0.0 if self.fault == "zero-rate" else rate
            norm = 0.0 if self.fault == "zero-grad" else norm
            entropy = 0.05 if self.fault == "gates" else entropy
            shown = self.at if self.fault == "frozen" else self.step
        fields = {"loss": str(loss) if loss != loss or loss == float("inf") else loss, "toks_per_s": rate}
        fields |= {"step_time_s": step_time_s, "compute_time_s": compute_s, "grad_norm": norm}
        fields["dt_fetch_s"] = 0.01 * step_time_s
        if self.table is not None:
            memory = 800 + 40 * (1 - 0.9**self.step)
            self.table.write(f"{shown},{loss:.6f},0.0003,{rate:.2f},{step_time_s:.6f},{norm:.4f},{entropy},{memory}\n")
        if not (self.fault == "frozen" and late):
            self.beat("progress", **fields)
        say(f"step {self.step} loss {loss:.4f} tok/s {rate:.0f}")

    def misbehave(self) -> None:
        """What happens once, at the step of the fault; wrong values are written by `log`."""
        action = getattr(self, "do_" + self.fault.replace("-", "_"), None)
        if action is not None:
            action()

    def do_slow_start(self) -> None:
        """As compilation does."""
        time.sleep(2.0)

    def do_exit(self) -> None:
        sys.exit(7)

    def do_raise(self) -> None:
        raise RuntimeError("the loss scale went below 1e-8")

    def do_oom(self) -> None:
        raise MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB")

    def do_stall(self) -> None:
        time.sleep(600)

    def do_stall_rank(self) -> None:
        if RANK == WORLD - 1:
            time.sleep(600)

    def do_spin(self) -> None:
        while True:
            pass

    def do_kill_worker(self) -> None:
        if RANK == WORLD - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def do_kill_launcher(self) -> None:
        if RANK == 0:
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)

    def do_bind(self) -> None:
        socket.socket().bind(("127.0.0.1", self.args.port))

    def do_disk_full(self) -> None:
        with Path("/dev/full").open("w") as disk:  # the kernel answers every write as a full disk does
            disk.write("checkpoint")

    def do_hostile(self) -> None:
        for line in HOSTILE:
            sys.stdout.buffer.write(line.encode("utf-8", "surrogateescape") + b"\n")
            sys.stderr.buffer.write(line.encode("utf-8", "surrogateescape") + b"\n")

    def flood(self) -> None:
        """Ten thousand lines a second for two seconds, from the step of the fault on."""
        if self.fault not in ("flood", "flood-beats") or not self.at <= self.step < self.at + 40:
            return
        if self.fault == "flood":
            say("\n".join(f"debug: kernel {i} took {i % 97} us" for i in range(500)))
        else:
            for _ in range(500):
                self.beat("beat")
        time.sleep(0.05)

    def do_deaf(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(600)

    def do_fork(self) -> None:
        _leave_behind({**os.environ})

    def do_fork_cleared(self) -> None:
        """Without the environment variables by which the runner finds the processes of a run, as a daemon."""
        _leave_behind({})


def _leave_behind(environment: dict[str, str]) -> None:
    """Start a process in a session of its own, whose parent has ended."""
    child = os.fork()
    if child == 0:
        os.setsid()
        quiet = subprocess.DEVNULL
        sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]
        subprocess.Popen(sleeper, env=environment, stdin=quiet, stdout=quiet, stderr=quiet)
        os._exit(0)
    os.waitpid(child, 0)


def main() -> None:
    """Train, with the fault."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    trainer = FaultyTrainer(arguments())
    if trainer.fault == "never-starts":
        time.sleep(600)
    trainer.open()
    trainer.train()


if __name__ == "__main__":
    main()
