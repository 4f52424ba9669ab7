"""Builds output folders as trainers leave them, and the spec and outcome that go with them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from itertools import accumulate
from pathlib import Path
from typing import Any

from validator.model.plan import RunSpec
from validator.model.record import Attempt, Outcome, Reason
from validator.model.result import Result
from validator.model.runbook import BUNDLED_METRICS

START_S = 1_760_000_000.0
"""When the runs of these tests were started, Unix seconds."""


def spec(**changes: Any) -> RunSpec:
    """A training run of two ranks whose folder is the run folder itself."""
    values: dict[str, Any] = {
        "id": "baseline/r1",
        "phase": "baseline",
        "kind": "train",
        "launcher": "torchrun",
        "argv": (),
        "env": {},
        "out": ".",
        "nproc": 2,
        "timeout_s": 600.0,
        "metrics": BUNDLED_METRICS,
    }
    return RunSpec(**{**values, **changes})


def outcome(
    *, rc: int | None = 0, reason: Reason = "exited", duration_s: float = 1e6, started_s: float = START_S, **more: Any
) -> Outcome:
    """One attempt that ended as told."""
    started = datetime.fromtimestamp(started_s, timezone.utc).isoformat()
    attempt = Attempt(
        number=1, command=("x",), pid=1, started=started, duration_s=duration_s, rc=rc, reason=reason, **more
    )
    return Outcome(run="baseline/r1", attempts=(attempt,))


def write_csv(
    folder: Path,
    rates: Sequence[float],
    *,
    losses: Sequence[float] | None = None,
    steps: Sequence[int] | None = None,
    header: bool = True,
    **columns: Sequence[float],
) -> Path:
    """`training.csv`; the loss falls unless it is given."""
    steps = steps or range(1, len(rates) + 1)
    losses = losses if losses is not None else [3.0 - 1.5 * i / max(1, len(rates)) for i in range(len(rates))]
    lrs = columns.pop("lr", [0.0003] * len(rates))
    lines = [",".join(["step,loss,lr,toks_per_s", *columns])] if header else []
    for i, (step, loss, rate) in enumerate(zip(steps, losses, rates, strict=True)):
        lines.append(",".join(map(str, [step, loss, lrs[i], rate, *(c[i] for c in columns.values())])))
    path = folder / "training.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def record(step: int, *, ts: float, rank: int = 0, msg: str = "progress", **fields: Any) -> dict[str, Any]:
    """One heartbeat record, `ts` in seconds after the start."""
    return {"ts": START_S + ts, "iso": "", "pid": 100 + rank, "rank": rank, "step": step, "msg": msg, **fields}


def write_heartbeat(folder: Path, records: Iterable[Mapping[str, Any]], *, rank: int = 0) -> Path:
    """`heartbeat_rank{rank}.jsonl`."""
    path = folder / f"heartbeat_rank{rank}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def write_arrivals(
    folder: Path, times: Sequence[float], *, source: str = "training.csv", steps: Sequence[int] | None = None
) -> Path:
    """`arrivals.jsonl`: each row arrived when its steps were over, `times` after the one before."""
    moments = accumulate(times, initial=3.0)
    next(moments)
    stamps = zip(steps or range(1, len(times) + 1), moments, strict=True)
    lines = [json.dumps({"source": source, "offset": 30 * step, "step": step, "s": at}) for step, at in stamps]
    path = folder / "arrivals.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def write_env(folder: Path, *, effective: Mapping[str, Any] | None = None, **facts: Any) -> Path:
    """`env.json`; requested is effective unless it is given."""
    path = folder / "env.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = dict(facts)
    if effective is not None:
        content = {"requested": dict(effective), "effective": dict(effective), **facts}
    path.write_text(json.dumps({"schema_version": 1, **content}))
    return path


def write_logs(folder: Path, *, stdout: str = "", stderr: str = "", rank: int | None = None) -> None:
    """Logs of the launcher, or of a rank as torchrun lays them out."""
    where = folder / "logs" if rank is None else folder / "logs" / "ranks" / "none_abc" / "attempt_0" / str(rank)
    where.mkdir(parents=True, exist_ok=True)
    (where / "stdout.log").write_text(stdout)
    (where / "stderr.log").write_text(stderr)


def scalar(result: Result, name: str) -> object:
    """The value of a scalar."""
    return result.scalars[name].value


def codes(result: Result) -> set[str]:
    """Of all irregularities."""
    return {i.code for i in result.irregularities}


def healthy(folder: Path, *, ranks: int = 2, steps: int = 6) -> None:
    """What two ranks of the bundled trainer leave."""
    write_csv(folder, [100.0 + i for i in range(steps)], step_time_s=[0.5] * steps)
    write_env(
        folder,
        effective={"seq_len": 128, "batch_size": 2, "model": {"dim": 64}},
        world_size=ranks,
        tokens_per_step=512,
        time="2025-10-09T08:54:00+00:00",
    )
    (folder / "metrics.json").write_text('{"loss_last": 1.5, "mfu": null, "status": "done", "odd name": NaN}')
    for rank in range(ranks):
        own = [record(i, ts=4 + i, rank=rank, compute_time_s=0.2 * (rank + 1)) for i in range(1, steps + 1)]
        write_heartbeat(folder, [record(0, ts=3, rank=rank, msg="boot"), *own], rank=rank)
