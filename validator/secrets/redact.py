"""Secrets never reach disk: every text that is written passes through here first.

What counts as a secret is decided by the name that a value goes under (`HF_TOKEN=…`, `--api-key …`, `password: …`),
by where it stands (the user part of a URL, a bearer header) and by the shape of well-known tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

REDACTED = "[redacted]"

_WORDS = (
    r"pass(?:word|wd|phrase|code)?|pwd|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|auth[-_]?key"
    r"|account[-_]?key|signing[-_]?key|encryption[-_]?key|ssh[-_]?key|license[-_]?key|credential|credentials|creds"
    r"|authorization|auth|bearer|cookie|session[-_]?id|sas|signature|sig|dsn|jwt|otp|pin|pat|webhook"
)
WORD_STEMS = (
    *("pass", "pwd", "secret", "token", "key", "cred", "auth", "bearer", "cookie", "session", "sas", "sig", "dsn"),
    *("jwt", "otp", "pin", "pat", "webhook"),
)
"""No name is taken for a secret's that holds none of these."""

_NAME = re.compile(rf"(?:^|[-_.])(?:{_WORDS})s?(?:$|[-_.\d])|(?:password|passwd|secret|apikey)", re.I)
_VARIABLE = re.compile(r"[A-Z0-9_]+_KEY")
"""A variable that is called a key holds one (`KAGGLE_KEY`); a setting may mean another kind (`sort_key`)."""

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_HARMLESS = re.compile(
    r"(?i)_per_token$|(?:^|_)(?:tokens?_per_|n_?tokens|max_tokens|num_tokens|pad_token|eos_token|bos_token|special_tokens|tokenizer)"
    r"|(?:^|_)(?:ssh_auth_sock|xauthority|auth_method)$"
    r"|tokens?_(?:s|per_step|seen|total|count|id|ids|budget)$"
    r"|^(?:tokens|pin|pin_memory|pass|sig|pat)$|^tests?[._]pass|_pin_memory$"
)
"""Names that hold a secret's word and no secret: counts of tokens, a socket's path."""

