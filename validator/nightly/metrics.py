"""The last run of a job as metrics for Prometheus: a textfile that the node exporter serves."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from validator.history.trend import Group
from validator.nightly.settings import NightlyError

if TYPE_CHECKING:
    from validator.nightly.job import Ended

__all__ = ["require_prometheus", "write_metrics"]

_DECISIONS = ("GO", "NO_GO", "INCONCLUSIVE", "UNABLE")


def require_prometheus(path: Path) -> None:
    """Check, when a job is installed, that its metrics can be written at night.

    Raises:
        NightlyError: when the library is missing or the file cannot be there.
    """
    try:
        import prometheus_client  # noqa: F401 -- to see that it is there
    except ImportError:
        raise NightlyError(
            "--prometheus needs the library prometheus-client: pip install 'training-validator[nightly]'"
        ) from None
    if path.suffix != ".prom" or not path.parent.is_dir():
        raise NightlyError(f"--prometheus {path}: name a file that ends in .prom in a folder that exists")


def write_metrics(path: Path, ended: Ended, group: Group | None) -> Iterator[str]:
    """Replace the textfile at once; a line that says where."""
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

    registry = CollectorRegistry()

    def gauge(name: str, text: str, value: float, **labels: str) -> None:
        made = Gauge(f"validator_nightly_{name}", text, ["nightly", *labels], registry=registry)
        made.labels(ended.name, *labels.values()).set(value)

    started = datetime.fromisoformat(ended.started).timestamp()
    gauge("start_timestamp_seconds", "When the last start began.", started)
    gauge("end_timestamp_seconds", "When the last start ended.", started + ended.duration_s)
    gauge("duration_seconds", "How long the last start took.", ended.duration_s)
    gauge("exit_code", "Exit code: 0 GO, 1 NO-GO, 3 INCONCLUSIVE, others no decision.", ended.exit_code)
    decision = Gauge(
        "validator_nightly_decision", "1 for the last decision.", ["nightly", "decision"], registry=registry
    )
    for word in _DECISIONS:
        decision.labels(ended.name, word).set(word == ended.decision)
    if group is not None:
        gauge("regressions", "Figures whose last change of level was for the worse.", len(group.regressions))
        figure = Gauge(
            "validator_nightly_figure",
            "A figure of the last run, in its unit.",
            ["nightly", "runbook", "phase", "metric", "unit"],
            registry=registry,
        )
        for point in group.entries[-1].points:
            figure.labels(ended.name, group.runbook, point.phase, point.metric, point.unit).set(point.value)
    write_to_textfile(str(path), registry)
    yield f"written to {path}"
