"""The systemd unit of a server, and what the server reports to the manager that started it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from validator.nightly.schedule import unit_quoted, unit_value
from validator.nightly.settings import CARRIED
from validator.report.templates import text

_FOLDERS = ("XDG_CONFIG_HOME", "XDG_STATE_HOME")


def unit_text(reports: Path, arguments: Sequence[str]) -> str:
    """The unit of `validator serve` with these arguments, started in this folder by this Python.

    It is one for root's manager where root asks, and for the user's own elsewhere.

    Raises:
        ScheduleError: when a path holds a character that no unit can hold.
    """
    script = Path(sys.executable).with_name("validator")
    start = (str(script),) if script.is_file() else (sys.executable, "-m", "validator")
    carried = [f"{name}={os.environ[name]}" for name in (*CARRIED, *_FOLDERS) if name in os.environ]
    root = os.geteuid() == 0
    return text("service/unit.service").format(
        reports=unit_value(str(reports.absolute())),
        command=unit_quoted((*start, "serve", *arguments)),
        folder=unit_value(str(Path.cwd())),
        environment="\n".join(f"Environment={unit_quoted((one,)).replace('$$', '$')}" for one in carried),
        protection="ProtectSystem=full"
        if root
        else "# A user's own manager can add nothing without a namespace of users.",
        target="multi-user.target" if root else "default.target",
    )


def notify(state: str) -> None:
    """Send a state such as `READY=1` to the manager that started this process; nothing happens without one."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        address = f"\0{address[1:]}" if address.startswith("@") else address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending, suppress(OSError):
            sending.sendto(state.encode(), address)
