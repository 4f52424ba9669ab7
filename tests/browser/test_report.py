"""Reports in a real browser: quiet, complete, reachable, and in nobody's way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from tests.browser.conftest import CASES
from tests.validator.report import samples
from validator.report.html import render_html

Open = Callable[..., Any]


@pytest.fixture(scope="session")
def pages(reports: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The reports of real runs, and one with everything in it that a report can hold, hostile texts included."""
    folder = tmp_path_factory.mktemp("pages")
    found = {name: path / "report.html" for name, path in reports.items()}
    for name, report in (("rich", samples.no_go()), ("hostile", samples.hostile())):
        found[name] = folder / f"{name}.html"
        found[name].write_text(render_html(report, samples.charts(report, steps=400)), encoding="utf-8")
    return found


ALL = [*CASES, "rich", "hostile"]


@pytest.fixture
def opened(browser: Browser, pages: dict[str, Path]) -> Open:
    """Open a report; on leaving, nothing may have been said on the console, asked of a network, or thrown."""

    @contextmanager
    def open_(name: str, *, anchor: str = "", **options: Any) -> Iterator[Page]:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        page = context.new_page()
        trouble: list[str] = []
        page.on("console", lambda message: trouble.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
        page.on("dialog", lambda dialog: trouble.append(f"dialog: {dialog.message}") or dialog.dismiss())
        page.on(
            "request",
            lambda request: None if request.url.startswith("file:") else trouble.append(f"request: {request.url}"),
        )
        page.goto(f"{pages[name].as_uri()}{anchor}")
        yield page
        context.close()
        assert not trouble

    return open_


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_violation_of_accessibility(opened: Open, name: str, scheme: str) -> None:
    with opened(name, color_scheme=scheme) as page:
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        found = Axe().run(page).response["violations"]
        serious = [
            (item["id"], [node["html"][:200] for node in item["nodes"]][:3])
            for item in found
            if item["impact"] in ("serious", "critical")
        ]
        assert serious == []


@pytest.mark.parametrize("name", ["go", "rich"])
def test_every_chart_is_drawn_and_can_be_read(opened: Open, name: str) -> None:
    with opened(name) as page:
        charts = page.query_selector_all("figure.chart")
        assert charts
        for chart in charts:
            svg = chart.query_selector("svg")
            assert svg is not None
            box = svg.bounding_box()
            assert box is not None
            assert min(box["width"], box["height"]) > 40
        readable = page.query_selector_all("figure[data-readout]")
        assert len(page.query_selector_all("figure[data-readout] .readout")) == len(readable) > 0


def test_hover_reads_the_value_that_was_written(opened: Open, reports: dict[str, Path]) -> None:
    (table,) = reports["go"].glob("runs/baseline/*/training.csv")
    losses = {
        int(row.split(",")[0]): float(row.split(",")[1]) for row in table.read_text(encoding="utf-8").splitlines()[1:]
    }
    span = max(losses.values()) - min(losses.values())
    with opened("go") as page:
        figure = page.locator("#chart-baseline-Loss")
        figure.scroll_into_view_if_needed()
        box = figure.locator(".surface").bounding_box()
        for share in (0.1, 0.5, 0.9):
            page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
            told = figure.locator(".readout").inner_text()
            step, value = re.fullmatch(r"Step (\d+): \S+ ([\d.]+) nat", told).groups()
            assert float(value) == pytest.approx(losses[int(step)], abs=span / 500)
            assert int(step) == pytest.approx(share * 120, abs=6)


def test_dragging_zooms_and_the_button_shows_the_whole_run(opened: Open) -> None:
    with opened("go") as page:
        figure = page.locator("#chart-baseline-Rate")
        figure.scroll_into_view_if_needed()
        box = figure.locator(".surface").bounding_box()
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + box["width"] * 0.5, middle)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.75, middle, steps=5)
        page.mouse.up()
        shown = figure.evaluate(
            "f => [...f.querySelectorAll('.x-axis text')].filter(t => t.getAttribute('visibility') !== 'hidden')"
            ".map(t => t.textContent).filter(t => /^\\d+$/.test(t)).map(Number)"
        )
        assert min(shown) >= 58
        assert max(shown) <= 92
        page.mouse.move(box["x"] + 2, middle)
        assert 55 <= int(re.search(r"Step (\d+)", figure.locator(".readout").inner_text())[1]) <= 65
        figure.get_by_role("button", name="Whole run").click()
        page.mouse.move(box["x"] + 2, middle)
        assert int(re.search(r"Step (\d+)", figure.locator(".readout").inner_text())[1]) <= 2


