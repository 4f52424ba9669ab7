"""What the history keeps of one run folder: which decision, on which machine, and the metrics that are followed."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from validator.errors import ExitCode
from validator.files import Tree, is_file
from validator.model.catalogue import METRICS, Better, Metric
from validator.model.machine import MIN_EFFECT, NODES_ALONE, machine_class, sound_snapshot
from validator.runs.pushed import pushed_by

PIN = ".pinned"
"""A file of this name in a run folder keeps retention from removing it."""

SAMPLE = "sample-"
"""Folders of this prefix come with the source tree and are no validations of this machine."""

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
"""`toks_per_s.mean` and `tokens.per_step` in `toks_per_s.mean / tokens.per_step`."""

MAX_RESULT = 16 << 20
"""Bytes of the largest result.json that is read here: whoever reads many must not need the memory for it,
which is up to thirty times its text.

The largest of real validations have two megabytes.
"""

LARGEST = 1e120
"""No measurement is as large; greater ones could not be squared."""

_OPERATOR = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*")
"""`>=` with its spaces in `toks_per_s.mean >= 900`."""


@dataclass(frozen=True)
class Point:
    """One metric of one validation. `value` is the mean over `n` runs; `better` is None where neither way is.

    `version` is that of the metrics' definitions; points of different versions are never in the same trend.
    """

    phase: str
    metric: str
    unit: str
    value: float
    better: Better | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    n: int = 1
    version: int = 1


@dataclass(frozen=True)
class PastNode:
    """A node in one validation: its state, and its worst value as a share of the fleet's median."""

    name: str
    state: str
    share: float | None

    @property
    def slow(self) -> bool:
        """Whether it is to be remembered."""
        return self.state in ("slow", "lost") or (self.share is not None and self.share < 1 - MIN_EFFECT)


@dataclass(frozen=True)
class HistoryEntry:
    """One validation.

    `folder` is the name of its run folder; `software` what may change between two comparable ones; `variant` what was
    not as the runbook declares it (overrides, phases left out), empty when all was. `undecided` names what was
    compared without an answer: sweeps and A/Bs, and `last GO` for the comparison with that. `branch` is git's, empty
    where there was none. Of a run that was handed in, `host` and the names of nodes begin with the token's: `ci/gpu7`.
    `decision` is that of result.json, or INTERRUPTED: what a signal ended has no decision until it is resumed, unless
    it had failed by then.
    """

    folder: str
    run_id: str
    runbook: str
    title: str | None
    machine: str
    host: str
    decision: str
    why: str
    started: str
    finished: str | None
    duration_s: float | None
    variant: str
    software: Mapping[str, str] = field(default_factory=dict)
    points: tuple[Point, ...] = ()
    pinned: bool = False
    undecided: tuple[str, ...] = ()
    nodes: tuple[PastNode, ...] = ()
    branch: str = ""

    @property
    def decided(self) -> bool:
        """Whether there is a decision, which counts until the next one."""
        return self.decision not in ("IN_PROGRESS", "INTERRUPTED")


def run_folders(parent: Path) -> Iterator[Path]:
    """Run folders directly below `parent` whose validation got as far as a first report.

    Links are left out: `latest` names a run that counts already, and others may lead anywhere.
    """
    if not parent.is_dir():
        return
    for folder in sorted(parent.iterdir()):
        if folder.is_symlink() or folder.name.startswith((SAMPLE, ".")):
            continue
        if is_file(folder / "result.json"):
            yield folder


def stamp_of(folder: Path) -> str:
    """What changes whenever result.json does; a pin counts too. Two system calls: a service asks it of every folder.

    Empty when there is no such file, or it is a link or no regular file.
    """
    try:
        status = os.lstat(f"{folder}/result.json")
    except OSError:
        return ""
    if not stat.S_ISREG(status.st_mode):
        return ""
    return f"{status.st_mtime_ns}:{status.st_size}:{int(os.access(f'{folder}/{PIN}', os.F_OK))}"


def read_entry(folder: Path) -> HistoryEntry | None:
    """The entry of a run folder; None when its result.json is not one that can be read."""
    try:
        with Tree(folder) as tree:
            entry = _history_entry(folder, tree.json("result.json", limit=MAX_RESULT))
        by = pushed_by(folder)
        return _handed_in(entry, by) if by else entry
    except Exception:  # noqa: BLE001 -- a folder that others wrote must not hide those beside it
        return None


