"""The settings of a command that its runbook tries by their effect, since the trainer does not report its config."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validator.documents import parse_json, parse_yaml
from validator.files import open_file
from validator.init.command import TrainerCommand, config_files
from validator.init.watched import WatchedCommand
from validator.model.arguments import is_learning_rate, is_seed, may_show_at_first, must_show_at_first, settings_in
from validator.model.settings import flat_name

SHORT_ROWS, MOST_ROWS = 6, 40
"""Rows of each run: a learning rate shows behind the second one; losses of few digits need more."""

_MOST = 6
_CONFIG_BYTES = 2**20
_KEY = re.compile(r"[A-Za-z_][\w.-]*")
_NUMBER = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
_SEEDS = ("seed", "random_seed", "manual_seed", "rng_seed")
_LEFT_ALONE = frozenset({"vocab"})
"""Words of settings of which no other value is known that a trainer can train with."""


@dataclass(frozen=True)
class OtherValue:
    """A setting as a phase of kind `settings` names it, the value that is tried, and why that one."""

    key: str
    value: int | float
    why: str


@dataclass(frozen=True)
class SettingsToTry:
    """What the phase changes, what it confirms of a config file, and what is left out to keep it short."""

    change: tuple[OtherValue, ...] = ()
    confirm: Mapping[str, int | float] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    seed: str | None = None
    """The option of a seed that neither the command nor its config file gives."""

    seeded: bool = False
    """Whether one of them gives a seed."""


def settings_to_try(watched: WatchedCommand) -> SettingsToTry:
    """Numbers of the command, its variables and its config files that change the losses of the first steps; those that
    may do so behind those that must.

    None where the trainer reports its config, or no loss. What it prints before its first step is what it was asked,
    which does not show that it obeys.
    """
    reading = watched.reading
    if reading is None or not reading.has_loss or reading.result.effective:
        return SettingsToTry()
    given = {
        key: (number, where)
        for key, number, where in (*_of_command(watched.command), *_of_files(watched.command))
        if _tells(key)
    }
    sure = {key: must_show_at_first(key, watched.command.words) for key in given}
    change = [
        OtherValue(key, *_other(key, *given[key], sure=sure[key]))
        for key in sorted(given, key=lambda key: not sure[key])
    ]
    kept = change[:_MOST]
    confirm = {one.key: given[one.key][0] for one in kept if given[one.key][1] not in ("the command", "a variable")}
    return SettingsToTry(tuple(kept), confirm, tuple(one.key for one in change[_MOST:]), *_seed(watched.command))


def _seed(command: TrainerCommand) -> tuple[str | None, bool]:
    """The option by which the program takes a seed, where nothing gives it one; and whether something does."""
    given = [*settings_in(command.words), *command.launch.env]
    given += [name for path in config_files(command.words, command.launch.env) for name, _ in _entries(path)]
    if any(is_seed(f"args.{name.lower()}") for name in given):
        return None, True
    named = [one.lstrip("-") for one in command.offered if not one.endswith("=")]
    seeds = [one for one in named if flat_name(one).rpartition(".")[2] in _SEEDS]
    return (seeds[0] if len(seeds) == 1 else None), False


def _tells(key: str) -> bool:
    words = set(re.split(r"[^a-z0-9]+", key.lower()))
    return may_show_at_first(key) and not is_seed(key) and not words & _LEFT_ALONE


def _of_command(command: TrainerCommand) -> Iterator[tuple[str, int | float, str]]:
    for name, text in settings_in(command.words).items():
        number = _number(text)
        is_size = isinstance(number, int) or len(name) > 1  # of a letter only a size is known: -b 0.9 is no batch
        if number is not None and _KEY.fullmatch(name) and is_size:
            yield f"args.{name}", number, "the command"
    for name, text in command.launch.env.items():
        number = _number(text)
        if number is not None:
            yield f"env.{name}", number, "a variable"


def _of_files(command: TrainerCommand) -> Iterator[tuple[str, int | float, str]]:
    """Numbers of config files that the program also takes as an option, by that option's name."""
    options = {flat_name(one).rstrip("="): one.strip("-=") for one in command.offered}
    given = {flat_name(name) for name in settings_in(command.words)}
    for path in config_files(command.words, command.launch.env):
        found = dict(_entries(path))
        for name, number in found.items():
            last = name.rpartition(".")[2]
            alone = sum(one.rpartition(".")[2] == last for one in found) == 1
            option = options.get(flat_name(name)) or (options.get(flat_name(last)) if alone else None)
            if option is not None and flat_name(option) not in given:
                yield f"args.{option}", number, path.name


def _entries(path: Path) -> Iterator[tuple[str, int | float]]:
    return _numbers("", _content(path))


def _content(path: Path) -> Any:
    """What a config file holds; nothing where it cannot be read."""
    try:
        with open_file(path) as file:
            text = file.read(_CONFIG_BYTES).decode("utf-8", "replace")
        if path.suffix == ".toml":
            return _toml(text)
        return parse_json(text) if path.suffix == ".json" else parse_yaml(text)
    except (OSError, ValueError):
        return None


_SECTION = re.compile(r"\s*\[\s*([\w.-]+)\s*\]\s*(?:#.*)?")
_ENTRY = re.compile(r"\s*([\w.-]+)\s*=\s*([^\s#]+)\s*(?:#.*)?")


def _toml(text: str) -> dict[str, str]:
    """The entries of one word of a TOML file, by their dotted names."""
    found, front = {}, ""
    for line in text.splitlines():
        if (section := _SECTION.fullmatch(line)) is not None:
            front = f"{section[1]}."
        elif (entry := _ENTRY.fullmatch(line)) is not None:
            found[f"{front}{entry[1]}"] = entry[2].replace("_", "")
    return found


def _numbers(front: str, value: Any) -> Iterator[tuple[str, int | float]]:
    """Numbers of nested mappings by their dotted names."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _numbers(f"{front}.{key}" if front else str(key), one)
    elif isinstance(value, (int, float, str)) and not isinstance(value, bool):
        number = _number(str(value))
        if number is not None:
            yield front, number


def _number(text: str) -> int | float | None:
    """A number above 0 as a command has it; None for anything else."""
    if not _NUMBER.fullmatch(text):
        return None
    number = int(text) if text.isdecimal() else float(text)
    return number if number > 0 else None


def _other(key: str, number: int | float, where: str, *, sure: bool) -> tuple[int | float, str]:
    """Another value that a trainer can train with, and what was done to the declared one.

    Args:
        sure: whether a trainer that obeys it must show it.
    """
    shown = f"{number:g}" if isinstance(number, float) else str(number)
    rest = "" if sure else "; it may rightly change nothing"
    if is_learning_rate(key):
        return float(f"{3 * number:.6g}"), f"{shown} in {where}, times 3: the losses differ after some updates{rest}"
    if isinstance(number, int) and number > 1 and number % 2 == 0:
        return number // 2, f"{shown} in {where}, halved{rest}"
    doubled = 2 * number
    made = doubled if isinstance(doubled, int) else float(f"{doubled:.6g}")
    return made, f"{shown} in {where}, doubled{rest}"
