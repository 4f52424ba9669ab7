"""Tokens of the service: who may read, hand in results, or stop validations. The file holds their hashes alone."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError

from validator.documents import parse_json
from validator.errors import UserError
from validator.files import Tree, replace_file, user_folder
from validator.model.units import Frozen
from validator.secrets.private import private_text
from validator.times import iso_now

Role = Literal["read", "push", "run"]


class Token(Frozen):
    """One token. `sha256` is that of its text, which has 256 random bits, so that no slower hash is needed."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$")
    role: Role
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    created: str

    def allows(self, role: Role) -> bool:
        """Whether its holder may do what needs `role`: `run` allows all, the others only themselves."""
        return self.role in (role, "run")


class _TokenList(Frozen):
    """The file."""

    schema_version: Literal[1] = 1
    tokens: tuple[Token, ...] = ()


class Tokens(NamedTuple):
    """The tokens of a file; read again when the file has changed, so that what is revoked ends at once."""

    path: Path

    @classmethod
    def of(cls, given: Path | None) -> Tokens:
        """Those of the file that the user gave, or of the one in the user's settings."""
        return cls(given or user_folder("XDG_CONFIG_HOME", ".config") / "validator" / "tokens.json")

    def all(self) -> tuple[Token, ...]:
        """Every token; none where there is no file.

        Raises:
            UserError: when the file cannot be read, or others may read or change it.
        """
        if not os.path.lexists(self.path):
            return ()
        text = private_text(self.path, "--token-file")
        try:
            return _TokenList.model_validate(parse_json(text.encode())).tokens
        except ValueError as error:
            first = str(error).splitlines()[0]
            raise UserError(f"--token-file {self.path} is not what `validator token` writes ({first})") from error

    def add(self, name: str, role: Role) -> str:
        """Make a token and return its text, which is stored nowhere.

        Raises:
            UserError: when the name is taken or not one, or the file cannot be written.
        """
        text = "vt_" + secrets.token_urlsafe(32)
        try:
            made = Token(name=name, role=role, sha256=digest_of(text), created=iso_now("seconds"))
        except ValidationError as error:
            raise UserError(f"{name!r} is no name of a token; use at most 61 letters, digits, `.`, `_`, `-`") from error
        with self._changing() as known:
            if any(one.name == name for one in known):
                raise UserError(f"{name} is a token already; revoke it first, or choose another name")
            known.append(made)
        return text

    def revoke(self, name: str) -> None:
        """Remove a token. Raises UserError when there is none of that name, or the file cannot be written."""
        with self._changing() as known:
            if all(one.name != name for one in known):
                raise UserError(f"{name} is no token; `validator token list` shows them")
            known[:] = [one for one in known if one.name != name]

    def find(self, sha256: str) -> Token | None:
        """The token whose text has that digest. Each is compared in full, so that the time says nothing of it."""
        return next(iter([one for one in self.all() if hmac.compare_digest(one.sha256, sha256)]), None)

    @contextmanager
    def _changing(self) -> Iterator[list[Token]]:
        """The tokens, which nobody else changes meanwhile; what the block makes of them is written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with Tree(self.path.parent) as tree, tree.locked(f".{self.path.name}.lock", mode=0o600):
                tokens = list(self.all())
                yield tokens
                text = _TokenList(tokens=tuple(tokens)).model_dump_json(indent=2)
                replace_file(self.path, f"{text}\n", mode=0o600)
        except OSError as error:
            raise UserError(f"--token-file {self.path} cannot be written: {error.strerror}") from error


def digest_of(text: str) -> str:
    """What is stored of the text of a token."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
