"""Cases that start no trainer: the run folder of a finished validation is written, and `validator report` judges it."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import accumulate
from pathlib import Path
from typing import Any

from validator.kinds.registry import load
from validator.model.plan import RunSpec
from validator.model.record import Attempt, Outcome, Reason
from validator.model.verdict import Check
from validator.plan import make_plan
from validator.runs.folder import RunFolder
from validator.runs.journal import Journal
from validator.selftest.case import Case, CaseRun, Expected, Group, RunCase, Sandbox, read_result

# The files of one run as a trainer writes them.

CONFIG: Mapping[str, Any] = {
    "seq_len": 2048,
    "batch_size": 1,
    "accum": 1,
    "n_layers": 12,
    "dim": 768,
    "vocab_size": 50257,
    "dtype": "bf16",
    "warmup_steps": 10,
    "lr": 2e-4,
    "ddp_compress": "off",
    "opt_fused": "off",
    "prefill": "batched",
    "data": "synthetic",
}


def scatter(level: float, n: int = 120, *, share: float = 0.005, seed: int = 1) -> list[float]:
    """`n` values that scatter about a level by a share of it, without a trend."""
    noise = random.Random(seed)
    return [level * (1 + share * noise.gauss(0, 1)) for _ in range(n)]


def falling(n: int = 120, *, first: float = 10.8, last: float = 7.0) -> list[float]:
    """A loss that falls as it should."""
    return [last + (first - last) * (1 - i / max(1, n - 1)) ** 2 for i in range(n)]


Damage = Callable[[Path], None]
"""Changes a run's output folder."""


