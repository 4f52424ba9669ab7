from __future__ import annotations

import numpy as np
import pytest

from tests.validator.report.pieces import verdict
from validator.model.result import Result, Series, SourceFile
from validator.report.build_criteria import margin_text
from validator.report.charts import chart_data
from validator.report.thinning import MAX_POINTS, extremes

SOURCE = SourceFile(path="runs/baseline/r1/training.csv", sha256="0" * 64, bytes=1)


def series(name: str, values: object, *, rank: int = 0) -> Series:
    array = np.asarray(values, dtype=np.float64)
    return Series(name, "s", np.arange(1, len(array) + 1, dtype=np.int64), array, SOURCE, rank)


def result(*found: Series, ranks: dict[int, dict[str, Series]] | None = None) -> Result:
    return Result(
        run="baseline/r1",
        series={s.name: s for s in found},
        rank_series=ranks or {},
        scalars={},
        requested=None,
        effective=None,
        environment=None,
        irregularities=(),
        sources=(),
    )


def test_short_series_are_kept_whole() -> None:
    drawn = chart_data([result(series("loss", [3.0, 2.0, 1.0]))]).runs["baseline/r1"].series["loss"]
    assert drawn.steps == (1, 2, 3)
    assert drawn.values == (3.0, 2.0, 1.0)
    assert all(type(step) is int for step in drawn.steps)


def test_thinning_keeps_every_spike_and_both_ends() -> None:
    values = np.sin(np.arange(50_000) / 500)
    values[12_345], values[40_001] = 9.0, -9.0
    drawn = chart_data([result(series("loss", values))]).runs["baseline/r1"].series["loss"]
    assert len(drawn.values) <= MAX_POINTS + 2
    assert max(drawn.values) == 9.0
    assert min(drawn.values) == -9.0
    assert (drawn.steps[0], drawn.steps[-1]) == (1, 50_000)
    assert list(drawn.steps) == sorted(drawn.steps)


def test_nan_is_not_drawn_but_named() -> None:
    values = [1.0, np.nan, 2.0, np.inf] + [1.0] * 10
    drawn = chart_data([result(series("loss", values))]).runs["baseline/r1"].series["loss"]
    assert drawn.non_finite == 2
    assert drawn.non_finite_steps == (2, 4)
    assert len(drawn.values) == 12


def test_a_series_of_nothing_but_nan_and_an_empty_one() -> None:
    drawn = chart_data([result(series("loss", [np.nan]), series("lr", []))]).runs["baseline/r1"].series
    assert drawn["loss"].values == ()
    assert drawn["loss"].non_finite == 1
    assert "lr" not in drawn


def test_ranks_are_compared_after_warm_up_by_their_own_work() -> None:
    ranks = {
        rank: {
            "compute_time_s": series("compute_time_s", [9.0] * 10 + [1.0 + rank] * 90, rank=rank),
            "step_time_s": series("step_time_s", [5.0] * 100, rank=rank),
        }
        for rank in (1, 0)
    }
    spread = chart_data([result(ranks=ranks)], warmup_end={"baseline/r1": 10}).runs["baseline/r1"].ranks
    assert [(row.rank, row.metric, row.p50, row.n) for row in spread] == [
        (0, "compute_time_s", 1.0, 90),
        (1, "compute_time_s", 2.0, 90),
    ]


def test_one_rank_has_no_spread() -> None:
    ranks = {0: {"step_time_s": series("step_time_s", [1.0] * 5)}}
    assert chart_data([result(ranks=ranks)]).runs["baseline/r1"].ranks == ()


def test_only_a_metric_that_has_a_chart_is_kept() -> None:
    made = chart_data([result(series("loss", [1.0, 2.0]), series("lr", [1.0, 2.0]), series("x.y", [1.0, 2.0]))])
    assert {name: one.chart for name, one in made.runs["baseline/r1"].series.items()} == {"loss": "Loss"}


@pytest.mark.parametrize("count", [601, 1201, 1799, 50_001])
def test_the_rest_behind_the_last_whole_bucket_keeps_its_spike(count: int) -> None:
    values = np.zeros(count)
    values[-2] = 7.0
    kept = extremes(values, MAX_POINTS)
    assert count - 2 in kept
    assert len(kept) <= MAX_POINTS + 4
    assert (np.diff(kept) > 0).all()


@pytest.mark.parametrize(
    ("observed", "bound", "margin", "shown"),
    [
        (0.56, 0.0, 0.56, "–"),  # 0.56 above 0 is 56 % of nothing
        (2, 2, 0.0, "–"),
        (2.9, 4.4, 0.34, "+34.0 %"),
        (None, 4.4, None, "–"),
    ],
)
def test_a_margin_is_a_share_of_a_bound_that_is_not_zero(
    observed: float | None, bound: float, margin: float | None, shown: str
) -> None:
    one = verdict("baseline.1", "x", observed=observed, bound=bound, margin=margin)
    assert margin_text(one) == shown
