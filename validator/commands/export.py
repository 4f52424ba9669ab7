"""`validator export`: a validation in an experiment tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from validator.commands.common import AsJson, example, print_json, reported


@example(
    "validator export reports/RUN --to mlflow --uri sqlite:///mlflow.db",
    "validator export reports/RUN --to otel --uri http://localhost:4318",
)
def command(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that has a decision.")],
    to: Annotated[str, typer.Option("--to", metavar="TARGET", help="wandb, mlflow or otel.")],
    uri: Annotated[
        str | None,
        typer.Option(metavar="URI", help="MLflow's tracking store or the OTLP endpoint; default: its own variable."),
    ] = None,
    project: Annotated[
        str | None, typer.Option(metavar="NAME", help="W&B project or MLflow experiment; default: the runbook's name.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder that receives W&B's offline runs.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Send a validation to Weights & Biases, MLflow or OpenTelemetry: decision, criteria, results, series."""
    from validator.export.targets import Options
    from validator.pipeline.export import export

    with reported(as_json=as_json):
        found, lines = export(run_dir, to=to, options=Options(uri=uri, project=project, out=out))
    if as_json:
        print_json({"run": found.name, "decision": found.decision, "to": to, "runs": len(found.runs), "lines": lines})
    else:
        for line in lines:
            typer.echo(line)
