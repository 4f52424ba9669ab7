"""The commands of nightly jobs: install, status, run, remove."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from validator.commands.common import UNABLE, USAGE, AsJson, Overrides, RunbookArgument, fail, print_json

if TYPE_CHECKING:
    from validator.nightly.job import Ended
    from validator.nightly.settings import Nightly

__all__ = ["app"]

_CARRIED = ("PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "HF_HOME", "VIRTUAL_ENV", "LANG")
"""What a timer's environment lacks and a validation may need."""

app = typer.Typer(
    help="Run a runbook by the clock: with log, retention, notification and metrics; no root needed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

JobName = Annotated[str, typer.Argument(metavar="NAME", help="The job's name, as `validator nightly status` shows it.")]


@app.command(
    epilog="Example: validator nightly install ddp_2xa100 --at 02:00 --notify slack://TOKEN_A/TOKEN_B/TOKEN_C "
    "--keep-count 30 --prometheus /var/lib/node_exporter/validator.prom"
)
def install(
    runbook: RunbookArgument,
    at: Annotated[str, typer.Option(metavar="HH:MM", help="Time of day, local.")] = "02:00",
    on: Annotated[
        list[str] | None, typer.Option(metavar="DAY", help="Only on this day: mon … sun. May repeat.")
    ] = None,
    cron: Annotated[bool, typer.Option("--cron", help="Use the crontab, also where systemd runs.")] = False,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the job; the runbook's when left out.")
    ] = None,
    set_: Overrides = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder that receives the run folders.")] = Path("reports"),
    notify: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Where to tell it: an Apprise URL (webhook, Slack, mail, …). May repeat."),
    ] = None,
    notify_on: Annotated[
        str, typer.Option(metavar="WHEN", help="change (of the decision), always, or never.")
    ] = "change",
    notify_command: Annotated[
        str | None,
        typer.Option(metavar="LINE", help="Shell line to start; VALIDATOR_DECISION and others tell it what happened."),
    ] = None,
    keep_count: Annotated[int | None, typer.Option(metavar="N", help="Keep so many runs of the runbook.")] = None,
    keep_age: Annotated[str | None, typer.Option(metavar="DURATION", help="Keep runs so long: 90d.")] = None,
    keep_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Keep runs of this size together: 20GiB.")
    ] = None,
    prometheus: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Textfile with metrics, for the node exporter: ….prom.")
    ] = None,
    print_only: Annotated[bool, typer.Option("--print", help="Show what would be written, and write nothing.")] = False,
) -> None:
    """Start a runbook every night: by a systemd timer, or by cron where systemd is absent."""
    from pydantic import ValidationError

    from validator.nightly.metrics import require_prometheus
    from validator.nightly.notify import require_apprise
    from validator.nightly.schedule import ScheduleError, choose, shown
    from validator.nightly.settings import NightlyError, save
    from validator.runbook import RunbookError, find, load

    try:
        loaded = load(find(runbook), overrides=tuple(set_ or ()))
        job = _job(
            name=name or loaded.runbook.name,
            runbook=str(Path(runbook).resolve()) if Path(runbook).is_file() else runbook,
            at=at,
            days=tuple(on or ()),
            overrides=tuple(set_ or ()),
            out=str(out.resolve()),
            notify=tuple(notify or ()),
            notify_on=notify_on,
            command=notify_command,
            keep_count=keep_count,
            keep_days=None if keep_age is None else _parsed("--keep-age", keep_age) / 86400,
            keep_bytes=None if keep_size is None else int(_parsed("--keep-size", keep_size)),
            prometheus=None if prometheus is None else str(prometheus.resolve()),
        )
        require_apprise(job.notify)
        if prometheus is not None:
            require_prometheus(prometheus.resolve())
        if print_only:
            typer.echo(shown(job, cron=cron))
            return
        schedule = choose("cron" if cron else "auto")
        written = (str(save(job)), *schedule.install(job))
    except RunbookError as error:
        raise fail(str(error), USAGE, as_json=False) from None
    except ValidationError as error:
        raise fail(_first(error), USAGE, as_json=False) from None
    except NightlyError as error:
        raise fail(str(error), USAGE, as_json=False) from None
    except ScheduleError as error:
        raise fail(str(error), UNABLE, as_json=False) from None
    for line in written:
        typer.echo(f"wrote {line}", err=True)
    _say_next(job, schedule.status(job.name))


