"""The nodes of a cluster in the report: what is marked, what is said of it, and what is handed over."""

from __future__ import annotations

import json
import re
import shlex
from itertools import combinations

import pytest

from tests.validator.report import fleets, samples
from tests.validator.report.hostile import HOSTILE
from tests.validator.report.pages import Element, parse
from validator.model.fleet import Fleet, FleetCell, FleetMeasure, FleetNode, FleetOutlier, FleetSubject
from validator.model.verdict import ValidationReport
from validator.pipeline.write import render_json
from validator.report.fleet import fleet_view
from validator.report.fleet_charts import fleet_figures
from validator.report.handover import drain_commands, exclude_line, good_nodes, ticket
from validator.report.html import MAX_BYTES, render_html
from validator.report.markdown import MAX_LENGTH, render_markdown
from validator.report.page import FleetView
from validator.report.specs import ChartData

RUN = "20250827T140311Z-fleet-head-3f9a"


@pytest.fixture(scope="module")
def slow_gpu() -> Fleet:
    """Eight nodes; GPU 1 of n003 is slow."""
    return fleets.fleet(8, "slow GPU", seed=3)


@pytest.fixture(scope="module")
def slow_links() -> Fleet:
    """Eight good nodes with two slow links."""
    return fleets.fleet(8, "slow link", count=2, seed=5)


def made(size: int, **changes: object) -> Fleet:
    """A fleet without a finding: each node has a rate, and three pairs a bandwidth."""
    names = [f"n{number}" for number in range(size)]
    cells = [cell("trainer", (name,), 100.0) for name in names]
    cells += [cell("busbw", (names[a], names[(a + step) % size]), 180.0) for a in range(size) for step in (1, 2, 3)]
    values = {
        "engine": "slurm", "wanted": size, "min_effect": 0.03, "complete": True, "rounds": 4,
        "nodes": tuple(FleetNode(name=name, state="good", effect=0.0) for name in names), "good": tuple(names),
        "measures": (FleetMeasure(name="trainer", unit="tok/s", per="node"),
                     FleetMeasure(name="busbw", unit="GB/s", per="group")),
        "cells": tuple(cells),
    }  # fmt: skip
    return Fleet(**{**values, **changes})


def cell(measure: str, nodes: tuple[str, ...], value: float, mads: float = 0.0, gpu: int | None = None) -> FleetCell:
    subject = FleetSubject(nodes=nodes, gpu=gpu)
    return FleetCell(measure=measure, subject=subject, value=value, effect=0.0, low=-0.01, high=0.01, mads=mads)


def outlier(nodes: tuple[str, ...], outcome: str = "confirmed", **changes: object) -> FleetOutlier:
    values = {
        "measure": "busbw", "subject": FleetSubject(nodes=nodes),
        "outcome": outcome, "effect": -0.05, "low": -0.06, "high": -0.04, "mads": -9.0, "p_value": 0.001,
        "repeats": 8, "often": 0.0, "intermittent": False, "by": "swap",
    }  # fmt: skip
    return FleetOutlier(**{**values, **changes})


def with_fleet(fleet: Fleet) -> ValidationReport:
    return samples.go().model_copy(update={"fleet": fleet})


def page(fleet: Fleet) -> Element:
    return parse(render_html(with_fleet(fleet), ChartData())).all("section", klass="fleet")[0]


def view(fleet: Fleet) -> FleetView:
    return fleet_view(fleet, RUN)


def test_a_report_without_a_cluster_says_nothing_of_nodes() -> None:
    html, markdown = render_html(samples.go(), ChartData()), render_markdown(samples.go())
    assert not parse(html).all("section", klass="fleet")
    assert "#nodes" not in html
    assert "## Nodes" not in markdown


def test_a_slow_gpu_is_marked_in_its_cell_by_color_sign_and_words(slow_gpu: Fleet) -> None:
    table = page(slow_gpu).all("table", klass="map")[1]
    row = next(row for row in table.all("tr") if row.text.startswith("n003"))
    marked = row.all("td", klass="bad")
    assert [cell.text.split()[1] for cell in marked] == ["✕"]
    assert row.all("td").index(marked[0]) == 1
    found = next(one for one in slow_gpu.cells if one.subject == FleetSubject(nodes=("n003",), gpu=1))
    assert found.value is not None
    assert marked[0].text.startswith(f"{found.value:.0f} ")
    assert "MADs, confirmed" in marked[0].all("span", klass="hidden")[0].text
    assert [head.text for head in table.all("th", scope="col")][:3] == ["Node", "GPU 0", "GPU 1"]
    assert len(table.all("th", scope="row")) == 8


