"""Pydantic's errors as problems of the YAML file: field, value, and what to write instead."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from validator.model.expression import meant_number
from validator.model.schemas import SCHEMAS
from validator.model.settings import PLACEHOLDERS
from validator.runbook.document import Path, YamlNode, node_at, plain, plain_value, problem_at
from validator.runbook.overrides import homes, key_names, model_at, spell
from validator.runbook.problems import Problem
from validator.text import nearest

_EXAMPLES: dict[str, str] = {
    "name": "name: ddp-2xa100",
    "schema": "schema: 1",
    "id": "id: baseline",
    "kind": "kind: train",
    "steps": "steps: 300",
    "run": "run: nvidia-smi",
    "targets": "targets: [nsa.parity]",
    "over": "over: {env.NAME: [25, 50]}",
    "choose": "choose: {highest: toks_per_s.mean}",
    "arms": "arms: {present: {}, changed: {env: {NAME: 1}}}",
    "expr": "expr: toks_per_s.mean >= 39",
    "phases": "phases: [{id: baseline, kind: train, steps: 300}]",
    "needs": "needs: [baseline]",
    "accept": "accept: [loss.last < loss.first]",
    "env": "env: {NAME: value}",
    "args": "args: {name: value}",
    "hardware": "hardware: {gpus: 2}",
    "trainer": "trainer: {command: [train.py]}",
    "defaults": "defaults: {nproc: 2}",
    "watchdog": "watchdog: {stall: 3m}",
    "command": "command: [train.py, --steps, '{steps}']",
    "metrics": "metrics: {csv: training.csv}",
    "extra": "extra: {name: unit}",
    "packages": "packages: ['torch>=2.6']",
    "log_contains": "log_contains: [text]",
    "variants": "variants: [plain, flash_only, no_flash]",
    "ranges": "ranges: [nsa.cmp, nsa.win]",
    "on_failure": "on_failure: [port]",
    "on": "on: [stall, error]",
    "smoke": "smoke: [-m, nsa.data, --json]",
}
_PATTERNS = {
    "id": "begin with a lower-case letter, followed by lower-case letters, digits and underscores",
    "name": "use lower-case letters, digits and hyphens, beginning with a letter or digit",
    "currency": "write it in letters, such as currency: USD",
}
_UNION_LABELS = ("str", "int", "float", "bool")


def resolve_path(root: YamlNode, loc: tuple[str | int, ...]) -> tuple[Path, str | None]:
    """An error's location as a path of the tree, and the key that is missing there, if one is.

    Pydantic puts the names of union members between the keys; steps that the tree does not have are skipped.
    """
    path: Path = ()
    missing: str | None = None
    for step in loc:
        if node_at(root, (*path, step)) is not None:
            path, missing = (*path, step), None
        elif isinstance(step, str) and not step.startswith("["):
            missing = step
    return path, missing


def shown(value: Any) -> str:
    """A value for a message, as YAML writes it, shortened to 60 characters."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def translate(root: YamlNode, error: Mapping[str, Any]) -> Problem:
    """One of pydantic's errors as a problem with its place and its fix."""
    kind, loc = str(error["type"]), tuple(error["loc"])
    path, missing = resolve_path(root, loc)
    if kind == "extra_forbidden":
        return _unknown_key(root, path)
    if kind == "missing" and missing is not None:
        return _missing_key(root, path, missing)
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        return _phase_kind(root, path)
    if loc and loc[-1] == "[key]":
        return _bad_key(root, path)
    node = node_at(root, path)
    value = plain(node) if node is not None else None
    field = spell(root, path) or "the runbook"
    message, fix = _message_and_fix(kind, error, field=field, path=path, value=value)
    return problem_at(root, path, message, fix)


