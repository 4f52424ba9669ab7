"""Programs that tests start, and waiting for what they do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def python(
    *arguments: str, cwd: Path | None = None, timeout_s: float = 60, env: dict[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run this Python to its end with the variables of `env` beside the present ones; returns what it printed."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        **more,
    )


def start_validator(
    *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None, **streams: Any
) -> subprocess.Popen[str]:
    """Start `validator …`, with the variables of `env` beside the present ones."""
    command = [sys.executable, "-m", "validator", *arguments]
    return subprocess.Popen(command, cwd=cwd, env={**os.environ, **(env or {})}, text=True, **streams)


def wait_until(holds: Callable[[], object], what: str, *, timeout_s: float = 60.0, every_s: float = 0.05) -> float:
    """Wait for a condition; returns the seconds that it took, TimeoutError after `timeout_s`."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began >= timeout_s:
            raise TimeoutError(f"{what}: not within {timeout_s:.1f} s")
        time.sleep(every_s)
    return time.monotonic() - began
