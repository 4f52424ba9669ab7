"""Is the machine what the runbook was written for, and healthy? Checks, and probes of what it can do.

The probes are compared with public values (`validator/model/bounds.py`); those of matrix products are best ones, so the
best repeat is compared with them. A machine that is in no list is measured and not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validator import cluster
from validator.documents import number_at
from validator.kinds.base import Found, ImplicitCriterion, JudgedRun, Kind, Planner, Rule, Seen, Site
from validator.kinds.machine import PAYLOAD, bound_criteria, counter_criteria, link_criteria
from validator.model.bounds import GEMM
from validator.model.phases import PreflightPhase
from validator.model.runbook import Runbook
from validator.runbook.problems import Problem

if TYPE_CHECKING:
    from validator.cluster.search import Search
    from validator.ingest.result_builder import ResultBuilder
    from validator.model.plan import Role, RunSpec, Started
    from validator.model.record import PhaseRecord, RunRecord, ValidationRecord
    from validator.model.verdict import Check

_REQUIREMENT = re.compile(
    r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\s*(\[[^\]]*\])?\s*"
    r"((===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9.*+!_-]+\s*(,\s*(?=[=~!<>])|$))*"
)
"""The part of a requirement that a runbook may use: name and version bounds (PEP 508 without markers and URLs), such as
`torch[extra]>=2.6,<3`."""

_PROBE_TIMEOUT_S = 300.0

_RATES = {
    "gemm_bf16": "probe.gemm_tflops",
    "copy": "probe.copy_gb_s",
    "host_to_device": "probe.host_to_device_gb_s",
    "device_to_host": "probe.device_to_host_gb_s",
    "peer_to_peer": "probe.peer_gb_s",
    "all_reduce": "probe.all_reduce_gb_s",
}
"""Keys of probe.json, and the scalars that they become."""

_BOUNDED = (GEMM, *(name for key, name in _RATES.items() if key != "gemm_bf16"))
"""The scalars that public bounds are about."""

_LINK = {"_pcie_gen": "probe.pcie_gen", "_pcie_width": "probe.pcie_width"}
"""Endings of the telemetry's columns, and the scalars that they become."""


