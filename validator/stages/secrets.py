"""Secrets stay in memory: what is written of a runbook, a run or its results goes through here first.

A runbook may hold credentials that the trainer needs. They reach the trainer, and nothing else: header, journal,
records and reports are made from copies in which they are replaced. Only places that hold settings are touched;
patterns, criteria and names stay as they are, since what is written is also what is judged again.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from validator.execute.words import redact_words
from validator.folder import FolderError, RunFolder
from validator.model.plan import PhasePlan, Plan, RunSpec
from validator.model.runbook import Runbook
from validator.observe.masking import Mask, known_secrets
from validator.observe.redact import REDACTED, declare_secrets, is_secret_name, redact
from validator.runbook import LoadedRunbook, find, load

if TYPE_CHECKING:
    from validator.model.result import Result

__all__ = ["clean_loaded", "clean_plan", "clean_result", "clean_runbook", "clean_spec", "mask_of", "with_secrets"]

_LEAST_CHARS = 6
"""Shorter secrets are not searched for in a source text: they would be found in innocent words."""


def clean_loaded(loaded: LoadedRunbook) -> LoadedRunbook:
    """The runbook, its source and its overrides without secrets; the hash stays that of the file as it was read.

    From here on this process takes what the runbook declares for a secret.
    """
    declare_secrets(loaded.runbook.secrets)
    text = redact(loaded.text)
    for secret in sorted(_hidden(loaded.runbook), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return dataclasses.replace(
        loaded,
        runbook=clean_runbook(loaded.runbook),
        text=text,
        overrides=tuple(_clean_override(one) for one in loaded.overrides),
    )


def clean_runbook(runbook: Runbook) -> Runbook:
    """The runbook with every secret setting, argument and word of a command replaced."""
    return Runbook.model_validate(_clean_tree(runbook.model_dump(mode="json", by_alias=True)))


def clean_spec(spec: RunSpec) -> RunSpec:
    """What may be told of a run: its command, environment and settings without secrets."""
    return spec.model_copy(
        update={
            "argv": redact_words(spec.argv, redact),
            "env": _clean_settings(spec.env),
            "requested": _clean_settings(spec.requested),
            "settings": _clean_settings(spec.settings),
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
        extra=_clean_account(result.extra) or {},
    )


def with_secrets(folder: RunFolder, overrides: Iterable[str]) -> Runbook:
    """The runbook of a folder with the secrets that its header leaves out.

    They are read from the runbook's file, which must be unchanged, and from `overrides`, which must give those that
    were given on the command line.

    Raises:
        FolderError: when they cannot be had, naming what is missing.
        RunbookError: when the runbook's file is gone.
    """
    header, given = folder.header, list(overrides)
    declare_secrets(header.runbook.secrets)
    missing = [one for one in header.overrides if REDACTED in one]
    keys = {one.partition("=")[0] for one in missing}
    strange = [one.partition("=")[0] for one in given if one.partition("=")[0] not in keys]
    if strange:
        raise FolderError(
            f"--set {strange[0]} cannot be given with --resume: a validation goes on as it was begun; leave it out, "
            "or begin anew without --resume"
        )
    unset = sorted(keys - {one.partition("=")[0] for one in given})
    if unset:
        raise FolderError(
            f"the value of {unset[0]} was a secret and is not stored in {header.run_id}; "
            f"give it again with --set {unset[0]}=VALUE"
        )
    if REDACTED not in header.runbook.model_dump_json(by_alias=True):
        return header.runbook
    by_key = {one.partition("=")[0]: one for one in given}
    texts = [by_key.get(one.partition("=")[0], one) for one in header.overrides]
    loaded = load(find(header.runbook_path), overrides=texts)
    if clean_runbook(loaded.runbook) != header.runbook:
        raise FolderError(
            f"{header.runbook_path} has changed since {header.run_id} was begun, and the secrets in it are not stored; "
            "restore it, or begin anew without --resume"
        )
    return loaded.runbook


def _clean_phase_plan(phase: PhasePlan) -> PhasePlan:
    return phase.model_copy(update={"runs": tuple(clean_spec(run) for run in phase.runs)})


def _clean_override(text: str) -> str:
    key, equals, value = text.partition("=")
    return f"{key}={REDACTED}" if equals and value and _is_secret(key) else key + equals + redact(value)


def _is_secret(name: str) -> bool:
    """Whether a setting's value is one, by the last part of its name (`env.HF_TOKEN`, `defaults.env.HF_TOKEN`)."""
    return is_secret_name(name.rpartition(".")[2])


def _clean_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _clean_setting(name, value) for name, value in settings.items()}


def _clean_setting(name: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_clean_setting(name, one) for one in value]
    if isinstance(value, bool) or value is None or value == "":
        return value
    if _is_secret(name) and not (isinstance(value, str) and value.startswith("{") and value.endswith("}")):
        return REDACTED
    return redact(value) if isinstance(value, str) else value


def _clean_tree(value: Any, key: str = "") -> Any:
    """Clean the places of a runbook that hold settings or commands, whatever phase they are in."""
    if isinstance(value, dict):
        if key in ("env", "args", "over"):
            return _clean_settings(value)
        return {name: _clean_tree(item, name) for name, item in value.items()}
    if isinstance(value, list):
        if key in ("command", "args", "run"):
            return list(redact_words([str(word) for word in value], redact))
        return [_clean_tree(item, "") for item in value]
    return redact(value) if isinstance(value, str) and key in ("run", "cwd") else value


def _hidden(runbook: Runbook) -> set[str]:
    """Texts of a runbook that its clean copy holds no more, as they stand in its source."""
    before, after = (
        runbook.model_dump(mode="json", by_alias=True),
        clean_runbook(runbook).model_dump(mode="json", by_alias=True),
    )
    return {text for text in _replaced(before, after) if len(text) >= _LEAST_CHARS}


def _replaced(before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, dict):
        for key in before:
            yield from _replaced(before[key], after[key])
    elif isinstance(before, list):
        for old, new in zip(before, after, strict=True):
            yield from _replaced(old, new)
    elif before != after and after == REDACTED:
        yield str(before)


def _clean_account(value: Any, key: str = "") -> Any:
    """What a trainer or its logs say, cleaned by name and by content."""
    if isinstance(value, Mapping):
        return {name: _clean_account(item, str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_clean_account(item, key) for item in value)
    if isinstance(value, str):
        return REDACTED if value and _is_secret(key) else redact(value)
    return value
