"""`validator watch`: a trainer that is running."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from validator.commands.common import duration, example, fail, reported
from validator.text import CommandGuard, on_actions

if TYPE_CHECKING:
    from validator.supervise.watch import WatchEvent


@example(
    "validator watch out/first --interval 30s --halt",
    "python train.py | validator watch - --stdout 'step {step} loss {loss}'",
)
def command(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="The folder that a running trainer writes to, its log, or - for what it prints."
        ),
    ],
    interval: Annotated[str, typer.Option(metavar="DURATION", help="Time between looks.")] = "30s",
    halt: Annotated[
        bool, typer.Option("--halt/--no-halt", help="On an anomaly, write .HALT so that the trainer stops.")
    ] = False,
    stall: Annotated[str, typer.Option(metavar="DURATION", help="Shortest silence that counts as a stall.")] = "180s",
    first_step: Annotated[str, typer.Option(metavar="DURATION", help="The same before the first step.")] = "15m",
    csv: Annotated[str, typer.Option(metavar="FILE", help="The trainer's table of steps.")] = "training.csv",
    heartbeat: Annotated[
        str, typer.Option(metavar="FILE", help="The heartbeat of each rank; {rank} is its number.")
    ] = "heartbeat_rank{rank}.jsonl",
    stdout: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="How its log is read: 'step {step} loss {loss}'."),
    ] = None,
    reader: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A reader that knows its files: tensorboard; repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per event on stdout.")] = False,
) -> None:
    """Watch a trainer that is running, ours or another's, until it ends; exit code 1 when something is wrong."""
    from validator.model.runbook import TrainerMetrics, Watchdog
    from validator.pipeline.inspect import printed_metrics, reader_metrics
    from validator.supervise.watch import printed_to_log, watch_to_end

    with reported(as_json=as_json):
        piped = str(directory) == "-"
        if piped and (stdout is None or halt):
            what = "--halt has no folder to write .HALT into" if halt else "nothing says how to read what it prints"
            raise fail(f"{what}; write validator watch - --stdout 'step {{step}} loss {{loss}}'", as_json=as_json)
        metrics = TrainerMetrics() if stdout is None else printed_metrics(stdout)
        if reader:
            metrics = reader_metrics(reader).model_copy(update={"stdout": stdout})
        if not piped and not directory.is_file():  # a log by itself has no files beside it
            metrics = metrics.model_copy(update={"csv": csv, "heartbeat": heartbeat})
        limits = {
            "stall": duration("--stall", stall, as_json=as_json),
            "first_step": duration("--first-step", first_step, as_json=as_json),
        }
        echo = None if as_json else sys.stdout.fileno()
        guard = CommandGuard() if on_actions(os.environ) else None
        with (
            printed_to_log(sys.stdin.fileno(), echo, guard) if piped else nullcontext((directory, None)) as (
                path,
                ended,
            )
        ):
            watched = watch_to_end(
                path,
                interval_s=duration("--interval", interval, as_json=as_json),
                halt=halt,
                limits=Watchdog().model_copy(update=limits),
                metrics=metrics,
                show=_show_json if as_json else _show,
                ended=ended,
            )
    raise typer.Exit(watched.exit_code)


def _show(event: WatchEvent) -> None:
    halted = "; .HALT is written" if event.halt_written else ""
    typer.echo(f"{event.time}  {event.code}: {event.message}{halted}", err=True)


def _show_json(event: WatchEvent) -> None:
    sys.stdout.write(json.dumps(dataclasses.asdict(event), ensure_ascii=False) + "\n")
    sys.stdout.flush()
