"""Phases of one run that left some files, judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.validator.judge.samples import runbook
from validator.diagnose import diagnose
from validator.ingest import collect_run
from validator.judge import judge_phase
from validator.kinds.registry import kind_of
from validator.model.nodes import NodeRecord, NodeRecords
from validator.model.plan import RunSpec
from validator.model.record import Attempt, Outcome, PhaseRecord, RunRecord, ValidationRecord
from validator.model.verdict import Finding, PhaseReport, ValidationReport
from validator.plan import plan_phase

CARDS = [f"GPU-{letter * 8}" for letter in "abcdefgh"]


def machine(gpus: int, name: str = "NVIDIA H200") -> dict[str, Any]:
    """A snapshot with so many cards of a kind."""
    card = {"name": name, "nvlinks_active": 18, "serial": "1650", "pci_bus_id": "00000000:1B:00.0"}
    return {
        "host": "node7",
        "gpu_driver": {"driver": "580.1"},
        "gpus": {f"gpu{index}": {**card, "index": index, "uuid": CARDS[index]} for index in range(gpus)},
        "env": {"NCCL_NVLS_ENABLE": "0"},
    }


def judged(
    folder: Path,
    phase: Mapping[str, Any],
    write: Callable[[Path], None],
    *,
    gpus: int,
    last_go: ValidationReport | None = None,
    facts: dict[str, Any] | None = None,
    nodes: Mapping[str, dict[str, Any]] | None = None,
) -> PhaseReport:
    """A phase whose run ended well and left what `write` writes into its folder; `nodes` are those of a cluster, with
    their facts."""
    return explained(folder, phase, lambda spec, out: write(out), gpus=gpus, last_go=last_go, facts=facts, nodes=nodes)[
        0
    ]


def explained(
    folder: Path,
    phase: Mapping[str, Any],
    write: Callable[[RunSpec, Path], None],
    *,
    gpus: int,
    last_go: ValidationReport | None = None,
    facts: dict[str, Any] | None = None,
    nodes: Mapping[str, dict[str, Any]] | None = None,
) -> tuple[PhaseReport, tuple[Finding, ...]]:
    """The same with the findings; `write` sees which run of the phase it is."""
    cluster = {"cluster": {"engine": "local", "nodes": len(nodes)}} if nodes else {}
    book = runbook({"id": "it", **phase}, hardware={"gpus": gpus}, **cluster)
    done = []
    for spec in plan_phase(book, book.phases[0], run_dir=folder).runs:
        out = folder / spec.out
        (out / "logs").mkdir(parents=True)
        if nodes is not None:
            _write_nodes(spec, out, nodes)
        write(spec, out)
        attempt = Attempt(
            number=1, command=spec.argv, pid=1, started="2026-01-01T00:00:00Z", duration_s=9.0, rc=0, reason="exited"
        )
        outcome = Outcome(run=spec.id, attempts=(attempt,))
        read = kind_of(spec.kind).read
        done.append(RunRecord(spec, outcome, collect_run(spec, run_dir=folder, outcome=outcome, read=read)))
    record = PhaseRecord(phase=book.phases[0], state="done", runs=tuple(done))
    validation = ValidationRecord(book, (record,), environment=facts or machine(gpus), last_go=last_go)
    report = judge_phase(record, validation=validation, judged={})
    return report, diagnose(validation, (report,))


def _write_nodes(spec: RunSpec, out: Path, facts: Mapping[str, dict[str, Any]]) -> None:
    names = list(facts)
    left = NodeRecords(
        schema=1,
        nodes=tuple(
            NodeRecord(node=names[at], group=group, rank=rank, ended="exited", rc=0, facts=facts[names[at]])
            for group, members in enumerate(spec.groups)
            for rank, at in enumerate(members)
        ),
    )
    (out / "nodes.json").write_text(left.model_dump_json(by_alias=True))


def found(report: PhaseReport, name: str) -> tuple[str, str]:
    """Status and message of an implicit criterion."""
    one = next(one for one in report.criteria if one.id == f"it.{name}")
    return one.status, one.message
