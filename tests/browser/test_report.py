"""Reports in a real browser: quiet, complete, reachable, and in nobody's way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from tests.browser.conftest import CASES, REPOSITORY
from tests.validator.report import fleets, pieces, samples
from validator.report.html import render_html

Open = Callable[..., Any]


@pytest.fixture(scope="session")
def pages(reports: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The reports of real runs, and one with everything in it that a report can hold, hostile texts included."""
    folder = tmp_path_factory.mktemp("pages")
    found = {name: path / "report.html" for name, path in reports.items()}
    rich = samples.no_go().model_copy(update={"fleet": fleets.fleet(8, "slow link", count=2, seed=5)})
    for name, report in (("rich", rich), ("hostile", samples.hostile())):
        found[name] = folder / f"{name}.html"
        found[name].write_text(render_html(report, samples.charts(report, steps=400)), encoding="utf-8")
    found["sample"] = REPOSITORY / "reports" / "sample-2xh200" / "report.html"
    return found


ALL = [*CASES, "rich", "hostile"]
UNFOLD = """
for (const folded of document.querySelectorAll("details")) folded.open = true;
for (const phase of document.querySelectorAll("section.phase"))
  [...phase.querySelectorAll("details.run")].slice(1).forEach(run => { run.open = false; });
"""
"""Open everything, but of the runs of a phase, which are made alike, only the first."""


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
        page.evaluate(UNFOLD)
        assert _serious(page, *(COLOR_RULES if scheme == "dark" else ())) == []


COLOR_RULES = ("color-contrast", "link-in-text-block")
"""What another set of colors can break; the page is the same otherwise."""


def _serious(page: Page, *rules: str, without: Sequence[str] = ()) -> list[tuple[str, list[str]]]:
    """Serious and critical violations, by rule, with their first elements; of all rules where none is named."""
    options: dict[str, Any] = {"resultTypes": ["violations"], "rules": {name: {"enabled": False} for name in without}}
    options |= {"runOnly": list(rules)} if rules else {}
    return [
        (item["id"], [node["html"][:200] for node in item["nodes"]][:3])
        for item in Axe().run(page, options=options).response["violations"]
        if item["impact"] in ("serious", "critical")
    ]


def test_the_committed_sample_is_as_good_as_a_page_of_today(opened: Open) -> None:
    """What it holds is long: its colors, which are those of the other pages, are left to them."""
    with opened("sample") as page:
        readable = page.locator("figure[data-readout]")
        assert readable.count() > 0
        assert page.locator("figure.chart .drawing svg").count() >= readable.count()
        figure = readable.first
        figure.locator(".drawing").focus()
        page.keyboard.press("End")
        assert re.match(r"(Step|Second) [\d,]+: \S", figure.locator(".readout").inner_text())
        assert page.locator("section.phase:visible").count() == page.locator("section.phase").count() > 0
        # Removed, not hidden: axe looks at what is hidden, too, and takes a minute for it.
        page.evaluate(
            "[...document.querySelectorAll('section.phase')].slice(1)"
            ".filter((phase, place, rest) => phase !== rest.find(one => one.querySelector('figure')))"
            ".forEach(phase => phase.remove())"
        )
        assert page.locator("section.phase").count() == 2
        assert page.locator("section.phase figure.chart").count() > 0
        assert _serious(page, without=COLOR_RULES) == [], "phases are made like the first, and the first with charts"


@pytest.mark.parametrize("name", ["go", "rich"])
def test_every_chart_is_drawn_and_can_be_read(opened: Open, name: str) -> None:
    with opened(name) as page:
        charts = page.query_selector_all("figure.chart")
        assert charts
        for chart in charts:
            svg = chart.query_selector("svg")
            box = svg.bounding_box()
            assert min(box["width"], box["height"]) > 40
        readable = page.query_selector_all("figure[data-readout]")
        assert readable
        for figure in readable:
            figure.query_selector(".drawing").focus()
            page.keyboard.press("ArrowRight")
            assert re.match(r"(Step|Second) [\d,]+: \S", figure.query_selector(".readout").inner_text())


