"""What a run must not say, and what is never written of it: the secrets that it was given.

A run may repeat them anywhere and in any form. `redact` knows a secret by the name beside it. A program that prints a
token alone gives no name, so what the run holds by its environment and its command is looked for as it stands.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from validator.documents import parse_json
from validator.model.plan import PhasePlan, Plan, RunSpec
from validator.model.runbook import Runbook
from validator.model.settings import sole_placeholder
from validator.model.units import Frozen
from validator.secrets.redact import (
    REDACTED,
    TOKEN_MARKS,
    WORD_STEMS,
    declared_values,
    is_secret_name,
    plain_name,
    redact,
    redact_output,
    redact_words,
    secrets_in,
    without_values,
)

if TYPE_CHECKING:
    from validator.model.result import Result

_LEAST_CHARS = 8
"""Shorter secrets would be found in innocent words and figures."""

_KEY_MARK = b"PRIVATE KEY-----"
_KEY_BLOCK = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:(?:(?!-----BEGIN).){0,16384}?-----END [A-Z ]*PRIVATE KEY-----"
    rb"|(?:\s*\n[A-Za-z0-9+/=]{16,}(?=\s|$))*)",
    re.S,
)

_OTHER_WORDS = {"pat": b"(?!h)"}
"""What does not follow a stem in a secret's name; a path is in many lines."""

_DIGITS = b"0123456789.,+"
_FIGURE = rb"[-+]?[\d.,]+(?:e[-+]?\d+)?%?(?:[\s,;\"'}\])]|$)"


def _marks() -> Iterator[tuple[bytes, re.Pattern[bytes]]]:
    """What announces a secret in a line of small letters, and what has to follow at once for it to be one."""
    # Everything has a limit: a line of a million dashes must not be searched from each of them to its end.
    assigned = rb"[a-z0-9_.-]{0,64}[\"']?\s{0,4}[=:]\s{0,4}[\"']?(?![\"'\s]|" + _FIGURE + rb")."
    for stem in WORD_STEMS:
        yield stem.encode(), re.compile(_OTHER_WORDS.get(stem, b"") + assigned)
    stems = b"|".join(stem.encode() + _OTHER_WORDS.get(stem, b"") for stem in WORD_STEMS)
    yield b"--", re.compile(rb"(?<!---)[a-z0-9_.-]{0,32}?(?:" + stems + rb")[a-z0-9_.-]{0,32}[ \t]{1,8}[^\s-]")
    yield b"login", re.compile(rb"\s{1,8}\S{1,128}\s{1,8}password\s")
    yield b"://", re.compile(rb"[^\s'\"]{0,256}[@?]|hooks\.|discord")
    for scheme in (b"bearer", b"basic"):
        yield scheme, re.compile(rb"\s+[a-z0-9._~+/=-]{8}")
    for flag in (b"-u", b"--user", b"--proxy-user"):
        yield flag, re.compile(rb"(?:\s+|=)[\"']?[^\s:'\"=]+:")
    for shape in TOKEN_MARKS:
        yield shape.lower().encode(), re.compile(rb"[\w.-]{8}")


_MARKS = tuple(_marks())

_ESCAPE = re.compile(r"%[0-9A-F]{2}")
_HEX_KEY = re.compile(r"[0-9a-f]{32,}")
_INNOCENT = re.compile(r"[-+.,:\d]*|true|false|none|null|default|disabled|enabled|password|\[redacted\]", re.I)


def known_secrets(
    environment: Mapping[str, str], words: Iterable[str], *, named: Collection[str] = ()
) -> frozenset[str]:
    """The secrets of an environment and a command that can be distinguished from other words.

    A value that is the path of something is left out: what such a variable holds is where the secret lies. `named` are
    names of secrets that do not say so themselves, beside those of `declare_secrets`.
    """
    plain = frozenset(map(plain_name, named))
    return frozenset(value for value in _candidates(environment, words, plain) if is_distinct(value))


def _candidates(environment: Mapping[str, str], words: Iterable[str], named: frozenset[str]) -> Iterator[str]:
    for name, value in environment.items():
        if is_secret_name(name) or plain_name(name) in named:
            yield value
            yield from value.splitlines()  # as a log prints a key of several lines
        yield from secrets_in(value)
    before = ""
    for word in words:
        yield from secrets_in(word)
        name, _, value = word.partition("=")
        if plain_name(name) in named:
            yield value
        if before.startswith("-") and (is_secret_name(before) or plain_name(before) in named):
            yield word
        if before.startswith("-") and not word.startswith("-"):
            yield from secrets_in(f"{before} {word}")
        before = word


