"""`validator push`: a run folder handed in to a service on another machine."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from validator.commands.common import AsJson, example, print_json, reported


@example("validator push reports/RUN --to https://validator.example.com --token-file ~/.config/validator/push-token")
def command(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that has a decision.")],
    to: Annotated[str, typer.Option("--to", metavar="URL", help="Address of a `validator serve`.")],
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="The token; else VALIDATOR_TOKEN.")] = None,
    ca_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificates to trust alone.")] = None,
    as_json: AsJson = False,
) -> None:
    """Hand in a run folder to a service on another machine; a push that broke continues where it stopped."""
    from validator.pipeline.push import Destination, push
    from validator.text import format_size, plural

    say = partial(typer.echo, err=True)
    with reported(as_json=as_json):
        token = os.environ.get("VALIDATOR_TOKEN", "")
        found = Destination.of(to, token=token, token_file=token_file, ca_file=ca_file)
        if found.in_the_clear:
            say(f"warning: {to} has no TLS, so that the network can read the token; use https")
        done = push(run_dir, found, say=say)
    if as_json:
        print_json({"url": found.url, **done._asdict()})
        return
    left_out = f"; {plural(done.left_out, 'link')} left out" if done.left_out else ""
    typer.echo(f"{found.url} has {done.run}: {plural(done.files, 'file')}, {format_size(done.bytes)}{left_out}")