_VALUE = (
    r"""(?P<value>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|(?:Bearer|Basic|Token)\s+\S+|(?![{\[(])[^\s"',;&|)}\]]+)"""
)
_ASSIGNMENT = re.compile(
    rf"(?P<name>(?<![A-Za-z0-9_.-])-{{0,2}}[A-Za-z_][A-Za-z0-9_.-]*)(?P<gap>[\"']?\s*(?:=|:(?!//))\s*){_VALUE}"
)
_FLAG = re.compile(rf"(?P<name>(?<![A-Za-z0-9_.-])--[A-Za-z][A-Za-z0-9_.-]*)(?P<gap>\s+)(?!-){_VALUE}")
_NETRC = re.compile(rf"(?P<name>\blogin\s+\S+\s+password)(?P<gap>\s+){_VALUE}")
_LOGIN = re.compile(
    r"(?P<flag>(?<!\S)(?:-u|--user|--proxy-user)(?:\s+|=)['\"]?[^\s:'\"=]+:)(?P<value>(?!\d+\b)[^\s'\"]+)"
)
_HEX_KEY = re.compile(r"(?P<name>[\"']key[\"']\s*:\s*[\"'])(?P<value>[0-9a-f]{32,})")
_URL_USER = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]{0,20}://)(?P<user>[^/\s:@'\"]*)(?P<secret>:[^/\s@'\"]*)?@")
_QUERY = re.compile(r"(?P<mark>[?&])(?P<name>[A-Za-z0-9_.-]+)=(?P<value>[^&\s#'\"]+)")
_HEADER = re.compile(r"(?i)\b(?P<scheme>bearer|basic)\s+(?P<value>[A-Za-z0-9._~+/=-]{8,})")
_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S)
_SHAPES = {
    **dict.fromkeys(("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"[A-Za-z0-9]{20,}"),
    "github_pat_": r"[A-Za-z0-9_]{20,}",
    "glpat-": r"[A-Za-z0-9_-]{16,}",
    "hf_": r"[A-Za-z0-9]{16,}",
    "sk-": r"[A-Za-z0-9_-]{16,}",
    "xox": r"[abeoprs]-[A-Za-z0-9-]{10,}",
    **dict.fromkeys(("AKIA", "ASIA", "AROA"), r"[A-Z0-9]{16}"),
    "AIza": r"[A-Za-z0-9_-]{30,}",
    "ya29.": r"[A-Za-z0-9_-]{20,}",
    "npm_": r"[A-Za-z0-9]{20,}",
    "pypi-": r"[A-Za-z0-9_-]{16,}",
    "dop_v1_": r"[a-f0-9]{20,}",
    "SG.": r"[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    "nvapi-": r"[A-Za-z0-9_-]{20,}",
    **dict.fromkeys(("sk_live_", "sk_test_", "rk_live_", "rk_test_"), r"[A-Za-z0-9]{16,}"),
    "gsk_": r"[A-Za-z0-9]{20,}",
    "r8_": r"[A-Za-z0-9]{30,}",
    "dckr_pat_": r"[A-Za-z0-9_-]{16,}",
    "dapi": r"[a-f0-9]{32}",
    "hvs.": r"[A-Za-z0-9_-]{20,}",
    "GOCSPX-": r"[A-Za-z0-9_-]{20,}",
    "eyJ": r"[A-Za-z0-9_-]{8,1024}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
}
"""Well-known tokens by what they begin with, and what follows."""

_BOT = ":AA"
"""A token that begins with a number of its own, with what stands behind the number."""

_TOKEN = re.compile(
    rf"\b(?:{'|'.join(re.escape(mark) + rest for mark, rest in _SHAPES.items())}|\d{{8,10}}{_BOT}[A-Za-z0-9_-]{{33}})"
)
TOKEN_MARKS = (*_SHAPES, _BOT)
"""No token is known by its shape that holds none of these."""

_HOOK = re.compile(
    r"(?P<place>https://(?:hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/webhooks/))"
    r"(?P<value>[^\s'\"]+)"
)
"""Addresses whose path is the credential."""

_NUMBER = re.compile(r"[-+]?(?:\d[\d,_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?%?|nan|inf|true|false", re.I)
_HINT = re.compile(
    r"pass(?:w|p|c)|secret|token|key|credential|creds|auth|bearer|basic |cookie|session|signature|webhook|://|[?&]"
    r"|(?:^|[^A-Za-z])(?:pass|pwd|sas|sig|dsn|jwt|otp|pin|pat)s?(?![A-Za-z])"
    rf"|BEGIN |-u |--user|--proxy-user|{'|'.join(map(re.escape, TOKEN_MARKS))}",
    re.I,
)
"""Texts without any of these hold no secret that could be found; most texts end here."""

_MARKS = tuple(
    dict.fromkeys(
        mark.lower()
        for mark in (*WORD_STEMS, "basic ", "://", "?", "&", "BEGIN ", "-u ", "--user", "--proxy-user", *TOKEN_MARKS)
    )
)
"""What every text that `_HINT` finds holds, in small letters: found much faster than a pattern."""


_declared: frozenset[str] = frozenset()
_values: tuple[str, ...] = ()


def declare_secrets(names: Iterable[str], values: Iterable[str] = ()) -> None:
    """Take what goes under these names for secrets as well, in this process, and these values wherever they stand.

    Args:
        names: what a runbook lists in `secrets`.
        values: texts to be replaced, every form of a secret by itself.
    """
    global _declared, _values
    _declared = frozenset(plain_name(name) for name in names)
    _values = tuple(sorted(set(values), key=len, reverse=True))


def declared_values() -> tuple[str, ...]:
    """The texts that `declare_secrets` was given, the longest first."""
    return _values


def without_values(text: str) -> str:
    """`text` with the values that were declared replaced, and nothing else."""
    # Most texts hold none: looking for each is much faster than a pattern of all.
    found = [value for value in _values if value in text]
    return re.sub("|".join(map(re.escape, found)), REDACTED, text) if found else text


def plain_name(name: str) -> str:
    """A variable's or an argument's name in one form."""
    return name.lstrip("-").replace("-", "_")


def is_secret_name(name: str) -> bool:
    """Whether a value that goes under this name is taken for a secret."""
    if _declared and plain_name(name) in _declared:
        return True
    plain = _CAMEL.sub("_", name.lstrip("-")).replace("-", "_")
    harmless = _HARMLESS.search(plain) or _HARMLESS.search(plain.rpartition(".")[2])
    return (_NAME.search(plain) or _VARIABLE.fullmatch(name)) is not None and harmless is None


def _is_quiet(text: str) -> bool:
    """Whether a text holds no secret that could be found by its name or shape."""
    if _declared:
        return False
    low = text.lower()
    return not any(mark in low for mark in _MARKS) or _HINT.search(text) is None


def redact(text: str) -> str:
    """`text` with every secret replaced by `[redacted]`; names, hosts and all else stay readable."""
    text = without_values(text)
    return text if _is_quiet(text) else _Pass().clean(text)


def redact_output(text: str) -> str:
    """`redact` for what a program printed, where a number under a secret-like name (`auth: 0.93`) is a metric."""
    text = without_values(text)
    return text if _is_quiet(text) else _Pass(keep_numbers=True).clean(text)


def secrets_in(text: str) -> tuple[str, ...]:
    """What `redact` takes out of `text`, without the quotes around it."""
    if _is_quiet(text):
        return ()
    passing = _Pass()
    passing.clean(text)
    return tuple(passing.hidden)


def redact_env(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables with secret values replaced, by name first, then by what the value holds."""
    return {name: REDACTED if is_secret_name(name) and value else redact(value) for name, value in environment.items()}


_DEPTH = 8
"""Assignments within an assignment's value that are looked into (`a=b=c`); one nested deeper is replaced whole."""


class _Pass:
    """One pass over a text, which collects in `hidden` what it replaces."""

    def __init__(self, *, keep_numbers: bool = False) -> None:
        self.hidden: list[str] = []
        self._keep_numbers = keep_numbers
        self._depth = 0

    def clean(self, text: str) -> str:
        text = _KEY_BLOCK.sub(lambda match: self._hide(match[0]), text)
        text = _HOOK.sub(lambda match: match["place"] + self._hide(match["value"]), text)
        text = _URL_USER.sub(self._without_user, text)
        text = _QUERY.sub(self._without_query_value, text)
        text = _TOKEN.sub(lambda match: self._hide(match[0]), text)
        text = _ASSIGNMENT.sub(self._without_value, text)
        text = _NETRC.sub(self._without_value, text)
        text = _HEX_KEY.sub(lambda match: match["name"] + self._hide(match["value"]), text)
        text = _LOGIN.sub(lambda match: match["flag"] + self._hide(match["value"]), text)
        text = _FLAG.sub(self._without_value, text)
        return _HEADER.sub(lambda match: f"{match['scheme']} {self._hide(match['value'])}", text)

    def _hide(self, secret: str) -> str:
        self.hidden.append(secret)
        return REDACTED

    def _without_user(self, match: re.Match[str]) -> str:
        """A user name alone may be a token (`https://TOKEN@host`); only a plain one with a password is kept."""
        scheme, user, secret = match["scheme"], match["user"], match["secret"]
        if secret is None:
            return f"{scheme}{user if user in ('git', '') else self._hide(user)}@"
        return f"{scheme}{user}:{self._hide(secret[1:])}@"

    def _without_query_value(self, match: re.Match[str]) -> str:
        if not is_secret_name(match["name"]) and match["name"].lower() not in ("key", "sig", "code"):
            return match[0]
        return f"{match['mark']}{match['name']}={self._hide(match['value'])}"

    def _without_value(self, match: re.Match[str]) -> str:
        name, gap, value = match["name"], match["gap"], match["value"]
        mark = value[0] if value[0] in "\"'" else ""
        bare = value[1:-1] if mark else value
        if value.startswith("[redacted") or bare in ("", "None", "null"):
            return match[0]
        if not is_secret_name(name) and self._depth < _DEPTH:  # an innocent name may hold a whole command line
            self._depth += 1
            clean = self.clean(bare)
            self._depth -= 1
            return f"{name}{gap}{mark}{clean}{mark}"
        if self._keep_numbers and _NUMBER.fullmatch(bare):
            return match[0]
        return f"{name}{gap}{mark}{self._hide(bare)}{mark}"


def redact_words(words: Iterable[str], redact: Callable[[str], str]) -> tuple[str, ...]:
    """The words of a command without secrets: also a secret that is the word after its flag (`--api-key …`)."""
    clean: list[str] = []
    before = ""
    for word in words:
        probe = f"{before} x"
        if before.startswith("--") and not word.startswith("-") and (redacted := redact(probe)) != probe:
            clean.append(redacted[len(before) + 1 :])
        else:
            clean.append(redact(word))
        before = word
    return tuple(clean)
