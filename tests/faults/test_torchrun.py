"""The supervisor against the real torchrun, whose workers live in sessions of their own."""

from __future__ import annotations

import secrets
import sys
from contextlib import closing
from pathlib import Path

from tests.validator.supervise.tools import TRAINER_FILES, marked, watchdog
from validator.model.plan import RunSpec
from validator.model.record import Outcome
from validator.runs.journal import Journal
from validator.supervise.attempt import AttemptContext
from validator.supervise.guardian import Guardian
from validator.supervise.supervisor import supervise
from validator.supervise.termination import Grace
from validator.supervise.wait import CancelToken

WORKER = """
import json, os, signal, sys, time
rank, out = int(os.environ["RANK"]), os.environ["OUT"]
for step in range(1, 6):
    time.sleep(0.05)
    with open(f"{out}/heartbeat_rank{rank}.jsonl", "a") as file:
        file.write(json.dumps({"ts": time.time(), "pid": os.getpid(), "rank": rank, "step": step, "msg": "x"}) + "\\n")
if rank == 1 and "stop" in sys.argv:
    os.kill(os.getpid(), signal.SIGSTOP)
if rank == 1 and "raise" in sys.argv:
    raise RuntimeError("rank 1 ran out of luck")
time.sleep(60)
"""


def _run(folder: Path, vice: str) -> tuple[Outcome, str]:
    worker = folder / "worker.py"
    worker.write_text(WORKER, encoding="utf-8")
    out = "runs/p/r1"
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1")
    logs = ("--master-port", "{port}", "--log-dir", str(folder / out / "logs/ranks"), "--redirects", "3")
    spec = RunSpec(
        id="p/r1",
        phase="p",
        kind="train",
        launcher="torchrun",
        argv=(*launcher, *logs, str(worker), vice),
        env={"OUT": str(folder / out), "OMP_NUM_THREADS": "1"},
        out=out,
        nproc=2,
        steps=10,
        timeout_s=120,
        metrics=TRAINER_FILES.model_copy(update={"csv": None}),
        # torchrun itself may need a while on a busy machine to see that a rank is gone.
        watchdog=watchdog(first_step=60, stall=1.0 if vice == "stop" else 30.0),
    )
    token = secrets.token_hex(8)
    grace = Grace(term_s=8.0, leftover_s=2.0, kill_s=5.0, stacks_s=0.5)
    with (
        Journal.open(folder / "journal.jsonl") as journal,
        Guardian.start(token=token) as guardian,
        closing(CancelToken()) as cancel,
    ):
        return supervise(spec, AttemptContext(folder, journal, token, cancel, guardian, grace=grace)), token


def test_a_rank_that_stops_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    outcome, token = _run(tmp_path, "stop")
    assert outcome.reason == "stalled"
    assert "is stopped (state T)" in (outcome.last.detail or "")
    assert marked(token) == []
    assert {Path(path).name for path in outcome.last.bundle} >= {"machine.json", "processes.json"}
    assert '"rank": "1"' in (tmp_path / outcome.last.bundle[1]).read_text()


def test_a_rank_that_raises_has_the_last_word(tmp_path: Path) -> None:
    outcome, token = _run(tmp_path, "raise")
    assert (outcome.reason, outcome.rc) == ("exited", 1)
    assert "after 5 steps: last words of rank 1: RuntimeError: rank 1 ran out of luck" in (outcome.last.detail or "")
    assert marked(token) == []