@dataclass(frozen=True)
class FakeRun:
    """A healthy run of the given rates (tokens/s, one a row), except for what the fields change.

    `config` and `requested` override `CONFIG`; with `config_reported` false env.json has no effective config. `fields`
    are added to every rank's progress, `rank_fields` to one rank's. `pauses` are seconds after a step that neither
    its rate nor its step time includes. `without` names files that are not written, `files` are further ones with
    their text; `damage` changes the folder at the end. `resumed_at` is the step after which another process continued,
    `jump_s` a step and by how many seconds the wall clock is set there.
    """

    rates: Sequence[float] = field(default_factory=lambda: scatter(40_000.0))
    losses: Sequence[float] | None = None
    steps: Sequence[int] | None = None
    columns: Mapping[str, Sequence[float]] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    requested: Mapping[str, Any] = field(default_factory=dict)
    config_reported: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, float] = field(default_factory=dict)
    rank_fields: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    ranks: int | None = None
    compute_share: float = 0.95
    pauses: Mapping[int, float] = field(default_factory=dict)
    stdout: str = ""
    stderr: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    resumed_at: int | None = None
    jump_s: tuple[int, float] | None = None
    damage: Damage | None = None
    rc: int | None = 0
    reason: Reason = "exited"
    detail: str | None = None
    idle_s: float = 2.0
    killed: tuple[int, ...] = ()

    def write(self, root: Path, spec: RunSpec) -> Outcome:
        """Write the run's folder below `root`; returns how the run ended."""
        out = root / spec.out
        (out / "logs").mkdir(parents=True)
        times = self._times(spec)
        span_s = sum(times) + sum(self.pauses.values()) + 3.0 + self.idle_s
        start_s = time.time() - span_s
        texts = {"training.csv": self._table(times), "metrics.json": '{"status": "done"}'}
        texts["env.json"] = json.dumps(self._env_file(spec, start_s))
        texts["arrivals.jsonl"] = self._arrivals(times)
        for rank in range(self._ranks(spec)):
            texts[f"heartbeat_rank{rank}.jsonl"] = self._beats(rank, times, start_s)
        texts |= {"logs/stdout.log": self.stdout, "logs/stderr.log": self.stderr, **self.files}
        for name, text in texts.items():
            if name not in self.without:
                (out / name).parent.mkdir(parents=True, exist_ok=True)
                (out / name).write_text(text, encoding="utf-8", errors="surrogateescape")
        if self.damage is not None:
            self.damage(out)
        return self._outcome(spec, start_s, span_s)

    def _ranks(self, spec: RunSpec) -> int:
        return spec.world_size if self.ranks is None else self.ranks

    def _config(self, spec: RunSpec) -> dict[str, Any]:
        return {**CONFIG, "steps": spec.steps, **self.config}

    def _tokens(self, spec: RunSpec) -> float:
        config = self._config(spec)
        return float(config["seq_len"] * config["batch_size"] * config["accum"] * self._ranks(spec))

    def _times(self, spec: RunSpec) -> list[float]:
        tokens = self._tokens(spec)
        return [tokens / rate if rate > 0 else 1.0 for rate in self.rates]

    def _steps(self) -> Sequence[int]:
        return self.steps if self.steps is not None else range(1, len(self.rates) + 1)

    def _table(self, times: Sequence[float]) -> str:
        losses = self.losses if self.losses is not None else falling(len(self.rates))
        norms = scatter(0.9, len(self.rates), share=0.05, seed=3)
        columns = {"step_time_s": times, "grad_norm": norms, **self.columns}
        lines = [",".join(("step,loss,lr,toks_per_s", *columns))]
        for i, step in enumerate(self._steps()):
            cells = (step, f"{losses[i]:.5f}", 2e-4, f"{self.rates[i]:.3f}", *(c[i] for c in columns.values()))
            lines.append(",".join(map(str, cells)))
        return "\n".join(lines) + "\n"

    def _arrivals(self, times: Sequence[float]) -> str:
        """The supervisor's stamps: each row arrived when its step, and the pause before it, was over."""
        waits = (self.pauses.get(step - 1, 0.0) for step in self._steps())
        moments = accumulate((time + wait for time, wait in zip(times, waits, strict=True)), initial=2.0)
        next(moments)
        lines = [
            json.dumps({"source": "training.csv", "offset": 60 * i, "step": step, "s": at})
            for i, (step, at) in enumerate(zip(self._steps(), moments, strict=True), start=1)
        ]
        return "".join(line + "\n" for line in lines)

    def _env_file(self, spec: RunSpec, start_s: float) -> dict[str, Any]:
        config = self._config(spec)
        requested = {**config, **self.requested}
        facts = {
            "schema_version": 1,
            "time_unix_s": start_s + 1.0,
            "world_size": self._ranks(spec),
            "tokens_per_step": self._tokens(spec),
            "grad_bytes": 500_000_000,
            "weight_dtype": "float32",
            "env": {},
            "requested": requested,
        }
        return {**facts, **({"effective": config} if self.config_reported else {}), **self.facts}

    def _beats(self, rank: int, times: Sequence[float], start_s: float) -> str:
        clock, pid, done = start_s + 2.0, 4000 + rank, 0
        lines = []

        def beat(msg: str, **fields: Any) -> None:
            jumped = self.jump_s[1] if self.jump_s is not None and done >= self.jump_s[0] else 0.0
            mark = {"ts": clock + jumped, "iso": "", "pid": pid, "rank": rank, "step": done, "msg": msg}
            lines.append(json.dumps({**mark, **fields}))

        beat("boot")
        own = {**self.fields, **self.rank_fields.get(rank, {})}
        for i, step in enumerate(self._steps()):
            clock += times[i] + self.pauses.get(step - 1, 0.0)
            if self.resumed_at is not None and done == self.resumed_at:
                pid += 100
                beat("boot")
            done = step
            measured = {"step_time_s": times[i], "compute_time_s": self.compute_share * times[i], "dt_fetch_s": 0.001}
            beat("progress", **{**measured, **own})
        if self.reason == "exited" and self.rc == 0:
            beat("done", status="done")
        return "\n".join(lines) + "\n"

    def _outcome(self, spec: RunSpec, start_s: float, span_s: float) -> Outcome:
        attempt = Attempt(
            number=1,
            command=spec.argv or ("trainer",),
            pid=4000,
            started=datetime.fromtimestamp(start_s, timezone.utc).isoformat(timespec="milliseconds"),
            duration_s=span_s,
            rc=self.rc,
            reason=self.reason,
            detail=self.detail,
            killed=self.killed,
        )
        return Outcome(run=spec.id, attempts=(attempt,))


