"""Secrets never reach disk: every text that is written passes through here first.

What counts as a secret is decided by the name that a value goes under (`HF_TOKEN=…`, `--api-key …`, `password: …`),
by where it stands (the user part of a URL, a bearer header) and by the shape of well-known tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["REDACTED", "is_secret_name", "redact", "redact_env"]

REDACTED = "[redacted]"

_WORDS = (
    r"pass(?:word|wd|phrase|code)?|pwd|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|auth[-_]?key"
    r"|account[-_]?key|signing[-_]?key|encryption[-_]?key|ssh[-_]?key|license[-_]?key|credential|credentials|creds"
    r"|authorization|auth|bearer|cookie|session[-_]?id|sas|signature|sig|dsn|jwt|otp|pin|pat|webhook"
)
_NAME = re.compile(rf"(?:^|[-_.])(?:{_WORDS})s?(?:$|[-_.\d])|(?:password|passwd|secret|apikey)", re.I)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_HARMLESS = re.compile(
    r"(?i)(?:^|_)(?:tokens?_per_|n_?tokens|max_tokens|num_tokens|pad_token|eos_token|bos_token|special_tokens|tokenizer)"
    r"|(?:^|_)(?:ssh_auth_sock|xauthority|auth_method)$"
    r"|tokens?_(?:s|per_step|seen|total|count|id|ids|budget)$"
    r"|^(?:tokens|pin|pin_memory|pass|sig|pat)$|^tests?[._]pass|_pin_memory$"
)
"""Names that hold a secret's word and no secret: counts of tokens, a socket's path."""

_VALUE = r"""(?P<value>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|(?:Bearer|Basic|Token)\s+\S+|[^\s"',;&|)}\]]+)"""
_ASSIGNMENT = re.compile(
    rf"(?P<name>(?<![A-Za-z0-9_.-])-{{0,2}}[A-Za-z_][A-Za-z0-9_.-]*)(?P<gap>[\"']?\s*(?:=|:(?!//))\s*){_VALUE}"
)
_FLAG = re.compile(rf"(?P<name>(?<![A-Za-z0-9_.-])--[A-Za-z][A-Za-z0-9_.-]*)(?P<gap>\s+)(?!-){_VALUE}")
_URL_USER = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>[^/\s:@'\"]*)(?P<secret>:[^/\s@'\"]*)?@")
_QUERY = re.compile(r"(?P<mark>[?&])(?P<name>[A-Za-z0-9_.-]+)=(?P<value>[^&\s#'\"]+)")
_HEADER = re.compile(r"(?i)\b(?P<scheme>bearer|basic)\s+(?P<value>[A-Za-z0-9._~+/=-]{8,})")
_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S)
_SHAPES = re.compile(
    r"\b(?:"
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|xox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|(?:AKIA|ASIA|AROA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}"
    r"|npm_[A-Za-z0-9]{20,}|pypi-[A-Za-z0-9_-]{16,}|dop_v1_[a-f0-9]{20,}|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r")"
)
_HINT = re.compile(
    r"pass(?:w|p|c)|secret|token|key|credential|creds|auth|bearer|basic |cookie|session|signature|webhook|://|[?&]"
    r"|(?:^|[^A-Za-z])(?:pass|pwd|sas|sig|dsn|jwt|otp|pin|pat)(?![A-Za-z])"
    r"|gh[pousr]_|github_pat|glpat|hf_|sk-|xox|AKIA|ASIA|AROA|AIza|ya29|npm_|pypi-|dop_|SG\.|eyJ|BEGIN ",
    re.I,
)
"""Texts without any of these hold no secret that could be found; most texts end here."""


def is_secret_name(name: str) -> bool:
    """Whether a value that goes under this name is taken for a secret."""
    plain = _CAMEL.sub("_", name.lstrip("-")).replace("-", "_")
    harmless = _HARMLESS.search(plain) or _HARMLESS.search(plain.rpartition(".")[2])
    return _NAME.search(plain) is not None and harmless is None


def redact(text: str) -> str:
    """`text` with every secret replaced by `[redacted]`; names, hosts and all else stay readable."""
    if _HINT.search(text) is None:
        return text
    text = _KEY_BLOCK.sub(REDACTED, text)
    text = _URL_USER.sub(_without_user, text)
    text = _QUERY.sub(_without_query_value, text)
    text = _SHAPES.sub(REDACTED, text)
    text = _ASSIGNMENT.sub(_without_value, text)
    text = _FLAG.sub(_without_value, text)
    return _HEADER.sub(lambda match: f"{match['scheme']} {REDACTED}", text)


def redact_env(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables with secret values replaced, by name first, then by what the value holds."""
    return {name: REDACTED if is_secret_name(name) and value else redact(value) for name, value in environment.items()}


def _without_user(match: re.Match[str]) -> str:
    """A user name alone may be a token (`https://TOKEN@host`); only a plain one with a password is kept."""
    if match["secret"] is None:
        keep = match["user"] if match["user"] in ("git", "") else REDACTED
        return f"{match['scheme']}{keep}@"
    return f"{match['scheme']}{match['user']}:{REDACTED}@"


def _without_query_value(match: re.Match[str]) -> str:
    if not is_secret_name(match["name"]) and match["name"].lower() not in ("key", "sig", "code"):
        return match[0]
    return f"{match['mark']}{match['name']}={REDACTED}"


def _without_value(match: re.Match[str]) -> str:
    name, gap, value = match["name"], match["gap"], match["value"]
    mark = value[0] if value[0] in "\"'" else ""
    if value.startswith("[redacted") or value.strip("\"'") in ("", "None", "null"):
        return match[0]
    if not is_secret_name(name):  # an innocent name may hold a whole command line
        return f"{name}{gap}{mark}{redact(value[1:-1] if mark else value)}{mark}"
    return f"{name}{gap}{mark}{REDACTED}{mark}"