class Preflight(Kind[PreflightPhase]):
    """Checks before anything runs, then the probes."""

    schema = PreflightPhase
    looks = True
    asks_unwritten = (
        ("probe", "probe.NAME", "bounds", "counters", "alike"),
        "the probes ran; each reaches its [public bound](machine.md), if any; links count no errors; nodes are alike",
    )

    def check(self, phase: PreflightPhase, site: Site) -> Iterator[Problem]:
        """Every required package can be read, and looked up."""
        if phase.packages and site.runbook.trainer.container is not None:
            message = f"phase {phase.id} requires packages, and those of trainer.container are not looked into"
            yield site.problem(message, "remove packages, and pin the image by its tag or digest", "packages")
        for position, text in enumerate(phase.packages):
            if _REQUIREMENT.fullmatch(text.strip()) is None:
                fix = "write a name, with bounds if wanted: 'torch>=2.6,<3'"
                yield site.problem(f"package {text!r} cannot be read", fix, "packages", position)

    def asks(self, phase: PreflightPhase, runbook: Runbook) -> bool:
        """What is declared of the machine could be missing."""
        hardware = runbook.hardware
        declared = hardware.gpus or hardware.cpu_cores or hardware.memory or hardware.disk_free
        return bool(declared or phase.packages or phase.git_clean or phase.git_branch)

    def checks(self, phase: PreflightPhase, *, runbook: Runbook, run_dir: Path, python: str) -> tuple[Check, ...]:
        """Of the machine, its software and its GPUs."""
        from validator.system.preflight import preflight  # loads psutil

        return preflight(phase, runbook=runbook, run_dir=run_dir, python=python)

    def runs(self, phase: PreflightPhase, planner: Planner) -> Iterator[RunSpec]:
        """What the machine can do, measured by one process a GPU, under the variables that every run has."""
        hardware = planner.runbook.hardware
        if not phase.probes(hardware):
            if planner.groups:  # agents make the checks on their nodes, and start something
                yield planner.process(phase, ("true",), part="probe", launcher="exec", timeout_s=_PROBE_TIMEOUT_S)
            return
        yield _probe(phase, planner, "probe")

    def further(self, phase: PreflightPhase, planner: Planner, runs: Sequence[RunRecord]) -> Iterator[RunSpec]:
        """The next round of the slow-node search."""
        search = self.searched(phase, planner.runbook, runs)
        asked = None if search is None else search.next()
        if asked is not None:
            options = [f"--only={name}" for name in asked.measures]
            options.append(f"--repeats={asked.repeats}")
            among = planner.among(cluster.fleet.groups_of(asked))
            yield _probe(phase, among, f"round{len(runs)}", *options, role="round")

    def good_nodes(self, phase: PreflightPhase, runbook: Runbook, runs: Sequence[RunRecord]) -> tuple[str, ...]:
        """Those that no round found slow, where they are enough."""
        search = self.searched(phase, runbook, runs)
        if search is None or runbook.cluster is None:
            return ()
        names = cluster.fleet.node_names(runs)
        best = cluster.fleet.chosen(search.judgement(), runbook.cluster.nodes)
        return tuple(names[index] for index in best if index in names)

    def searched(self, phase: PreflightPhase, runbook: Runbook, runs: Sequence[RunRecord]) -> Search | None:
        """The search after the rounds that were carried out; None where there are no nodes, or nothing is measured."""
        done = [run.result.evidence.own for run in runs if run.result is not None]
        if runbook.cluster is None or phase.on not in (None, "each", "pairs") or not phase.probes(runbook.hardware):
            return None
        return cluster.fleet.search_over(
            runbook.cluster.count,
            links=phase.on == "pairs",
            gpus=runbook.hardware.gpus,
            facts=_facts(runs),
            rounds=phase.rounds,
            done=[one for one in done if isinstance(one, cluster.fleet.Measured)],
        )

    def sample_s(self, spec: RunSpec) -> float | None:
        """Often: the probes' transfers are over in a moment."""
        return 0.1

    def read(self, spec: RunSpec, gathered: ResultBuilder, log: Path | None) -> None:
        """The slowest rank's rate of each probe, the best state of the worst PCIe link, and a table by rank.

        What was not measured is absent.
        """
        if spec.launcher == "exec":
            return
        if spec.groups:
            gathered.evidence.own = _measured(spec, gathered)
        if spec.role == "round":
            _read_round(gathered)
            return
        ranks: dict[str, Mapping[str, Any]] = {}
        source, slowest_us, payload = None, None, None
        for name, folder in _folders(spec, gathered):
            read = gathered.json_object(folder / "probe.json", what="the probes' record")
            if read is None:
                continue
            record, source = read[0], source or read[1]
            rates, listed = record.get("rates"), record.get("ranks")
            every = listed if listed and isinstance(listed, list) else [rates]
            ranks |= {f"{name}{rank}": one for rank, one in enumerate(every) if isinstance(one, Mapping)}
            latency = number_at(rates, "all_reduce", "latency_us")
            slowest_us = max(filter(None, (latency, slowest_us)), default=None)
            payload = number_at(rates, "all_reduce", "bytes") or payload
        for key, scalar in _RATES.items():
            gathered.add_scalar(scalar, _slowest(ranks.values(), key, "value"), source, _whose(ranks, key, "value"))
        whose = _whose(ranks, "gemm_bf16", "best")
        gathered.add_scalar(GEMM, _slowest(ranks.values(), "gemm_bf16", "best"), source, whose)
        gathered.add_scalar("probe.all_reduce_latency_us", slowest_us, source)
        gathered.add_scalar(PAYLOAD, None if payload is None else payload / 2**30, source)
        if ranks:
            _read_links(gathered)
            gathered.add_shown_table("What the machine can do", ("Probe", "Unit", *ranks), _rows(ranks))

    def measured_criteria(self, record: PhaseRecord, validation: ValidationRecord) -> Iterator[ImplicitCriterion]:
        """The probes were made, they reach the bounds of such a machine, and PCIe is at its best."""
        gpus, environment = validation.runbook.hardware.gpus, validation.environment
        runs = [JudgedRun(run) for run in record.runs]
        if runs[0].spec.groups:
            yield ImplicitCriterion("alike", "the nodes are alike", _alike)
            environment = next((node.facts for node in runs[0].evidence.nodes if node.facts), {})
            if runs[0].spec.launcher == "exec":
                return
            yield ImplicitCriterion("slow", "enough nodes are left that are not slow", _not_slow(record, validation))
        yield ImplicitCriterion("probe", "the probes run to their end", _made)
        spec = runs[0].spec
        environment = {**environment, "env": {**environment.get("env", {}), **spec.env}}
        one_host = all(len(group) == 1 for group in spec.groups)
        yield from bound_criteria(environment, gpus, _BOUNDED, one_host=one_host)
        if gpus > 0:
            yield from (one for one in link_criteria(environment, gpus) if runs[0].number(one.name) is not None)
            yield from counter_criteria(runs)