def test_an_outlier_is_shown_with_its_effect_interval_and_outcome(slow_gpu: Fleet) -> None:
    rows = {one.subject: one for one in view(slow_gpu).outliers}
    one = rows["n003 GPU 1"]
    assert one.status.word == "CONFIRMED"
    found = next(found for found in slow_gpu.outliers if found.subject.label == "n003 GPU 1")
    assert found.low is not None
    assert found.high is not None
    assert one.interval == f"[{100 * found.low:+.1f} %, {100 * found.high:+.1f} %]"
    assert found.high < -slow_gpu.min_effect, "the whole interval is beyond the minimum effect"
    assert [one.status.word for one in view(slow_gpu).outliers] == sorted(
        (one.status.word for one in view(slow_gpu).outliers), key=["CONFIRMED", "ACQUITTED"].index
    )


@pytest.mark.parametrize(
    ("outcome", "by", "word"),
    [
        ("confirmed", "swap", "CONFIRMED BY SWAP"),
        ("acquitted", "swap", "ACQUITTED BY SWAP"),
        ("confirmed", "alone", "CONFIRMED"),
        ("suspected", "none", "SUSPECTED"),
        ("differs", "none", "DIFFERS"),
    ],
)
def test_the_outcome_of_an_outlier_has_a_word(outcome: str, by: str, word: str) -> None:
    against = FleetSubject(nodes=("n2",)) if outcome == "differs" else None
    fleet = made(4, outliers=(outlier(("n1",), outcome, by=by, against=against),))
    row = view(fleet).outliers[0]
    assert row.status.word == word
    assert f"{row.status.sign} {word}" in render_markdown(with_fleet(fleet)).replace("**", "")
    assert ("none is accused" in row.message) == (outcome == "differs")


def test_what_is_confirmed_comes_before_many_others() -> None:
    names = [f"n{number}" for number in range(40)]
    others = tuple(outlier((name,), "acquitted", effect=-0.2) for name in names[1:])
    shown = view(made(40, outliers=(*others, outlier(("n0",)))))
    assert shown.outliers[0].subject == "n0"
    assert shown.more == f"{40 - len(shown.outliers)} more in result.json, these are the first."


def test_slow_links_are_outlined_in_the_matrix_of_pairs(slow_links: Fleet) -> None:
    drawing = parse(fleet_figures(slow_links)[0].svg)
    assert len(drawing.all("rect", klass="sure")) == 4, "two links, each on both sides of the diagonal"
    assert sum("✕" in text.text for text in drawing.all("text")) == 4
    lines = page(slow_links).all("table")[-2].text
    assert "n005 – n006" in lines
    undecided = made(8, outliers=(outlier(("n0", "n1"), "suspected"), outlier(("n1", "n2"), "acquitted")))
    drawing = parse(fleet_figures(undecided)[0].svg)
    assert (len(drawing.all("rect", klass="open")), len(drawing.all("rect", klass="sure"))) == (2, 0)


def test_a_silent_link_is_in_the_matrix_though_it_has_no_value() -> None:
    fleet = made(6)
    silent: FleetCell = fleet.cells[-1].model_copy(update={"value": None, "effect": None})
    fleet = fleet.model_copy(update={"cells": (*fleet.cells[:-1], silent)})
    fleet = fleet.model_copy(update={"outliers": (outlier(silent.subject.nodes, "inconclusive"),)})
    figure = fleet_figures(fleet)[0]
    assert figure.table.rows[0][:2] == (silent.subject.label, "nothing")
    assert "– ?" in parse(figure.svg).text


@pytest.mark.parametrize(("size", "side"), [(8, 8), (64, 64), (512, 64)])
def test_the_matrix_of_a_large_fleet_is_folded(size: int, side: int) -> None:
    slow = ("n3", f"n{size - 1}")
    fleet = made(size, outliers=(outlier(slow),))
    fleet = fleet.model_copy(update={"cells": (*fleet.cells, cell("busbw", slow, 90.0))})
    figure = fleet_figures(fleet)[0]
    names = parse(figure.svg).all("g", klass="names")[0].all("text")
    assert len(names) == 2 * side
    assert len(parse(figure.svg).all("rect", klass="sure")) == 2
    assert figure.table.rows[0][0] == f"n3 – n{size - 1}"
    assert ("between two groups of 8 nodes" in figure.summary) == (size == 512)
    assert len(figure.svg) < 150_000


