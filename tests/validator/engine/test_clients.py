"""Clients end with their input, by a signal, or by SIGKILL."""

from __future__ import annotations

import os
import signal

import pytest

from validator.engine.clients import hold


@pytest.mark.parametrize(
    ("shell", "code"),
    [
        ("exec cat", 0),
        ("exec sleep 60", -signal.SIGTERM),
        ("trap '' TERM; echo ready; exec sleep 60", -signal.SIGKILL),
    ],
)
def test_a_client_that_stays_is_ended(shell: str, code: int) -> None:
    (channel,) = hold([(("sh", "-c", shell), ("n1",), os.environ)])
    if "echo" in shell:
        assert channel.stdout.readline() == b"ready\n"
    channel.close(within_s=10.0 if code == 0 else 0.0)
    assert channel.process.returncode == code
    channel.close()