# The runbook, and the run folder of its finished validation.

TRAINER = Path(__file__).with_name("trainer.py")

ALL_FILES: Mapping[str, str] = {
    "csv": "training.csv",
    "heartbeat": "heartbeat_rank{rank}.jsonl",
    "env": "env.json",
    "metrics": "metrics.json",
}

ACCEPT = ("toks_per_s.mean >= 1000", "loss.last < loss.first", "heartbeat.max_gap_s <= 60 s")
"""Bounds that every healthy run here meets by far."""

MACHINE: Mapping[str, Any] = {"cpu": {"cores_logical": 16}, "gpus": {"gpu0": {"memory_total_mib": 81_920.0}}}
"""A snapshot of a machine with one GPU of 80 GiB."""


def train(id: str = "baseline", **fields: Any) -> dict[str, Any]:
    """A phase that trains for 120 steps."""
    return {"id": id, "kind": "train", "steps": 120, "accept": list(ACCEPT), **fields}


def book(
    *phases: Mapping[str, Any],
    nproc: int = 2,
    metrics: Mapping[str, str] = ALL_FILES,
    args: Mapping[str, Any] | None = None,
    **defaults: Any,
) -> str:
    """A runbook as text; JSON is YAML. Without phases it has one, `train()`."""
    watchdog = {"first_step": "20s", "stall": "3s", "interval": "100ms", "stall_factor": 4, "gates": True}
    content = {
        "schema": 1,
        "name": "selftest",
        "trainer": {
            "command": [str(TRAINER)],
            "args": {"steps": "{steps}", "out": "{out}", **(args or {})},
            "metrics": dict(metrics),
        },
        "defaults": {"nproc": nproc, "timeout": "60s", "warmup_steps": 10, "watchdog": watchdog, **defaults},
        "phases": [dict(phase) for phase in (phases or (train(),))],
    }
    return json.dumps(content, indent=1)


@dataclass(frozen=True)
class RecordedCase:
    """Writes the run folder of a finished validation of the runbook `text`, and has it judged.

    `fake` is what each run left: one `FakeRun` for all, or a function of the run's plan. `machine` is the snapshot of
    the machine, `checks` are the results of preflight phases by their id.
    """

    text: str
    fake: FakeRun | Callable[[RunSpec], FakeRun]
    machine: Mapping[str, Any] = field(default_factory=dict)
    checks: Mapping[str, Sequence[Check]] = field(default_factory=dict)

    def __call__(self, sandbox: Sandbox) -> CaseRun:
        """Write the folder and judge it with `validator report`."""
        rc, _, err = sandbox.call("report", str(self.write(sandbox)))
        return read_result(sandbox, rc, err)

    def write(self, sandbox: Sandbox) -> Path:
        """The run folder, not yet judged: header, journal, snapshot, and every run's files."""
        loaded = load(sandbox.write("runbook.yaml", self.text))
        parent = sandbox.folder / "reports"
        folder = RunFolder.create(loaded, parent=parent, python=sys.executable, only=(), skip=())
        plan = make_plan(loaded.runbook, run_dir=folder.root, python=sys.executable, only=(), skip=())
        folder.save_environment(self.machine)
        with Journal.open(folder.journal) as journal:
            journal.append(
                "started", sync=False, run_id=folder.header.run_id, marker=sandbox.token, as_it_is={"plan": plan}
            )
            for phase in plan.phases:
                journal.append("phase_started", sync=False, phase=phase.phase)
                if phase.phase in self.checks:
                    checks = list(self.checks[phase.phase])
                    journal.append("phase_checks", sync=False, phase=phase.phase, checks=checks)
                for spec in phase.runs:
                    fake = self.fake if isinstance(self.fake, FakeRun) else self.fake(spec)
                    outcome = fake.write(folder.root, spec)
                    journal.append("run_started", sync=False, run=spec.id, as_it_is={"spec": spec})
                    journal.append("run_ended", sync=False, run=spec.id, outcome=outcome)
                journal.append("phase_ended", sync=False, phase=phase.phase, state="done", reason=None, duration_s=1.0)
            journal.append("finished", finished=folder.header.started, duration_s=1.0)
        return folder.root


