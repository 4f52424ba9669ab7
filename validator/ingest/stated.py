"""Settings as a trainer prints them before its first step: by name and number, in whatever form it lists its own."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from validator.ingest.log_files import log_lines
from validator.ingest.read_log import ReadLog, printable
from validator.model.result import PrintedPlaces, StatedSetting

_MAX_LINES = 5000
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"

_PHRASES = {
    "per_device_train_batch_size": ("instantaneous_batch_size_per_device",),
    "max_steps": ("total_optimization_steps",),
    "max_train_steps": ("total_optimization_steps",),
}
"""What transformers, and the scripts that follow it, call some settings where they list them in words."""


def stated_settings(
    paths: Sequence[Path], names: Collection[str], places: PrintedPlaces | None, read_log: ReadLog
) -> tuple[StatedSetting, ...]:
    """The last number that the logs give for each of these settings, before the first step that they show.

    Known forms are `name: 8`, `name = 8`, `"name": 8`, `name=8,`, `name .... 8` and `name | 8`, with `_`, `-` or
    spaces between the words of a name. Words of a command that is repeated (`--name=8`) are not the trainer's.
    """
    found: dict[str, StatedSetting] = {}
    patterns = {name: _pattern(name) for name in names}
    any_name = re.compile("|".join(one.pattern for one in patterns.values()), re.IGNORECASE) if patterns else None
    for path in paths if any_name is not None else ():
        for number, line in _before_first_step(path, places, read_log):
            if any_name is None or any_name.search(line) is None:
                continue
            for name, pattern in patterns.items():
                for match in pattern.finditer(line):
                    found[name] = StatedSetting(name, match[1], read_log.name(path), number, printable(line.strip()))
    return tuple(found.values())


_PRINTED_CONFIG = re.compile(r"^(?:[IWE]\d{4} [^\]]*\] )?Config param (\w{1,80}): (\S.{0,200})$")
"""The lines in which MaxText lists its config as it uses it, defaults included."""


def printed_config(paths: Sequence[Path], places: PrintedPlaces | None, read_log: ReadLog) -> dict[str, str]:
    """The config that a trainer lists before its first step, a line each, by name; the last line of a name counts."""
    found: dict[str, str] = {}
    for path in paths:
        for _, line in _before_first_step(path, places, read_log):
            match = _PRINTED_CONFIG.match(line.rstrip())
            if match is not None:
                found[match[1]] = printable(match[2])
    return found


def _before_first_step(path: Path, places: PrintedPlaces | None, read_log: ReadLog) -> Iterator[tuple[int, str]]:
    own = places is not None and places.path == read_log.name(path) and len(places.lines) > 0
    return _head(path, int(places.lines[0]) if own and places is not None else _MAX_LINES)


def _pattern(name: str) -> re.Pattern[str]:
    names = (re.split(r"[_-]", one) for one in (name, *_PHRASES.get(name, ())))
    words = "|".join(r"[ _-]".join(map(re.escape, one)) for one in names)
    sign = r"(?:\s*[:=|]\s*|\s*\.{3,}\s*)"
    return re.compile(rf"(?<![\w.-])['\"]?(?:{words})['\"]?{sign}['\"]?({_NUMBER})(?![\w.]|-\w)", re.IGNORECASE)


def _head(path: Path, last: int) -> Iterator[tuple[int, str]]:
    """The lines before line `last`."""
    try:
        for number, line in log_lines(path):
            if number >= last:
                return
            yield number, line
    except OSError:
        return
