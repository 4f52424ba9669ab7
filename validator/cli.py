"""The command line: one thin function per command. Everything heavy is imported where it is used."""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from validator.startup import lean

lean()

import typer  # noqa: E402 -- what `lean` prevents must not have happened

import validator  # noqa: E402

if TYPE_CHECKING:
    from validator.execute.watch import WatchEvent
    from validator.runbook import LoadedRunbook, Problem
    from validator.workflow import Finished

__all__ = ["app", "main"]

GO, NO_GO, USAGE, INCONCLUSIVE, UNABLE, INTERRUPTED = 0, 1, 2, 3, 4, 130

app = typer.Typer(
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Decides, with evidence, whether a machine and a training config are fit for a run that costs days.",
    epilog="Exit codes: 0 GO, 1 NO-GO, 2 bad usage or runbook, 3 INCONCLUSIVE, 4 the machine could not do it, "
    "130 interrupted.",
)

RunbookArgument = Annotated[str, typer.Argument(metavar="RUNBOOK", help="A path, or the name of a bundled runbook.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace one value: baseline.steps=50. May be repeated."),
]
Only = Annotated[list[str] | None, typer.Option(metavar="PHASE", help="Run this phase and what it needs.")]
Skip = Annotated[list[str] | None, typer.Option(metavar="PHASE", help="Leave this phase out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")]


def main() -> None:
    """Entry point of the console script."""
    try:
        app(prog_name="validator")
    finally:
        gc.freeze()  # the interpreter's last collection would visit every module once more


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def _fail(message: str, code: int, *, as_json: bool, **details: Any) -> typer.Exit:
    """Say why on stderr (or as JSON on stdout) and give the exit to raise."""
    if as_json:
        _print_json({"error": message, "exit_code": code, **details})
    else:
        typer.echo(message, err=True)
    return typer.Exit(code)


@contextmanager
def _reported(*, as_json: bool = False) -> Iterator[None]:
    """Turn every expected failure into its sentence and exit code."""
    from validator.folder import FolderError
    from validator.plan import PlanError
    from validator.runbook import RunbookError
    from validator.stages.session import Unable

    gc.enable()
    try:
        yield
    except RunbookError as error:
        problems = [dataclasses.asdict(problem) for problem in error.problems]
        raise _fail(str(error), USAGE, as_json=as_json, problems=problems) from None
    except (FolderError, PlanError) as error:
        raise _fail(str(error), USAGE, as_json=as_json) from None
    except Unable as error:
        raise _fail(str(error), UNABLE, as_json=as_json) from None


def _version(value: bool) -> None:
    if value:
        typer.echo(f"validator {validator.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(epilog="Example: validator run runbooks/smoke_cpu.yaml --set baseline.steps=100")
def run(
    runbook: Annotated[
        str | None, typer.Argument(metavar="RUNBOOK", help="A path, or the name of a bundled runbook.")
    ] = None,
    only: Only = None,
    skip: Skip = None,
    set_: Overrides = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder that receives the run folder.")] = Path("reports"),
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Go on with a run folder whose runner was killed or interrupted."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and start nothing.")] = False,
    as_json: AsJson = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop after the first phase that fails.")] = False,
    no_lock: Annotated[
        bool, typer.Option("--no-lock", help="Run although another validation uses the machine.")
    ] = False,
) -> None:
    """Run a runbook to a decision and write its report."""
    if resume is not None:
        given = {"--only": only, "--skip": skip, "--dry-run": dry_run}
        _refuse_with_resume([name for name, value in given.items() if value], as_json=as_json)
    elif runbook is None:
        raise _fail(
            "name a runbook (`validator list` shows those that come along), or --resume RUN", USAGE, as_json=as_json
        )
    elif dry_run:
        plan(runbook, only=only, skip=skip, set_=set_, as_json=as_json)
        return
    from validator import workflow

    with _reported(as_json=as_json):
        if resume is not None:
            finished = workflow.resume(
                resume,
                runbook=runbook,
                overrides=tuple(set_ or ()),
                fail_fast=fail_fast,
                lock=not no_lock,
                quiet=as_json,
            )
        else:
            request = workflow.Request(
                runbook=runbook or "",
                only=tuple(only or ()),
                skip=tuple(skip or ()),
                overrides=tuple(set_ or ()),
                parent=out,
                fail_fast=fail_fast,
                lock=not no_lock,
            )
            finished = workflow.execute(request, quiet=as_json)
    _show_finished(finished, as_json=as_json)
    raise typer.Exit(finished.exit_code)