def _handed_in(entry: HistoryEntry, by: str) -> HistoryEntry:
    """The entry of a run that another machine handed in, under the name of its token.

    So it counts for no host, node or trend of this machine, nor for those of another token: no name of a host or of a
    token has a stroke in it.
    """
    nodes = tuple(replace(node, name=f"{by}/{node.name}") for node in entry.nodes)
    variant = "; ".join(filter(None, (entry.variant, f"results of {by}")))
    return replace(entry, host=f"{by}/{entry.host}", nodes=nodes, variant=variant)


def _history_entry(folder: Path, found: Mapping[str, Any]) -> HistoryEntry:
    environment = sound_snapshot(found.get("environment"))
    runbook, versions = found["runbook"], _versions(found["phases"])
    return HistoryEntry(
        folder=folder.name,
        run_id=str(found["run_id"]),
        runbook=str(runbook["name"]),
        title=_text_or_none(runbook.get("title")),
        machine=machine_class(environment),
        host=str(environment.get("host") or "unknown"),
        decision=_decision(found),
        why=str(found.get("why") or ""),
        started=str(found["started"]),
        finished=_text_or_none(found.get("finished")),
        duration_s=_measurement(found.get("duration_s")),
        variant=_variant(runbook.get("overrides") or (), found["phases"]),
        software=_software(environment, runbook),
        points=tuple(_unique(point for phase in found["phases"] for point in _versioned_points(phase, versions))),
        pinned=(folder / PIN).exists(),
        undecided=tuple(_undecided(found)),
        nodes=tuple(_nodes(found)),
        branch=str((environment.get("git") or {}).get("branch") or ""),
    )


def _decision(found: Mapping[str, Any]) -> str:
    """An interruption takes no failure back: what has ended is not repeated on resume."""
    decision = str(found["decision"])
    interrupted = found.get("exit_code") == ExitCode.INTERRUPTED and decision in ("GO", "INCONCLUSIVE")
    return "INTERRUPTED" if interrupted else decision


