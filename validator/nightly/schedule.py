"""Jobs in the machine's own scheduler: a systemd service with its timer, or a line in the crontab.

Neither needs root. systemd is taken where its manager answers: it catches up after a reboot, starts behind the GPU
driver, and ends everything of a job with it (`KillMode=control-group`). cron is everywhere else.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from validator.errors import Unable
from validator.files import user_folder
from validator.nightly.settings import CARRIED, DAYS, Nightly, save
from validator.startup import shipped

_MARK = "# validator-nightly:"


class ScheduleError(Unable):
    """The scheduler is missing or refuses; the message says which and what to do."""


def _start_folder(job: Nightly) -> Path:
    """Where a start begins: a folder of settings, with no module in it that `-m` would take for one of Python's own.

    The validation itself goes to the job's folder.
    """
    return job.path.parent


def _start_command(job: Nightly) -> tuple[str, ...]:
    """The command of a start.

    Raises:
        ScheduleError: when a path holds a line break, which would begin another line of the schedule.
    """
    arguments = (job.python, "-m", "validator", "nightly", "run", str(job.path))
    broken = next((argument for argument in arguments if not argument.isprintable()), None)
    if broken is not None:
        raise ScheduleError(f"the path {broken!r} holds a control character, which no schedule can hold; rename it")
    return arguments


# systemd


def unit_value(text: str) -> str:
    """A path or another text as unit files want it; raises ScheduleError for one that would begin another line."""
    if not text.isprintable():
        raise ScheduleError(f"{text!r} holds a control character, which no unit can hold; rename it")
    return text.replace("%", "%%")


def unit_quoted(arguments: Sequence[str]) -> str:
    """A command as unit files want it; raises as `unit_value` does."""
    words = (unit_value(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$") for word in arguments)
    return " ".join(f'"{word}"' for word in words)


def service(job: Nightly, *, system: bool) -> str:
    """The text of the service unit. `system` is for root's own manager, which has network and driver units."""
    order = "nvidia-persistenced.service nvidia-fabricmanager.service"
    network = "Wants=network-online.target\nAfter=network-online.target\n" if system else ""
    return f"""\
[Unit]
Description=Nightly validation {job.name}
After={order}
{network}
[Service]
Type=oneshot
WorkingDirectory={unit_value(str(_start_folder(job)))}
ExecStart={unit_quoted(_start_command(job))}
# A NO-GO (1) and an INCONCLUSIVE (3) are decisions; the service fails when there was none.
SuccessExitStatus=1 3
KillMode=control-group
TimeoutStopSec=120
"""


def timer(job: Nightly) -> str:
    """The text of the timer unit."""
    days = ",".join(day.capitalize() for day in job.days)
    return f"""\
[Unit]
Description=Time of the nightly validation {job.name}

[Timer]
OnCalendar={f"{days} " if days else ""}*-*-* {job.at}:00
Persistent=true
AccuracySec=1s

[Install]
WantedBy=timers.target
"""


def serve_unit(reports: Path, arguments: Sequence[str]) -> str:
    """The unit of `validator serve` with these arguments, started in this folder by this Python.

    It is one for root's manager where root asks, and for the user's own elsewhere.

    Raises:
        ScheduleError: when a path holds a character that no unit can hold.
    """
    script = Path(sys.executable).with_name("validator")
    start = (str(script),) if script.is_file() else (sys.executable, "-m", "validator")
    carried = [
        f"{name}={os.environ[name]}" for name in (*CARRIED, "XDG_CONFIG_HOME", "XDG_STATE_HOME") if name in os.environ
    ]
    root = os.geteuid() == 0
    template = (shipped("templates") / "service" / "unit.service").read_text(encoding="utf-8").rstrip()
    return template.format(
        reports=unit_value(str(reports.absolute())),
        command=unit_quoted((*start, "serve", *arguments)),
        folder=unit_value(str(Path.cwd())),
        environment="\n".join(f"Environment={unit_quoted((one,)).replace('$$', '$')}" for one in carried),
        protection="ProtectSystem=full\n" if root else "",  # a user's own manager needs a namespace of users for it
        target="multi-user.target" if root else "default.target",
    )


@dataclass(frozen=True)
class Systemd:
    """Root's manager or the user's own."""

    system: bool
    folder: Path
    name: str = "systemd"

    def install(self, job: Nightly) -> tuple[str, ...]:
        """Write service and timer, and start the timer."""
        unit = f"validator-nightly-{job.name}"
        self.folder.mkdir(parents=True, exist_ok=True)
        written = []
        for suffix, text in (("service", service(job, system=self.system)), ("timer", timer(job))):
            path = self.folder / f"{unit}.{suffix}"
            path.write_text(text, encoding="utf-8")
            written.append(str(path))
        self._control("daemon-reload")
        self._control("enable", "--now", f"{unit}.timer")
        return tuple(written)

    def remove(self, name: str) -> bool:
        """Stop the timer and remove both units."""
        unit = f"validator-nightly-{name}"
        paths = [self.folder / f"{unit}.{suffix}" for suffix in ("timer", "service")]
        if not any(path.exists() for path in paths):
            return False
        self._control("disable", "--now", f"{unit}.timer", check=False)
        for path in paths:
            path.unlink(missing_ok=True)
        self._control("daemon-reload", check=False)
        return True

    def status(self, name: str) -> str | None:
        """The timer's next start."""
        unit = f"validator-nightly-{name}.timer"
        if not (self.folder / unit).exists():
            return None
        shown = self._control("show", unit, "--property=NextElapseUSecRealtime", "--value", check=False).strip()
        return f"systemd, next {shown or 'start unknown: is the timer enabled?'}"

    def _control(self, *arguments: str, check: bool = True) -> str:
        command = ("systemctl", *(() if self.system else ("--user",)), *arguments)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if check and done.returncode:
            raise ScheduleError(
                f"`{shlex.join(command)}` refused: {done.stderr.strip() or done.returncode}; try --cron"
            )
        return done.stdout


