"""What one run leaves in its folder, written as a trainer writes it: the material of cases that start no process."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import accumulate
from pathlib import Path
from typing import Any

from validator.model.outcome import Attempt, Outcome, Reason
from validator.model.plan import RunSpec

__all__ = ["CONFIG", "Sheet", "falling", "scatter"]

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


@dataclass(frozen=True)
class Sheet:
    """A healthy run of the given rates, but for what the fields change.

    `config` and `asked` are laid over `CONFIG`; `tell` false leaves the effective config out of env.json. `fields` are
    added to every rank's progress, `rank_fields` to one rank's. `without` names files that are not written, `files`
    further ones with their text; `damage` is done to the folder at the end. `resumed_at` is the step after which
    another process went on.
    """

    rates: Sequence[float] = field(default_factory=lambda: scatter(40_000.0))
    losses: Sequence[float] | None = None
    steps: Sequence[int] | None = None
    columns: Mapping[str, Sequence[float]] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)
    tell: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, float] = field(default_factory=dict)
    rank_fields: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    ranks: int | None = None
    compute_share: float = 0.95
    stdout: str = ""
    stderr: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    resumed_at: int | None = None
    jump_s: tuple[int, float] | None = None
    damage: Callable[[Path], None] | None = None
    rc: int | None = 0
    reason: Reason = "exited"
    detail: str | None = None
    idle_s: float = 2.0
    killed: tuple[int, ...] = ()

    def write(self, root: Path, spec: RunSpec) -> Outcome:
        """Write the run's folder below `root`; how it ended."""
        out = root / spec.out
        (out / "logs").mkdir(parents=True)
        times = self._times(spec)
        span_s = sum(times) + 3.0 + self.idle_s
        start_s = time.time() - span_s
        texts = {"training.csv": self._table(spec, times), "metrics.json": '{"status": "done"}'}
        texts["env.json"] = json.dumps(self._account(spec, start_s))
        texts["arrivals.jsonl"] = self._arrivals(times)
        for rank in range(self._ranks(spec)):
            texts[f"heartbeat_rank{rank}.jsonl"] = self._beats(spec, rank, times, start_s)
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

    def _table(self, spec: RunSpec, times: Sequence[float]) -> str:
        losses = self.losses if self.losses is not None else falling(len(self.rates))
        norms = scatter(0.9, len(self.rates), share=0.05, seed=3)
        columns = {"step_time_s": times, "grad_norm": norms, **self.columns}
        lines = [",".join(("step,loss,lr,toks_per_s", *columns))]
        for i, step in enumerate(self._steps()):
            cells = (step, f"{losses[i]:.5f}", 2e-4, f"{self.rates[i]:.3f}", *(c[i] for c in columns.values()))
            lines.append(",".join(map(str, cells)))
        return "\n".join(lines) + "\n"

    def _arrivals(self, times: Sequence[float]) -> str:
        """The supervisor's stamps: each row arrived when its step was over."""
        moments = accumulate(times, initial=2.0)
        next(moments)
        lines = [
            json.dumps({"source": "training.csv", "offset": 60 * i, "step": step, "s": at})
            for i, (step, at) in enumerate(zip(self._steps(), moments, strict=True), start=1)
        ]
        return "".join(line + "\n" for line in lines)

    def _account(self, spec: RunSpec, start_s: float) -> dict[str, Any]:
        config = self._config(spec)
        asked = {**config, **self.asked}
        facts = {
            "schema_version": 1,
            "time_unix_s": start_s + 1.0,
            "world_size": self._ranks(spec),
            "tokens_per_step": self._tokens(spec),
            "grad_bytes": 500_000_000,
            "weight_dtype": "float32",
            "env": {},
            "requested": asked,
        }
        return {**facts, **({"effective": config} if self.tell else {}), **self.facts}

    def _beats(self, spec: RunSpec, rank: int, times: Sequence[float], start_s: float) -> str:
        clock, pid, done = start_s + 2.0, 4000 + rank, 0
        lines = []

        def beat(msg: str, **fields: Any) -> None:
            jumped = self.jump_s[1] if self.jump_s is not None and done >= self.jump_s[0] else 0.0
            mark = {"ts": clock + jumped, "iso": "", "pid": pid, "rank": rank, "step": done, "msg": msg}
            lines.append(json.dumps({**mark, **fields}))

        beat("boot")
        own = {**self.fields, **self.rank_fields.get(rank, {})}
        for i, step in enumerate(self._steps()):
            clock += times[i]
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
