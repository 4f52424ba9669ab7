"""Runs of several ranks as torchrun starts them, one process per rank and a store that all of them find, but within
milliseconds: see rank_server. What torchrun itself does about its workers is tested with torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

__all__ = ["RankServer", "Ranks", "is_running"]

ROOT = Path(__file__).parents[2]


def _state(pid: int) -> tuple[str, int]:
    """A process's state, a letter (X: there is none), and its parent."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    return words[0], int(words[1])


def is_running(pid: int) -> bool:
    """Whether a process does or could still do something; one that is dead but not yet collected does not."""
    return _state(pid)[0] not in "ZX"


class Ranks:
    """The processes of one run, by rank. `store` lives as long as they do."""

    def __init__(self, pids: list[int], folder: Path, store: Any, *, parent: int) -> None:
        self.pids, self._folder, self._store, self._parent = pids, folder, store, parent

    def kill(self) -> None:
        """SIGKILL to every process, also to one that is stopped."""
        for pid in self.pids:
            if _state(pid)[1] == self._parent:  # the number of one that ended may be another's by now
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def wait(self, timeout_s: float = 90) -> list[int | None]:
        """Wait for all of them; their exit codes, None for one that a signal killed. Fails when it takes too long."""
        deadline = time.monotonic() + timeout_s
        while any(map(is_running, self.pids)):
            if time.monotonic() > deadline:
                said = self.said
                self.kill()
                raise AssertionError(f"still running after {timeout_s} s:\n{said}")
            time.sleep(0.005)
        codes = [self._folder / f"code_{rank}" for rank in range(len(self.pids))]
        return [int(path.read_text()) if path.exists() else None for path in codes]

    def _read(self, stream: str) -> str:
        logs = (self._folder / f"{stream}_{rank}" for rank in range(len(self.pids)))
        return "".join(log.read_text(errors="replace") for log in logs if log.exists())

    @property
    def out(self) -> str:
        """Standard output of all ranks, one behind the other."""
        return self._read("out")

    @property
    def err(self) -> str:
        """Standard error of all ranks, one behind the other."""
        return self._read("err")

    @property
    def said(self) -> str:
        """Both."""
        return self.out + self.err


class RankServer:
    """Starts ranks; one per test process serves all its tests."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0
        self._started: list[Ranks] = []
        env = {k: v for k, v in os.environ.items() if not k.startswith("NSA_")} | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(Path(__file__).with_name("rank_server.py"))]
        self._process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._answer() == "ready"

    def _answer(self) -> str:
        return self._process.stdout.readline().strip()

    def _fork(self, program: str, args: Sequence[str], env: dict[str, str], folder: Path, rank: int) -> int:
        order = {
            "program": program,
            "args": list(args),
            "env": env,
            **{name: str(folder / f"{name}_{rank}") for name in ("out", "err", "code")},
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._answer())

    def _new_folder(self) -> Path:
        self._number += 1
        folder = self._folder / f"run_{self._number}"
        folder.mkdir(parents=True)
        return folder

    def start_alone(self, program: str, args: Sequence[str], **env: str) -> Ranks:
        """Start `program`, a module or a file, as `python -m` does, with further variables in its environment."""
        folder = self._new_folder()
        pid = self._fork(program, args, os.environ | {"OMP_NUM_THREADS": "1"} | env, folder, 0)
        alone = Ranks([pid], folder, None, parent=self._process.pid)
        self._started.append(alone)
        return alone

    def start(self, program: str, args: Sequence[str], *, nproc: int = 2) -> Ranks:
        """Start `program`, a module or a file, on `nproc` ranks that find each other as under torchrun."""
        folder = self._new_folder()
        store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), wait_for_workers=False)
        shared = os.environ | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "WORLD_SIZE": str(nproc),
            "LOCAL_WORLD_SIZE": str(nproc),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        pids = [
            self._fork(program, args, shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, folder, rank)
            for rank in range(nproc)
        ]
        ranks = Ranks(pids, folder, store, parent=self._process.pid)
        self._started.append(ranks)
        return ranks

    def close(self) -> None:
        """End the server, and what a failed test left running."""
        for ranks in self._started:
            ranks.kill()
        self._process.stdin.close()
        self._process.wait(timeout=30)
        if self._process.stdout is not None:
            self._process.stdout.close()
