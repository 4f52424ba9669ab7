"""`validator nightly install, status, run, remove`: jobs on a schedule."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from validator.commands.common import AsJson, Overrides, RunbookArgument, command_group, fail, print_json, reported
from validator.text import format_duration

if TYPE_CHECKING:
    from validator.nightly.settings import Nightly, NightlyRun

command = command_group("Run a runbook on a schedule: with log, retention, notification and metrics; no root needed.")

JobName = Annotated[str, typer.Argument(metavar="NAME", help="The job's name, as `validator nightly status` shows it.")]


@command.command(
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
        typer.Option(metavar="URL", help="Where to report it: an Apprise URL (webhook, Slack, mail, …). May repeat."),
    ] = None,
    notify_on: Annotated[
        str, typer.Option(metavar="WHEN", help="change (of the decision), always, or never.")
    ] = "change",
    notify_command: Annotated[
        str | None,
        typer.Option(metavar="LINE", help="Shell line to start; it gets VALIDATOR_DECISION and other variables."),
    ] = None,
    wait: Annotated[
        str, typer.Option(metavar="DURATION", help="Longest wait for another validation that has the machine.")
    ] = "6h",
    keep_count: Annotated[int | None, typer.Option(metavar="N", help="Keep so many runs of the runbook.")] = None,
    keep_age: Annotated[str | None, typer.Option(metavar="DURATION", help="Keep runs so long: 90d.")] = None,
    keep_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Keep runs of this size together: 20GiB.")
    ] = None,
    prometheus: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Textfile with metrics, for the node exporter: ….prom.")
    ] = None,
    push: Annotated[
        str | None, typer.Option(metavar="URL", help="A `validator serve` that gets each run, as by `validator push`.")
    ] = None,
    push_token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File that holds the token for --push.")
    ] = None,
    push_ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificates that --push trusts, in place of the system's.")
    ] = None,
    print_only: Annotated[bool, typer.Option("--print", help="Show what would be written, and write nothing.")] = False,
) -> None:
    """Start a runbook every night: by a systemd timer, or by cron where systemd is absent."""
    from validator.kinds.registry import load
    from validator.nightly import job, notification, schedule, settings, variables
    from validator.runbook import find

    with reported():
        loaded = load(find(runbook), overrides=tuple(set_ or ()))
        made = settings.new_job(
            name=name or loaded.runbook.name,
            runbook=str(Path(runbook).resolve()) if Path(runbook).is_file() else runbook,
            lacking=variables.lacking_variables(loaded, environment=os.environ),
            at=at,
            days=tuple(on or ()),
            overrides=tuple(set_ or ()),
            out=str(out.resolve()),
            notify=tuple(notify or ()),
            notify_on=notify_on,
            command=notify_command,
            wait_s=settings.parsed_limit("--wait", wait),
            keep_count=keep_count,
            keep_days=None if keep_age is None else settings.parsed_limit("--keep-age", keep_age) / 86400,
            keep_bytes=None if keep_size is None else int(settings.parsed_limit("--keep-size", keep_size)),
            prometheus=None if prometheus is None else str(prometheus.resolve()),
            push=push,
            push_token_file=None if push_token_file is None else str(push_token_file.absolute()),
            push_ca_file=None if push_ca_file is None else str(push_ca_file.absolute()),
        )
        notification.require_apprise(made.notify)
        if push is not None and job.push_destination(made).in_the_clear:
            typer.echo(f"warning: {push} has no TLS, so that the network can read the token; use https", err=True)
        if prometheus is not None:
            job.require_prometheus(prometheus.resolve())
        for other in settings.at_the_same_time(made):
            typer.echo(
                f"warning: {other} starts at {made.at} as well; where both need the CPU or one GPU, one waits for the "
                f"other, {format_duration(made.wait_s)} at most: choose another --at",
                err=True,
            )
        if made.lacking:
            typer.echo(f"warning: {variables.lacking_sentence(made.lacking)}", err=True)
        if print_only:
            typer.echo(schedule.shown(made, cron=cron))
            return
        scheduler = schedule.choose("cron" if cron else "auto")
        written = (str(settings.save(made)), *scheduler.install(made))
    for line in written:
        typer.echo(f"wrote {line}", err=True)
    _print_next(made, scheduler.status(made.name))


def _print_next(job: Nightly, status: str | None) -> None:
    typer.echo(f"{job.name}: {status or 'not scheduled'}", err=True)
    typer.echo(f"try it now: validator nightly run {job.name}", err=True)
    if status and status.startswith("systemd") and os.geteuid() != 0:
        typer.echo("so that it runs while nobody is logged in: loginctl enable-linger", err=True)


@command.command(epilog="Example: validator nightly status")
def status(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One job; all when left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the jobs of this user: when each starts next, and how its last start ended."""
    from validator.nightly import notification, schedule, settings

    schedules = schedule.all_schedules()
    with reported(as_json=as_json):
        jobs = [settings.load(name)] if name else [settings.load(one) for one in settings.names()]
    starts = [next(filter(None, (one.status(job.name) for one in schedules)), None) for job in jobs]
    rows = [(job, at, settings.last_ended(job)) for job, at in zip(jobs, starts, strict=True)]
    if as_json:
        print_json(
            [
                {
                    "name": job.name,
                    "runbook": job.runbook,
                    "schedule": at,
                    "last": asdict(last) if last else None,
                    "not_delivered": [asdict(one.run) for one in notification.waiting_notifications(job)],
                    "not_pushed": settings.unsent_runs(job),
                }
                for job, at, last in rows
            ]
        )
        return
    for job, at, last in rows:
        typer.echo(f"{job.name}: {job.runbook}, {at or 'not scheduled: install it again, or remove it'}")
        typer.echo(f"  waits {format_duration(job.wait_s)} at most where the machine is in use")
        if (begun := settings.begun_start(job)) and begun.runner.alive():
            typer.echo(f"  in progress since {begun.started}; log {begun.log}")
            if begun.waits:
                typer.echo(f"  waits, {format_duration(job.wait_s)} at most: {begun.waits}")
        typer.echo(f"  {_last_line(last)}")
        for line in _waiting_lines(job):
            typer.echo(f"  {line}; the log has why")
    if not rows:
        typer.echo("no nightly job is installed; `validator nightly install RUNBOOK --at 02:00` makes one")


