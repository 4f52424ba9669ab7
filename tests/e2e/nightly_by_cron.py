"""Proof of nightly jobs with the real cron daemon: run by hand, as root, on a machine whose crontab may be touched.

    python -m tests.e2e.nightly_by_cron

It takes five minutes, since cron has no seconds. It schedules a runbook three times, the third time so long that
a fourth start finds it going on, and checks what came of it: three decisions, one refusal, notifications at a local web
server, runs cleared away, a metrics file that Prometheus' own parser reads, and a crontab left as it was.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.webhooks import Post, listening

RUNBOOK = """
schema: 1
name: proof
defaults: {{timeout: 5m}}
phases:
  - id: look
    kind: command
    run: "sleep {seconds}; echo it is {answer}"
    stdout: 'is (?P<it>\\d+)'
    accept: [metrics.it == 42]
"""


def validator(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "validator", *words], capture_output=True, text=True, check=False)


def schedule(url: str, folder: Path) -> None:
    """Install the job for the next minute that is at least ten seconds away."""
    at = datetime.now() + timedelta(seconds=70)
    words = ["--cron", "--at", f"{at:%H:%M}", "--name", "proof", "--notify", url, "--keep-count", "1"]
    done = validator("nightly", "install", str(folder / "proof.yaml"), *words, "--prometheus", str(folder / "v.prom"))
    assert done.returncode == 0, done.stderr
    print(f"installed for {at:%H:%M}", flush=True)


def wait_for(condition: Any, what: str, seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not come about"
        time.sleep(0.5)
    print(what, flush=True)


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    os.chdir(folder)
    os.environ |= {"XDG_CONFIG_HOME": str(folder / "config"), "XDG_STATE_HOME": str(folder / "state")}
    before = subprocess.run(["crontab", "-l"], capture_output=True, text=True, check=False).stdout
    with listening() as (address, posts):
        cron = subprocess.Popen(["cron", "-f"])
        try:
            prove(folder, f"json://{address}", posts)
        finally:
            cron.terminate()
            cron.wait()
    after = subprocess.run(["crontab", "-l"], capture_output=True, text=True, check=False).stdout
    assert after == before, "the crontab is as it was"
    print("three starts by cron, a fourth refused, all told, cleared away, measured")


def prove(folder: Path, url: str, posts: list[Post]) -> None:
    """Have the job started four times, and look at what came of it."""
    state = folder / "state" / "validator" / "nightly" / "proof"
    for number, (seconds, answer) in enumerate([(1, 42), (1, 41), (100, 42)], start=1):
        (folder / "proof.yaml").write_text(RUNBOOK.format(seconds=seconds, answer=answer), encoding="utf-8")
        schedule(url, folder)
        if number < 3:
            wait_for(lambda n=number: len(posts) == n, f"start {number} ended and was told")
    wait_for(lambda: len(list(state.glob("*.log"))) == 3, "start 3 began")
    schedule(url, folder)
    wait_for((state / "refused.txt").exists, "start 4 was refused")
    wait_for(lambda: len(posts) == 3, "start 3 ended and was told")
    told = [post.json["title"] for post in posts]
    assert told == ["GO: nightly proof", "NO-GO (was GO): nightly proof", "GO (was NO-GO): nightly proof"], told
    runs = [path for path in (folder / "reports").iterdir() if (path / "run.json").is_file()]
    assert len(runs) == 1, f"only the last GO stays: {runs}"
    families = {f.name for f in text_string_to_metric_families((folder / "v.prom").read_text(encoding="utf-8"))}
    assert "validator_nightly_decision" in families
    print(validator("nightly", "status").stdout)
    assert validator("nightly", "remove", "proof").returncode == 0


if __name__ == "__main__":
    main()
