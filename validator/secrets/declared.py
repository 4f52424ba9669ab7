"""The secrets of a runbook and of the environment by their values, which this process writes nowhere.

A secret's name shows what it is in one place, and its value may stand under an ordinary name in another: in a variable
that has the same value, in an address, in an argument. What is replaced in a trainer's files when it has ended is
replaced in all that the validator writes as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from validator.model.record import PhaseState, Reason
from validator.model.runbook import Runbook
from validator.model.settings import has_placeholder
from validator.secrets.masking import FREE_TEXT, PLACES, SETTINGS, WORDS, forms_of, is_distinct, known_secrets
from validator.secrets.redact import declare_secrets

_VOCABULARY = (*get_args(Reason), *get_args(PhaseState))
"""Words of the journal that decide what is judged."""


def declare_secrets_of(runbook: Runbook, *, hidden: Iterable[str] = ()) -> None:
    """From here on this process takes for secrets what a runbook names as one, and the values of those that it and the
    environment hold, wherever they are written: also under an ordinary name, or as a part of another value.

    A value that is in a name, a criterion or a pattern of the runbook is left out: what is judged must stay whole.

    Args:
        hidden: further values.
    """
    declare_secrets(runbook.secrets)
    found = {*known_secrets(os.environ, ()), *filter(is_distinct, hidden)}
    judged = list(_VOCABULARY)
    for place, value in _places(runbook.model_dump(mode="json", by_alias=True)):
        if place == "setting":
            name, text = value
            for one in (text, text.replace("{{", "{").replace("}}", "}")):
                found |= known_secrets({name: one}, ())
        elif place == "words":
            found |= known_secrets({}, value)
        else:
            judged.append(value)
    whole = "\n".join(judged)
    values = (one for one in found if one not in whole and not has_placeholder(one))
    declare_secrets(runbook.secrets, forms_of(values))


def _places(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """What a runbook holds, by what it is: a `setting` with its name, `words` of a command, or `judged`, names among
    them."""
    if isinstance(value, dict) and key in SETTINGS:
        for name, item in value.items():
            texts = [one for one in (item if isinstance(item, list) else [item]) if isinstance(one, str)]
            yield from (("setting", (name.rpartition(".")[2], one)) for one in texts)
            if key == "over":  # arms are named by their values
                yield from (("judged", one) for one in texts)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield "judged", name
            yield from _places(item, name)
    elif isinstance(value, list) and key in WORDS:
        yield "words", [str(word) for word in value]
    elif isinstance(value, list):
        for item in value:
            yield from _places(item, "")
    elif isinstance(value, str) and key in PLACES:
        yield "words", value.split()
    elif isinstance(value, str) and key not in FREE_TEXT:
        yield "judged", value