def _last_line(last: NightlyRun | None) -> str:
    if last is None:
        return "not started yet"
    return f"last {last.decision.replace('_', '-')} at {last.started}: {last.why} · {last.folder or last.log}"


def _waiting_lines(job: Nightly) -> Iterator[str]:
    """What is to be sent by the next start: notifications and runs."""
    from validator.nightly import notification, settings

    if waiting := notification.waiting_notifications(job):
        yield f"not delivered yet: {', '.join(f'{one.decision} of {one.moment}' for one in waiting)}"
    if unsent := settings.unsent_runs(job):
        yield f"not pushed yet: {', '.join(unsent)}"


@command.command(epilog="Example: validator nightly run ddp-2xa100")
def run(name: JobName) -> None:
    """Start a job now, as its timer does; the exit code is the validation's."""
    from validator.nightly import job, settings

    with reported():
        night = settings.load(name)
        ended = job.run_job(night)
    typer.echo(f"{ended.name}: {ended.decision.replace('_', '-')}: {ended.why}", err=True)
    typer.echo(ended.folder or ended.log, err=True)
    for line in _waiting_lines(night):
        typer.echo(f"{line}; {ended.log} has why", err=True)
    raise typer.Exit(ended.exit_code)


@command.command(epilog="Example: validator nightly remove ddp-2xa100")
def remove(name: JobName) -> None:
    """Take a job out of its scheduler. Its runs and logs stay."""
    from validator.nightly import schedule, settings

    path = settings.config_dir() / f"{name}.json"
    with reported():
        found = schedule.unschedule(name)
    existed = path.exists()
    path.unlink(missing_ok=True)
    if not found and not existed:
        raise fail(f"{name} is no nightly job of this user; `validator nightly status` lists them", as_json=False)
    typer.echo(f"removed {name} from {' and '.join(found) or 'its settings'}", err=True)