def is_distinct(value: str) -> bool:
    """Whether a secret can be distinguished from other words, so that it may be replaced wherever it stands."""
    if len(value) < _LEAST_CHARS or _INNOCENT.fullmatch(value):
        return False
    with suppress(OSError, ValueError):
        return not Path(value).exists()
    return True


class Mask:
    """Takes secrets out of texts: those that are known, and those that show by their name or shape."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = sorted({*declared_values(), *forms_of(secrets)}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None
        self._known_bytes = tuple(secret.encode("utf-8", "surrogateescape") for secret in known)

    def sentence(self, text: str) -> str:
        """What is published of a run: without any secret."""
        return redact(self._without_known(text))

    def block(self, block: bytes) -> bytes:
        """Whole lines that a program wrote: without any secret, values under secret-like names kept.

        Only lines that hold what announces a secret are looked at closely: a log may be long, and its lines mostly
        hold numbers.
        """
        if block.lstrip()[:1] in (b"{", b"[") and (document := _json(block)) is not None:
            return self._document(block, document)
        if _KEY_MARK in block:
            block = _KEY_BLOCK.sub(REDACTED.encode(), block)
        starts = sorted({block.rfind(b"\n", 0, at) + 1 for at in self._suspicious(block)})
        if not starts:
            return block
        pieces, done = [], 0
        for start in starts:
            end = block.find(b"\n", start) + 1 or len(block)
            pieces += [block[done:start], self._line(block[start:end])]
            done = end
        return b"".join([*pieces, block[done:]])

    def _suspicious(self, block: bytes) -> Iterator[int]:
        """Places whose line may hold a secret."""
        low = block.lower()
        words = _words_of(low)
        for secret in self._known_bytes:
            if _wordy(secret.lower()) in words:
                yield from _positions(block, secret)
        for mark, what_follows in _MARKS:
            if _wordy(mark) in words:
                yield from (at for at in _positions(low, mark) if what_follows.match(low, at + len(mark)))

    def _line(self, line: bytes) -> bytes:
        document = _json(line) if line.startswith(b"{") else None
        if document is not None:
            return self._document(line, document)
        text = line.decode("utf-8", "surrogateescape")
        return redact_output(self._without_known(text)).encode("utf-8", "surrogateescape")

    def _document(self, text: bytes, document: Any) -> bytes:
        """JSON stays JSON: what has to go is replaced value by value, and an unchanged document is not rewritten."""
        if not any(True for _ in self._suspicious(text)):
            return text
        clean = self._value(document)
        if clean == document:
            return text
        indent = 2 if b"\n" in text.strip() else None
        end = "\n" if text.endswith(b"\n") else ""
        return (json.dumps(clean, indent=indent, ensure_ascii=False) + end).encode("utf-8", "surrogatepass")

    def _value(self, value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {self._without_known(key): self._value(one, key) for key, one in value.items()}
        if isinstance(value, list):
            return [self._value(one, name) for one in value]
        if not isinstance(value, str):
            return value
        named = is_secret_name(name) and not _INNOCENT.fullmatch(value)
        if named or (name == "key" and _HEX_KEY.fullmatch(value)):
            return REDACTED
        return redact_output(self._without_known(value))

    def _without_known(self, text: str) -> str:
        return text if self._known is None else self._known.sub(REDACTED, text)


def forms_of(secrets: Iterable[str]) -> frozenset[str]:
    """Each secret as it is, and as JSON, an address and base64 write it."""
    return frozenset(form for secret in secrets for form in _forms(secret))


def _forms(secret: str) -> Iterator[str]:
    yield from (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])
    data = secret.encode("utf-8", "surrogateescape")
    for quoted in (quote(data, safe=""), quote(data), quote_plus(data)):
        yield from (quoted, _ESCAPE.sub(lambda match: match[0].lower(), quoted))
    for before in range(3):  # base64 writes three bytes at a time, so it depends on what is written before
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            written = encode(b"\0" * before + data).decode()
            # Only characters all of whose six bits are the secret's own.
            yield written[-(-8 * before // 6) : 8 * (before + len(data)) // 6]


def _wordy(text: bytes) -> bytes:
    return text.translate(None, _DIGITS)


def _words_of(low: bytes) -> bytes:
    """What is left of a block without its figures, each kind of line once: a million steps leave next to nothing."""
    return b"\n".join(set(_wordy(low).split(b"\n")))


def _json(text: bytes) -> Any:
    """The value that a text is, where it is one of JSON; else None."""
    try:
        return parse_json(text, exact=True)
    except ValueError:
        return None


def _positions(block: bytes, mark: bytes) -> Iterator[int]:
    at = block.find(mark)
    while at >= 0:
        yield at
        at = block.find(mark, at + len(mark))


# Secrets stay in memory: what is written of a runbook, a run or its results goes through here first.
#
# A runbook may hold credentials that the trainer needs. They reach the trainer, and nothing else: header, journal,
# records and reports are made from copies in which they are replaced. Only places that hold settings are touched;
# patterns, criteria and names stay as they are, since what is written is also what is judged again.


SETTINGS = ("env", "args", "trial_args", "over")
WORDS = ("command", "args", "launcher_args", "run")
"""Keys of a runbook that hold settings by name, and those that hold words of commands."""

PLACES = ("run", "cwd", "workdir", "python")
FREE_TEXT = ("title", "description")
"""Keys that hold one text by which nothing is judged."""


def clean_runbook(runbook: Runbook) -> Runbook:
    """The runbook with every secret setting, argument and word of a command replaced."""
    return Runbook.model_validate(_clean_tree(runbook.model_dump(mode="json", by_alias=True)))


def clean_spec(spec: RunSpec) -> RunSpec:
    """What may be published of a run: its command, environment and settings without secrets."""
    return spec.model_copy(
        update={
            "argv": redact_words(spec.argv, redact),
            "env": clean_settings(spec.env),
            "requested": clean_settings(spec.requested),
            "settings": clean_settings(spec.settings),
            "cwd": None if spec.cwd is None else redact(spec.cwd),
        }
    )


def mask_of(spec: RunSpec) -> Mask:
    """What the run must not say: the secrets of its environment, its own and what it inherits, and of its command."""
    return Mask(known_secrets({**os.environ, **spec.env}, spec.argv))


def clean_plan(plan: Plan) -> Plan:
    """The plan with every run cleaned."""
    phases = tuple(_clean_phase_plan(phase) for phase in plan.phases)
    return plan.model_copy(update={"phases": phases})


def clean_result(result: Result) -> Result:
    """What the trainer said about itself, and what its logs are quoted with."""
    return dataclasses.replace(
        result,
        requested=_clean_account(result.requested),
        effective=_clean_account(result.effective),
        environment=_clean_account(result.environment),
        log_tail=tuple(redact(line) for line in result.log_tail),
        evidence=_clean_account(result.evidence),
    )


def _clean_phase_plan(phase: PhasePlan) -> PhasePlan:
    return phase.model_copy(update={"runs": tuple(clean_spec(run) for run in phase.runs)})


def is_secret(name: str) -> bool:
    """Whether a setting's value is one, by the last part of its name (`env.HF_TOKEN`, `defaults.env.HF_TOKEN`)."""
    return is_secret_name(name.rpartition(".")[2])


