"""The service's pages in a real browser: accessible, silent, as wide as a phone, and live without a reload."""

from __future__ import annotations

import re
import subprocess
import time
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
MARKER, SECRET = "0123456789abcdef", "hunter2hunter2"
SAMPLES = "logs/telemetry.csv"


WATCH = """() => {
  window.changed = [];
  const name = one => one.target.getAttribute("data-live") || one.target.nodeName;
  const note = found => found.forEach(one => changed.push(name(one)));
  new MutationObserver(note).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""
"""Collects what changes on a page."""

BELOW = "text => text.getBoundingClientRect().bottom - text.parentElement.getBoundingClientRect().bottom"
"""How far the end of a log is below its box."""


class Served:
    """A server over past runs and one that runs, whose runner is this process."""

    def __init__(self, address: str, folder: RunFolder, journal: Journal, past: Path, pid: int) -> None:
        self.address = address
        self.folder = folder
        self.journal = journal
        self.past = past
        self.run = spec(folder)
        journal.append("run_started", run=self.run.id, as_it_is={"spec": self.run})
        started = {"number": 1, "pid": pid, "command": ["train.py"], "container": None, "marker": MARKER}
        journal.append("attempt_started", run=self.run.id, **started)
        self.write(HEAD + "10,3.5,0.1,900\n")
        self.write("".join(f"step {step} loss 3.5\n" for step in range(300)), "logs/stdout.log")
        self.write("rank 1 is here\n", "logs/ranks/x/attempt_0/1/stdout.log")
        self.write("ts,host_cpu_pct,gpu0_util_pct,gpu0_mem_used_mib,gpu0_power_w,gpu0_temperature_c\n", SAMPLES)
        self.write(f"{time.time()},50,97,70123,612.3,64\n", SAMPLES)

    def write(self, text: str, name: str = "training.csv") -> None:
        """Add lines to a file of the run."""
        path = self.folder.root / self.run.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
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
    given = {"VALIDATOR_RUN_TOKEN": MARKER, "HF_TOKEN": SECRET}
    with (
        journal,
        subprocess.Popen(["sleep", "600"], env=given) as trainer,
        start_validator("serve", "--listen", "127.0.0.1:0", cwd=tmp_path, stderr=subprocess.PIPE) as server,
    ):
        try:
            assert server.stderr is not None
            found = re.search(r"http://[\d.:]+/", server.stderr.readline())
            assert found
            yield Served(found[0], folder, journal, past, trainer.pid)
        finally:
            server.kill()
            trainer.kill()


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
    page.locator(".queue li", has_text="INTERRUPTED").filter(has_text="timeout=5m").wait_for()
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


def test_the_end_of_a_log_and_the_machine_change_in_place(served: Served, page: Page) -> None:
    page.goto(f"{served.address}runs/{served.folder.root.name}/")
    log = page.get_by_role("region", name="stdout.log", exact=True)
    lines = log.locator("pre")
    assert lines.inner_text().startswith("step 100 loss")
    box = log.evaluate("box => [box.clientHeight, box.scrollHeight]")
    assert box[0] < box[1], "it has more lines than fit"
    assert lines.evaluate(BELOW) <= 1
    row = page.get_by_role("row", name="0 97 %")
    assert row.inner_text().split() == ["0", "97", "%", "68.48", "GiB", "612.3", "W", "64", "°C"]
    page.evaluate(WATCH)
    served.write(f"the token is {SECRET}\n", "logs/stdout.log")
    served.write(f"{time.time()},50,98,70123,612.3,64\n", SAMPLES)
    page.get_by_text("the token is [redacted]").wait_for()
    page.get_by_role("row", name="0 98 %").wait_for()
    assert lines.evaluate(BELOW) <= 1
    changed = set(page.evaluate("changed"))
    name = served.folder.root.name
    assert {f"{name} log", f"{name} gpu0 Utilization"} <= changed
    steady = ("elapsed", "remaining", "Left of this run")
    assert changed <= {f"{name} {part}" for part in ("log", "gpu0 Utilization", *steady)}
    page.get_by_label("Its last 200 lines").select_option("ranks/x/attempt_0/1/stdout.log")
    page.get_by_role("button", name="Show").click()
    page.get_by_text("rank 1 is here").wait_for()
    served.write("and trains\n", "logs/ranks/x/attempt_0/1/stdout.log")
    page.get_by_text("and trains").wait_for()
