"""The words of the program and its pages: no word of the list occurs where the field has a term of its own.

A line that needs one of them, to quote or to name another program's term, ends in `word: ok` (in Markdown a comment).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]

_WORDS = {
    r"(?:un)?told|tells?(?!\()|telling": "reported, reports, shows, identifies",
    r"(?:held|holds?|laid|set) against": "compared with",
    r"(?:stands?|stood|standing) (?:in|for|as)|stand.ins?": "is in, represents",
    r"beside (?:the|a|each|every) runs?": "during the run, next to the run folder",
    r"(?:go|goes|went|going) on": "continues, resumes, in progress",
    r"anew": "again, start a new run",
    r"by the clock": "on a schedule, in wall time",
    r"at hand": "available, current",
    r"in turns?": "alternately",
    r"in vain": "without effect",
    r"(?:became|becomes?) of": "the outcome of",
    r"another than": "differs from",
    r"strangers?": "sanitized copy, untrusted",
    r"foreign(?!.(?:results|processes))": "other, of another run, untrusted",
    r"self.proof": "self-test",
    r"(?:brings?|brought) about": "inject, cause",
    r"sittings?": "runner session",
    r"report so far": "live report",
    r"(?:un)?seal(?:s|ed|ing)?": "checksum",
    r"stay(?:s|ed)? open|not decidable(?![\"`])": "inconclusive",
    r"(?:held|holds?|holding) (?:\w+ )?back": "throttled",
    r"spoil(?:s|ed|ing)?": "invalidates",
    r"heat": "temperature, thermal",
    r"processors?(?!\()": "CPU",
    r"own work": "compute time",
    r"loader alone": "data-loader smoke test",
    r"ever more seldom": "at increasing intervals",
    r"in a row": "consecutive",
    r"cut short": "interrupted, truncated",
    r"faults? of the (?:program|validator)": "internal error",
    r"names nobody": "sanitized copy",
}
_PATTERN = re.compile(rf"\b(?:{'|'.join(f'({words})' for words in _WORDS)})\b".replace(" ", r"\s+"))


def _found(text: str) -> Iterator[str]:
    """Each wrong word with its line and its replacement; the parts of a name count as words."""
    lines, spaced = text.splitlines(), re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", text).lower()
    for match in _PATTERN.finditer(spaced):
        first, last = (spaced.count("\n", 0, at) for at in match.span())
        if not any("word: ok" in line for line in lines[first : last + 1]):
            yield f"{first + 1}: {match[0]!r}, write: {list(_WORDS.values())[int(match.lastindex or 0) - 1]}"


def _sources() -> Iterator[str]:
    folders = {"": "*.md", "docs": "*.md", "templates": "*.j2", "runbooks": "*.yaml", "validator": "**/*.py"}
    for folder, pattern in folders.items():
        for path in sorted((_ROOT / folder).glob(pattern)):
            name = path.relative_to(_ROOT).as_posix()
            if name != "docs/experiments.md":  # its entries quote what was printed then
                yield name


def test_no_word_has_a_better_term() -> None:
    found = [f"{name}:{word}" for name in _sources() for word in _found((_ROOT / name).read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("def told_settings(untoldArms): ...", 2),
        ("A row\n    goes on\n    in\n    a row.", 2),
        ('"Not decidable: one arm"', 1),
        ('verdict == "not_decidable" and code == "foreign-results"', 0),
        ("whatever SDPA is told  # word: ok", 0),
        ("The trainer reports that the threshold is retold to nobody.", 0),
    ],
)
def test_words_are_found_in_names_and_over_lines(text: str, count: int) -> None:
    assert len(list(_found(text))) == count