# Rounds of the slow-node search.


def _probe(phase: PreflightPhase, planner: Planner, part: str, *options: str, role: Role = "measure") -> RunSpec:
    gpus = planner.runbook.hardware.gpus
    together = any(len(group) > 1 for group in planner.groups)
    nproc = max(1, gpus) if together else gpus if gpus > 1 else 0
    values = planner.values(phase, part, nproc=nproc)
    device = "cuda" if gpus else "cpu"
    argv = (*planner.probe(nproc, values), "--device", device, "--out", f"{values['out']}/probe.json", *options)
    launcher: Started = "torchrun" if nproc else "python"
    return planner.process(
        phase, argv, part=part, role=role, launcher=launcher, nproc=nproc, timeout_s=_PROBE_TIMEOUT_S, retries=0
    )


def _measured(spec: RunSpec, gathered: ResultBuilder) -> cluster.fleet.Measured:
    """What the ranks of each group recorded."""
    found: dict[int, list[Mapping[str, Any]]] = {}
    for index, (_, folder) in enumerate(_folders(spec, gathered)):
        read = gathered.json_object(folder / "probe.json", what="the probes' record")
        ranks = None if read is None else read[0].get("ranks")
        if isinstance(ranks, list):
            found[index] = [one for one in ranks if isinstance(one, Mapping)]
    return cluster.fleet.Measured(spec.groups, found)


def _facts(runs: Sequence[RunRecord]) -> list[Mapping[str, Any]]:
    """What each node says it is, by the first run of the phase."""
    first = runs[0] if runs else None
    nodes = first.result.evidence.nodes if first is not None and first.result is not None else ()
    return [node.facts or {} for node in nodes]


def _read_round(gathered: ResultBuilder) -> None:
    """The slowest link of a round of pairs."""
    own = gathered.evidence.own
    assert isinstance(own, cluster.fleet.Measured)
    pairs = [ranks for index, ranks in own.ranks.items() if len(own.groups[index]) == 2]
    rates = [rate for ranks in pairs if (rate := _slowest(ranks, "all_reduce", "value")) is not None]
    gathered.add_scalar("links.min_gb_s", min(rates, default=None))


def _not_slow(record: PhaseRecord, validation: ValidationRecord) -> Rule:
    """As many nodes as the runbook names are neither slow nor joined by a slow link, by the whole search."""
    runbook, phase = validation.runbook, record.phase
    assert runbook.cluster is not None
    assert isinstance(phase, PreflightPhase)
    search, count = Preflight().searched(phase, runbook, record.runs), runbook.cluster.nodes
    names = cluster.fleet.node_names(record.runs)

    def rule(run: JudgedRun) -> Found:
        if search is None:
            return Found("SKIPPED", "Nothing was measured.")
        judgement = search.judgement()
        accused = "; ".join(cluster.fleet.slow_text(one, names) for one in judgement.slow)
        if cluster.fleet.chosen(judgement, count):
            replaced = f", and others are used in place of what is slow: {accused}" if accused else ""
            return Found(
                "PASS", f"{count} nodes are left that are not slow{replaced}.", len(judgement.compatible), count
            )
        if accused:
            return Found("FAIL", f"Slow: {accused}.", len(judgement.compatible), count)
        return Found("INCONCLUSIVE", f"Not decided: {cluster.fleet.undecided_text(judgement, names)}.", None, count)

    return rule


