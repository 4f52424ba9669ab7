"""Validation loss of ended runs, pair by pair: a table of losses and ratios, and the curves as an SVG.

    python -m benchmarks.loss_curve prose=RUNS/prose_nsa,RUNS/prose_dense --svg docs/images/loss.svg
    python -m benchmarks.loss_curve "Python=A,B" "prose=C,D" --every 1000

A pair is `NAME=RUN,YARDSTICK`, two output folders of `nsa.train`, alike in data and in every setting but those of the
attention, and validated on as many tokens. Losses are in nats per token; the ratio is that of the first run to the
second.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsa.argument_types import positive_int
from validator.report.figure import VEGA_LITE

ATTENTION = ("attention", "phi", "gate", "gate_hidden", "l_cmp", "d_cmp", "l_sel", "n_sel", "w")
WITHOUT_EFFECT = ("prefill", "sel_ranges", "query_chunk", "out", "resume")
"""Settings in which a pair may differ: what is compared, and what changes no loss."""

COLORS = {"sparse": "#0b6e99", "dense": "#c2571a"}
PANEL = {"width": 330, "height": 210}


@dataclass(frozen=True)
class Pair:
    """Two runs by one name: validation losses by step, of the steps that both have."""

    name: str
    run: dict[int, float]
    yardstick: dict[int, float]

    def ratio(self, step: int) -> float:
        """Loss of the run to that of its yardstick."""
        return self.run[step] / self.yardstick[step]


def read_pair(text: str) -> Pair:
    """A pair from `NAME=RUN,YARDSTICK`.

    Raises:
        SystemExit: with what is missing or differs.
    """
    name, _, folders = text.partition("=")
    parts = folders.split(",")
    if not name or len(parts) != 2:
        raise SystemExit(f"{text!r} is no pair; give NAME=RUN,YARDSTICK")
    runs = [Path(part) for part in parts]
    settings = [_settings(run) for run in runs]
    for key in settings[0] | settings[1]:
        first_has, second_has = (setting.get(key) for setting in settings)
        if first_has != second_has:
            raise SystemExit(
                f"{name}: {key} is {first_has} in {runs[0]} and {second_has} in {runs[1]}; "
                "train both alike to compare them"
            )
    first, second = (_losses(run) for run in runs)
    common = [step for step in first if step in second]
    if not common:
        raise SystemExit(f"{name}: the two runs have no validated step in common; give both the same --val-every")
    if uneven := [step for step in common if first[step][1] != second[step][1]]:
        raise SystemExit(f"{name}: at step {uneven[0]} the two runs validated on different numbers of tokens")
    return Pair(name, {s: first[s][0] for s in common}, {s: second[s][0] for s in common})


def _settings(run: Path) -> dict[str, Any]:
    try:
        env = json.loads((run / "env.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"{run}: env.json cannot be read ({error}); give an output folder of nsa.train") from error
    free = (*ATTENTION, *WITHOUT_EFFECT)
    return {key: value for key, value in env["effective"].items() if key not in free} | {"what was read": env["data"]}


def _losses(run: Path) -> dict[int, tuple[float, int]]:
    try:
        with (run / "val.csv").open(encoding="utf-8") as handle:
            rows = list(csv.DictReader(handle))
    except OSError as error:
        raise SystemExit(f"{run}: val.csv cannot be read ({error}); train with --val-every") from error
    return {int(row["step"]): (float(row["val_loss"]), int(row["val_tokens"])) for row in rows}


def table(pairs: Sequence[Pair], every: int) -> str:
    """Losses and ratios at the first step, at multiples of `every` and at the last, as Markdown."""
    heads = [word for pair in pairs for word in (f"{pair.name}: dense", "NSA", "ratio")]
    lines = ["| step | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    steps = sorted(set.intersection(*(set(pair.run) for pair in pairs)))
    for step in steps:
        if step % every == 0 or step in (steps[0], steps[-1]):
            cells = [f"{p.yardstick[step]:.4f} | {p.run[step]:.4f} | {p.ratio(step):.4f}" for p in pairs]
            lines.append(f"| {step:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def chart(pairs: Sequence[Pair], bound: float) -> dict[str, Any]:
    """A Vega-Lite specification: a column for each pair, losses above, the ratio with its bound below."""
    return {
        "background": "white",
        "padding": 8,
        "config": {"axis": {"labelFontSize": 11, "titleFontSize": 11, "gridColor": "#e5e5e5"}, "font": "sans-serif"},
        "resolve": {"scale": {"color": "independent", "strokeDash": "independent"}},
        "hconcat": [
            {"title": pair.name, "vconcat": [_losses_panel(pair), _ratio_panel(pair, bound)]} for pair in pairs
        ],
    }


def _losses_panel(pair: Pair) -> dict[str, Any]:
    rows = [
        {"step": step, "loss": loss, "attention": kind}
        for kind, curve in (("sparse", pair.run), ("dense", pair.yardstick))
        for step, loss in curve.items()
    ]
    legend = {"title": None, "orient": "none", "legendX": PANEL["width"] - 70, "legendY": 8}
    scale = {"domain": list(COLORS), "range": list(COLORS.values())}
    return {
        **PANEL,
        "data": {"values": rows},
        "mark": {"type": "line", "strokeWidth": 1.5, "clip": True},
        "encoding": {
            "x": _steps(),
            "y": {
                "field": "loss",
                "type": "quantitative",
                "scale": {"type": "log", "nice": False},
                "title": "validation loss, nats per token",
                "axis": {"format": ".2f", "tickCount": 5},
            },
            "color": {"field": "attention", "scale": scale, "legend": legend},
            "strokeDash": {
                "field": "attention",
                "scale": {"domain": list(COLORS), "range": [[1, 0], [5, 3]]},
                "legend": legend,
            },
        },
    }


def _ratio_panel(pair: Pair, bound: float) -> dict[str, Any]:
    rows = [{"step": step, "ratio": pair.ratio(step)} for step in pair.run]
    y = {"type": "quantitative", "scale": {"zero": False}, "title": "sparse / dense"}
    return {
        "width": PANEL["width"],
        "height": PANEL["height"] // 2,
        "layer": [
            {
                "data": {"values": rows},
                "mark": {"type": "line", "strokeWidth": 1.5, "color": "#333333"},
                "encoding": {"x": _steps(), "y": {"field": "ratio", **y}},
            },
            {
                "data": {"values": [{"bound": bound}]},
                "mark": {"type": "rule", "strokeDash": [4, 3], "color": "#b00020"},
                "encoding": {"y": {"field": "bound", **y}},
            },
        ],
    }


def _steps() -> dict[str, Any]:
    return {"field": "step", "type": "quantitative", "title": "step", "axis": {"tickCount": 6, "format": ",d"}}


def main(argv: Sequence[str] | None = None) -> int:
    """Compare; 1 if a last ratio exceeds the bound."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("pairs", nargs="+", type=read_pair, metavar="NAME=RUN,YARDSTICK")
    parser.add_argument("--every", type=positive_int, default=500, help="steps between rows of the table; 500")
    parser.add_argument("--bound", type=float, default=1.02, help="largest ratio of the last validation losses; 1.02")
    parser.add_argument("--svg", type=Path, help="write the curves here")
    args = parser.parse_args(argv)
    pairs: list[Pair] = args.pairs
    print(table(pairs, args.every))
    if args.svg:
        import vl_convert  # a JavaScript engine: only where there is something to draw

        svg = vl_convert.vegalite_to_svg(chart(pairs, args.bound), vl_version=VEGA_LITE)
        args.svg.write_text(svg + "\n", encoding="utf-8")
    return int(any(pair.ratio(max(pair.run)) > args.bound for pair in pairs))


if __name__ == "__main__":
    sys.exit(main())