def _message_and_fix(kind: str, error: Mapping[str, Any], *, field: str, path: Path, value: Any) -> tuple[str, str]:
    name = _field_name(path)
    if kind == "value_error":
        return _own_message(error, field)
    if kind == "string_pattern_mismatch":
        return f"{field} is {shown(value)}, which is not a valid {name}", _PATTERNS.get(name, _example(name))
    if kind == "literal_error":
        return _wrong_choice(error, field=field, name=name, value=value)
    if kind in ("too_short", "too_long"):
        return _wrong_count(kind, error, field=field, name=name)
    bound = _BOUNDS.get(kind)
    if bound is not None:
        phrase, key = bound
        limit = f"{error.get('ctx', {}).get(key):g}"
        return f"{field} is {shown(value)}; it must be {phrase} {limit}", f"write a value {phrase} {limit}"
    return _wrong_type(kind, error, field=field, path=path, value=value)


_BOUNDS = {
    "greater_than": ("greater than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def _field_name(path: Path) -> str:
    return next((step for step in reversed(path) if isinstance(step, str)), "runbook")


def _example(name: str) -> str:
    if name in _EXAMPLES:
        return f"write it in the form of {_EXAMPLES[name]}"
    return f"see {name} in docs/runbook-reference.md for what it may be"


def _own_message(error: Mapping[str, Any], field: str) -> tuple[str, str]:
    """The message of a validator of ours: `what is wrong; what to write`."""
    text = str(error["msg"]).removeprefix("Value error, ")
    message, _, fix = text.partition("; ")
    last = field.split(".")[-1].split("[")[0]
    if not message.startswith(last):
        message = f"{field}: {message}"
    return message, fix


def _wrong_choice(error: Mapping[str, Any], *, field: str, name: str, value: Any) -> tuple[str, str]:
    if name == "schema":
        return f"schema is {shown(value)}; this version reads schema 1", "write schema: 1"
    options = [
        word.strip("'") for word in str(error.get("ctx", {}).get("expected", "")).replace(" or ", ", ").split(", ")
    ]
    fix = nearest(str(value), options, f"write one of {', '.join(options)}")
    return f"{field} is {shown(value)}; it must be one of {', '.join(options)}", fix


def _wrong_count(kind: str, error: Mapping[str, Any], *, field: str, name: str) -> tuple[str, str]:
    context = error.get("ctx", {})
    limit = context.get("min_length" if kind == "too_short" else "max_length")
    actual = context.get("actual_length")
    side = "at least" if kind == "too_short" else "at most"
    fix = _example(name) if name in _EXAMPLES else f"give it {side} {limit}"
    return f"{field} has {actual} entries; it needs {side} {limit}", fix


def _integer_fix(name: str, value: Any) -> str:
    meant = _number_meant(value)
    if meant is None or meant < 0 or not meant.is_integer():
        return f"write {name} as a whole number, in digits and without quotes"
    return f"write {name}: {meant:.0f}" + _UNQUOTED[isinstance(value, str)]


def _number_fix(name: str, value: Any) -> str:
    meant = _number_meant(value)
    if meant is None or meant < 0:
        return f"write {name} as a number, in digits and without quotes"
    return f"write {name}: {meant:.15g}" + _UNQUOTED[isinstance(value, str)]


_UNQUOTED = {True: ", without quotes", False: ""}


def _number_meant(value: Any) -> float | None:
    """The number that a text was probably meant as; None where none follows from it."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    found = meant_number(str(value))
    return found if found is not None and math.isfinite(found) else None


def _flag_fix(name: str, value: Any) -> str:
    word = str(value).lower()
    meant = "true" if word in ("yes", "on", "1", "true", "y") else "false"
    known = meant == "true" or word in ("no", "off", "0", "false", "n")
    return f"write {name}: {meant}, without quotes" if known else f"write {name}: true or {name}: false"


def _list_fix(name: str, value: Any) -> str:
    """A lone text as the list that it was meant as: a command's words, or one entry."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return _example(name)
    words = [str(value)]
    if name in _COMMANDS:
        try:
            words = shlex.split(str(value))
        except ValueError:
            return f"write {name} as a list of words, each with its quotes closed"
    return f"write {name}: [{', '.join(map(_flow, words))}]"


_COMMANDS = ("command", "smoke", "launcher_args")
"""Lists of the words of a command line."""

_PLAIN = re.compile(r"[A-Za-z_./-][\w./=-]*")


def _flow(word: str) -> str:
    """A text as an entry of a list in brackets."""
    plain_text = _PLAIN.fullmatch(word) is not None and isinstance(plain_value(word), str) and word != "-"
    return word if plain_text else f"""'{word.replace("'", "''")}'"""


_TYPES: tuple[tuple[str, str, Callable[[str, Any], str]], ...] = (
    ("int_", "a whole number", _integer_fix),
    ("float_", "a number", _number_fix),
    ("finite_", "a finite number", _number_fix),
    ("bool_", "true or false", _flag_fix),
    ("string_", "text", lambda name, value: "put the value in quotes"),
    ("dict_", "a mapping", lambda name, value: _example(name)),
    ("model_", "a mapping", lambda name, value: _example(name)),
    ("mapping_", "a mapping", lambda name, value: _example(name)),
    ("tuple_", "a list", _list_fix),
    ("list_", "a list", _list_fix),
)


def _wrong_type(kind: str, error: Mapping[str, Any], *, field: str, path: Path, value: Any) -> tuple[str, str]:
    name = _field_name(path)
    braces = _unquoted_placeholder(value)
    if braces is not None:
        return f"{field} is {braces} without quotes, which YAML reads as a mapping", f'write "{braces}", with quotes'
    if path[-1:] == ("run",):
        return f"{field} is {shown(value)}; it must be a shell line or a list of arguments", _example("run")
    if len(error["loc"]) > 1 and error["loc"][-1] in _UNION_LABELS:
        fix_value = "give it a value, or '' for an empty text" if value is None else "write a single value"
        return f"{field} is {shown(value)}; it must be text, a number, true or false", fix_value
    for prefix, phrase, fix in _TYPES:
        if kind.startswith(prefix):
            structured = prefix == "string_" and isinstance(value, (list, dict))
            return f"{field} is {shown(value)}; it must be {phrase}", _example(name) if structured else fix(name, value)
    return f"{field} is {shown(value)}, which is not valid: {error['msg']}", _example(name)


def _unquoted_placeholder(value: Any) -> str | None:
    """`{steps}` where YAML has made a mapping of these braces; None for anything else."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, inside),) = value.items()
        if name in PLACEHOLDERS and inside is None:
            return f"{{{name}}}"
    return None


def _unknown_key(root: YamlNode, path: Path) -> Problem:
    key, owner = str(path[-1]), path[:-1]
    model = model_at(root, owner)
    known = key_names(model) if model is not None else []
    place = spell(root, owner) or "the runbook"
    home = homes(key)
    node = node_at(root, path)
    if " " in key and node is not None and node.value is None:
        fix = f"a comma ends a value within braces; put quotes around the text that continues with {key!r}"
        return problem_at(root, path, f"unknown key {key} in {place}", fix, key=True)
    fix = nearest(key, known, "", cutoff=0.7) or (
        f"{key} belongs to {home}" if home else nearest(key, known, f"known keys: {', '.join(known)}")
    )
    return problem_at(root, path, f"unknown key {key} in {place}", fix, key=True)


def _missing_key(root: YamlNode, path: Path, key: str) -> Problem:
    place = spell(root, path) or "the runbook"
    return problem_at(root, path, f"{place} has no {key}, which is required", f"add {_EXAMPLES.get(key, key)}")


def _phase_kind(root: YamlNode, path: Path) -> Problem:
    kinds = list(SCHEMAS)
    node = node_at(root, (*path, "kind"))
    place = spell(root, path)
    if node is None:
        fix = f"add kind: one of {', '.join(kinds)}"
        return problem_at(root, path, f"{place} has no kind, which is required", fix)
    fix = nearest(str(node.value), kinds, f"kinds: {', '.join(kinds)}")
    return Problem.at(node.mark, f"{place}.kind is {shown(node.value)}, which is not a kind of phase", fix)


def _bad_key(root: YamlNode, path: Path) -> Problem:
    message = f"{path[-1]} is not a valid name in {spell(root, path[:-1])}"
    return problem_at(root, path, message, _PATTERNS["id"], key=True)
