"""`validator serve`: the run folders as a web service."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from validator.commands.common import example, fail, reported
from validator.errors import ExitCode


def _option(metavar: str, help_: str) -> Any:
    return typer.Option(metavar=metavar, help=help_)


@example("validator serve", "validator token add me --role run && validator serve --listen 0.0.0.0:8700")
def command(
    reports: Annotated[Path, _option("DIR", "Folder of the run folders.")] = Path("reports"),
    listen: Annotated[str, _option("ADDRESS:PORT", "Where; all but loopback needs tokens.")] = "127.0.0.1:8700",
    token_file: Annotated[Path | None, _option("FILE", "Ask for a token of this file, on loopback as well.")] = None,
    runbooks: Annotated[Path | None, _option("DIR", "Runbooks to start; ./runbooks where there is one.")] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Read every run folder again.")] = False,
    webhook: Annotated[list[str] | None, _option("URL", "Post each decision there, signed. Repeatable.")] = None,
    webhook_secret: Annotated[Path | None, _option("FILE", "The key of the signatures, of mode 600.")] = None,
    public_url: Annotated[str, _option("URL", "Where readers reach the service, for links.")] = "",
    print_unit: Annotated[bool, typer.Option("--print-unit", help="Print a systemd unit of this command.")] = False,
) -> None:
    """Serve the run folders as pages: what runs now, past runs, the fleet, starts; with an API and metrics."""
    from validator.nightly.schedule import serve_unit

    try:
        from validator.service.serve import serve
    except ModuleNotFoundError as error:
        what = f"validator serve needs {error.name}: pip install 'training-validator[serve]'"
        raise fail(what, as_json=False, code=ExitCode.UNABLE) from error

    with reported():
        if print_unit:
            typer.echo(serve_unit(reports, [word for word in sys.argv[2:] if word != "--print-unit"]))
            return
        hooks: dict[str, Any] = {"webhook": webhook or (), "webhook_secret": webhook_secret, "public_url": public_url}
        own = Path("runbooks") if runbooks is None and Path("runbooks").is_dir() else runbooks
        serve(reports, listen=listen, token_file=token_file, rebuild=rebuild, runbooks=own, **hooks)
