"""Validations made of artifact folders, and what is diagnosed in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.validator.ingest.folders import outcome, record, spec, write_arrivals, write_csv, write_env, write_heartbeat
from validator.diagnose import diagnose, diagnose_run
from validator.ingest import collect_dir, collect_run
from validator.kinds.registry import kind_of
from validator.model.plan import RunSpec
from validator.model.record import Outcome, PhaseRecord, RunRecord, ValidationRecord
from validator.model.runbook import Runbook
from validator.model.verdict import Check, Finding, PhaseReport

EFFECTIVE: Mapping[str, Any] = {
    "attention": "nsa",
    "seq_len": 2048,
    "batch_size": 1,
    "accum": 1,
    "n_layers": 12,
    "dim": 768,
    "vocab_size": 256,
    "dtype": "bf16",
    "warmup_steps": 10,
    "steps": 60,
    "lr": 2e-4,
    "ddp_compress": "off",
    "opt_fused": "off",
    "prefill": "batched",
    "data": "synthetic",
}


def steady(n: int = 60, *, rate: float = 845.0) -> list[float]:
    """Rates that scatter by under one percent around `rate`, without a trend."""
    return [rate * (1 + 0.006 * ((i * 7) % 5 - 2) / 2) for i in range(n)]


def healthy(
    folder: Path,
    *,
    rate: float = 845.0,
    n: int = 60,
    ranks: int = 2,
    effective: Mapping[str, Any] | None = None,
    env: Mapping[str, Any] | None = None,
    rates: Sequence[float] | None = None,
    losses: Sequence[float] | None = None,
    rank_fields: Mapping[int, Mapping[str, Any]] | None = None,
    **columns: Sequence[float],
) -> Path:
    """A run of the bundled trainer without a fault, but for what the arguments change."""
    rates = rates if rates is not None else steady(n, rate=rate)
    config = {**EFFECTIVE, "steps": len(rates), **(effective or {})}
    tokens = config["seq_len"] * config["batch_size"] * config["accum"] * ranks
    times = [tokens / r if r > 0 else 1.0 for r in rates]
    write_csv(folder, rates, losses=losses, **{"step_time_s": times, "grad_norm": [0.9] * len(rates), **columns})
    facts = {
        "world_size": ranks,
        "tokens_per_step": tokens,
        "grad_bytes": 157_000_000,
        "weight_dtype": "float32",
        "env": {},
        **(env or {}),
    }
    write_env(folder, effective=config, **facts)
    for rank in range(ranks):
        own = (rank_fields or {}).get(rank, {})
        clock, records = 3.0, [record(0, ts=3.0, rank=rank, msg="boot")]
        for step, seconds in enumerate(times, start=1):
            clock += seconds
            fields = {"step_time_s": seconds, "compute_time_s": 0.97 * seconds, "dt_fetch_s": 0.002 * seconds, **own}
            records.append(record(step, ts=clock, rank=rank, **fields))
        write_heartbeat(folder, [*records, record(len(rates), ts=clock + 1, rank=rank, msg="done")], rank=rank)
    (folder / "metrics.json").write_text("{}")
    write_arrivals(folder, times)
    return folder


def run_of(folder: Path, *, ended: Outcome | None = None, **changes: Any) -> RunRecord:
    """A record of the run in that folder."""
    own = spec(out=folder.name, **{"steps": 60, "warmup_steps": 10, **changes})
    ended = ended or outcome()
    read = kind_of(own.kind).read
    return RunRecord(own, ended, collect_run(own, run_dir=folder.parent, outcome=ended, read=read))


def of_run(folder: Path, *, ended: Outcome | None = None, **changes: Any) -> dict[str, Finding]:
    """Findings on one run by code; the most severe of each."""
    return _by_code(diagnose_run(run_of(folder, ended=ended, **changes)))


def of_folder(folder: Path) -> dict[str, Finding]:
    """Findings as `inspect` has them: no plan, no outcome."""
    result = collect_dir(folder)
    own = RunSpec(
        id=folder.name, phase="inspect", kind="train", launcher="python", argv=(), env={}, out=".", timeout_s=0
    )
    return _by_code(diagnose_run(RunRecord(own, None, result)))


def validation(
    phases: Mapping[str, Sequence[RunRecord]],
    *,
    kinds: Mapping[str, Mapping[str, Any]] | None = None,
    checks: Mapping[str, Sequence[Check]] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> ValidationRecord:
    """A validation whose phases hold these runs; `kinds` are the phases' own fields, a plain train phase by default."""
    plain = {"kind": "train", "steps": 60}
    own_kinds = {name: (kinds or {}).get(name, plain) for name in phases}
    declared = [{"id": name, **own_kinds[name]} for name in phases]
    book = Runbook.model_validate({"schema": 1, "name": "case", "phases": declared})
    records = tuple(
        PhaseRecord(
            phase=book.phase(name),
            state="done",
            runs=tuple(
                RunRecord(
                    run.spec.model_copy(update={"phase": name, "kind": book.phase(name).kind}), run.outcome, run.result
                )
                for run in runs
            ),
            checks=tuple((checks or {}).get(name, ())),
        )
        for name, runs in phases.items()
    )
    return ValidationRecord(book, tuple(records), environment or {})


def of_validation(record: ValidationRecord, reports: Sequence[PhaseReport] = ()) -> dict[str, Finding]:
    """Findings on a whole validation by code; the most severe of each."""
    return _by_code(diagnose(record, reports))


def _by_code(findings: Sequence[Finding]) -> dict[str, Finding]:
    first: dict[str, Finding] = {}
    for finding in findings:
        assert finding.next_step
        assert finding.message
        first.setdefault(finding.code, finding)
    return first


UNCERTAIN = {"config-unknown"}
"""Said of every folder whose trainer does not tell what it ran."""
