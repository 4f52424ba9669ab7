"""The files of named readers: which of them a run folder holds, and how each format is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from validator.files import Tree
from validator.ingest.readers.jsonl import JsonLines
from validator.ingest.readers.mlflow import Database, MetricFile
from validator.ingest.readers.renditions import SUFFIX, Rendition
from validator.ingest.readers.rows import Decoder, WholeFile
from validator.ingest.readers.tensorboard import EventFile
from validator.ingest.readers.trainer_state import TrainerState
from validator.ingest.readers.wandb import WandbFile
from validator.model.metrics import TrainerMetrics
from validator.model.readers import FileFormat, LoggedFiles, Reader, matcher

STREAMS: Mapping[str, Callable[[str, TrainerMetrics], Decoder]] = {
    "jsonl": lambda path, metrics: JsonLines(metrics.names.get("step")),
    "tensorboard": lambda path, metrics: EventFile(),
    "wandb": lambda path, metrics: WandbFile(),
    "mlflow-files": lambda path, metrics: MetricFile(_metric_key(path)),
}
"""Formats that grow at their end."""


def decoder_of(kind: str, path: str, metrics: TrainerMetrics) -> Decoder | None:
    """What reads a file of a format as it grows; None for one that is read as a whole."""
    if path.endswith(SUFFIX):
        return Rendition()
    return STREAMS[kind](path, metrics) if kind in STREAMS else None


WHOLE: Mapping[str, Callable[[], WholeFile]] = {"mlflow-sqlite": Database, "trainer-state": TrainerState}
"""Formats that are read as a whole."""

_MAX_ENTRIES = 50_000
_OURS = frozenset({"arrivals.jsonl", "train_config.jsonl"})


@dataclass(frozen=True)
class FoundFiles:
    """Files of one format below a run's output folder, relative to it, that a reader takes. `links` would be taken if
    they were files; `cut`: the folder holds more than is looked through."""

    reader: Reader
    kind: LoggedFiles
    paths: tuple[str, ...]
    links: tuple[str, ...] = ()
    cut: bool = False


def find_files(out: Path, metrics: TrainerMetrics) -> tuple[FoundFiles, ...]:
    """For each named reader of files the first of its kinds that is there; an empty one where none is."""
    readers = [reader for reader in metrics.readers if reader.files]
    if not readers:
        return ()
    files: list[str] = []
    links: list[str] = []
    cut = False
    try:
        with Tree(out) as tree:
            for number, entry in enumerate(tree.walk()):
                if number >= _MAX_ENTRIES:
                    cut = True
                    break
                if entry.kind in ("file", "link") and not _is_ours(entry.path, metrics):
                    (files if entry.kind == "file" else links).append(entry.path)
    except OSError:
        pass
    return tuple(_of_reader(reader, metrics, files, links, cut) for reader in readers)


def _of_reader(reader: Reader, metrics: TrainerMetrics, files: list[str], links: list[str], cut: bool) -> FoundFiles:
    given = metrics.files.get(reader.name)
    linked: tuple[str, ...] = ()
    for kind in reader.files:
        fits = matcher(kind.glob if given is None else given).fullmatch
        named = [path for path in files if fits(own := _original(path)) and _LIKE[kind.format].search(own)]
        if kind.format == "mlflow-files":
            named = [path for path in named if f"{_run_of(kind.format, path)}/meta.yaml" in files]
        linked = linked or tuple(path for path in links if fits(path))
        if named:
            return FoundFiles(reader, kind, tuple(named), linked, cut)
    return FoundFiles(reader, reader.files[0], (), linked, cut)


_LIKE: Mapping[FileFormat, re.Pattern[str]] = {
    "csv": re.compile(r"\.csv$"),
    "jsonl": re.compile(r"[^/]$"),
    "tensorboard": re.compile(r"tfevents[^/]*$"),
    "wandb": re.compile(r"\.wandb$"),
    "mlflow-files": re.compile(r"(?:^|/)metrics/"),
    "mlflow-sqlite": re.compile(r"\.(?:db|sqlite3?)$"),
    "trainer-state": re.compile(r"\.json$"),
}
"""Paths of each format, whatever files a runbook names."""


def _original(path: str) -> str:
    """The file that a rendition was made of, in a copy of a run."""
    return path.removesuffix(SUFFIX)


def _is_ours(path: str, metrics: TrainerMetrics) -> bool:
    """Whether validator wrote a file, or reads it as something else."""
    first, _, rest = path.partition("/")
    before, _, after = (metrics.heartbeat or "heartbeat_rank{rank}.jsonl").partition("{rank}")
    beat = path.startswith(before) and path.endswith(after)
    return path in _OURS or beat or (first == "logs" and rest.startswith("ranks/")) or first == "dump"


def _metric_key(path: str) -> str:
    """The key of a metric's file: what is below `metrics`."""
    return f"/{path}".split("/metrics/", 1)[-1]


def runs_of(found: FoundFiles) -> dict[str, tuple[str, ...]]:
    """The files by the run that they belong to, by the run's folder or file.

    Event files of one folder are one run, and so are the metrics of one MLflow run, and the states of a trainer's
    checkpoints; of other formats a file is a run.
    """
    runs: dict[str, list[str]] = {}
    for path in found.paths:
        runs.setdefault(_run_of(found.kind.format, path), []).append(path)
    return {run: tuple(paths) for run, paths in runs.items()}


def _run_of(kind: str, path: str) -> str:
    folder = PurePosixPath(path).parent
    if kind == "tensorboard":
        return folder.as_posix()
    if kind == "mlflow-files":
        return f"/{path}".split("/metrics/", 1)[0].lstrip("/") or "."
    if kind == "trainer-state":
        return (folder.parent if folder.name.startswith("checkpoint-") else folder).as_posix()
    return path
