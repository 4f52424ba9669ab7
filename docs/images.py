"""Makes the pictures of the docs from a report, so that they show what the program writes today.

    python docs/images.py                     from the committed sample
    python docs/images.py RUN/report.html     from another report

They are written to docs/images/: `report.png` is the head of the report, `tile.png` its first tile, `charts.png` the
charts of a phase that trains. Needs Playwright and Chromium, as the tests in tests/browser do.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parent / "images"
SAMPLE = Path(__file__).parents[1] / "reports" / "sample-2xh200" / "report.html"
WIDTH, HEIGHT = 1200, 860


def head(page: Page, to: Path) -> None:
    """The decision and the values that decide it, as they are seen on opening."""
    page.screenshot(path=to)


def tile(page: Page, to: Path) -> None:
    """The first value."""
    page.locator(".tile").first.screenshot(path=to)


def charts(page: Page, to: Path) -> None:
    """The charts of the first phase that has several, without the page's bar over them."""
    page.add_style_tag(content=".bar { display: none !important; }")
    box = page.locator(".charts:has(figure + figure)").first
    box.scroll_into_view_if_needed()
    page.mouse.move(1, 1)
    area = box.bounding_box()
    if area is None:
        raise SystemExit("this report has no phase with charts; give one whose runbook trains")
    top = area["y"] + page.evaluate("scrollY")
    height = min(area["height"], HEIGHT)
    page.screenshot(
        path=to, full_page=True, clip={"x": area["x"] - 12, "y": top, "width": area["width"] + 24, "height": height}
    )


def main() -> int:
    """Open the report in a light page and take every picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, nargs="?", default=SAMPLE)
    report: Path = parser.parse_args().report
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for name, take in (("report", head), ("tile", tile), ("charts", charts)):
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light", bypass_csp=True)
            page.goto(report.resolve().as_uri())
            page.wait_for_function("!document.querySelector('.drawing > div:not(.drawn)')")
            take(page, IMAGES / f"{name}.png")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