def _nodes(found: Mapping[str, Any]) -> Iterator[PastNode]:
    """The nodes of a cluster; those of `engine: local` are names of this machine."""
    fleet = found.get("fleet") or {"engine": "local"}
    shares: dict[str, list[float]] = {}
    for phase in found["phases"]:
        tables = [
            one for run in _deciding_runs(phase) for one in run.get("tables") or () if one["caption"] == NODES_ALONE
        ]
        for name in {str(row[0]) for one in tables for row in one["rows"]}:
            seen = [_measurement(row[2]) for one in tables for row in one["rows"] if row[0] == name]
            known = sorted(share for share in seen if share is not None)
            shares.setdefault(name, []).extend(known[len(known) // 2 :][:1])
    for node in fleet["nodes"] if fleet["engine"] != "local" else ():
        name, effect = str(node["name"]), _measurement(node.get("effect"))
        worst = [*shares.get(name, ()), *(() if effect is None else (1 + effect,))]
        yield PastNode(name, str(node["state"]), min(worst, default=None))


def _undecided(found: Mapping[str, Any]) -> Iterator[str]:
    for phase in found["phases"]:
        if (phase.get("comparison") or {}).get("outcome") == "not_decidable":
            yield str(phase["id"])
    if (found.get("since") or {}).get("verdict") == "not_decidable":
        yield "last GO"


def _versions(phases: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Version of the definition of each metric and scalar of a result, where it is not 1."""
    versions: dict[str, int] = {}
    for phase in phases:
        of_runs = [of for run in phase.get("runs") or () for of in (run.get("metrics"), run.get("scalars")) if of]
        for numbers in (*of_runs, phase.get("scalars") or {}):
            versions |= {name: int(one["version"]) for name, one in numbers.items() if one.get("version", 1) != 1}
    return versions


def _variant(overrides: Sequence[str], phases: Sequence[Mapping[str, Any]]) -> str:
    left_out = [str(phase["id"]) for phase in phases if phase["status"] == "SKIPPED" and not phase.get("runs")]
    return "; ".join(
        [*(f"--set {item}" for item in sorted(overrides)), *(f"--skip {phase}" for phase in sorted(left_out))]
    )


def _software(environment: Mapping[str, Any], runbook: Mapping[str, Any]) -> dict[str, str]:
    """What a change of level may come from: code, runbook, packages, driver."""
    packages, git = environment.get("packages") or {}, environment.get("git") or {}
    found = {
        "commit": str(git.get("sha") or "")[:12] + ("+changes" if git.get("dirty") else ""),
        "runbook": str(runbook.get("sha256") or "")[:12],
        "driver": str((environment.get("gpu_driver") or {}).get("driver") or ""),
        "python": str((environment.get("python") or {}).get("version") or ""),
        **{name: str(packages[name]) for name in ("torch", "triton", "numpy") if packages.get(name)},
    }
    return {name: value for name, value in found.items() if value}


def _versioned_points(phase: Mapping[str, Any], versions: Mapping[str, int]) -> Iterator[Point]:
    for point in _phase_points(phase):
        names = set(_NAME.findall(point.metric))
        metrics = {name.split(".")[-2] if name.count(".") else name for name in names}
        yield replace(point, version=max((versions.get(name, 1) for name in (*names, *metrics)), default=1))


def _phase_points(phase: Mapping[str, Any]) -> Iterator[Point]:
    from validator.model.schemas import reported  # the models of every kind, which an index without news does without

    name = str(phase["id"])
    for criterion in phase.get("criteria") or ():
        yield from _criterion_points(name, criterion)
    runs = _deciding_runs(phase)
    if reported(str(phase["kind"])).one_config:
        for metric in METRICS.values():
            if metric.history is not None:
                yield from _run_points(name, metric, metric.history, runs)
    for scalar, found in (phase.get("scalars") or {}).items():
        value = _measurement(found.get("value"))
        if value is not None:
            low, high = _measurement(found.get("ci_low")), _measurement(found.get("ci_high"))
            yield Point(name, scalar, str(found.get("unit") or ""), value, None, low, high)


def _deciding_runs(phase: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The runs that decide a phase: not one that only leaves evidence, nor an attempt that another one replaced."""
    deciding = next((one.get("name") for one in phase.get("remedies") or () if one.get("decides")), None)
    return [
        run
        for run in phase.get("runs") or ()
        if run.get("role", "measure") == "measure" and run.get("remedy") == deciding
    ]


def _criterion_points(phase: str, criterion: Mapping[str, Any]) -> Iterator[Point]:
    """What a criterion observed, under the left side of its comparison; the operator says which way is good."""
    parts = _OPERATOR.split(str(criterion["text"]), maxsplit=1)
    value = _measurement(criterion.get("observed"))
    if len(parts) < 3 or value is None or _measurement(parts[0]) is not None:
        return
    better: Better | None = "higher" if ">" in parts[1] else "lower" if "<" in parts[1] else None
    yield Point(
        phase,
        parts[0].strip(),
        str(criterion.get("unit") or ""),
        value,
        better,
        _measurement(criterion.get("ci_low")),
        _measurement(criterion.get("ci_high")),
    )


def _run_points(phase: str, metric: Metric, statistic: str, runs: Sequence[Mapping[str, Any]]) -> Iterator[Point]:
    values, found = [], None
    for run in runs:
        stats = (run.get("metrics") or {}).get(metric.name)
        value = _measurement(stats.get(statistic)) if stats else None
        if value is not None:
            values.append(value)
            found = stats
    if found is not None:
        single = len(values) == 1 and statistic == "mean"
        yield Point(
            phase,
            f"{metric.name}.{statistic}",
            str(found.get("unit") or ""),
            sum(values) / len(values),
            metric.better,
            _measurement(found.get("ci_low")) if single else None,
            _measurement(found.get("ci_high")) if single else None,
            len(values),
        )


def _unique(points: Iterator[Point]) -> Iterator[Point]:
    seen: set[tuple[str, str]] = set()
    for point in points:
        if (point.phase, point.metric) not in seen:
            seen.add((point.phase, point.metric))
            yield point


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


def _measurement(value: Any) -> float | None:
    """A finite number, small enough to be squared and added up, or None."""
    if isinstance(value, bool):
        return None
    try:
        found = float(value)
    except (OverflowError, TypeError, ValueError):
        return None
    return found if abs(found) < LARGEST else None
