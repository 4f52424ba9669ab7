"""Files in which an operator keeps a secret for a command: tokens, and what signs webhooks."""

from __future__ import annotations

import os
from pathlib import Path

from validator.errors import UserError
from validator.files import Tree

_MAX_PRIVATE = 1 << 20


def private_text(path: Path, option: str) -> str:
    """The text of a file that its owner alone may read, or the group of root where it is root's; links that lead to it
    are followed, for it is the operator's.

    Raises:
        UserError: when others may read it, or it cannot be read; the message begins with the option.
    """
    path = Path(os.path.realpath(path))
    try:
        with Tree(path.parent) as tree:
            found = tree.stat(path.name)
            if found.st_mode & (0o077 if found.st_uid else 0o037) or found.st_uid not in (os.getuid(), 0):
                raise UserError(f"{option} {path} is open to other users; chmod 600 {path}")
            return tree.text(path.name, limit=_MAX_PRIVATE)
    except OSError as error:
        raise UserError(f"{option} {path} cannot be read: {error.strerror}") from error
