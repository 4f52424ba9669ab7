"""English prose to train on, from documentation packages of a Debian machine; no account, no hub.

    python -m benchmarks.prose_corpus --out build/prose            # some 100 MB of text from 300 MB of packages
    python -m benchmarks.prose_corpus --out build/prose perl-doc   # from the packages named only

Fetches packages with `apt-get download`, unpacks them with `dpkg-deb`, reads HTML, reStructuredText, POD and plain
text, and keeps the paragraphs that read as prose, each one once: menus, listings, tables and text that stands in many
manuals fall away. One file for each document; `nsa.train --data local --data-path build/prose` takes them.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path

PACKAGES = """
    ada-reference-manual-2012 apache2-doc bash-doc db5.3-doc debian-edu-doc-en debian-handbook debian-policy
    debian-reference-en developers-reference dict-gcide erlang-doc exim4-doc-html fortunes freedombox-doc-en
    gimp-help-en git-doc gnucash-docs grass-doc installation-guide-amd64 jargon-text kicad-doc-en
    libreoffice-help-en-us linux-doc-6.1 maint-guide maxima-doc octave-doc perl-doc postgresql-doc-15
    python-django-doc python-scipy-doc python-sklearn-doc python-statsmodels-doc python-sympy-doc
    python3.11-doc r-doc-html racket-doc sqlite3-doc vim-runtime zsh-doc
"""
MARKUP = (".html", ".htm", ".xml")
TEXT = (*MARKUP, ".txt", ".rst", ".pod", ".md", ".texi", ".dict.dz")
NOT_PROSE = ("changelog", "copyright")
LARGEST_FILE = 30 << 20
SHORTEST_DOCUMENT = 1500  # characters of prose; less is a fragment
COMMON_WORDS = {"the", "of", "to", "a", "is", "and", "in"}


class _Paragraphs(HTMLParser):
    """The text of a page, with an empty line wherever a block begins or ends."""

    HIDDEN = frozenset({"script", "style", "nav", "footer", "head"})
    BLOCKS = frozenset(
        {"p", "div", "li", "td", "th", "tr", "dd", "dt", "pre", "section", "blockquote", "h1", "h2", "h3", "h4", "h5"}
    )

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in self.HIDDEN
        if tag in self.BLOCKS:
            self.parts.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(self._hidden - (tag in self.HIDDEN), 0)
        if tag in self.BLOCKS:
            self.parts.append("\n\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)


def is_prose(paragraph: str) -> bool:
    """Whether a paragraph reads as English sentences: long enough, mostly letters, with the words that tie them."""
    words = paragraph.split()
    if len(paragraph) < 90:
        return False
    letters = sum(c == " " or (c.isascii() and c.isalpha()) for c in paragraph) / len(paragraph)
    return letters > 0.86 and 3 < len(paragraph) / len(words) < 9 and len(COMMON_WORDS & set(words)) >= 2


def text_of(file: Path) -> str | None:
    """The text of a file, its markup taken off; None for what is no document."""
    name = file.name.lower().removesuffix(".gz")
    if any(word in name for word in NOT_PROSE) or ("." in name and not name.endswith(TEXT)):
        return None
    if file.is_symlink() or not file.is_file() or file.stat().st_size > LARGEST_FILE:
        return None
    packed = file.suffix in (".gz", ".dz")
    raw = gzip.decompress(file.read_bytes()) if packed else file.read_bytes()
    text = raw.decode("utf-8", errors="replace")
    if not name.endswith(MARKUP):
        return text
    page = _Paragraphs()
    page.feed(text)
    return "".join(page.parts)


def documents(folder: Path, seen: set[bytes]) -> Iterator[str]:
    """The prose of every document below a folder; `seen` holds the marks of paragraphs that were had before."""
    for file in sorted(folder.rglob("*")):
        text = text_of(file)
        kept = []
        for paragraph in re.split(r"\n\s*\n", text or ""):
            line = " ".join(paragraph.split())
            mark = hashlib.blake2b(line.lower().encode(), digest_size=8).digest()
            if mark not in seen and is_prose(line):
                seen.add(mark)
                kept.append(line)
        if sum(map(len, kept)) >= SHORTEST_DOCUMENT:
            yield "\n\n".join(kept) + "\n"


def unpack(package: str, folder: Path) -> None:
    """Fetch a package and lay its files out below a folder."""
    subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, check=True)
    (archive,) = folder.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", archive, folder / "files"], check=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch, clean, write; 1 if a package could not be had."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("packages", nargs="*", default=PACKAGES.split(), help="Debian packages; none: the usual ones")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    seen: set[bytes] = set()
    missing = total = 0
    for package in args.packages:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                unpack(package, Path(scratch))
            except subprocess.CalledProcessError as error:
                print(f"{package}: {error}", file=sys.stderr)
                missing += 1
                continue
            size = 0
            for number, text in enumerate(documents(Path(scratch) / "files", seen)):
                (args.out / f"{package}-{number:05}.txt").write_text(text, encoding="utf-8")
                size += len(text)
        total += size
        print(f"{package}: {size / 1e6:.2f} MB, {total / 1e6:.1f} MB in all", flush=True)
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())