def _refuse_with_resume(names: list[str], *, as_json: bool) -> None:
    """A validation goes on as it was begun, so that its figures belong together."""
    if names:
        raise _fail(
            f"{' and '.join(names)} cannot be given with --resume: a validation goes on as it was begun; "
            "leave it out, or begin anew without --resume",
            USAGE,
            as_json=as_json,
        )


def _show_finished(finished: Finished, *, as_json: bool) -> None:
    """What is left to show of a validation: JSON, or the decision of one that had nothing left to do."""
    if as_json:
        sys.stdout.write(finished.folder.joinpath("result.json").read_text(encoding="utf-8"))
    elif finished.had_ended:
        from validator.report import terminal

        typer.echo(f"{finished.folder.name} had come to its end already; there is nothing to resume", err=True)
        terminal.print_summary(finished.report, finished.paths)


@app.command(epilog="Example: validator check runbooks/*.yaml")
def check(
    runbooks: Annotated[list[str], typer.Argument(metavar="RUNBOOK...", help="Paths or names of bundled runbooks.")],
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Read runbooks and report every mistake with its place and its fix."""
    from validator.runbook import RunbookError, find, load

    problems: list[Problem] = []
    good: list[LoadedRunbook] = []
    for name in runbooks:
        try:
            good.append(load(find(name), overrides=tuple(set_ or ())))
        except RunbookError as error:
            problems.extend(error.problems)
    if as_json:
        _print_json({"ok": not problems, "problems": [dataclasses.asdict(problem) for problem in problems]})
    else:
        for loaded in good:
            typer.echo(f"{loaded.path}: ok, {len(loaded.runbook.phases)} phases")
        for problem in problems:
            typer.echo(str(problem), err=True)
        if problems:
            typer.echo(f"{len(problems)} problem{'s' if len(problems) > 1 else ''}", err=True)
    raise typer.Exit(USAGE if problems else 0)


@app.command(epilog="Example: validator plan ddp_2xa100 --only baseline")
def plan(
    runbook: RunbookArgument,
    only: Only = None,
    skip: Skip = None,
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show exactly what would be started: every run with its command, environment and budget."""
    from validator import workflow

    with _reported(as_json=as_json):
        loaded, planned = workflow.preview(
            runbook, overrides=tuple(set_ or ()), only=tuple(only or ()), skip=tuple(skip or ())
        )
    if as_json:
        _print_json(planned.model_dump(mode="json"))
    else:
        from validator.report import terminal

        terminal.print_plan(loaded, planned)


@app.command("list", epilog="Example: validator list")
def list_(as_json: AsJson = False) -> None:
    """List the bundled runbooks."""
    from validator.runbook import available

    found = available()
    if as_json:
        _print_json([dataclasses.asdict(info) for info in found])
    else:
        from validator.report import terminal

        terminal.print_runbooks(found)


@app.command(epilog="Example: validator inspect reports/LATEST/runs/baseline/r1")
def inspect(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that a trainer wrote.")],
    warmup_steps: Annotated[int, typer.Option(metavar="N", help="Steps that never count as steady.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Measure one trainer folder, ours or another's, and name what looks wrong."""
    from validator import workflow

    with _reported(as_json=as_json):
        inspection = workflow.inspect(directory, warmup_steps=warmup_steps)
    if as_json:
        _print_json(inspection.as_dict())
    else:
        from validator.report import terminal

        terminal.print_inspection(inspection)
    raise typer.Exit(NO_GO if inspection.vetoed else GO)


@app.command(epilog="Example: validator report reports/LATEST")
def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, wherever it lies now.")],
    as_json: AsJson = False,
) -> None:
    """Judge a run folder again from what is on disk, and write its reports anew."""
    from validator import workflow

    with _reported(as_json=as_json):
        finished = workflow.report(run_dir)
    if as_json:
        sys.stdout.write(finished.folder.joinpath("result.json").read_text(encoding="utf-8"))
    else:
        from validator.report import terminal

        terminal.print_summary(finished.report, finished.paths)
    raise typer.Exit(finished.exit_code)


@app.command(epilog="Example: validator watch out/first --interval 30s --halt")
def watch(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that a running trainer writes to.")],
    interval: Annotated[str, typer.Option(metavar="DURATION", help="Time between looks.")] = "30s",
    halt: Annotated[
        bool, typer.Option("--halt/--no-halt", help="On an anomaly, write .HALT so that the trainer stops.")
    ] = False,
    stall: Annotated[str, typer.Option(metavar="DURATION", help="Least silence that counts as a stall.")] = "180s",
    first_step: Annotated[str, typer.Option(metavar="DURATION", help="The same before the first step.")] = "15m",
    csv: Annotated[str, typer.Option(metavar="FILE", help="The trainer's table of steps.")] = "training.csv",
    heartbeat: Annotated[
        str, typer.Option(metavar="FILE", help="The heartbeat of each rank; {rank} stands for its number.")
    ] = "heartbeat_rank{rank}.jsonl",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per event on stdout.")] = False,
) -> None:
    """Watch a trainer that is running, ours or another's, until it ends; exit code 1 when something is wrong."""
    from validator import workflow
    from validator.model.runbook import TrainerMetrics, Watchdog

    with _reported(as_json=as_json):
        watched = workflow.watch(
            directory,
            interval_s=_duration("--interval", interval, as_json=as_json),
            halt=halt,
            limits=Watchdog().model_copy(
                update={
                    "stall": _duration("--stall", stall, as_json=as_json),
                    "first_step": _duration("--first-step", first_step, as_json=as_json),
                }
            ),
            metrics=TrainerMetrics(csv=csv, heartbeat=heartbeat),
            tell=_tell_as_json if as_json else _tell,
        )
    raise typer.Exit(watched.exit_code)


def _duration(option: str, text: str, *, as_json: bool) -> float:
    """A duration of the command line in seconds; a number alone is seconds."""
    from validator.model.units import parse_duration

    try:
        value = float(text) if text.replace(".", "", 1).isdigit() else parse_duration(text)
    except ValueError as error:
        raise _fail(f"{option} {text}: {error}", USAGE, as_json=as_json) from None
    if value <= 0:
        raise _fail(f"{option} {text}: must be more than zero; write 30s or 2m", USAGE, as_json=as_json)
    return value


def _tell(event: WatchEvent) -> None:
    halted = "; .HALT is written" if event.halt_written else ""
    typer.echo(f"{event.time}  {event.code}: {event.message}{halted}", err=True)


def _tell_as_json(event: WatchEvent) -> None:
    sys.stdout.write(json.dumps(dataclasses.asdict(event), ensure_ascii=False) + "\n")
    sys.stdout.flush()


@app.command(epilog="Example: validator doctor")
def doctor(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder that would receive run folders.")] = Path("reports"),
    as_json: AsJson = False,
) -> None:
    """Say which bundled runbooks this machine can run, and what to install."""
    from validator import workflow

    examination = workflow.examine(reports=out)
    if as_json:
        _print_json(examination.as_dict())
    else:
        from validator.report import terminal

        terminal.print_examination(examination)
    raise typer.Exit(examination.exit_code)


@app.command(epilog="Example: validator schema > runbook.schema.json")
def schema(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference for people instead.")] = False,
) -> None:
    """Print the JSON Schema of runbooks, for editors."""
    from validator.runbook.reference import json_schema, reference_markdown

    if markdown:
        sys.stdout.write(reference_markdown())
    else:
        _print_json(json_schema())


if __name__ == "__main__":
    main()