# cron


def cron_line(job: Nightly) -> str:
    """The job's line: its mark at the end finds it again."""
    hour, minute = job.hour_minute
    days = ",".join(str((DAYS.index(day) + 1) % 7) for day in job.days) or "*"
    command = f"cd {shlex.quote(str(_start_folder(job)))} && {shlex.join(_start_command(job))}".replace("%", "\\%")
    return f"{minute} {hour} * * {days} {command} >/dev/null 2>&1 {_MARK}{job.name}"


@dataclass(frozen=True)
class Cron:
    """The user's crontab. Lines that are not ours stay as they are."""

    name: str = "cron"

    def install(self, job: Nightly) -> tuple[str, ...]:
        """Put the job's line at the end of the crontab."""
        line = cron_line(job)
        _write_crontab([*_lines_of_others(_crontab(), job.name), line])
        return (f"crontab: {line}",)

    def remove(self, name: str) -> bool:
        """Take the job's line out."""
        lines = _crontab()
        rest = _lines_of_others(lines, name)
        if len(rest) == len(lines):
            return False
        _write_crontab(rest)
        return True

    def status(self, name: str) -> str | None:
        """The job's times, as its line says them."""
        line = next((line for line in _crontab() if line.endswith(f"{_MARK}{name}")), None)
        return None if line is None else f"cron, at {' '.join(line.split()[:5])} (minute hour day month weekday)"


def _lines_of_others(lines: Sequence[str], name: str) -> list[str]:
    return [line for line in lines if not line.endswith(f"{_MARK}{name}")]


def _crontab() -> list[str]:
    if shutil.which("crontab") is None:
        return []
    done = subprocess.run(("crontab", "-l"), capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.splitlines() if done.returncode == 0 else []


def _write_crontab(lines: Sequence[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    try:
        done = subprocess.run(("crontab", "-"), input=text, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError:
        raise ScheduleError(
            "this machine has no crontab; install cron, or leave --cron out where systemd runs"
        ) from None
    if done.returncode:
        raise ScheduleError(f"crontab refused the line: {done.stderr.strip()}")


Schedule = Systemd | Cron
"""A scheduler of this machine: `install` replaces a job of the same name, `remove` says whether it was there, `status`
when it starts next (None when it is not scheduled here)."""


def _systemd() -> Systemd | None:
    """The manager that answers this user, or None."""
    root = os.geteuid() == 0
    if shutil.which("systemctl") is None or not Path("/run/systemd/system").is_dir():
        return None
    if root:
        return Systemd(system=True, folder=Path("/etc/systemd/system"))
    answer = subprocess.run(("systemctl", "--user", "show-environment"), capture_output=True, check=False, timeout=60)
    folder = user_folder("XDG_CONFIG_HOME", ".config") / "systemd" / "user"
    return Systemd(system=False, folder=folder) if answer.returncode == 0 else None


def choose(wanted: Literal["auto", "cron"]) -> Schedule:
    """The scheduler to use.

    Raises:
        ScheduleError: when this machine has none.
    """
    if wanted == "auto" and (systemd := _systemd()) is not None:
        return systemd
    if shutil.which("crontab") is not None:
        return Cron()
    raise ScheduleError(
        "neither systemd (for this user) nor cron is here; install cron, or start `validator nightly run NAME` by what "
        "schedules jobs on this machine"
    )


def shown(job: Nightly, *, cron: bool) -> str:
    """What would be scheduled: the crontab's line, or systemd's units; both where this machine has neither."""
    units = f"{service(job, system=os.geteuid() == 0)}\n{timer(job)}"
    if cron:
        return cron_line(job)
    try:
        return cron_line(job) if isinstance(choose("auto"), Cron) else units.rstrip("\n")
    except ScheduleError:
        return f"# neither systemd nor cron is here; for systemd:\n{units}\n# for cron:\n{cron_line(job)}"


def all_schedules() -> tuple[Schedule, ...]:
    """Every scheduler that could hold a job."""
    systemd = _systemd()
    return (*(() if systemd is None else (systemd,)), Cron())


def holder(name: str) -> Schedule | None:
    """The scheduler that has a job; None for one that is paused."""
    return next((one for one in all_schedules() if one.status(name) is not None), None)


def place(job: Nightly) -> tuple[str, ...]:
    """Write a job's settings and its schedule, in the scheduler that has it, else the machine's; what was written.

    Raises:
        ScheduleError: when there is no scheduler, or it refuses.
    """
    scheduler = holder(job.name) or choose("auto")
    return (str(save(job)), *scheduler.install(job))


def unschedule(name: str) -> tuple[str, ...]:
    """Take a job out of every scheduler, whose names are returned; its settings stay."""
    return tuple(one.name for one in all_schedules() if one.remove(name))
