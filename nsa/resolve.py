"""Fill the configuration from its layers, once, at the edge: defaults < YAML < `NSA_*` environment < command line.

Anything unknown in any layer is an error that names the nearest valid name. The layer each value came from is
kept, and written to `env.json` as `sources`. This module does not import torch.
"""

from __future__ import annotations

import difflib
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nsa.config import Config, ConfigError, FieldSpec, check, field_specs, flatten, replace_flat

__all__ = ["ENV_ALIASES", "Alias", "Resolved", "UsageExit", "config_names", "find_config", "parse_value", "resolve"]

CONFIG_DIR = Path(__file__).parent / "configs"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True)
class Resolved:
    """The configuration as asked for: `config`, the YAML file used (None: defaults) and each value's source."""

    config: Config
    config_file: Path | None
    sources: dict[str, str]

    @property
    def requested(self) -> dict[str, Any]:
        """Flat names and values as asked for."""
        return flatten(self.config)


class UsageExit(Exception):
    """The command line asked for text instead of a run; the text is the exception's argument."""


@dataclass(frozen=True)
class Alias:
    """An environment variable that sets a field under another name: `true`/`false` are what 1 and 0 set."""

    name: str
    field: str
    true: str | None
    false: str | None


ENV_ALIASES = {
    alias.name: alias
    for alias in (
        Alias("NSA_PREFILL_BATCHED", "prefill", "batched", "sequential"),
        Alias("NSA_SEL_RANGES_V2", "sel_ranges", "v2", "v1"),
        Alias("NSA_DISABLE_AUX_STATS", "aux_stats", "false", "true"),
        Alias("NSA_TB_DISABLE", "tensorboard", "false", None),
        Alias("NSA_SDPA_FLASH_ONLY", "sdpa", "flash_only", None),
        Alias("NSA_SDPA_NO_FLASH", "sdpa", "no_flash", None),
    )
}