def _job(**given: Any) -> Nightly:
    from validator.nightly.settings import Nightly, state_dir

    carried = {name: os.environ[name] for name in _CARRIED if name in os.environ}
    return Nightly(
        cwd=str(Path.cwd()), python=sys.executable, environment=carried, state=str(state_dir() / given["name"]), **given
    )


def _parsed(option: str, text: str) -> float:
    from validator.model.units import parse_duration, parse_size
    from validator.nightly.settings import NightlyError

    try:
        return parse_duration(text) if option == "--keep-age" else float(parse_size(text))
    except ValueError as error:
        raise NightlyError(f"{option} {text}: {error}") from None


def _first(error: Any) -> str:
    """The first message of a pydantic error, without its dressing."""
    found = error.errors()[0]
    message = str(found["msg"]).removeprefix("Value error, ")
    return message if message.startswith("--") else f"--{str(found['loc'][-1]).replace('_', '-')}: {message}"


def _say_next(job: Nightly, status: str | None) -> None:
    typer.echo(f"{job.name}: {status or 'not scheduled'}", err=True)
    typer.echo(f"try it now: validator nightly run {job.name}", err=True)
    if status and status.startswith("systemd") and os.geteuid() != 0:
        typer.echo("so that it runs while nobody is logged in: loginctl enable-linger", err=True)


@app.command(epilog="Example: validator nightly status")
def status(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One job; all when left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the jobs of this user: when each starts next, and how its last start ended."""
    from validator.nightly.job import last_ended
    from validator.nightly.schedule import all_schedules
    from validator.nightly.settings import NightlyError, load, names

    schedules = all_schedules()
    try:
        jobs = [load(name)] if name else [load(one) for one in names()]
    except NightlyError as error:
        raise fail(str(error), USAGE, as_json=as_json) from None
    rows = []
    for job in jobs:
        told = next((text for one in schedules if (text := one.status(job.name)) is not None), None)
        rows.append((job, told, last_ended(job)))
    if as_json:
        from dataclasses import asdict

        print_json(
            [
                {"name": job.name, "runbook": job.runbook, "schedule": told, "last": asdict(last) if last else None}
                for job, told, last in rows
            ]
        )
        return
    for job, told, last in rows:
        typer.echo(f"{job.name}: {job.runbook}, {told or 'not scheduled: install it again, or remove it'}")
        typer.echo(f"  {_last_line(last)}")
    if not rows:
        typer.echo("no nightly job is installed; `validator nightly install RUNBOOK --at 02:00` makes one")


def _last_line(last: Ended | None) -> str:
    if last is None:
        return "not started yet"
    return f"last {last.decision.replace('_', '-')} at {last.started}: {last.why} · {last.folder or last.log}"


@app.command(epilog="Example: validator nightly run ddp-2xa100")
def run(name: JobName) -> None:
    """Start a job now, as its timer does; the exit code is the validation's."""
    from validator.nightly.job import Overlap, run_job
    from validator.nightly.settings import NightlyError, load

    try:
        ended = run_job(load(name))
    except NightlyError as error:
        raise fail(str(error), USAGE, as_json=False) from None
    except Overlap as error:
        raise fail(str(error), UNABLE, as_json=False) from None
    typer.echo(f"{ended.name}: {ended.decision.replace('_', '-')}: {ended.why}", err=True)
    typer.echo(ended.folder or ended.log, err=True)
    raise typer.Exit(ended.exit_code)


@app.command(epilog="Example: validator nightly remove ddp-2xa100")
def remove(name: JobName) -> None:
    """Take a job out of its scheduler. Its runs and logs stay."""
    from validator.nightly.schedule import ScheduleError, all_schedules
    from validator.nightly.settings import config_dir

    settings = config_dir() / f"{name}.json"
    try:
        found = [one.name for one in all_schedules() if one.remove(name)]
    except ScheduleError as error:
        raise fail(str(error), UNABLE, as_json=False) from None
    existed = settings.exists()
    settings.unlink(missing_ok=True)
    if not found and not existed:
        raise fail(
            f"{name} is no nightly job of this user; `validator nightly status` lists them", USAGE, as_json=False
        )
    typer.echo(f"removed {name} from {' and '.join(found) or 'its settings'}", err=True)
