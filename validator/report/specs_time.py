"""Vega-Lite specification of spans on a time axis: what ran when, and when a GPU held back.

Each bar has its color and, above it, its sign, so that color never says anything alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from validator.report.palette import PALETTE
from validator.report.specs import WIDE, Spec, sized

__all__ = ["Bar", "bars_spec", "time_unit"]

_TONES = {"good": "s3", "bad": "bound", "warn": "s2", "info": "s1", "muted": "s6"}
_LEAST_PX = 2.0
_ROW_PX = 26
_LABELS_PX = 250
"""Room for the rows' names."""


class Bar(NamedTuple):
    """One span in a row, in seconds from the axis' zero; `tone` and `sign` say the same."""

    row: str
    from_s: float
    to_s: float
    tone: str
    sign: str


def time_unit(length_s: float) -> tuple[str, float]:
    """What to count a length of time in, and how many seconds one of it has."""
    return ("seconds", 1.0) if length_s < 300 else ("minutes", 60.0) if length_s < 3 * 3600 else ("hours", 3600.0)


def bars_spec(rows: Sequence[str], bars: Sequence[Bar], *, length_s: float, zero: str) -> Spec:
    """Bars in named rows, top to bottom. `zero` says what the axis counts from."""
    unit, size = time_unit(length_s)
    end = max(length_s, 1e-3) / size
    width = WIDE - _LABELS_PX
    least = _LEAST_PX * end / width
    values = [
        {
            "row": bar.row,
            "from": bar.from_s / size,
            "to": max(bar.to_s / size, bar.from_s / size + least),
            "tone": bar.tone,
            "sign": bar.sign,
        }
        for bar in bars
    ]
    tones = list(dict.fromkeys(bar.tone for bar in bars))
    y: Spec = {"field": "row", "type": "nominal", "sort": list(rows), "title": None, "scale": {"domain": list(rows)}}
    y["axis"] = {"grid": True, "labelLimit": _LABELS_PX - 30, "domain": False, "ticks": False}
    y["axis"] |= {"minExtent": _LABELS_PX, "maxExtent": _LABELS_PX}
    x: Spec = {"type": "quantitative", "title": f"{unit} since {zero}", "scale": {"domain": [0, end], "nice": False}}
    x["axis"] = {"tickCount": 8, "grid": False}
    scale = {"domain": tones, "range": [PALETTE[_TONES[tone]].light for tone in tones]}
    color = {"field": "tone", "type": "nominal", "scale": scale, "legend": None}
    layers: list[Spec] = [
        {
            "mark": {"type": "bar", "height": 9, "yOffset": 4, "fillOpacity": 0.75, "strokeWidth": 1},
            "encoding": {"y": y, "x": {"field": "from", **x}, "x2": {"field": "to"}, "color": color, "stroke": color},
        },
        {
            "mark": {"type": "text", "fontSize": 9, "dy": -6, "align": "center", "color": PALETTE["text"].light},
            "transform": [{"calculate": "(datum.from + datum.to) / 2", "as": "middle"}],
            "encoding": {"y": y, "x": {"field": "middle", **x}, "text": {"field": "sign"}},
        },
    ]
    return sized({"data": {"values": values}, "layer": layers}, width=width, height=max(40, _ROW_PX * len(rows)))
