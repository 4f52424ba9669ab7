"""The templates, style sheets and scripts that every page is made of."""

from __future__ import annotations

import base64
import hashlib
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import validator
from validator.report.palette import LABEL_CSS, chart_css

if TYPE_CHECKING:
    from jinja2 import BytecodeCache, Environment
    from markupsafe import Markup

__all__ = ["environment", "policy_hash", "style", "templates_dir", "text"]


def templates_dir() -> Path:
    """Where the templates are: in the installed package, or beside it in a source tree.

    Raises:
        FileNotFoundError: when the installation is damaged.
    """
    package = Path(validator.__file__).parent
    for folder in (package / "_data" / "templates", package.parent / "templates"):
        if (folder / "report.html.j2").is_file():
            return folder
    raise FileNotFoundError(f"the report's templates are missing from {package}; install the package again")


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The templates of pages: everything escaped, an unknown name an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(templates_dir()),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        auto_reload=False,
        bytecode_cache=_bytecode_cache(),
    )
    made.filters["sentence"] = _sentence
    return made


def _sentence(text: str) -> Markup:
    """A sentence of ours, escaped, its names between backticks set as code."""
    from markupsafe import Markup, escape

    return Markup(_NAMED.sub(r"<code>\1</code>", str(escape(text))))


_NAMED = re.compile(r"`([^`\n]{1,200})`")


def _bytecode_cache() -> BytecodeCache | None:
    """Compiled templates, kept in the user's own folder below the system's temporary one; None where that is unsafe.

    It halves the time of a report without charts. A changed template or another Python has another key. A cache that
    cannot be written, as on a full disk, costs time and nothing else.
    """
    from jinja2 import FileSystemBytecodeCache
    from jinja2.bccache import Bucket

    class Cache(FileSystemBytecodeCache):
        def load_bytecode(self, bucket: Bucket) -> None:
            with suppress(OSError, EOFError, ValueError, TypeError):
                super().load_bytecode(bucket)

        def dump_bytecode(self, bucket: Bucket) -> None:
            with suppress(OSError):
                super().dump_bytecode(bucket)

    try:
        return Cache()
    except (OSError, RuntimeError):
        return None


@lru_cache(maxsize=4)
def text(name: str) -> str:
    """A style sheet or a script by its file name."""
    return (templates_dir() / name).read_text(encoding="utf-8").strip()


@lru_cache(maxsize=4)
def style(extra: str = "") -> str:
    """The style sheet with both sets of colors: the reader's system decides, the page's switch overrides it.

    `extra` are the rules of one page alone.
    """
    light = f":root{{{text('light.css')}}}{chart_css(dark=False)}"
    dark = f":root{{{text('dark.css')}}}{chart_css(dark=True)}"
    forced = {
        "light": light.replace(":root{", ":root:has(#theme-light:checked){").replace(
            ".chart ", ":root:has(#theme-light:checked) .chart "
        ),
        "dark": dark.replace(":root{", ":root:has(#theme-dark:checked){").replace(
            ".chart ", ":root:has(#theme-dark:checked) .chart "
        ),
    }
    themes = f"{light}@media screen{{@media (prefers-color-scheme:dark){{{dark}}}{forced['light']}{forced['dark']}}}"
    return "\n".join((themes, text("report.css"), LABEL_CSS, *([extra] if extra else [])))


def policy_hash(text: str) -> str:
    """The hash of an inlined style or script, as a content security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
