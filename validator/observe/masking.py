"""What a run must not say: the secrets that it was given, wherever and in whatever words it repeats them.

`redact` knows a secret by the name beside it. A program that prints a token alone gives no name, so what the run holds
by its environment and its command is looked for as it stands.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from validator.files import parse_json
from validator.observe.redact import (
    REDACTED,
    TOKEN_MARKS,
    WORD_STEMS,
    is_secret_name,
    redact,
    redact_output,
    secrets_in,
)

__all__ = ["Mask", "known_secrets"]

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


def known_secrets(environment: Mapping[str, str], words: Iterable[str]) -> frozenset[str]:
    """The secrets of an environment and a command that can be told from other words.

    A value that is the path of something is left out: what such a variable holds is where the secret lies.
    """
    return frozenset(value for value in _candidates(environment, words) if _telling(value))


def _candidates(environment: Mapping[str, str], words: Iterable[str]) -> Iterator[str]:
    for name, value in environment.items():
        if is_secret_name(name):
            yield value
            yield from value.splitlines()  # as a log prints a key of several lines
        yield from secrets_in(value)
    before = ""
    for word in words:
        yield from secrets_in(word)
        if before.startswith("-") and is_secret_name(before):
            yield word
        if before.startswith("-") and not word.startswith("-"):
            yield from secrets_in(f"{before} {word}")
        before = word


def _telling(value: str) -> bool:
    if len(value) < _LEAST_CHARS or _INNOCENT.fullmatch(value):
        return False
    with suppress(OSError, ValueError):
        return not Path(value).exists()
    return True


class Mask:
    """Takes secrets out of texts: those that are known, and those that show by their name or shape."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = sorted({form for secret in secrets for form in _forms(secret)}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None
        self._known_bytes = tuple(secret.encode("utf-8", "surrogateescape") for secret in known)

    def sentence(self, text: str) -> str:
        """What is told of a run: without any secret."""
        return redact(self._without_known(text))

    def block(self, block: bytes) -> bytes:
        """Whole lines that a program wrote: without any secret, figures under telling names kept.

        Only lines that hold what announces a secret are looked at closely: a log may be long, and its lines mostly tell
        figures.
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
                yield from _places(block, secret)
        for mark, what_follows in _MARKS:
            if _wordy(mark) in words:
                yield from (at for at in _places(low, mark) if what_follows.match(low, at + len(mark)))

    def _line(self, line: bytes) -> bytes:
        document = _json(line) if line.startswith(b"{") else None
        if document is not None:
            return self._document(line, document)
        text = line.decode("utf-8", "surrogateescape")
        return redact_output(self._without_known(text)).encode("utf-8", "surrogateescape")

    def _document(self, text: bytes, document: Any) -> bytes:
        """JSON stays JSON: what has to go is replaced value by value, and nothing is written anew in vain."""
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


def _forms(secret: str) -> Iterator[str]:
    """A secret as it is, and as JSON, an address and base64 write it."""
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


def _places(block: bytes, mark: bytes) -> Iterator[int]:
    at = block.find(mark)
    while at >= 0:
        yield at
        at = block.find(mark, at + len(mark))