def clean_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name without secrets."""
    return {name: _clean_setting(name, value) for name, value in settings.items()}


def _clean_setting(name: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_clean_setting(name, one) for one in value]
    if isinstance(value, bool) or value is None or value == "":
        return value
    if is_secret(name) and not (isinstance(value, str) and sole_placeholder(value) is not None):
        return REDACTED
    return redact(value) if isinstance(value, str) else value


def _clean_tree(value: Any, key: str = "") -> Any:
    """Clean the places of a runbook that hold settings or commands, whatever phase they are in."""
    if isinstance(value, dict):
        if key in SETTINGS:
            return clean_settings(value)
        return {name: _clean_tree(item, name) for name, item in value.items()}
    if isinstance(value, list):
        if key in WORDS:
            return list(redact_words([str(word) for word in value], redact))
        return [_clean_tree(item, "") for item in value]
    if isinstance(value, str) and key in FREE_TEXT:
        return without_values(value)
    return redact(value) if isinstance(value, str) and key in PLACES else value


def _clean_account(value: Any, key: str = "") -> Any:
    """What a trainer or its logs say, cleaned by name and by content."""
    if isinstance(value, Mapping):
        return {name: _clean_account(item, str(name)) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_clean_account(item, name) for name, item in zip(value._fields, value, strict=True)))
    if isinstance(value, (list, tuple)):
        return type(value)(_clean_account(item, key) for item in value)
    if isinstance(value, Frozen):
        return value.model_copy(
            update=_clean_account({name: getattr(value, name) for name in type(value).model_fields})
        )
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        return dataclasses.replace(value, **_clean_account(own))
    if isinstance(value, str):
        return REDACTED if value and is_secret(key) else redact(value)
    return value
