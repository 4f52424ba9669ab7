"""Regular expressions of a runbook, and what they read from the lines of a log.

A pattern for lines is a regular expression in which `{loss}` is short for a named group that matches any number as
trainers print it. Groups that are written out (`(?P<loss>[\\d.]+)`) are read as well, also where they are too narrow.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import NamedTuple

from validator.model.columns import OF_EVALUATION
from validator.model.line_search import LineSearch, Match
from validator.model.moments import CLOCK, MOMENT, seconds_of

NUMBER = (  # 1,234.5 | 1_234 | 2.31 | 1.2e-4 | .5 | 39k, 39ktok/s | NaN, -inf, Infinity
    r"[-+]?(?:(?:\d{1,3}(?:[,_]\d{3})+(?![\d_]|,\d)|\d+)(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?)"
    r"(?:[kKMG](?:(?![A-Za-z])|(?=tok)))?"
    r"|[-+]?(?:[nN][aA][nN]|[iI][nN][fF](?:inity)?)(?![A-Za-z])"
)
_WHOLE = r"\d{1,3}(?:[,_]\d{3})+(?![\d_]|,\d)|\d+"
_COUNTS = ("step", "epoch", "steps_per_epoch", "steps_total")
_BODIES = {
    **dict.fromkeys(_COUNTS, _WHOLE),
    "elapsed_s": f"{CLOCK}|{NUMBER}",
    "timestamp": f"{MOMENT}|{NUMBER}",
    "row": "",
}
"""What a short group matches, for the groups that are not plain numbers."""

# Text of a widened group that is no number, up to a separator: `n/a` of `loss=n/a,`. A comma before a digit belongs.
_WORD = r"(?:[^\s,;|()<>\[\]{}'\"]|,(?=\d))+"
# `{loss}`, but neither an escaped `\{loss}` nor the braces of `\N{DASH}`.
_SHORT = re.compile(r"(\\.)|(?<!\\N)\{([a-z_][a-z0-9_]*)\}", re.DOTALL)
_AGAIN = "__again"
_SUFFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
# 1,234 | 12_345_678.9 | 1,234e3: one separator throughout.
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?:([,_])\d{3})(?:\1\d{3})*(?:\.\d*)?(?:[eE][-+]?\d+)?")
_CONTINUES = re.compile(r"[0-9]|\.[0-9]|[,_][0-9]{3}(?![0-9])|[eE][-+]?[0-9]|[kKMG](?:(?![A-Za-z])|(?=tok))")
"""What follows a number that was matched in part only: after `1.5` of `1.5e+20`, `1` of `1,200`, `39` of `39k`."""

_DECIMALS = re.compile(r",\d+(?!\d|[.,]\d)")
"""Possible decimals of the whole number before them, `,31` of `2,31`; followed by more numbers it is a list."""

_APART = " \t|:;=()[]{}<>\"'"
"""Characters of which none continues a number, to either side; no character at all does not."""

_DOTTED = re.compile(r"[-+]?\d{1,3}(?:\.\d{3})+")
"""May be thousands where commas are decimal: `1.234` of `1.234,5`."""

_PASSED_CELL = re.compile(r"(?:^\^?|,)\[\^,\][*+]\??,$")
"""A cell that a pattern passes over, `[^,]*` with its comma: what comes then is the next one."""

_AT_START = r"(?<!\d)(?<!\d[.,])(?<![\s=:(\[][-+])"
"""Where a number begins. Without it, a greedy `.*` before the group takes its first digits."""

_BOOKKEEPING = frozenset({"step", "row"})
_SAMPLES = ("nan", "-0.5", "inf", "1.2e-4", "1,234.5")
"""Texts that a group for a number must match as a whole."""


class PatternError(ValueError):
    """A text is no regular expression, or one that later versions of Python may read differently."""


def compiled(pattern: str) -> re.Pattern[str]:
    """The compiled pattern.

    Python warns of brackets and doubled signs within a set (`[[0-9]`, `[a--b]`), which later versions may read
    differently. A runbook must mean the same everywhere, so these are refused.

    Raises:
        PatternError: when it cannot be compiled, or not without such a warning.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        try:
            return re.compile(pattern)
        except FutureWarning as warning:
            raise PatternError(f"{warning}; write \\ before the second of the two signs") from warning
        except (re.error, OverflowError, RecursionError) as error:
            raise PatternError(f"{error}; escape special characters with \\") from error


