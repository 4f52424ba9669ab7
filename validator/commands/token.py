"""`validator token add, list, revoke`: who may use the service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from validator.commands.common import AsJson, command_group, print_json, reported

command = command_group("Make, list and revoke the tokens of `validator serve`; only their hashes are stored.")

TokenName = Annotated[str, typer.Argument(metavar="NAME", help="The token's name: who or what uses it.")]
TokenFile = Annotated[Path | None, typer.Option(metavar="FILE", help="In place of ~/.config/validator/tokens.json.")]


@command.command(epilog="Example: validator token add grafana --role read")
def add(
    name: TokenName,
    role: Annotated[
        Literal["read", "push", "run"], typer.Option(metavar="ROLE", help="read, push (results only), or run (all).")
    ] = "read",
    token_file: TokenFile = None,
) -> None:
    """Make a token and print it; it is shown this once."""
    from validator.service.tokens import Tokens

    with reported():
        typer.echo(Tokens.of(token_file).add(name, role))


@command.command("list", epilog="Example: validator token list")
def list_(token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """Show the names and roles of the tokens."""
    from validator.service.tokens import Tokens

    with reported(as_json=as_json):
        tokens = Tokens.of(token_file).all()
    if as_json:
        print_json([one.model_dump(exclude={"sha256"}) for one in tokens])
        return
    lines = [f"{one.name}  {one.role}  since {one.created}" for one in tokens]
    typer.echo("\n".join(lines) or "there is no token; `validator token add NAME --role read` makes one")


@command.command(epilog="Example: validator token revoke grafana")
def revoke(name: TokenName, token_file: TokenFile = None) -> None:
    """Remove a token; who uses it is refused from then on, also by a server that runs."""
    from validator.service.tokens import Tokens

    with reported():
        Tokens.of(token_file).revoke(name)
    typer.echo(f"revoked {name}", err=True)
