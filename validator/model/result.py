"""What was measured in one run: series and scalars, each with the file it came from.

Arrays are numpy's, so this module is imported only where something has been collected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from validator.model.measure import Irregularity, ScalarValue, SourceFile

__all__ = ["Result", "Series"]


@dataclass(frozen=True)
class Series:
    """One value per step, in file order.

    `steps [n]` int64 optimizer steps, `values [n]` float64 in `unit`; NaN and infinities are kept as the trainer wrote
    them, cells that could not be read are absent and counted as irregularities.
    """

    name: str
    unit: str
    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    source: SourceFile
    rank: int = 0


@dataclass(frozen=True)
class Result:
    """Everything read from one run's folder.

    `series` are global (CSV, stdout, or rank 0's heartbeat), `rank_series` are per rank, `requested` and `effective`
    the trainer's own account of its config (None when it gives none), `timeline` the heartbeat's wall-clock marks.
    """

    run: str
    series: Mapping[str, Series]
    rank_series: Mapping[int, Mapping[str, Series]]
    scalars: Mapping[str, ScalarValue]
    requested: Mapping[str, Any] | None
    effective: Mapping[str, Any] | None
    environment: Mapping[str, Any] | None
    irregularities: tuple[Irregularity, ...]
    sources: tuple[SourceFile, ...]
    log_tail: tuple[str, ...] = ()
    log_path: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
