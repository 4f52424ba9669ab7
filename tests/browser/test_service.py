"""The service's pages in a real browser: accessible, silent, as wide as a phone, and live without a reload."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from tests.crontab import use_own_crontab
from tests.processes import start_validator
from tests.validator.history.folders import make_run
from tests.validator.service.serving import make_running, spec
from validator.runs.folder import RunFolder
from validator.runs.journal import Journal

WAITS = """
schema: 1
name: waits
title: A program that waits
phases:
  - {id: long, kind: command, run: sleep 60}
"""
HEAD = "step,loss,lr,toks_per_s\n"


class Served:
    """A server over past runs and one that runs, whose runner is this process."""

    def __init__(self, address: str, folder: RunFolder, journal: Journal, past: Path) -> None:
        self.address = address
        self.folder = folder
        self.journal = journal
        self.past = past
        self.run = spec(folder)
        journal.append("run_started", run=self.run.id, as_it_is={"spec": self.run})
        self.write(HEAD + "10,3.5,0.1,900\n")

    def write(self, text: str) -> None:
        """Add rows to the trainer's table."""
        with (self.folder.root / self.run.out / "training.csv").open("a", encoding="utf-8") as file:
            file.write(text)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    reports = tmp_path / "reports"
    past, *_ = (make_run(reports, number, scale=1.0 if number < 6 else 0.9) for number in range(12))
    folder, journal = make_running(reports)
    (tmp_path / "runbooks").mkdir()
    (tmp_path / "runbooks" / "waits.yaml").write_text(WAITS, encoding="utf-8")
    use_own_crontab(tmp_path, monkeypatch)
    with journal, start_validator("serve", "--listen", "127.0.0.1:0", cwd=tmp_path, stderr=subprocess.PIPE) as server:
        try:
            assert server.stderr is not None
            found = re.search(r"http://[\d.:]+/", server.stderr.readline())
            assert found
            yield Served(found[0], folder, journal, past)
        finally:
            server.kill()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page on a phone that must stay silent."""
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    opened, said = context.new_page(), list[str]()
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    yield opened
    context.close()
    assert said == []


def test_every_page_is_accessible_silent_and_fits_a_phone(served: Served, page: Page) -> None:
    live, past = served.folder.root.name, served.past.name
    group = "past?runbook=smoke-cpu&machine=2+x+NVIDIA+H200,+NVLink"
    for path in ("", group, "fleet", "compare", f"runs/{past}/", f"runs/{live}/", f"stop/{live}?how=halt", "login"):
        page.goto(served.address + path)
        fits_and_is_accessible(page)


def fits_and_is_accessible(page: Page) -> None:
    """Fail unless the page is as wide as the phone and axe-core finds nothing serious."""
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, page.url
    found = Axe().run(page).response["violations"]
    bad = [one for one in found if one["impact"] in ("serious", "critical")]
    assert not bad, (page.url, [(one["id"], [node["html"] for node in one["nodes"]]) for one in bad])


def test_a_validation_is_started_from_its_form_stopped_followed_by_the_next_and_scheduled(
    served: Served, page: Page
) -> None:
    page.set_default_timeout(60_000)  # two validations start and end
    page.goto(served.address)
    page.get_by_role("link", name="Start", exact=True).click()
    fits_and_is_accessible(page)
    for number in range(2):
        page.goto(f"{served.address}start/waits")
        page.get_by_text("phases.long").focus()
        page.keyboard.press("Enter")  # opens the section
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.name") == "phases.long.timeout"
        if number == 0:
            page.keyboard.type("5")
            page.keyboard.press("Enter")
            page.locator(".wrong", has_text="duration 5 has no unit").wait_for()
            fits_and_is_accessible(page)
            page.get_by_label("timeout").last.fill("")
        page.get_by_label("timeout").last.fill(f"{number + 5}m")
        page.get_by_role("button", name="Check and show the plan").click()
        page.get_by_text(f"--set phases.long.timeout={number + 5}m").wait_for()
        if number == 0:
            fits_and_is_accessible(page)
        page.get_by_role("button", name="Start it when the machine is free").click()
    running = page.locator(".queue li", has_text="RUNNING")
    running.get_by_role("link", name="Halt").wait_for()
    fits_and_is_accessible(page)
    page.goto(served.address)
    page.get_by_role("heading", name="A program that waits").wait_for()
    page.goto(f"{served.address}queue")
    running.get_by_role("link", name="Halt").click()
    page.get_by_role("button", name="Halt it now").click()
    page.goto(f"{served.address}queue")
    running.filter(has_text="timeout=6m").get_by_role("link", name="Halt").wait_for()  # without a reload
    page.locator(".queue li", has_text="INCONCLUSIVE").filter(has_text="timeout=5m").wait_for()
    running.get_by_role("link", name="Halt").click()
    page.get_by_role("button", name="Halt it now").click()
    page.goto(f"{served.address}start/waits")
    page.get_by_role("button", name="Check and show the plan").click()
    page.get_by_label("At", exact=True).fill("03:15")
    page.get_by_label("Days", exact=True).fill("sat")
    page.get_by_role("button", name="Start it on a schedule").click()
    page.get_by_text("cron, at 15 3 * * 6").wait_for()
    fits_and_is_accessible(page)
    page.get_by_label("At", exact=True).fill("04:00")
    page.get_by_role("button", name="Save").click()
    page.get_by_text("cron, at 0 4 * * 6").wait_for()
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Save and resume").wait_for()
    page.get_by_text("Remove …").click()
    page.get_by_role("button", name="Remove waits").click()
    page.get_by_text("There is no schedule").wait_for()


def test_values_change_in_place_and_a_new_phase_keeps_the_focus(served: Served, page: Page) -> None:
    page.goto(served.address)
    step = page.get_by_text("step 10 of 100")
    step.wait_for()
    page.get_by_role("link", name="Halt").focus()
    page.evaluate("document.querySelector('article').marked = true")
    served.write("20,2.5,0.1,1000\n")
    page.get_by_text("step 20 of 100").wait_for()
    assert page.evaluate("document.querySelector('article').marked"), "the elements are the same"
    assert page.evaluate("document.querySelector('progress').value") == 20
    served.journal.append("phase_ended", phase="first", state="done", duration_s=2.0)
    served.journal.append("phase_started", phase="second")
    page.locator(".phases li", has_text="RUNNING").filter(has_text="second").wait_for()
    assert not page.evaluate("document.querySelector('article').marked"), "the elements are new"
    assert page.evaluate("document.activeElement.textContent") == "Halt …"