def test_a_large_fleet_shows_the_odd_nodes_and_stays_small() -> None:
    fleet = made(512)
    odd = [
        cell("trainer", ("n300",), 80.0, -12.0),
        *(cell("gemm", (f"n{n}",), 9.0, 0.0, g) for n in range(512) for g in range(8)),
    ]
    cells = tuple(one for one in fleet.cells if one.subject.nodes != ("n300",) or one.measure != "trainer")
    nodes = tuple(one.model_copy(update={"state": "lost"}) if one.name == "n7" else one for one in fleet.nodes)
    measures = (*fleet.measures, FleetMeasure(name="gemm", unit="TFLOP/s", per="node"))
    fleet = fleet.model_copy(update={"cells": (*cells, *odd), "nodes": nodes, "measures": measures})
    shown = view(fleet).maps[0]
    assert {name for name, _, _ in shown.rows} == {"n7", "n300"}
    assert "510 nodes" in shown.note
    report = with_fleet(fleet)
    assert len(render_html(report, ChartData()).encode()) < MAX_BYTES
    assert len(render_markdown(report)) < MAX_LENGTH


def test_scaling_is_compared_with_the_smallest_number_of_nodes(slow_gpu: Fleet) -> None:
    table = view(slow_gpu).scaling
    assert table is not None
    assert table.rows[2] == ("4", "189,000 tok/s", "[186,000, 192,000]", "3.78 ×", "94.5 %")
    figure = fleet_figures(slow_gpu)[-1]
    assert "94.5 % of 4 times the rate of 1 node" in figure.summary
    assert figure.spec is not None
    drawn = figure.spec["data"]["values"]
    assert [(row["low"], row["ideal"]) for row in drawn][1:] == [(97_000.0, 100_000.0), (186_000.0, 200_000.0)]


def test_only_what_differs_between_nodes_is_listed_and_the_odd_one_is_named() -> None:
    records = [fleets.record(number) for number in range(4)]
    gpus = fleets.facts(2)["gpus"]
    gpus["gpu6"]["power_limit_w"] = 500.0
    known = fleets.facts(2, packages={"torch": "2.12.0"}, memory={"total_gib": 1508.0}, gpus=gpus, mounts={})
    records[2] = fleets.record(2, known=known, clock_offset_s=-4.2)
    records[3] = fleets.record(3, clock_offset_s=0.4)
    table = view(fleets.fleet(4, "healthy", records=tuple(records))).differences
    assert table is not None
    assert {row[0]: row[1:] for row in table.rows} == {
        "torch": ("2.13.0 (3 nodes)", "≠ n002: 2.12.0"),
        "package nvidia-nccl-cu12": ("2.27.5 (3 nodes)", "≠ n002: none"),
        "mount /data": ("nfs4 (3 nodes)", "≠ n002: none"),
        "the power limit in W": ("700 (3 nodes)", "≠ n002: 7 x 700, 1 x 500"),
        "the clock, beside the head's": ("+0.0 s (3 nodes)", "≠ n002: -4.2 s"),
    }, "1508 GiB of memory are as good as 1511"


def test_of_two_nodes_that_differ_neither_is_the_usual_one() -> None:
    records = (fleets.record(0), fleets.record(1, known=fleets.facts(1, system="Linux 5.15.0 x86_64")))
    table = view(fleets.fleet(2, "healthy", records=records)).differences
    assert table is not None
    assert table.rows[0] == ("the kernel", "no majority", "≠ n000: Linux 6.8.0 x86_64; ≠ n001: Linux 5.15.0 x86_64")


def test_nodes_have_their_own_names_where_the_search_counts_them() -> None:
    names = {f"n{number:03d}": f"gpu-node-{number}" for number in range(8)}
    fleet = fleets.fleet(8, "slow link", count=2, seed=5, names=names)
    subjects = [*(one.subject for one in fleet.cells), *(one.subject for one in fleet.outliers)]
    used = {name for one in subjects for name in one.nodes}
    assert used == {one.name for one in fleet.nodes} == set(names.values())
    assert set(fleet.good) < used


def test_a_lost_node_is_not_good_whatever_it_measured() -> None:
    records = tuple(fleets.record(number) for number in range(4))
    fleet = fleets.fleet(4, "healthy", records=records, lost={"n001": "silent for 20 s", "n009": "switched off"})
    states = {one.name: one.state for one in fleet.nodes}
    assert states["n001"] == "lost"
    assert "n001" not in good_nodes(fleet).split()
    assert exclude_line(fleet) == "--exclude=n001,n009", "one that left before it was measured too"
    assert "lost during the validation: silent for 20 s" in ticket(fleet, RUN)
    assert "UUID GPU-00000001-" in ticket(fleet, RUN), "what it is comes from its earlier record"


