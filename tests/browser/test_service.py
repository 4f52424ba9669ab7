"""The service's pages in a real browser: accessible, silent, as wide as a phone, and live without a reload."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from tests.processes import start_validator
from tests.validator.history.folders import make_run
from tests.validator.service.serving import make_running, spec
from validator.runs.folder import RunFolder
from validator.runs.journal import Journal

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
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, path
        found = Axe().run(page).response["violations"]
        bad = [one for one in found if one["impact"] in ("serious", "critical")]
        assert not bad, (path, [(one["id"], [node["html"] for node in one["nodes"]]) for one in bad])


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
