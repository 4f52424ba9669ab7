"""`validator bisect`: which settings explain a difference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from validator.commands.common import AsJson, answer, duration, example, fail, reported
from validator.errors import ExitCode

_EXIT_CODES = {"explained": ExitCode.GO, "interrupted": ExitCode.INTERRUPTED}


@example("validator bisect out/fast out/slow", "validator bisect fast.yaml slow.yaml --phase baseline --steps 30")
def command(
    good: Annotated[
        Path | None,
        typer.Argument(metavar="GOOD", help="A run folder, a trainer's folder, a runbook, or a config of the trainer."),
    ] = None,
    bad: Annotated[Path | None, typer.Argument(metavar="BAD", help="The same for what is slow, or fails.")] = None,
    phase: Annotated[str | None, typer.Option(metavar="PHASE", help="Which phase of run folders or runbooks.")] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What is compared, also of extra; by default the rate, else the time per step, else the loss.",
        ),
    ] = None,
    statistic: Annotated[
        str, typer.Option(metavar="NAME", help="mean, or p50 where other programs disturb the machine.")
    ] = "mean",
    steps: Annotated[int | None, typer.Option(metavar="N", min=4, help="Steps of each run; 60 at most else.")] = None,
    warmup_steps: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Steps that do not count; 10 at most else.")
    ] = None,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="Longest time of each run.")] = "10m",
    max_runs: Annotated[int | None, typer.Option(metavar="N", min=2, help="Maximum of runs in all; 24 else.")] = None,
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="Maximum of runs of one combination.")] = 3,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder that receives the bisection's.")] = Path("reports"),
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Resume a bisection that was interrupted.")] = None,
    no_lock: Annotated[
        bool, typer.Option("--no-lock", help="Run although another validation uses the machine.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find which of the settings that differ make one run slow, or fail, by short runs of their combinations.

    Exit code 0: found. 3: not found, or no significant difference, or not finished within --max-runs.
    """
    from validator import bisect

    if (resume is None) == (good is None or bad is None):
        raise fail("name GOOD and BAD, or --resume DIR", as_json=as_json)
    if statistic not in ("mean", "p50"):
        raise fail(f"--statistic {statistic}: it must be mean or p50", as_json=as_json)
    with reported(as_json=as_json):
        if resume is not None:
            found = bisect.resume(resume, lock=not no_lock, max_runs=max_runs, note=_print_note)
        else:
            assert good is not None, "checked above"
            assert bad is not None, "checked above"
            request = bisect.BisectRequest(
                good=good,
                bad=bad,
                phase=phase,
                metric=metric,
                statistic="p50" if statistic == "p50" else "mean",
                steps=steps,
                warmup_steps=warmup_steps,
                timeout_s=duration("--timeout", timeout, as_json=as_json),
                max_runs=max_runs or 24,
                repeats=repeats,
                parent=out,
                lock=not no_lock,
            )
            found = bisect.bisect(request, note=_print_note)
    answer(lambda: found.model_dump(mode="json"), bisect.bisection_lines, found, as_json=as_json)
    raise typer.Exit(_EXIT_CODES.get(found.outcome, ExitCode.INCONCLUSIVE))


def _print_note(text: str) -> None:
    typer.echo(text, err=True)