def parse_number(text: str) -> float | None:
    """A number as trainers print it, None for anything else.

    Signs, exponents, `nan` and `inf` in any case, thousands (`1,234.5`, `1_234`) and suffixes (`12.3k`) are read; a
    decimal comma (`2,31`, `0,312`) is not. A duration (`1:02:03`) becomes seconds, a date with a time Unix seconds (UTC
    where no zone is given).
    """
    shown = text.strip().rstrip(",;").rstrip(".") or text.strip()
    factor = _SUFFIXES.get(shown[-1:], 1.0)
    digits = shown[:-1] if factor != 1.0 else shown
    if _THOUSANDS.fullmatch(digits):
        digits = digits.replace(",", "").replace("_", "")
    elif "_" in digits:
        return seconds_of(shown)  # float() reads 1_0 as ten, which no logger means
    try:
        return factor * float(digits)
    except ValueError:
        return seconds_of(shown)


def has_decimal_comma(text: str) -> bool:
    """Whether a text begins with a number whose comma groups no thousands: `2,31`, `0,312`."""
    number = re.match(r"[-+]?\d+,\d+", text)
    return number is not None and parse_number(number[0]) is None


class Printed(NamedTuple):
    """One line that a pattern matches: its groups as text and as numbers, and the first group that is no number.

    `step` is None where the line prints none; it then completes the line before it.
    """

    texts: Mapping[str, str]
    values: Mapping[str, float]
    step: float | None
    odd: tuple[str, str] | None = None

    @property
    def of_evaluation(self) -> bool:
        """Whether it is one of the lines of an evaluation behind a step: many may say that step."""
        own = self.step is not None or "row" in self.texts
        return not own and bool(self.values) and OF_EVALUATION.issuperset(self.values)


class LinePattern:
    """A pattern for the lines of a log: its `text`, and the `names` of its groups.

    Args:
        text: the regular expression, with short groups.
        alike: as of :class:`LineSearch`.
    """

    def __init__(self, text: str, *, alike: bool = False) -> None:
        self.text = text
        self._alike = alike
        self._spelled = _spelled_out(text)
        strict = compiled(self._spelled)
        self._strict = LineSearch(strict, alike=alike)
        self.names = tuple(dict.fromkeys(map(_name, strict.groupindex)))
        self._groups = [g for g in _groups(self._spelled) if not (g.optional and _is_short(self._spelled, g))]
        self._may_miss = any(group.optional for group in self._groups)

    @cached_property
    def _whole(self) -> LineSearch:
        """With each number as a whole."""
        return LineSearch(compiled(_spelled_out(self.text, at_start=_AT_START)), alike=self._alike)

    @cached_property
    def _loose(self) -> LineSearch | None:
        """With its groups widened; None where that changes nothing. `check` compiles none: it reads no line."""
        loose = _loosened(self._spelled, self._groups)
        return None if loose == self._spelled else LineSearch(compiled(loose), alike=self._alike)

    def read(self, line: str) -> Printed | None:
        """The groups of a line; None for one that the pattern does not match.

        A group that is too narrow for the number that was printed (`[\\d.]+` for `nan`, or for `1.2e-4`) is widened.
        Where the widened group is no number, that is `odd`. Short groups in an optional part are as wide as possible.
        """
        strict = self._strict.find(line)
        found = _printed(strict) if strict is not None else None
        if found is not None and found.odd is not None and (whole := self._whole.find(line)) is not None:
            found = min(found, _printed(whole), key=lambda one: one.odd is not None)
        if found is not None and found.odd is None and (not self._may_miss or len(found.texts) == len(self.names)):
            return found
        loose = self._loose.find(line) if self._loose is not None else None
        if found is None or loose is None:
            return found if loose is None else _printed(loose)
        wide = _printed(loose)
        if found.odd is not None and wide.odd is None and wide.values.keys() >= found.values.keys():
            return wide
        if wide.step != found.step:
            return found
        more = {name: value for name, value in wide.values.items() if name not in found.texts}
        texts = {name: wide.texts[name] for name in more}
        return Printed({**found.texts, **texts}, {**found.values, **more}, found.step, found.odd)


_FOR_LINES_ALIKE: set[str] = set()


def read_alike(texts: Iterable[str]) -> None:
    """Have these patterns read lines by their shape."""
    _FOR_LINES_ALIKE.update(texts)


@lru_cache(maxsize=256)
def line_pattern(text: str) -> LinePattern:
    """The compiled pattern for lines, cached.

    Raises:
        PatternError: when it cannot be compiled.
    """
    return LinePattern(text, alike=text in _FOR_LINES_ALIKE)


def narrow_groups(text: str) -> dict[str, str]:
    """Groups, written out, that cannot match every number: the name, and the first number that they miss."""
    narrow = {}
    spelled = _spelled_out(text)
    for group in _groups(spelled):
        name = _name(group.name)
        if name in _BOOKKEEPING or _is_short(spelled, group):
            continue
        try:
            body = compiled(spelled[group.start : group.end])
        except PatternError:
            continue
        if body.fullmatch("1") or body.fullmatch("1.5"):
            missed = next((sample for sample in _SAMPLES if not body.fullmatch(sample)), None)
            if missed is not None:
                narrow[name] = missed
    return narrow