# What the probes left.


def _folders(spec: RunSpec, gathered: ResultBuilder) -> list[tuple[str, Path]]:
    """Where records are, with what the columns of each begin with: the node's name where there are several."""
    if len(spec.groups) < 2:
        return [("Rank ", gathered.out)]
    names = {one.group: one.node for one in gathered.evidence.nodes if one.rank == 0}
    groups = range(len(spec.groups))
    return [(f"{names.get(index, f'group {index}')} rank ", gathered.out / f"g{index}") for index in groups]


def _slowest(ranks: Iterable[Mapping[str, Any]], key: str, value: str) -> float | None:
    return min((found for one in ranks if (found := number_at(one, key, value)) is not None), default=None)


def _whose(ranks: Mapping[str, Mapping[str, Any]], key: str, value: str) -> str | None:
    """Which of several ranks is the slowest; a collective is as slow for each."""
    found = {name: rate for name, one in ranks.items() if (rate := number_at(one, key, value)) is not None}
    if len(found) < 2 or key == "all_reduce":
        return None
    slowest = min(found, key=lambda name: found[name])
    return f"{slowest} is the slowest"


def _read_links(gathered: ResultBuilder) -> None:
    """Idle links lower their generation, so of each GPU the best sample counts, and of the GPUs the worst."""
    read = gathered.small_file(gathered.out / "logs" / "telemetry.csv", what="the machine's telemetry")
    if read is None:
        return
    lines = [line.split(",") for line in read[0].decode("utf-8", "replace").splitlines() if line.strip()]
    header, rows = (lines or [[]])[0], lines[1:]
    for ending, name in _LINK.items():
        columns = [index for index, column in enumerate(header) if column.endswith(ending)]
        best = [max(values) for column in columns if (values := list(_column_numbers(rows, column)))]
        gathered.add_scalar(name, min(best) if best else None, read[1])


def _column_numbers(rows: list[list[str]], column: int) -> Iterator[float]:
    for row in rows:
        if column < len(row) and row[column].strip().isdecimal():
            yield float(row[column])


def _rows(ranks: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str | float | None, ...]]:
    """A row for each probe: its unit, and its rate on every rank."""
    for key in dict.fromkeys(key for one in ranks.values() for key in one):
        first = next(one[key] for one in ranks.values() if key in one)
        unit = str(first.get("unit", ""))[:300] if isinstance(first, Mapping) else ""
        values = [number_at(one, key, "value") for one in ranks.values()]
        yield (str(key), unit, *(None if value is None else round(value, 2) for value in values))


def _alike(run: JudgedRun) -> Found:
    nodes = run.evidence.nodes
    why = ((node.node, f": {node.detail}" if node.detail else "") for node in nodes if not node.facts)
    silent = [f"{name} did not say what it is{reason}" for name, reason in why]
    if silent or not nodes:
        return Found("INCONCLUSIVE", f"{'; '.join(silent) or 'No node said what it is'}.")
    found = cluster.alike.differences(nodes)
    deciding = [one for one in found if one.decides]
    path = f"{run.spec.out}/nodes.json"
    evidence = tuple(Seen(one.text, path) for one in found)
    if deciding:
        message = f"Nodes differ in what must be the same: {'; '.join(one.text for one in deciding)}."
        return Found("FAIL", message, len(deciding), 0, evidence)
    noted = f"; they differ in {', '.join(one.what for one in found)}" if found else ""
    message = f"{len(nodes)} nodes have the same software and the same GPUs, and their clocks agree{noted}."
    return Found("PASS", message, 0, 0, evidence)


def _made(run: JudgedRun) -> Found:
    if run.outcome is None:
        return Found("INCONCLUSIVE", "The probes have not ended.")
    rc = run.outcome.rc
    if not run.outcome.ok:
        detail = run.outcome.last.detail or f"exit code {rc}"
        return Found("FAIL", f"The probes could not be made: {detail.rstrip('.')}; see the run's log.", rc)
    if run.number("probe.gemm_tflops") is None:
        return Found("FAIL", "The probes ended and left no record, so what the machine can do is not known.", rc)
    return Found("PASS", "The probes ran and left their record.", rc)
