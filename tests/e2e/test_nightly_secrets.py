"""A webhook's address is a secret: however its sending ends, no part of it is written or said anywhere."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.webhooks import Post, listening
from validator.nightly.settings import Nightly, save

RUNBOOK = """
schema: 1
name: quick
phases:
  - {id: look, kind: command, run: "cat answer.txt", stdout: 'is (?P<it>\\d+)', accept: [metrics.it == 42]}
"""
SAYS_ALL = 'echo "cannot reach {hook}: https://say:zq12xword@host/ --token zq13xtoken" >&2; exit 22'
"""What a command that is told the decision may say of itself, as `curl --fail` does of its address."""


@pytest.fixture
def server() -> Iterator[tuple[str, list[Post]]]:
    """A web server that answers with the status in the path, and the requests that it got."""
    with listening(lambda path: None if "hang-up" in path else int(path.split("/")[1])) as served:
        yield served


def _addresses(here: str) -> tuple[str, ...]:
    return (
        f"json://{here}/200/zq01xpath",
        f"json://me:zq02xpass@{here}/404/hook",
        f"json://zq03xuser@{here}/403/hook",
        f"json://{here}/500/hook?token=zq04xquery&+X-Api-Key=zq05xheader",
        "json://127.0.0.1:9/services/zq06xrefused",
        f"jsons://{here}/200/zq07xnotls",
        "jsons://nowhere.invalid/hooks/zq08xhost",
        f"json://{here}/hang-up/zq09xbroken",
        "slack://zq10xnotatoken",
        f"xml://{here}/401/zq11xxml",
    )


NEEDLES = [f"zq{number:02d}x" for number in range(1, 14)]


def _told(folder: Path) -> list[str]:
    texts = [(path, path.read_bytes().lower()) for path in sorted(folder.rglob("*")) if path.is_file()]
    return [f"{path.name}: {one}" for path, text in texts for one in NEEDLES if one.encode() in text]


@pytest.mark.parametrize("answer", [42, 41])
def test_no_part_of_an_address_is_told(
    cli, workdir: Path, tmp_path: Path, server: tuple[str, list[Post]], monkeypatch: pytest.MonkeyPatch, answer: int
) -> None:
    here, asked = server
    for name in ("CONFIG", "STATE", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (workdir / "quick.yaml").write_text(RUNBOOK, encoding="utf-8")
    (workdir / "answer.txt").write_text(f"it is {answer}\n", encoding="utf-8")
    settings = save(
        Nightly(
            name="quick",
            runbook="quick.yaml",
            at="02:00",
            out=str(workdir / "reports"),
            state=str(tmp_path / "state" / "quick"),
            cwd=str(workdir),
            python=sys.executable,
            environment={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
            notify=_addresses(here),
            notify_on="always",
            command=SAYS_ALL.format(hook=_addresses(here)[4].replace("json:", "http:")),
            prometheus=str(workdir / "reports" / "v.prom"),
            keep_count=1,
        )
    )
    ran = [cli("nightly", "run", "quick") for _ in range(2)]
    assert {one.rc for one in ran} == {0 if answer == 42 else 1}, ran[0].err
    assert len([one for one in asked if "/200/zq01xpath" in one.path]) == 2, "the address itself is whole"
    assert any("zq05xheader" in str(one.headers) for one in asked)
    logs = sorted((tmp_path / "state" / "quick").glob("*.log"))
    lines = [line for line in logs[-1].read_text(encoding="utf-8").splitlines() if line.startswith("notification: ")]
    lines = [line for line in lines if not line.endswith(" UTC)")]  # what the first start could not deliver
    assert len(lines) == 11, "each has a line that says how it went"
    assert "sent" in lines[0]
    assert sum("could not be reached" in line for line in lines) == 9
    assert "ended with 22" in lines[10]
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600
    words = ("nightly status", "nightly status --json", "history", "nightly run other")
    told = [cli(*line.split()) for line in words]
    settings.write_text(settings.read_text(encoding="utf-8").replace('"at":', '"when":'), encoding="utf-8")
    told += [cli("nightly", "run", "quick"), cli("nightly", "status")]
    assert [one.rc for one in told] == [0, 0, 0, 2, 2, 2]
    assert "not delivered yet: " in told[0].out
    assert len(json.loads(told[1].out)[0]["not_delivered"]) == 2
    assert json.loads(told[1].out)[0]["last"]["decision"] == ("GO" if answer == 42 else "NO_GO")
    settings.unlink()
    said = "".join(one.out + one.err for one in (*ran, *told))
    assert [needle for needle in NEEDLES if needle in said] == []
    assert _told(tmp_path) == []


def test_a_refused_address_is_not_repeated(cli, workdir: Path) -> None:
    (workdir / "quick.yaml").write_text(RUNBOOK, encoding="utf-8")
    refused = cli("nightly", "install", "quick.yaml", "--print", "--notify", "nonsense://zq01xpath/zq02xpass")
    assert (refused.rc, "nonsense://…" in refused.err) == (2, True)
    shown = cli("nightly", "install", "quick.yaml", "--print", "--cron", "--notify", "json://host/zq01xpath")
    assert "zq" not in refused.out + refused.err + shown.out + shown.err