def _spelled_out(text: str, *, at_start: str = "") -> str:
    """The pattern with its short groups written out. A repeated one, in another branch, gets a number."""
    seen: dict[str, int] = {}

    def spelled(match: re.Match[str]) -> str:
        name = match[2]
        if name is None:
            return match[0]
        seen[name] = seen.get(name, 0) + 1
        group = name if seen[name] == 1 else f"{name}{_AGAIN}{seen[name]}"
        body = _BODIES.get(name, NUMBER)
        return f"(?P<{group}>{at_start}(?:{body}))" if at_start and body else f"(?P<{group}>{body})"

    return _SHORT.sub(spelled, text)


def _name(group: str) -> str:
    return group.partition(_AGAIN)[0]


class _Group(NamedTuple):
    """A named group: its name in the pattern, the offsets of its body, and whether a match may lack it."""

    name: str
    start: int
    end: int
    optional: bool


def _is_short(text: str, group: _Group) -> bool:
    return text[group.start : group.end] == _BODIES.get(_name(group.name), NUMBER)


def _loosened(text: str, groups: list[_Group]) -> str:
    """The pattern with the bodies of these groups replaced by one that also matches what is no number."""
    made, at = [], 0
    for group in groups:
        name = _name(group.name)
        if name != "row" and group.start >= at and "(?P<" not in text[group.start : group.end]:
            word = "" if name == "step" else f"|{_WORD}"
            made += [text[at : group.start], f"(?:{_BODIES.get(name, NUMBER)}{word})"]
            at = group.end
    loose = "".join([*made, text[at:]])
    try:
        return loose if compiled(loose).groups == compiled(text).groups else text
    except PatternError:
        return text


def _groups(text: str) -> list[_Group]:
    """The named groups of a pattern, in its order."""
    spans: list[tuple[str, int, int]] = []
    optional: list[tuple[int, int]] = []
    opened: list[tuple[int, str, int]] = []
    at = 0
    while at < len(text):
        sign = text[at]
        if sign == "\\":
            at += 1
        elif sign == "[":
            at += 2 if text[at + 1 : at + 2] != "^" else 3
            while at < len(text) and text[at] != "]":
                at += 2 if text[at] == "\\" else 1
        elif sign == "(":
            name = re.match(r"\(\?P<(\w+)>", text[at : at + 200])
            opened.append((at, name[1] if name else "", at + (name.end() if name else 0)))
        elif sign == ")" and opened:
            begin, group, body = opened.pop()
            if group:
                spans.append((group, body, at))
            if text[at + 1 : at + 2] in ("?", "*"):
                optional.append((begin, at))
        at += 1
    return [
        _Group(name, start, end, any(first < start and end <= last for first, last in optional))
        for name, start, end in sorted(spans, key=lambda span: span[1])
    ]


def _matches_partly(match: Match, group: str) -> bool:
    """Whether a group matched only a part of the printed number. A character between two groups separates them."""
    line, (first, last), name = match.line, match.spans[group], _name(group)
    text = line[first:last]
    if not text or not (text[-1:].isdigit() or text[-1:] == "."):
        return False
    if line[max(0, first - 1) : first] in _APART and line[last : last + 1] in _APART:
        return False  # as nearly every number stands; the rest takes much longer
    others = [span for other, span in match.spans.items() if span[0] < span[1] and other != group]
    after = "" if any(begin == last + 1 for begin, _ in others) else line[last:][:8]
    if name == "ktoks_per_s" and after[:1] in ("k", "K"):
        return False  # the k is the unit of the name
    apart = any(end == first - 1 for _, end in others) or group in _behind_cells(match.expression)
    before = "" if apart else line[max(0, first - 2) : first]
    if after and name not in _COUNTS and re.fullmatch(r"[-+]?\d+", text) and _DECIMALS.match(line, last):
        return group not in _before_commas(match.expression)
    if after[:1] == "," and "." in text and not _DOTTED.fullmatch(text):
        after = ""  # behind a decimal point there are no thousands: the cell of a table has ended
    lost_sign = name != "step" and re.search(r"(?:^|[\s=:(\[])-$", before) is not None
    return lost_sign or _CONTINUES.match(after) is not None or re.search(r"\d[.,]?$", before) is not None


@lru_cache(maxsize=64)
def _before_commas(pattern: str) -> frozenset[str]:
    """The groups that the pattern itself follows by a comma, which is then a separator."""
    return frozenset(group.name for group in _groups(pattern) if pattern.startswith(",", group.end + 1))


