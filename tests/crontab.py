"""A crontab of a test's own, behind a program that reads and writes it as cron's does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def use_own_crontab(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the program before all others on PATH; returns the file that is its table."""
    table, tools = folder / "table", folder / "tools"
    tools.mkdir()
    program = tools / "crontab"
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = -l ]; then cat "{table}" 2>/dev/null || {{ echo "no crontab" >&2; exit 1; }}\n'
        f'else cat > "{table}"; fi\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    return table
