"""`validator submit`: a validation as a batch job of Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from validator.commands.common import AsJson, Overrides, RunbookArgument, answer, example, reported


@example("validator submit runbooks/cluster_2x8xh100.yaml --now")
def command(
    runbook: RunbookArgument,
    set_: Overrides = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder that receives the job's log and run folder.")] = Path(
        "reports"
    ),
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write the batch file; default: DIR/RUNBOOK.sbatch.")
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="Hand it to sbatch as well.")] = False,
    requeue: Annotated[
        bool, typer.Option("--requeue/--no-requeue", help="Whether Slurm may start it again after a preemption.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Write the batch file of a validation on a Slurm cluster, and submit it with --now."""
    from validator.engine.slurm import submitted
    from validator.files import replace_file
    from validator.kinds.registry import load
    from validator.plan.batch import batch_script
    from validator.runbook import find

    with reported(as_json=as_json):
        overrides = tuple(set_ or ())
        path = find(runbook)
        loaded = load(path, overrides=overrides)
        text = batch_script(loaded.runbook, path, overrides=overrides, out=out, requeue=requeue)
        target = file or out / f"{loaded.runbook.name}.sbatch"
        target.parent.mkdir(parents=True, exist_ok=True)
        out.mkdir(parents=True, exist_ok=True)
        replace_file(target, text, mode=0o600 if overrides else 0o666)  # what --set gives may be a secret
        job = submitted(target) if now else None

    def lines(*, width: int, color: bool) -> list[str]:
        del width, color
        if job is None:
            return [f"Wrote {target}", f"Submit  sbatch {target}"]
        return [f"Wrote {target}", f"Job {job} is submitted; its log is {out}/job-{job}.log", f"Stop    scancel {job}"]

    answer(lambda: {"file": str(target), "job": job}, lines, as_json=as_json)