def case(
    name: str,
    title: str,
    group: Group,
    expect: Expected,
    run: RunCase | FakeRun,
    *codes: str,
    text: str | None = None,
    **more: Any,
) -> Case:
    """A case; a `FakeRun` is what every run of the runbook `text` left, by default of a single training phase."""
    if isinstance(run, FakeRun):
        run = RecordedCase(book() if text is None else text, run, MACHINE)
    return Case(name, title, group, expect, run, codes, **more)


# What several cases have in common.


def by_phase(text: str, runs: Mapping[str, FakeRun]) -> RecordedCase:
    """A validation whose phases left different runs."""
    return RecordedCase(text, lambda spec: runs[spec.phase])


def sweep(arms: Mapping[object, FakeRun], *, over: str) -> RecordedCase:
    """A sweep over one setting with four repeats, each of another seed."""
    phase = {
        "id": "sweep",
        "kind": "sweep",
        "steps": 120,
        "over": {over: list(arms)},
        "repeats": 4,
        "accept": ["loss.last < loss.first"],
        "choose": {"highest": "toks_per_s.mean"},
    }

    def repeat(spec: RunSpec) -> FakeRun:
        value = spec.settings[over]
        level = sum(arms[value].rates) / len(arms[value].rates)
        off = (1.0, 1.002, 0.998, 1.001)[spec.repeat - 1]
        return replace(arms[value], rates=scatter(level * off, seed=spec.repeat + 7 * list(arms).index(value)))

    return RecordedCase(book(phase), repeat)


def sampled(
    *,
    gpu_pct: float,
    throttled: range = range(0),
    shared: range = range(0),
    cpu_pct: float = 12.0,
    others_pct: float = 0.0,
    together: int = 220,
) -> RecordedCase:
    """A healthy run during which the machine was sampled every tenth of a second; `throttled`, and `shared` with
    another program, count samples of the GPU, and `together` those in which both ranks are alive.

    `cpu_pct` of all cores are busy, `others_pct` of them with other programs.
    """

    def sampled_run(_: RunSpec) -> FakeRun:
        start_s = time.time() - 20.0  # runs end at the moment they are written
        cells = f"{cpu_pct},{others_pct},{gpu_pct}"
        rows = (
            f"{start_s + 0.1 * i:.3f},{cells},{0x40 if i in throttled else 0},{int(i in shared)},{1 + (i < together)}"
            for i in range(220)
        )
        header = "ts,host_cpu_pct,host_other_cpu_pct,gpu0_util_pct,gpu0_throttle_mask,gpu0_foreign_processes"
        header += ",host_run_ranks"
        text = "\n".join((header, *rows)) + "\n"
        return FakeRun(files={"logs/telemetry.csv": text})

    return RecordedCase(book(), sampled_run, MACHINE)


def failed_check(id: str, message: str) -> RecordedCase:
    """A preflight in which one check fails, and a healthy baseline after it."""
    bad = Check(id=id, title=id, status="FAIL", observed="3", expected="0", message=message)
    good = Check(id="disk_free", title="free space", status="PASS", observed="900 GiB")
    phases = ({"id": "preflight", "kind": "preflight"}, train())
    return RecordedCase(book(*phases), FakeRun(), checks={"preflight": (good, bad)})


def edited(name: str, edit: Callable[[list[bytes]], list[bytes]]) -> Damage:
    """Change a file's lines."""

    def damage(out: Path) -> None:
        path = out / name
        path.write_bytes(b"\n".join(edit(path.read_bytes().split(b"\n"))))

    return damage
