"""What a form may offer of a runbook: settings that `--set` reaches and that are numbers, switches or choices.

No command, argument, variable, path, name or text is one of these, and nothing of what a phase must fulfil.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from validator.model.parts import Defaults
from validator.runbook.document import Path as Steps
from validator.runbook.document import YamlNode, node_at, parse
from validator.runbook.overrides import model_at, spell
from validator.runbook.reference import default_text, type_name, yaml_text

_TYPES = ("whole number", "number", "duration", "size")
_SECTIONS: tuple[Steps, ...] = (("hardware",), ("defaults",), ("defaults", "watchdog"))
_WITHIN_PHASES = ("watchdog", "choose")
"""Sections of a phase, offered where it has them: one that is added would replace all of the defaults'."""

_ASKING = ("required", "observe", "allow_skipped")
"""What a GO of the runbook means is not for a form to change."""


class OfferedSetting(NamedTuple):
    """One setting: its path as `--set` takes it, the section and the key in it, and what the runbook has there."""

    path: str
    section: str
    key: str
    type: str
    choices: tuple[str, ...]
    present: str
    meaning: str


def offered_settings(file: Path) -> Iterator[OfferedSetting]:
    """The settings of a runbook: those of the machine, the defaults, then phase by phase; none where it is no YAML."""
    with suppress(OSError):
        root, _ = parse(file.read_text(encoding="utf-8", errors="replace"), file=str(file))
        if root is not None:
            for section in _sections(root):
                yield from _of_section(root, section)


def _sections(root: YamlNode) -> Iterator[Steps]:
    yield from _SECTIONS
    phases = node_at(root, ("phases",))
    for number in range(len(phases.value) if phases is not None and isinstance(phases.value, list) else 0):
        within = [("phases", number, name) for name in _WITHIN_PHASES]
        yield from (("phases", number), *(section for section in within if node_at(root, section) is not None))


def _of_section(root: YamlNode, section: Steps) -> Iterator[OfferedSetting]:
    model = model_at(root, section)
    for name, field in model.model_fields.items() if model is not None else ():
        kind, key = type_name(field.annotation, field.metadata), field.alias or name
        words = ("true", "false") if kind == "true or false" else tuple(kind.replace("`", "").split(", "))
        choices = words if kind in ("true or false", ", ".join(f"`{one}`" for one in words)) else ()
        if key in _ASKING or not (len(choices) > 1 or kind in _TYPES):
            continue
        given = node_at(root, (*section, key))
        written = given is not None and given.is_scalar and given.value is not None
        present = yaml_text(given.value) if given is not None and written else default_text(field, kind).strip("`")
        if not present and section[0] == "phases" and key in Defaults.model_fields:
            present = "as in defaults"
        path = spell(root, (*section, key))
        yield OfferedSetting(path, spell(root, section), key, kind, choices, present, field.description or "")
