"""Programs that tests start."""

from __future__ import annotations

import os
import subprocess
import sys
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
