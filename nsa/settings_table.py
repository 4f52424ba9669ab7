"""`python -m nsa.settings_table` prints docs/trainer-settings.md: every setting, made from the configuration itself."""

from __future__ import annotations

from collections.abc import Iterator

from nsa.config import field_specs
from nsa.resolve import ENV_ALIASES

__all__ = ["settings_table"]


def _lines() -> Iterator[str]:
    yield "# Settings of the trainer"
    yield ""
    yield "Printed by `python -m nsa.settings_table`. Later sources win: defaults, the YAML file (`--config NAME`, or"
    yield "a path, or the variable `CONFIG`), `NSA_*` variables, the command line. In YAML a setting is in its"
    yield "section; on the command line `--seq-len 2048`, in the environment `NSA_SEQ_LEN=2048`."
    section = ""
    for spec in field_specs().values():
        if spec.section != section:
            section = spec.section
            yield from ("", f"## `{section}`", "", "| setting | values | default | meaning |", "|---|---|---|---|")
        default = "none" if spec.default is None else str(spec.default).lower() if spec.kind is bool else spec.default
        values = spec.type_text.replace(" | ", ", ")
        yield f"| `{spec.name}` | {values} | {default} | {spec.help} |"
    yield from ("", "## Other names in the environment", "")
    yield from ("| variable | sets | to, if 1 | to, if 0 |", "|---|---|---|---|")
    for alias in ENV_ALIASES.values():
        yield f"| `{alias.name}` | `{alias.field}` | {alias.true or '–'} | {alias.false or '–'} |"


def settings_table() -> str:
    """The whole page as Markdown."""
    return "\n".join(_lines()) + "\n"


if __name__ == "__main__":
    print(settings_table(), end="")  # noqa: T201