def _nearest(word: str, valid: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, valid, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else "`python -m nsa.train --help` lists the valid ones"


def _parse_bool(text: str) -> bool:
    word = text.lower()
    if word not in _TRUE + _FALSE:
        raise ValueError
    return word in _TRUE


def _parse_switch(spec: FieldSpec, text: str) -> str:
    """A word of a fixed set; sets that contain `off` also take 0/false, and 1/true where `on` exists."""
    word = text.lower()
    if word in spec.choices:
        return word
    if word in _FALSE and "off" in spec.choices:
        return "off"
    if word in _TRUE and "on" in spec.choices:
        return "on"
    raise ValueError


def parse_value(spec: FieldSpec, value: Any, where: str) -> Any:
    """Turn text, or a YAML scalar, into the field's type.

    Raises ConfigError naming field, value, place and what is accepted.
    """
    if value is None or (isinstance(value, str) and spec.optional and value.strip().lower() in ("", "none", "null")):
        if spec.optional:
            return None
        raise ConfigError([f"{spec.name} is empty ({where}): expected {spec.type_text}"])
    text = str(value).strip()
    if isinstance(value, (list, dict)):
        raise ConfigError([f"{spec.name}={value!r} ({where}): expected {spec.type_text}"])
    try:
        if spec.choices:
            return _parse_switch(spec, text)
        if spec.kind is bool:
            return _parse_bool(text)
        return spec.kind(text.replace("_", "") if spec.kind in (int, float) else text)
    except ValueError:
        hint = f"; {_nearest(text, spec.choices)}" if spec.choices else ""
        raise ConfigError([f"{spec.name}={text} ({where}): expected {spec.type_text}{hint}"]) from None


def config_names() -> list[str]:
    """Names of the configurations that come with the package."""
    return sorted(p.stem for p in CONFIG_DIR.glob("*.yaml"))


def find_config(name: str) -> Path:
    """The YAML file for a name or path: an existing path first, then a packaged configuration of that name."""
    literal = Path(name)
    if literal.is_file():
        return literal
    packaged = CONFIG_DIR / f"{literal.stem if literal.suffix in ('.yaml', '.yml') else literal.name}.yaml"
    if packaged.is_file():
        return packaged
    names = config_names()
    raise ConfigError([f"config={name}: no such file or packaged configuration; {_nearest(literal.stem, names)}"])


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which a key stands once: of two sections of a name the first would be dropped without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping. Raises ConstructorError, a YAMLError, naming a repeated key and its place."""
        seen: set[str] = set()
        for key, _ in node.value:
            # The loader itself refuses a key that is a list or a mapping; one mapping may hold several merges.
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"`{key.value}` stands twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _from_yaml(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problems.append(f"{path}: cannot be read as YAML: {error}")
        return {}
    if not isinstance(tree, dict):
        problems.append(f"{path}: expected a mapping of sections, found {type(tree).__name__}")
        return {}
    specs = field_specs()
    values: dict[str, Any] = {}
    sections = sorted({s.section for s in specs.values()})
    for section, leaves in tree.items():
        if section not in sections:
            known = specs.get(str(section))
            fix = f"it belongs under `{known.section}:`" if known else _nearest(str(section), sections)
            problems.append(f"{path}: unknown section `{section}`; {fix}")
            continue
        if not isinstance(leaves, dict):
            problems.append(f"{path}: section `{section}` must be a mapping, found {leaves!r}")
            continue
        for name, value in leaves.items():
            spec = specs.get(name)
            if spec is None or spec.section != section:
                fix = f"it belongs under `{spec.section}:`" if spec else _nearest(str(name), list(specs))
                problems.append(f"{path}: unknown key `{section}.{name}`; {fix}")
                continue
            _store(values, problems, spec, value, str(path))
    return values


def _store(values: dict[str, Any], problems: list[str], spec: FieldSpec, value: Any, where: str) -> None:
    """Parse one value into `values`, or say what is wrong with it in `problems`."""
    try:
        values[spec.name] = parse_value(spec, value, where)
    except ConfigError as error:
        problems += error.problems


def _from_env(env: Mapping[str, str], problems: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Values set by `NSA_*` variables, and the variable behind each; aliases first, so that plain names win."""
    specs = field_specs()
    plain = {f"NSA_{name.upper()}": name for name in specs}
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for variable in sorted((v for v in env if v.startswith("NSA_")), key=lambda v: v in plain):
        text = env[variable]
        if variable == "NSA_CONFIG":
            continue
        if variable in plain:
            name = plain[variable]
        elif variable in ENV_ALIASES:
            alias = ENV_ALIASES[variable]
            if text.lower() not in _TRUE + _FALSE:
                problems.append(f"{variable}={text}: expected 1 or 0")
                continue
            chosen = alias.true if text.lower() in _TRUE else alias.false
            if chosen is None:
                continue
            name, text = alias.field, chosen
            if values.get(name, text) != text:
                problems.append(f"{variable} contradicts {sources[name].removeprefix('env ')}: unset one of them")
        else:
            valid = [*plain, *ENV_ALIASES, "NSA_CONFIG"]
            problems.append(f"unknown environment variable {variable}; {_nearest(variable, valid)}")
            continue
        _store(values, problems, specs[name], text, variable)
        sources[name] = f"env {variable}"
    return values, sources


def _flag_value(spec: FieldSpec, negated: bool, inline: str | None, rest: list[str]) -> str:
    """The text a flag carries: `--x=v`, `--x v`, or, for a boolean, nothing at all."""
    if negated:
        if spec.kind is not bool or inline is not None:
            raise ConfigError([f"--no-{spec.name.replace('_', '-')}: only a bare boolean flag can be negated"])
        return "false"
    if inline is not None:
        return inline
    if spec.kind is bool and not (rest and rest[0].lower() in _TRUE + _FALSE):
        return "true"
    if not rest or (rest[0].startswith("--")):
        raise ConfigError([f"--{spec.name.replace('_', '-')} needs a value: {spec.type_text}"])
    return rest.pop(0)


def _from_cli(argv: Sequence[str], problems: list[str]) -> tuple[dict[str, Any], str | None]:
    specs = field_specs()
    values: dict[str, Any] = {}
    config_name: str | None = None
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word in ("-h", "--help"):
            raise UsageExit(_help_text())
        if not word.startswith("--"):
            problems.append(f"unexpected argument {word}: settings are given as --name value")
            continue
        flag, _, inline_text = word[2:].partition("=")
        inline = inline_text if "=" in word else None
        name = flag.replace("-", "_")
        try:
            if name == "config":
                if inline is None and not rest:
                    raise ConfigError(["--config needs a name or a path"])
                config_name = inline if inline is not None else rest.pop(0)
                continue
            negated = name not in specs and name.startswith("no_") and name[3:] in specs
            spec = specs.get(name[3:] if negated else name)
            if spec is None:
                if inline is None and rest and not rest[0].startswith("--"):
                    rest.pop(0)  # the unknown flag's own value is not a second mistake
                flags = [f"--{n.replace('_', '-')}" for n in ("config", *specs)]
                raise ConfigError([f"unknown flag --{flag}; {_nearest(f'--{flag}', flags)}"])
            text = _flag_value(spec, negated, inline, rest)
            values[spec.name] = parse_value(spec, text, f"--{flag}")
        except ConfigError as error:
            problems += error.problems
    return values, config_name


def _config_file(name: str | None, problems: list[str]) -> Path | None:
    try:
        return find_config(name) if name else None
    except ConfigError as error:
        problems += error.problems
        return None


def _help_text() -> str:
    lines = [
        "usage: python -m nsa.train [--config NAME|FILE] [--name value] …",
        "       torchrun --nproc-per-node N -m nsa.train …",
        "",
        "Settings are resolved in this order, later ones winning: defaults, the YAML file, NSA_* environment",
        "variables, the command line. --seq-len and --seq_len are the same; booleans are --flag, --no-flag or",
        "--flag true. Packaged configurations:",
        *textwrap.wrap(", ".join(config_names()) + ".", width=100, initial_indent="  ", subsequent_indent="  "),
    ]
    section = ""
    for spec in field_specs().values():
        if spec.section != section:
            section = spec.section
            lines += ["", f"{section}:"]
        flag = f"--{spec.name.replace('_', '-')}"
        default = "none" if spec.default is None else spec.default
        text = f"{flag:<24} {spec.help} [{spec.type_text}; {default}]"
        lines += textwrap.wrap(text, width=100, initial_indent="  ", subsequent_indent=" " * 27)
    return "\n".join(lines)


def resolve(argv: Sequence[str] | None = None, env: Mapping[str, str] | None = None) -> Resolved:
    """Read every layer and return the checked configuration.

    `argv` defaults to the process's own arguments and `env` to its environment. The YAML file is named by
    `--config`, or by the variable NSA_CONFIG or CONFIG. Raises ConfigError with the problems of all layers at once, or,
    where each value is sound by itself, with those of their combination; UsageExit when help is asked for.
    """
    env = os.environ if env is None else env
    problems: list[str] = []
    cli, config_name = _from_cli(sys.argv[1:] if argv is None else argv, problems)
    from_env, env_sources = _from_env(env, problems)
    path = _config_file(config_name or env.get("NSA_CONFIG") or env.get("CONFIG"), problems)
    from_yaml = _from_yaml(path, problems) if path else {}
    if problems:
        raise ConfigError(problems)
    sources = dict.fromkeys(field_specs(), "default")
    sources.update(dict.fromkeys(from_yaml, f"yaml {path.name}" if path else "yaml"))
    sources.update(env_sources)
    sources.update(dict.fromkeys(cli, "command line"))
    config = replace_flat(Config(), **{**from_yaml, **from_env, **cli})
    check(config)
    return Resolved(config, path, sources)
