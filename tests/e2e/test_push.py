"""Results handed in to a service as users do it: by the command, and each night."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.processes import python, start_validator
from tests.validator.service.pushing import content_of, make_ended
from validator.service.serve import bound
from validator.service.tokens import Tokens


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a user's settings and the reports of a service."""
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    (tmp_path / "reports").mkdir()
    return tmp_path


@contextmanager
def serving(home: Path, port: int = 0, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""
    listen = ("--listen", f"127.0.0.1:{port}", *options)
    with start_validator("serve", *listen, cwd=home, stderr=subprocess.PIPE) as server:
        try:
            assert server.stderr is not None
            found = re.search(r"http://[\d.:]+", server.stderr.readline())
            assert found
            yield server, found[0]
        finally:
            server.kill()


def _has_come(reports: Path) -> bool:
    """Whether there are bytes of an upload; a part that is whole goes to another place meanwhile."""
    for part in reports.glob(".push/*/part-*"):
        with suppress(FileNotFoundError):
            if part.stat().st_size:
                return True
    return False


def test_a_push_survives_the_end_of_its_server(home: Path) -> None:
    run, tokens = make_ended(home / "here", files={"runs/checkpoint.bin": os.urandom(30 << 20)}), home / "tokens.json"
    (home / "token").write_text(Tokens(tokens).add("gpu7", "push"))
    (home / "token").chmod(0o600)
    reading = {"authorization": f"Bearer {Tokens(tokens).add('me', 'read')}"}
    with bound("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    with serving(home, port, "--token-file", str(tokens)) as (server, address):
        command = ("push", str(run), "--to", address, "--token-file", "token")
        pushing = start_validator(*command, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        end = time.monotonic() + 30
        while not _has_come(home / "reports"):
            assert time.monotonic() < end, "nothing has come"
        server.send_signal(signal.SIGKILL)
        server.wait()
    assert not (home / "reports" / run.name).exists(), "it is not whole"
    with serving(home, port, "--token-file", str(tokens)) as (_, address):
        printed, said = pushing.communicate(timeout=60)
        assert (pushing.returncode, f"{address} has {run.name}: 5 files" in printed) == (0, True), said
        assert "the next attempt is in" in said
        time.sleep(1.1)  # as old as an answer of the index may be
        with urllib.request.urlopen(urllib.request.Request(f"{address}/api/v1/runs", headers=reading)) as answer:
            assert [one["folder"] for one in json.load(answer)["runs"]] == [run.name]
    assert content_of(home / "reports" / run.name) == content_of(run)
    assert json.loads((home / "reports" / run.name / ".pushed").read_text())["by"] == "gpu7"


def test_what_cannot_be_pushed_is_a_sentence(home: Path) -> None:
    done = python("-m", "validator", "push", "none", "--to", "http://gpu7:8700", env={"VALIDATOR_TOKEN": "t"}, cwd=home)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "warning: http://gpu7:8700 has no TLS" in done.stderr
    assert "none is not a run folder" in done.stderr