@lru_cache(maxsize=64)
def _behind_cells(pattern: str) -> frozenset[str]:
    """The groups that the pattern puts behind the comma of a cell that it passes over."""
    before = {group.name: pattern[: pattern.rfind("(?P<", 0, group.start)] for group in _groups(pattern)}
    return frozenset(name for name, text in before.items() if _PASSED_CELL.search(text))


def _printed(match: Match) -> Printed:
    texts: dict[str, str] = {}
    values: dict[str, float] = {}
    odd: tuple[str, str] | None = None
    for group, (first, last) in match.spans.items():
        name, text = _name(group), match.line[first:last]
        texts[name] = text
        cut = _matches_partly(match, group)
        thousands = name == "ktoks_per_s" and text[-1:] in ("k", "K")
        value = None if cut else parse_number(text[:-1] if thousands else text)
        if value is not None:
            values[name] = value
        elif name != "row":
            odd = odd or (name, match.line[first : last + 12] if cut else text)
    step = values.pop("step", None)
    step = math.nan if step is None and "step" in texts else step
    return Printed(texts, values, step, odd)


PLACE = frozenset({"epoch", "steps_per_epoch", "steps_total", "timestamp", "elapsed_s"})
"""Where a line stands, and nothing that a step is measured by."""


def _counts_an_evaluation(printed: Printed) -> bool:
    """Whether the line of a step says a validation's loss and nothing else: `Epoch 1 | Iter 0 | Eval Loss 0.15`."""
    return printed.step is not None and "val_loss" in printed.values and printed.values.keys() <= {*PLACE, "val_loss"}


class StepCounter:
    """The step of each line, where lines count from 1 in each epoch, or where not every line prints it.

    A line without a step completes the one before it. With a group `row`, each line is one step. Lines with a group
    `steps_total` belong to training where that total is `total`; without one, to the total that most steps had so far.
    """

    def __init__(self, total: float | None = None) -> None:
        self.before_epoch = 0
        """Steps that were done before the epoch of the last line, by the length that is printed of those before it."""

        self._total = total
        self._seen: dict[float, set[float]] = {}
        self._completed: dict[float, int] = {}
        self._latest_total: float | None = None
        self._offset = 0.0
        self._epoch: float | None = None
        self._last: float | None = None
        self._length: float | None = None
        self._stride = 1.0
        self._rows = 0
        self._evaluates = False

    def begin_again(self) -> None:
        """Count lines without a step from 1 again."""
        self._rows = 0

    def step(self, printed: Printed) -> float | None:
        """Optimizer steps done by this line, NaN where it prints none that can be read; None where the line belongs to
        another progress bar, counts the batches of an evaluation, or belongs to no step yet."""
        if "row" in printed.texts:
            self._rows += 1
            self._last = float(self._rows)
            return self._last
        step = printed.step
        if step is None:
            if self._latest_total is not None and not printed.of_evaluation:
                self._completed[self._latest_total] = self._completed.get(self._latest_total, 0) + 1
            return None if self._last is None else self._offset + self._last
        if "steps_total" in printed.values and not self._of_training(step, printed.values["steps_total"]):
            return None
        if math.isnan(step):
            return step
        epoch, length = printed.values.get("epoch"), printed.values.get("steps_per_epoch")
        if _counts_an_evaluation(printed) and self._last is not None and (self._evaluates or step < self._last):
            self._evaluates = True
            return None
        self._evaluates = False
        later = None not in (epoch, self._epoch) and math.floor(epoch or 0) > math.floor(self._epoch or 0)
        # Of each epoch the same step alone may have a line.
        again = later and length is not None and step == self._last
        if self._last is not None and (step < self._last or again):
            # Without an epoch number, the last step of an epoch announces the next one.
            over = epoch is None and length is not None and self._last > length - max(self._stride, 1.5)
            if later or over:
                # The last epoch may be shorter, and says its own length. Where none is known, lines come at one stride.
                before = length if self._length is None else self._length
                self._offset += before if before is not None else self._last + self._stride - step
                next_one = None in (epoch, self._epoch) or math.floor(epoch or 0) == math.floor(self._epoch or 0) + 1
                if before is not None and next_one:
                    self.before_epoch = int(self._offset)
        elif self._last is not None and step > self._last:
            self._stride = step - self._last
        self._epoch, self._last, self._length = epoch, step, length
        return self._offset + step

    def _of_training(self, step: float, total: float) -> bool:
        self._latest_total = total
        if self._total is not None:
            return total == self._total
        seen = self._seen.setdefault(total, set())
        if len(seen) < 100_000:
            seen.add(step)
        return total == self.usual_total

    @property
    def usual_total(self) -> float | None:
        """The total after whose steps most lines without one came, else the one that most steps had; None where none
        is printed."""
        return max(self._seen, key=lambda one: (self._completed.get(one, 0), len(self._seen[one])), default=None)