def test_keys_read_and_zoom_a_chart(opened: Open) -> None:
    with opened("go") as page:
        figure = page.locator("#chart-baseline-Rate")
        figure.locator(".drawing").focus()
        page.keyboard.press("ArrowRight")
        first = int(re.search(r"Step (\d+)", figure.locator(".readout").inner_text())[1])
        page.keyboard.press("ArrowRight")
        assert int(re.search(r"Step (\d+)", figure.locator(".readout").inner_text())[1]) == first + 1
        page.keyboard.press("+")
        assert figure.get_by_role("button", name="Whole run").is_visible()
        page.keyboard.press("Escape")
        assert not figure.get_by_role("button", name="Whole run").is_visible()


@pytest.mark.parametrize("name", ["go", "no_go", "rich"])
def test_everything_is_there_without_scripts(opened: Open, browser: Browser, pages: dict[str, Path], name: str) -> None:
    def words(**options: Any) -> str:
        context = browser.new_context(**options)
        page = context.new_page()
        page.goto(pages[name].as_uri())
        text = page.evaluate("document.querySelector('main').textContent") if not options else page.text_content("main")
        context.close()
        return " ".join(str(text).split())

    scripted = words()
    for extra in ("Copy", "Whole run"):
        scripted = scripted.replace(extra, "")
    plain = words(java_script_enabled=False)
    for word in {"Criteria", "Findings", "Phases", "Environment", "Artifacts", *re.findall(r"\S+ tok/s", plain)}:
        assert word in scripted
    assert len(plain) > 0.85 * len(scripted)
    with opened(name, java_script_enabled=False) as page:
        assert page.locator("section.phase").count() == page.locator("section.phase:visible").count() > 0
        assert page.locator("figure.chart svg:visible").count() > 0


def test_a_filter_hides_the_others_and_stands_in_the_address(opened: Open, pages: dict[str, Path]) -> None:
    with opened("rich") as page:
        total = page.locator("section.phase").count()
        failed = page.locator("section.phase[data-status=FAIL]").count()
        assert 0 < failed < total
        page.get_by_role("group", name="Show phases").get_by_role("button", name=re.compile("FAIL")).click()
        assert page.locator("section.phase:visible").count() == failed
        address = page.url
        assert "phases=FAIL" in address
    with opened("rich", anchor="#" + address.split("#")[1]) as page:
        assert page.locator("section.phase:visible").count() == failed
        page.get_by_role("group", name="Show phases").get_by_role("button", name=re.compile("FAIL")).click()
        assert page.locator("section.phase:visible").count() == total


def test_a_deep_link_opens_what_it_points_to(opened: Open) -> None:
    with opened("rich") as page:
        folded = page.locator("details.run:not([open])").first.get_attribute("id")
    with opened("rich", anchor=f"#{folded}") as page:
        assert page.locator(f"#{folded}").get_attribute("open") is not None
    with opened("rich", anchor="#findings!phases=PASS") as page:
        target = page.locator("section.phase[data-status=FAIL] h3").first.get_attribute("id")
        page.evaluate(f"location.hash = '{target}'")
        page.wait_for_function(f"!document.getElementById('{target}').closest('[hidden]')")


def test_the_keyboard_reaches_everything_that_can_be_used(opened: Open) -> None:
    with opened("go") as page:
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        wanted = page.evaluate(
            "[...document.querySelectorAll('a[href], button, input, summary, [tabindex=\"0\"]')]"
            ".filter(e => e.checkVisibility() && !(e.type === 'radio' && !e.checked)).length"
        )
        reached = set()
        for _ in range(wanted + 40):
            page.keyboard.press("Tab")
            reached.add(
                page.evaluate(
                    "e => { const all = [...document.querySelectorAll('*')];"
                    " return all.indexOf(document.activeElement); }",
                    None,
                )
            )
        assert len(reached) >= wanted


@pytest.mark.parametrize("name", ["go", "rich", "hostile"])
def test_a_phone_needs_no_sideways_scroll(opened: Open, name: str) -> None:
    with opened(name, viewport={"width": 390, "height": 800}) as page:
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_print_cuts_no_table(opened: Open, tmp_path: Path) -> None:
    with opened("rich") as page:
        page.emulate_media(media="print")
        page.set_viewport_size({"width": 718, "height": 1000})  # A4 without margins, at 96 dots per inch
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        cut = page.evaluate(
            "[...document.querySelectorAll('table')].filter(t => t.checkVisibility()"
            " && t.getBoundingClientRect().right > document.documentElement.clientWidth + 1)"
            ".map(t => t.caption ? t.caption.textContent : t.outerHTML.slice(0, 80))"
        )
        assert cut == []
        pdf = tmp_path / "report.pdf"
        page.pdf(path=str(pdf), format="A4")
        assert pdf.read_bytes().startswith(b"%PDF")


def test_light_and_dark_are_two_pages(opened: Open, tmp_path: Path) -> None:
    shots = {}
    for scheme in ("light", "dark"):
        with opened("go", color_scheme=scheme) as page:
            shots[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
            page.screenshot(path=str(tmp_path / f"{scheme}.png"))
    assert shots["light"] == "rgb(255, 255, 255)"
    assert shots["dark"] != shots["light"]
