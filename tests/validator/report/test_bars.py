"""Bars on a time axis: each at its place, within the axis, and foreign names harmless."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from validator.report.timeline import MARKS, Bar, bars_svg, tick_places, time_unit

SVG = "{http://www.w3.org/2000/svg}"


def boxes(svg: str) -> list[float]:
    """Left and right end of each rectangle in turn, in pixels from the axis' zero."""
    found = [element.attrib for element in ET.fromstring(svg).iter(f"{SVG}rect")]
    return [x for one in found for x in (float(one["x"]), float(one["x"]) + float(one["width"]))]


def width(svg: str) -> float:
    """How long the axis is, in pixels: its line comes before its ticks."""
    found = re.search(r'd="M0,0h(\d+)M', svg)
    return float(found[1])


def words(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize(
    ("end", "labels"),
    [
        (0.302, ("0.00", "0.05", "0.10", "0.15", "0.20", "0.25", "0.30")),
        (1.0, ("0.0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1.0")),
        (8.2, ("0", "1", "2", "3", "4", "5", "6", "7", "8")),
        (282.0, ("0", "50", "100", "150", "200", "250")),
        (0.0, ("0",)),
        (float("nan"), ("0",)),
        (float("inf"), ("0",)),
    ],
)
def test_ticks_are_round_numbers(end: float, labels: tuple[str, ...]) -> None:
    assert tick_places(end) == labels


@pytest.mark.parametrize("exponent", range(-6, 7))
@pytest.mark.parametrize("factor", [1.0, 1.3, 2.0, 2.9, 4.4, 5.0, 7.7, 9.99])
def test_ticks_are_few_and_all_on_the_axis(exponent: int, factor: float) -> None:
    end = factor * 10.0**exponent
    places = [float(label) for label in tick_places(end)]
    assert 5 <= len(places) <= 13
    assert places[0] == 0
    assert places[-1] <= end * (1 + 1e-9)
    assert len(set(places)) == len(places), "decimals enough to tell two ticks apart"


def test_a_bar_lies_where_its_time_is() -> None:
    svg = bars_svg(["a", "b"], [Bar("a", 0, 50, "good", "✓"), Bar("b", 50, 100, "bad", "✕")], length_s=100, zero="it")
    assert boxes(svg) == pytest.approx([0, width(svg) / 2, width(svg) / 2, width(svg)], abs=0.1)
    assert [svg.count(MARKS[sign]) for sign in "✓✕"] == [1, 1], "drawn, since many fonts lack them"
    assert not set(MARKS) & set(svg)
    assert "seconds since it" in words(svg)


def test_long_times_are_told_in_larger_units() -> None:
    assert [time_unit(length)[0] for length in (299, 300, 10_799, 10_800)] == ["seconds", "minutes", "minutes", "hours"]
    svg = bars_svg(["a"], [Bar("a", 0, 7200, "good", "✓")], length_s=14_400, zero="it")
    assert boxes(svg) == pytest.approx([0, width(svg) / 2], abs=0.1)
    assert "hours since it" in words(svg)


def test_a_moment_can_be_seen_and_nothing_leaves_the_axis() -> None:
    late, before, whole = (
        Bar("a", 100, 100, "good", "✓"),
        Bar("a", -40, -30, "bad", "✕"),
        Bar("a", -5, 900, "info", "i"),
    )
    svg = bars_svg(["a"], [late, before, whole], length_s=100, zero="it")
    assert boxes(svg) == pytest.approx([width(svg) - 2, width(svg), 0, 2, 0, width(svg)], abs=0.1)


def test_a_row_without_room_has_no_bars() -> None:
    assert boxes(bars_svg(["a"], [Bar("b", 0, 1, "good", "✓")], length_s=1, zero="it")) == []
    assert boxes(bars_svg([], [], length_s=0, zero="it")) == []


def test_names_are_text_whatever_they_hold() -> None:
    name = '<script>alert("1")</script>\x1b[31m & '
    svg = bars_svg([name], [Bar(name, 0, 1, "good", "✓")], length_s=1, zero="it")
    assert "<script" not in svg
    assert "\x1b" not in svg
    assert any(word.startswith('<script>alert("1")</script>') for word in words(svg))
    assert len(boxes(svg)) == 2


def test_a_long_name_is_cut_short_of_the_axis() -> None:
    svg = bars_svg(["x" * 90], [], length_s=1, zero="it")
    assert "x" * 37 + "…" in words(svg)
    assert 600 < width(svg) < width(bars_svg(["x"], [], length_s=1, zero="it")) < 905
