"""Damaged run folders: they are judged, never raise, and a damaged one is never GO. Whole ones of a loss that fails are
NO-GO."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.mutate import mutate_file
from tests.fuzz.oracle import is_damaged
from validator.diagnose import diagnose
from validator.judge import decide
from validator.pipeline.evaluate import judge
from validator.pipeline.write import rerender
from validator.runs.folder import RunFolder
from validator.runs.replay import reconstruct
from validator.selftest.case import Sandbox
from validator.selftest.recorded_case import FakeRun, RecordedCase, book, falling, scatter, train

__all__ = ["FolderCase", "Whole", "play_folder"]

STEPS, RANKS = 60, 2
_FILES = ("training.csv", "heartbeat_rank0.jsonl", "heartbeat_rank1.jsonl", "env.json", "metrics.json")
_FURTHER = ("logs/stdout.log", "logs/stderr.log", "k_stats.csv", "sdpa_audit.json", "logs/telemetry.csv")
_OURS = ("journal.jsonl", "environment.json")


@dataclass(frozen=True)
class FolderCase:
    """What became of one damaged folder. `problem` is None when all is well."""

    seed: int
    decision: str | None
    damaged: bool
    problem: str | None


class Whole:
    """A sound validation that ends in GO, and its trainer's folder."""

    def __init__(self, folder: Path) -> None:
        stage = Sandbox(folder, "fuzz")
        further = {"k_stats.csv": "step,k\n1,2\n2,3\n", "sdpa_audit.json": '{"summary": ["win ran flash"]}'}
        further["logs/telemetry.csv"] = "ts,host_cpu_pct\n1,2\n"
        fake = FakeRun(
            rates=scatter(40_000.0, STEPS),
            losses=falling(STEPS),
            files=further,
            stdout="step 5/60 ETA 0:00:05\n",
        )
        accept = ["toks_per_s.mean >= 1000", "loss.last < loss.first", "heartbeat.max_gap_s <= 60 s"]
        text = book(train(steps=STEPS, accept=accept, warmup_steps=5))
        self.root = RecordedCase(text, fake).write(stage)


def decision_of(root: Path) -> str:
    """The decision on a run folder, judged as `validator report` does, but for the writing."""
    folder = RunFolder.open(root)
    record = reconstruct(folder)
    phases = judge(record)
    findings = diagnose(record, phases)
    for finding in findings:
        finding.model_dump_json()
    pending = tuple(phase.phase.id for phase in record.phases if phase.state in ("pending", "running"))
    return decide(phases, findings, pending=pending)[0]


def sicken(table: Path, draw: random.Random) -> str:
    """Let the loss fail from some row of the first half on, as a trainer writes that. Returns what became of it."""
    names, *lines = table.read_text(encoding="utf-8").splitlines()
    rows, loss = [line.split(",") for line in lines], names.split(",").index("loss")
    way, worst = draw.choice(("nan", "inf", "rising")), max(float(row[loss]) for row in rows)
    for number, row in enumerate(rows[draw.randrange(2, len(rows) // 2) :]):
        row[loss] = str(worst * 1.5 * 1.02**number) if way == "rising" else way
    table.write_text("\n".join([names, *map(",".join, rows)]) + "\n", encoding="utf-8")
    return way


def play_folder(whole: Whole, scratch: Path, seed: int) -> FolderCase:
    """Damage a copy of the folder as the seed says, judge it, and hold the decision against the oracle."""
    draw = random.Random(seed)
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(whole.root, scratch)
    out = scratch / "runs" / "baseline" / "r1"
    if draw.random() < 0.1:
        way, decision = sicken(out / "training.csv", draw), decision_of(scratch)
        problem = None if decision == "NO_GO" else f"{decision} although the loss is {way}"
        return FolderCase(seed, decision, damaged=False, problem=problem)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        where = draw.random()
        if where < 0.85:
            mutate_file(out / draw.choice(_FILES), draw, names=_FILES)
        elif where < 0.95:
            mutate_file(out / draw.choice(_FURTHER), draw, names=_FURTHER)
        else:
            mutate_file(scratch / draw.choice(_OURS), draw, names=_OURS)
    damaged = is_damaged(out, steps=STEPS, ranks=RANKS)
    try:
        decision = decision_of(scratch)
        if seed % 200 == 0:
            rerender(RunFolder.open(scratch))
    except Exception as error:  # the point of the exercise: whatever it is, it is a problem
        from validator.errors import FolderError

        journal = scratch / "journal.jsonl"
        if isinstance(error, FolderError) and (journal.is_symlink() or not journal.is_file()):
            return FolderCase(seed, None, damaged, None)
        return FolderCase(seed, None, damaged, f"{type(error).__name__}: {error}")
    if decision == "GO" and damaged:
        return FolderCase(seed, decision, damaged, "GO although evidence was removed or garbled")
    return FolderCase(seed, decision, damaged, None)