@pytest.fixture(scope="module")
def long(pages: dict[str, Path]) -> str:
    """A report of so many phases that a browser puts most of them off."""
    base = samples.go().phases[2]
    phases = tuple(
        base.model_copy(update={"id": f"p{i}", "title": f"Part {i}", "runs": (pieces.run_report(f"p{i}"),)})
        for i in range(14)
    )
    report = samples.go().model_copy(update={"phases": phases})
    pages["long"] = pages["rich"].with_name("long.html")
    pages["long"].write_text(render_html(report, samples.charts(report, steps=100)), encoding="utf-8")
    return "long"


def test_a_long_report_prepares_what_is_near(opened: Open, long: str) -> None:
    with opened(long) as page:
        charts = page.locator("figure[data-readout]")
        assert page.locator("figure[data-prepared]").count() < charts.count() / 2
        last = charts.last
        last.scroll_into_view_if_needed()
        last.locator(".surface").hover()
        assert re.match(r"(Step|Second) [\d,]+: \S", last.locator(".readout").inner_text())


def test_a_link_far_into_a_long_report_stays_where_it_led(opened: Open, long: str) -> None:
    top = "e => Math.round(e.getBoundingClientRect().top)"
    with opened(long, anchor="#phase-p11") as page:
        heading = page.locator("#phase-p11")
        page.wait_for_timeout(200)
        assert 0 < heading.evaluate(top) < 120
        page.mouse.move(640, 400)
        page.mouse.wheel(0, -600)
        page.wait_for_timeout(300)
        assert 600 < heading.evaluate(top) < 720, "what is drawn above does not push away what is being read"
        assert page.evaluate("find('Part 2')"), "what is put off is found all the same"


@pytest.mark.parametrize(("width", "media"), [(1280, "screen"), (390, "screen"), (718, "print")])
def test_the_room_kept_for_a_drawing_is_the_drawing_s(opened: Open, width: int, media: str) -> None:
    """Else the page would jump as drawings appear."""
    with opened("rich", viewport={"width": width, "height": 900}) as page:
        page.emulate_media(media=media)
        rooms = page.evaluate(
            "[...document.querySelectorAll('.chart svg')].map("
            "s => [s, s.parentNode].map(e => e.getBoundingClientRect()).flatMap(r => [r.width, r.height]))"
        )
        assert len(rooms) >= 5
        for drawn_width, drawn_height, kept_width, kept_height in rooms:
            assert (kept_width, kept_height) == pytest.approx((drawn_width, drawn_height), abs=1)


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
        page.evaluate("window.reached = new Set(); addEventListener('focusin', e => window.reached.add(e.target))")
        for _ in range(wanted + 40):
            page.keyboard.press("Tab")
        assert page.evaluate("window.reached.size") >= wanted


FOLD = """
selector => [...document.querySelectorAll(selector)].map(e => e.getBoundingClientRect())
  .filter(box => box.width > 0 && box.top >= 0 && box.right <= innerWidth && box.bottom <= innerHeight).length
"""
"""How many elements are wholly on the screen."""


@pytest.mark.parametrize("name", ["sample", "rich", "no_go", "inconclusive"])
@pytest.mark.parametrize(("width", "height", "tiles"), [(1280, 800, 4), (390, 844, 2)])
def test_the_first_screen_has_decision_next_step_and_the_first_values(
    opened: Open, name: str, width: int, height: int, tiles: int
) -> None:
    with opened(name, viewport={"width": width, "height": height}) as page:
        every = page.locator(".tile").count()
        assert page.evaluate(FOLD, "#decision") == page.evaluate(FOLD, ".banner .next") == 1
        assert page.evaluate(FOLD, ".tile .value") >= min(tiles, every)
        if width > 1000:
            assert page.evaluate(FOLD, ".tile") == every
            assert page.evaluate(FOLD, "ul.open > li:first-child") == 1, "what did not pass begins there, too"


def test_a_tile_leads_to_its_row_and_a_link_opens_folded_checks(opened: Open) -> None:
    with opened("rich") as page:
        page.locator(".tile a").first.click()
        target = page.evaluate("location.hash.slice(1)")
        assert page.evaluate(FOLD, f"[id='{target}']") == 1
        folded = page.locator("tr.routine li").first.get_attribute("id")
        page.evaluate(f"location.hash = '{folded}'")
        page.wait_for_function(f"document.getElementById('{folded}').checkVisibility()")


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