def test_the_ticket_names_the_hardware_that_is_slow(slow_gpu: Fleet) -> None:
    text = ticket(slow_gpu, RUN)
    assert "Node n003 (host gpu-3.dc1)" in text
    assert re.findall(r"GPU (\d): NVIDIA.*UUID (\S+), serial number (\d+)", text) == [
        ("1", "GPU-00000003-0000-4000-8000-000000000001", "1600030001")
    ]
    assert "n006" not in text, "what was acquitted is not reported"


def test_nothing_is_drained_or_reported_on_suspicion() -> None:
    nodes = tuple(FleetNode(name=f"n{n}", state="inconclusive" if n == 1 else "good") for n in range(4))
    doubts = tuple(outlier(("n1",), outcome) for outcome in ("suspected", "inconclusive", "differs", "acquitted"))
    fleet = made(4, nodes=nodes, good=("n0", "n2", "n3"), outliers=doubts)
    assert (drain_commands(fleet, RUN), ticket(fleet, RUN), exclude_line(fleet)) == ("", "", "")
    assert good_nodes(fleet) == "n0\nn2\nn3\n"


def test_a_slow_link_keeps_one_end_out_of_the_next_job_and_drains_none(slow_links: Fleet) -> None:
    names = exclude_line(slow_links).removeprefix("--exclude=").split(",")
    links = [set(one.subject.nodes) for one in slow_links.outliers if one.outcome == "confirmed"]
    assert len(links) == 2
    assert all(link & set(names) for link in links)
    assert not any(link <= set(pair) for link in links for pair in combinations(good_nodes(slow_links).split(), 2))
    assert drain_commands(slow_links, RUN) == ""
    assert ticket(slow_links, RUN).count("Link between ") == 2


def test_no_node_is_vetted_while_rounds_are_missing() -> None:
    fleet = made(4, complete=False)
    assert good_nodes(fleet) == ""
    assert "not complete" in view(fleet).summary


def test_a_drain_command_is_one_line_of_shell_for_each_node() -> None:
    node = FleetNode(name="n1", state="slow")
    hostile = outlier(("n1",), measure="it's $(reboot) `x`\n=")
    fleet = made(2, nodes=(node,), outliers=(hostile,))
    [line] = drain_commands(fleet, RUN).splitlines()
    words = shlex.split(line)
    assert words[:4] == ["scontrol", "update", "NodeName=n1", "State=DRAIN"]
    assert len(words) == 5
    assert words[4].startswith(f"Reason=validator {RUN}: slow-node it s")
    assert not re.search(r"[$`'\"]", words[4])


def test_without_slurm_there_is_no_option_of_slurm(slow_gpu: Fleet) -> None:
    names = [one.name for one in view(slow_gpu.model_copy(update={"engine": "ssh"})).hand_over]
    assert len(names) == 2
    assert not any("job" in name or "drain" in name for name in names)


def test_html_and_markdown_show_the_same_values(slow_gpu: Fleet) -> None:
    html, markdown = page(slow_gpu).text, render_markdown(with_fleet(slow_gpu))
    for one in view(slow_gpu).outliers:
        for text in (one.subject, one.effect, one.interval.strip("[]"), one.p_value, one.message):
            assert text in html
            assert text in markdown
    assert "n003" in markdown.split("--exclude=")[1][:8]


def test_result_json_has_the_fleet_and_reads_it_again(slow_gpu: Fleet) -> None:
    text = render_json(with_fleet(slow_gpu))
    assert Fleet.model_validate(json.loads(text)["fleet"]) == slow_gpu


def test_names_of_nodes_cannot_attack() -> None:
    nodes = (FleetNode(name=HOSTILE, state="slow", why=HOSTILE, host=HOSTILE), FleetNode(name="n1", state="good"))
    cells = (cell("trainer", (HOSTILE,), 1.0, -9.0), cell("busbw", (HOSTILE, "n1"), 2.0))
    fleet = made(2, nodes=nodes, cells=cells, outliers=(outlier((HOSTILE,)), outlier((HOSTILE, "n1"))))
    html = render_html(with_fleet(fleet), ChartData())
    assert parse(html).all("section", klass="fleet")
    assert "<script>alert" not in html
    assert "<img" not in html
    markdown = re.sub(r"(?m)^(`{3,})sh$.*?^\1$", "", render_markdown(with_fleet(fleet)), flags=re.DOTALL)
    assert "<script>alert" not in markdown
