"""The first screen: values that decide, what failed, and what is undecided, the same in every rendering."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.validator.report import pieces, samples
from tests.validator.report.pages import parse
from validator.model.catalogue import METRICS, TILES
from validator.model.result import ScalarValue
from validator.model.verdict import PhaseReport, ValidationReport
from validator.report.build import build_page
from validator.report.build_criteria import MAX_OPEN
from validator.report.html import render_html
from validator.report.markdown import escape, render_markdown
from validator.report.page import Tile
from validator.report.sparks import spark_of
from validator.report.specs import ChartData, ChartSeries
from validator.report.terminal.summary import summary_lines
from validator.report.tiles import MAX_TILES
from validator.runs.folder import RENDERINGS, ReportPaths

PATHS = ReportPaths(*(Path("reports/x") / name for name in RENDERINGS))


def tiles(report: ValidationReport) -> dict[str, Tile]:
    return {tile.label: tile for tile in build_page(report, samples.charts(report)).tiles}


def of(*phases: PhaseReport) -> ValidationReport:
    return samples.go().model_copy(update={"phases": phases})


def test_a_tile_has_value_interval_bound_margin_phase_and_the_link_to_its_row() -> None:
    report = samples.go()
    tile = tiles(report)["Throughput"]
    assert (tile.quantity, tile.interval) == ("12,840 tok/s", "[12,773, 12,907]")
    assert (tile.bound, tile.margin, tile.metric) == ("at least 9,000 tok/s", "+42.7 %", "toks_per_s.mean")
    assert (tile.phase, tile.place) == ("baseline", "Baseline, two processes")
    assert tile.status is not None
    assert tile.status.word == "PASS"
    root = parse(render_html(report, ChartData()))
    row = next(row for row in root.all("tr") if row.attributes.get("id") == tile.href[1:])
    assert "toks_per_s.mean >= 9000" in row.text


@pytest.mark.parametrize("name", ["go", "no_go", "inconclusive", "in_progress"])
def test_numbers_read_the_same_everywhere(name: str) -> None:
    report = getattr(samples, name)()
    page = build_page(report)
    assert page.tiles
    table = parse(render_html(report, ChartData())).all("table", klass="criteria")[0].text
    markdown, terminal = render_markdown(report), "\n".join(summary_lines(report, PATHS, width=400))
    for tile in page.tiles:
        for text in (tile.quantity, tile.interval, tile.bound, tile.margin):
            assert escape(text) in markdown
            assert text in terminal
        if tile.status is not None and not tile.lines and tile.value != "not measured":
            assert tile.quantity in table
            assert tile.interval in table


def test_what_failed_or_is_open_comes_first() -> None:
    drift = pieces.verdict("soak.1", "abs(rate.drift_pct) <= 5 %", "FAIL", observed=12.0, bound=5.0, margin=-1.4)
    phases = (pieces.baseline(), pieces.baseline("FAIL", criteria=(drift,)).model_copy(update={"id": "soak"}))
    labels = list(tiles(of(*phases)))
    assert labels[:2] == ["Drift of the rate", "Throughput"]
    optional = drift.model_copy(update={"required": False})
    phases = (pieces.baseline(), pieces.baseline(criteria=(optional,)).model_copy(update={"id": "soak"}))
    assert next(iter(tiles(of(*phases)))) == "Throughput", "what the decision does not need stays in its place"


def test_the_failed_criterion_of_a_value_is_shown_and_not_one_that_passed() -> None:
    slow = samples.no_go().phases[2]
    tile = tiles(of(pieces.baseline().model_copy(update={"id": "first"}), slow))["Throughput"]
    assert tile.status is not None
    assert (tile.status.word, tile.bound, tile.phase) == ("FAIL", "at least 39,000 tok/s", "baseline")


def test_of_several_bounds_the_nearest_is_shown() -> None:
    near, far = (
        pieces.verdict(f"b.{n}", f"toks_per_s.mean >= {bound:g}", observed=12_840.0, bound=bound, margin=margin)
        for n, bound, margin in ((1, 12_000.0, 0.07), (2, 6_000.0, 1.14))
    )
    assert tiles(of(pieces.baseline(criteria=(far, near))))["Throughput"].bound == "at least 12,000"


def test_a_bound_on_the_scatter_is_no_bound_on_the_rate() -> None:
    criteria = (pieces.verdict("b.1", "toks_per_s.cv <= 0.05", observed=0.021, bound=0.05, margin=0.58),)
    found = tiles(of(pieces.baseline(criteria=criteria)))
    assert (found["Throughput"].quantity, found["Throughput"].status) == ("12,840 tok/s", None)
    assert found["toks_per_s.cv"].bound == "at most 0.05"


def test_the_rate_of_a_rank_is_the_rate_over_the_ranks() -> None:
    run = pieces.run_report("baseline")
    each = pieces.stats(3_210.0, unit="tok/s", stdev=9.0)
    found = tiles(of(pieces.baseline(run=run.model_copy(update={"metrics": {**run.metrics, PER_RANK: each}}))))
    assert (found["Throughput per GPU"].quantity, found["Throughput per GPU"].interval) == (
        "3,210 tok/s",
        "[3,193, 3,227]",
    )

    lone = pieces.stats(12_840.0, unit="tok/s", stdev=9.0)
    found = tiles(of(pieces.baseline(run=run.model_copy(update={"metrics": {**run.metrics, PER_RANK: lone}}))))
    assert "Throughput per GPU" not in found, "one rank says nothing new"


PER_RANK = "toks_per_s_per_rank"


@pytest.mark.parametrize(
    ("kept", "labels"),
    [
        (("step_time_s",), ["Step time"]),
        (("loss",), ["Loss"]),
        (("toks_per_s",), ["Throughput"]),
        ((), []),
    ],
)
def test_a_trainer_that_reports_little_has_the_tiles_that_it_can_have(kept: tuple[str, ...], labels: list[str]) -> None:
    run = pieces.run_report("baseline")
    run = run.model_copy(update={"metrics": {name: run.metrics[name] for name in kept}})
    criteria = (pieces.verdict("baseline.exit", "every run ends by itself with exit code 0", observed=0.0, bound=0.0),)
    report = of(pieces.baseline(run=run, criteria=criteria))
    assert list(tiles(report)) == labels
    assert parse(render_html(report, ChartData()))


def test_a_value_that_a_criterion_asks_for_and_nobody_measured_is_shown_as_missing() -> None:
    asked = pieces.verdict("b.1", "mfu_nsa.mean >= 0.3", "INCONCLUSIVE", message="The trainer wrote no mfu.")
    tile = tiles(of(pieces.baseline("INCONCLUSIVE", criteria=(asked,))))["MFU"]
    assert (tile.value, tile.bound) == ("not measured", "at least 0.3")


def test_a_value_that_was_not_compared_with_its_bound_says_why() -> None:
    """296,749 tok/s beside `at least 150000 tok/s` was read as passed; most of its steps did not count."""
    why = "Not measured: 75 % of the window is invalid."
    asked = pieces.verdict("b.1", "toks_per_s.mean >= 9000 tok/s", "INCONCLUSIVE", observed=12_840.0, message=why)
    tile = tiles(of(pieces.baseline("INCONCLUSIVE", criteria=(asked,))))["Throughput"]
    assert (tile.value, tile.bound) == ("12,840", f"at least 9,000 tok/s. {why}")


def test_a_metric_that_only_the_runbook_knows_has_a_tile_when_it_decides() -> None:
    own = pieces.verdict("b.1", "val_bpb.last <= 1.1", observed=1.02, bound=1.1, margin=0.07)
    ran = pieces.verdict("b.2", "effective.seq_len == 2048", observed=2048.0, bound=2048.0)
    found = tiles(of(pieces.baseline(criteria=(own, ran))))
    assert found["val_bpb.last"].limit == "at most 1.1, margin +7.0 %"
    assert not [label for label in found if "seq_len" in label], "what ran is no measurement"


def test_a_validation_that_trains_nothing_shows_what_the_machine_can_do() -> None:
    """The acceptance of a machine showed three counts; its reader came for the rates beside their bounds."""
    product = pieces.verdict(
        "p.1", "probe.gemm_best_tflops >= 700 TFLOP/s", observed=788.1, bound=700.0, unit="TFLOP/s"
    )
    rates = {
        name: ScalarValue(value=value, unit="GB/s")
        for name, value in {"probe.copy_gb_s": 4_135.0, "probe.peer_gb_s": 394.0, "probe.pcie_gen": 5.0}.items()
    }
    run = pieces.run_report("baseline").model_copy(update={"metrics": {}, "scalars": rates})
    found = tiles(of(pieces.baseline(run=run, criteria=(product,))))
    assert list(found) == ["Matrix product", "Memory copy", "GPU to GPU"]
    assert found["Matrix product"].limit == "at least 700 TFLOP/s"
    assert found["Memory copy"].quantity == "4,135 GB/s"
    assert "Matrix product" not in tiles(of(pieces.baseline(criteria=(product,)))), "a training's rate says it all"


def test_a_runbook_of_sweeps_alone_shows_the_rate_of_the_chosen_arm() -> None:
    found = tiles(of(pieces.buckets()))
    assert found["Throughput"].quantity == "13,130 tok/s"
    assert "Throughput" not in tiles(of(pieces.buckets("not_decidable")))


def test_every_metric_that_decides_a_comparison_has_a_tile_and_each_label_names_one_value() -> None:
    assert {name for name, metric in METRICS.items() if metric.headline} <= TILES.keys()
    assert len(set(TILES.values())) == len(TILES)


def test_one_more_tile_is_one_more_name_in_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TILES, "cost.per_mtok", "Cost")
    cost = ScalarValue(value=0.42, unit="USD")
    costly = pieces.baseline().model_copy(update={"scalars": {"cost.per_mtok": cost}})
    found = tiles(of(costly, pieces.buckets()))
    assert found["Cost"].quantity == "0.42 USD"
    assert list(found)[-3:] == ["Chosen settings", "Cost", "Loss"]


def test_there_are_two_rows_of_tiles_at_most() -> None:
    criteria = tuple(
        pieces.verdict(f"b.{n}", f"own_{n}.mean >= 1", "FAIL", observed=0.5, bound=1.0, margin=-0.5) for n in range(20)
    )
    assert len(build_page(of(pieces.baseline("FAIL", criteria=criteria))).tiles) == MAX_TILES


def test_a_spark_line_stays_in_its_box_and_says_what_it_shows() -> None:
    spark = tiles(samples.go())["Loss"].spark
    assert spark is not None
    points = [tuple(map(float, pair.split(","))) for pair in spark.points.split()]
    assert (points[0][0], points[-1][0]) == (0, 120)
    assert all(0 <= y <= 28 for _, y in points)
    assert 0 <= float(spark.bound) <= 28
    assert spark.text.startswith("loss of baseline/r1, steps 1–300: lowest 2.")
    drawn = parse(render_html(samples.go(), samples.charts(samples.go()))).all("svg", klass="spark")
    assert [svg.attributes["role"] for svg in drawn] == ["img"] * len(drawn)
    assert all(svg.attributes["aria-label"] for svg in drawn)


def test_the_warm_up_is_no_part_of_a_spark_line() -> None:
    spark = tiles(samples.go())["Throughput"].spark
    assert spark is not None
    assert "steps 25–300" in spark.text


@pytest.mark.parametrize(
    ("steps", "values"), [((30, 31, 29, 32), (1.0, 2.0, 3.0, 4.0)), ((30, 31, 32), (-1.7e308, 1.7e308, 0.0))]
)
def test_a_log_that_goes_back_or_out_of_range_draws_nothing_outside(
    steps: tuple[float, ...], values: tuple[float, ...]
) -> None:
    spark = spark_of(ChartSeries("toks_per_s", "tok/s", steps, values), None, 2.5, "r1")
    points = [tuple(map(float, pair.split(","))) for pair in spark.points.split()] if spark else []
    assert all(0 <= x <= 120 and 0 <= y <= 28 for x, y in points)


@pytest.mark.parametrize("each", [0.0, 1e-320, float("nan"), float("inf")])
def test_a_senseless_rate_of_a_rank_is_no_number_of_ranks(each: float) -> None:
    run = pieces.run_report("baseline")
    stats = pieces.stats(1.0, unit="tok/s").model_copy(update={"mean": each})
    run = run.model_copy(update={"metrics": {**run.metrics, PER_RANK: stats}})
    assert render_html(of(pieces.baseline(run=run)), ChartData())


# Undecided sweeps, open items, routine checks.


def test_an_undecided_sweep_is_in_the_banner_of_a_go() -> None:
    report = of(pieces.baseline(), pieces.buckets("not_decidable"))
    banner = parse(render_html(report, ChartData())).all("section", klass="banner")[0]
    assert "Undecided: Bucket size: no arm is chosen, and the declared setting is kept." in banner.text
    assert "#phase-buckets" in [a.attributes["href"] for a in banner.all("a")]
    assert "**Undecided:** Bucket size" in render_markdown(report)
    assert "Undecided Bucket size" in "\n".join(summary_lines(report, PATHS))
    assert "Undecided" not in parse(render_html(samples.go(), ChartData())).all("section", klass="banner")[0].text


def test_the_settings_name_what_was_chosen_or_that_nothing_was() -> None:
    chosen = tiles(samples.go())["Chosen settings"]
    assert [(line.name, line.value) for line in chosen.lines] == [("NSA_DDP_BUCKET_MB=4", "+2.3 %")]
    open_ = tiles(samples.inconclusive())["Chosen settings"]
    assert (open_.quantity, [line.value for line in open_.lines]) == ("0 of 1 decided", ["undecided"])


def test_what_did_not_pass_is_listed_with_what_was_observed_required_first() -> None:
    items = build_page(samples.no_go()).open_items
    assert [item.status.word for item in items] == ["VETO", *["FAIL"] * 3, "NOT RUN", *["INCONCLUSIVE"] * 2]
    assert [item.required for item in items] == [True] * 5 + [False] * 2
    rate = next(item for item in items if item.text == "toks_per_s.mean >= 39000")
    assert (rate.observed, rate.bound) == ("12,840 tok/s [12,773, 12,907]", "39,000 tok/s, -67.1 %")
    root = parse(render_html(samples.no_go(), ChartData()))
    assert len(root.all("ul", klass="open")[0].all("li")) == len(items)
    assert "observed **12,840 tok/s" in render_markdown(samples.no_go())


def test_what_no_phase_reports_and_nothing_needs_is_listed_once() -> None:
    lacking = pieces.verdict("b.config", "the declared config is the one that ran", "INCONCLUSIVE", required=False)
    phases = [pieces.baseline(criteria=(lacking,)).model_copy(update={"id": name}) for name in ("a", "b", "c")]
    assert [item.place for item in build_page(of(*phases)).open_items] == ["a, b, c"]


def test_a_long_list_is_cut_with_its_number() -> None:
    criteria = tuple(pieces.verdict(f"b.{n}", f"own_{n}.mean >= 1", "FAIL", observed=0.5) for n in range(MAX_OPEN + 3))
    report = of(pieces.baseline("FAIL", criteria=criteria))
    assert "3 more in the table of criteria." in parse(render_html(report, ChartData())).text
    assert "3 more in the criteria." in render_markdown(report)


def test_the_passed_routine_checks_are_folded_and_say_no_zero() -> None:
    table = parse(render_html(samples.go(), ChartData())).all("table", klass="criteria")[0]
    routine = table.all("tr", klass="routine")
    assert "1 routine check passed" in routine[0].text
    assert not [row for row in table.all("tr") if "exit code 0" in row.text and row not in routine]
    assert "<details><summary>1 routine check passed</summary>" in render_markdown(samples.go())


def test_a_routine_check_that_failed_is_a_row_with_words_for_its_numbers() -> None:
    failed = pieces.verdict("b.exit", "every run ends by itself with exit code 0", "FAIL", observed=1.0, bound=0.0)
    (row,) = build_page(of(pieces.baseline("FAIL", criteria=(failed,)))).phases[0].rows
    assert (row.routine, row.observed, row.bound) == (False, "exit code 1", "exit code 0")


def test_a_phase_that_passed_says_what_of_it_did_not() -> None:
    report = samples.go()
    assert [(view.word, count) for view, count in build_page(report).phases[0].exceptions] == [("INCONCLUSIVE", 1)]
    root = parse(render_html(report, ChartData()))
    group = root.all("tr", klass="group")[0].text
    assert "PASS" in group
    assert "INCONCLUSIVE 1 not required" in group
    assert "1 not required" in root.all("section", klass="phase")[0].all("h3")[0].text
    assert ", 1 not required ? INCONCLUSIVE" in render_markdown(report)


def test_the_steadiness_of_a_run_without_a_criterion_comes_from_its_scalars() -> None:
    run = pieces.run_report("baseline")
    drift = ScalarValue(value=-1.25, unit="%", ci_low=-2.0, ci_high=-0.5)
    report = of(pieces.baseline(run=run.model_copy(update={"scalars": {"rate.drift_pct": drift}})))
    tile = tiles(report)["Drift of the rate"]
    assert (tile.quantity, tile.interval, tile.status) == ("-1.25 %", "[-2, -0.5]", None)
