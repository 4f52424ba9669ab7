from __future__ import annotations

import re
import sys
from xml.etree import ElementTree as ET

import pytest

from tests.validator.report import pieces, samples
from validator.report import figure as svg
from validator.report.charts import phase_figures
from validator.report.figure import ChartError, compact, draw
from validator.report.palette import PALETTE, chart_css
from validator.report.specs import ChartData, ChartSeries, Line, RunCharts, lines_spec


def test_a_run_has_its_charts_and_each_says_the_same_in_words() -> None:
    phase = pieces.baseline()
    figures = {figure.title: figure for figure in phase_figures(phase, samples.charts(samples.go()))}
    assert list(figures) == ["Rate", "Loss", "GPU memory", "Ranks"]
    rate = figures["Rate"].summary
    assert "Mean 12,840 tok/s, 95 % interval [12,773, 12,907]" in rate
    assert "warm-up, to step 24" in rate
    assert "the bound of toks_per_s.mean >= 9000" in rate
    assert "Slowest: rank 1" in figures["Ranks"].summary
    assert len(figures["Rate"].table.rows) == 12


def test_a_bound_is_drawn_where_the_criterion_puts_it() -> None:
    figure = phase_figures(pieces.baseline(), samples.charts(samples.go()))[0]
    assert "toks_per_s.mean &gt;= 9000" in figure.svg
    assert figure.svg.count(PALETTE["bound"].light) >= 2


def test_a_criterion_of_another_phase_draws_no_bound_here() -> None:
    other = pieces.verdict("b.1", "baseline.toks_per_s.mean >= 5", bound=5.0)
    phase = pieces.baseline(criteria=(other,))
    assert PALETTE["bound"].light not in phase_figures(phase, samples.charts(samples.go()))[0].svg


def test_axis_labels_keep_their_digits() -> None:
    ranks = next(f for f in phase_figures(pieces.baseline(), samples.charts(samples.go())) if f.title == "Ranks")
    labels = re.findall(r">(0\.\d+)<", ranks.svg)
    assert len(labels) >= 3
    assert len(set(labels)) == len(labels), "coordinates may be rounded, labels never"


def test_a_sweep_shows_its_arms_with_the_runs_themselves() -> None:
    phase = pieces.buckets()
    arms = phase_figures(phase, samples.charts(samples.go()))[1]
    assert arms.title == "Arms"
    assert "★ 4" in arms.svg
    assert [row[0] for row in arms.table.rows] == ["1", "4", "25"]


def test_nan_is_said_and_marked() -> None:
    series = ChartSeries("loss", "nat", (1, 2, 4), (3.0, 2.0, 1.0), chart="Loss", non_finite=1, non_finite_steps=(3,))
    charts = ChartData({"baseline/r1": RunCharts("baseline/r1", {"loss": series})})
    (figure,) = phase_figures(pieces.baseline(), charts)
    assert "1 value is not finite (dotted verticals)." in figure.summary
    assert PALETTE["mark"].light in figure.svg


@pytest.mark.parametrize("values", [(), (1.0,), (5.0, 5.0)])
def test_hardly_any_points(values: tuple[float, ...]) -> None:
    series = ChartSeries("loss", "nat", tuple(range(1, len(values) + 1)), values, chart="Loss")
    charts = ChartData({"baseline/r1": RunCharts("baseline/r1", {"loss": series})})
    for figure in phase_figures(pieces.baseline(), charts):
        assert figure.svg
        ET.fromstring(figure.svg)


def test_without_the_renderer_the_words_and_the_table_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svg, "_kept", {})
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    figures = phase_figures(pieces.baseline(), samples.charts(samples.go()))
    assert all(not figure.svg and "Not drawn" in figure.note and figure.table.rows for figure in figures)
    assert all("pip install vl-convert-python" in figure.note for figure in figures)


def test_the_renderer_s_refusal_is_an_error_of_ours() -> None:
    with pytest.raises(ChartError, match="refused"):
        draw({"mark": "nonsense", "encoding": 3})


def test_a_drawing_holds_known_shapes_only() -> None:
    attack = (
        '<svg xmlns="http://www.w3.org/2000/svg" onload="x()"><script>x()</script><g><a href="x"><text>t</text></a></g>'
        '<foreignObject/><text class="c" style="fill:red" fill="#000">0.123456 &lt;b&gt;</text>'
        '<path d="M0.123,4.567L1.25,4.567L1.35,-2"/></svg>'
    )
    assert compact(attack) == (
        '<svg aria-hidden="true" focusable="false" xmlns="http://www.w3.org/2000/svg" font-family="sans-serif">'
        '<text fill="#000">0.123456 &lt;b&gt;</text><path d="M.1,4.6l1.1,0 .2-6.6" /></svg>'
    )
    with pytest.raises(ChartError, match="not well-formed"):
        compact("<svg>")


def test_rounded_steps_do_not_drift() -> None:
    points = [(i * 0.333, i * 0.777) for i in range(3000)]
    path = "M" + "L".join(f"{x},{y}" for x, y in points)
    short = svg._relative(path)
    assert len(short) < 0.6 * len(path)
    start, rest = short[1:].split("l")
    numbers = [float(n) for n in re.findall(r"-?\d*\.?\d+", rest)]
    x = float(start.split(",")[0]) + sum(numbers[0::2])
    y = float(start.split(",")[1]) + sum(numbers[1::2])
    assert (x, y) == pytest.approx(points[-1], abs=0.051)


def test_every_role_has_a_color_of_its_own_with_enough_contrast() -> None:
    assert len({ink.light for ink in PALETTE.values()}) == len(PALETTE)
    for role, ink in PALETTE.items():
        if role in ("grid", "warmup", "interval", "axis"):
            continue
        least = 4.5 if role in ("text", "bound") else 3.0
        assert contrast(ink.light, "#ffffff") >= least, role
        assert contrast(ink.dark, "#12151a") >= least, role
    assert chart_css(dark=True).count("{") == 2 * len(PALETTE)


def contrast(one: str, other: str) -> float:
    """Contrast ratio by WCAG 2.2."""

    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _share(*values: float) -> ChartSeries:
    return ChartSeries("host_cpu_pct", "%", tuple(range(len(values))), values)


def test_a_share_in_percent_is_drawn_in_its_whole_range() -> None:
    line = Line("host", _share(99.5, 100.0, 100.0))
    axis = [
        lines_spec([line], wide=False, percent=percent)["layer"][-1]["encoding"]["y"]["scale"] for percent in (1, 0)
    ]
    assert axis == [{"domain": [0, 100]}, {"zero": False, "nice": True}]
    over = Line("ranks", _share(99.5, 180.0))
    assert lines_spec([over], wide=False, percent=True)["layer"][-1]["encoding"]["y"]["scale"]["nice"]
