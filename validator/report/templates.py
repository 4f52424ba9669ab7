"""Templates, style sheets and scripts of pages, and the hashes by which a page allows them."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from contextlib import suppress
from functools import lru_cache

from jinja2 import BytecodeCache, Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup, escape

from validator.report.palette import LABEL_CSS, chart_css
from validator.startup import shipped
from validator.text import format_size, one_line

MARKS = {"✓": "M2 6.5 4.8 9.5 10 3", "✕": "M3 3 9 9M9 3 3 9", "○": "M10 6a4 4 0 1 1-8 0 4 4 0 0 1 8 0"}
"""Signs that many fonts lack, as lines in a box of 12 by 12."""


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The templates of pages: everything escaped, an unknown name an error."""
    made = Environment(
        loader=FileSystemLoader(shipped("templates")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        auto_reload=False,
        bytecode_cache=_bytecode_cache(),
    )
    made.filters["sentence"] = _sentence
    made.filters["sign"] = _sign
    made.filters["size"] = format_size
    made.filters["line"] = one_line
    made.filters["shell"] = shlex.quote
    return made


def _sign(text: str) -> Markup:
    """A sign as text, or drawn where fonts may lack it; beside it stands the word that says the same."""
    if text not in MARKS:
        return escape(text)
    return Markup('<svg class="mark" viewBox="0 0 12 12" aria-hidden="true"><path d="{}"/></svg>').format(MARKS[text])


def _sentence(text: str) -> Markup:
    """A sentence of the report, escaped, its names between backticks set as code."""
    return Markup(_NAMED.sub(r"<code>\1</code>", str(escape(text))))


_NAMED = re.compile(r"`([^`\n]{1,200})`")


class _Cache(FileSystemBytecodeCache):
    def load_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError, EOFError, ValueError, TypeError):
            super().load_bytecode(bucket)

    def dump_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError):
            super().dump_bytecode(bucket)


def _bytecode_cache() -> BytecodeCache | None:
    """Compiled templates, kept in the user's own folder below the system's temporary one; None where that is unsafe.

    It halves the time of a report without charts. A changed template or another Python has another key. A cache that
    cannot be written, as on a full disk, costs time and nothing else.
    """
    try:
        return _Cache()
    except (OSError, RuntimeError):
        return None


@lru_cache(maxsize=4)
def text(name: str) -> str:
    """A style sheet or a script by its file name."""
    return (shipped("templates") / name).read_text(encoding="utf-8").strip()


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
