"""A pattern made from the numbers that lines hold, where no print format is known.

Lines that differ in their numbers alone are one form. In the commonest form a whole number that rises by equal strides
is the step, and one that falls without following the step is the loss.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice

import numpy as np

from validator.model.evaluation_lines import evaluation_in
from validator.model.logged_names import PARTS
from validator.model.loss_parts import part_before
from validator.model.pattern import line_pattern, parse_number
from validator.model.print_words import DATED, MEANS, RATE_UNITS
from validator.model.result import Floats

_VARYING = re.compile(  # the bar of |███  | 12/600, of [##...] | 0:01:02 | 17, -0.5, 1.2e-4, 1,234, nan
    r"(?<=\|)(?P<bar>[^|\d]*)(?=\|\s*\d+/\d)|(?<=\[)(?P<drawn>[#=>*.\- o█━░▒]{5,})(?=\])"
    r"|(?<![\w.])(?P<clock>\d+:\d\d(?::\d\d)?(?:\.\d+)?)(?!\w|:\d)"
    r"|(?:(?<![\w.])|(?<=[\u4e00-\u9fff]))(?P<number>[-+]?(?:\d+(?:[,_]\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?|[nN]a[nN]|inf))"
)
_MIN_LINES = 5
_DATED_ROWS = 40
_MAX_LENGTH = 500
_IS = r"(?:[ _/(]{1,2}train(?:ing)?)?(?:[\s:=]+(?:so far|is|tensor))*\W*$"
"""Between a word and its number: `Loss is 1.2`, `loss (train): tensor(1.2`."""
_STEP_WORDS = re.compile(r"(?:(?:step|iter|it|update|batch|i|n)\w*|[第步])\W*$", re.IGNORECASE)
_LOSS_WORDS = re.compile(
    r"(?:loss|(?<![a-z])(?:nll|xent|cross.?entropy|ce|objective|obj|cost|err(?:or)?)|损失)" + _IS, re.IGNORECASE
)
_ANY_LOSS = re.compile(r"loss(?![a-z])|损失", re.IGNORECASE)
_THE_LOSS = re.compile(
    r"(?:^|[|,;:>)\]}\t]|\b(?:step|iter\w*|epoch|info)\b)[\s\"'{(\[-]*(?:reduced[ _])?"
    r"(?:(?:train(?:ing)?[ _/.])?(?:total[ _])?loss|(?:训练)?损失)" + _IS,
    re.IGNORECASE,
)
"""The loss by its own name, at the start of a line, a cell or a field: neither `value_loss` nor `packet loss`."""

_OTHER_WORDS = re.compile(
    r"(?:lr|rate|num|count|eta|remain\w*|left|epoch|norm|acc\w*|ppl|perplexity|mfu|mem\w*|time|dt|val\w*|test\w*|eval\w*"
    r"|variance|rew(?:ard)?s?(?:[_ ]mean)?|returns?|score|r2|f1|auc|fps|sps|success\w*|bleu|rouge\w*|precision"
    r"|准确率|精度|学习率|耗时|时间|recall|m?iou"
    r"|(?<!cross)(?<!cross[_ -])entropy|kl|clip\w*|std|len\w*|steps_per\w*|per_s\w*)" + _IS,
    re.IGNORECASE,
)
"""Measures of quality and settings, which may fall as well and are never a loss."""

_VALIDATION = re.compile(
    r"(?<![a-z])(?:val(?:id(?:ation)?)?|eval|test|dev)[ _/.-]*(?P<what>(?:log)?(?:loss|nll|r?mse|mae|error))"
    + _IS
    + r"|(?:验证|测试)损失\W*$",
    re.IGNORECASE,
)
"""A loss of the validation, in the same line or in one of its own: `train-logloss:0.31 valid-logloss:0.64`."""


def _is_validation(part: str, before_loss: str) -> bool:
    """Whether a number is that of the validation: by the word `loss`, or by the measure that the training goes by."""
    found = _VALIDATION.search(part)
    if found is None:
        return False
    what = (found["what"] or "loss").lower()
    return what in ("loss", "nll") or what in before_loss.lower()


_EVALUATION = re.compile(r"\W*(?:test|eval\w*|val(?:id\w*)?)\b\W*\[", re.IGNORECASE)
"""The start of a line about a batch of an evaluation."""
_BEST = re.compile(r"best|lowest|(?<![a-z])min|最佳", re.IGNORECASE)
_NO_LAST = re.compile(r"best|min|lowest|avg|mean|average|最佳|平均", re.IGNORECASE)

_RATE_UNITS = {name: re.compile(unit, re.IGNORECASE) for name, unit in RATE_UNITS.items()}
_MEANS = re.compile(MEANS, re.IGNORECASE)
_PACE = ("s/it", "it/s")
"""Behind the pace of a progress bar."""

_OTHER_LOSS = re.compile(r"val|test|eval|avg|mean|average|best|aux|验证|测试|平均|最佳", re.IGNORECASE)
_PART = "|".join(PARTS)
_PARTS = re.compile(rf"(?i)(?<![a-z])(?:{_PART})[ _/]?loss|loss[ _/]?(?:{_PART})(?![a-z])")

_MOST_NAMELESS = 2
"""Numbers without the name of a loss that may be one, in a line: of more none is taken, as of a table's row."""

_LITTLE = 0.01
"""Share of its level by which a loss falls at least over the lines that are seen."""


def inferred_pattern(lines: Iterable[str]) -> str | None:
    """A pattern with `{step}` and `{loss}` for the commonest form of lines that shows both; None where none does."""
    held = list(lines)
    pattern = _inferred(held)
    return None if pattern is None else _dated(pattern, held)


def _dated(pattern: str, lines: Sequence[str]) -> str:
    """The pattern with the date in front of the lines, where all of the first ones have one."""
    if pattern.startswith("^"):
        return pattern
    dated = rf"(?i)^{DATED}.*?{pattern}"
    plain, wanted = line_pattern(pattern), line_pattern(dated)
    rows = list(islice((line for line in lines if plain.read(line) is not None), _DATED_ROWS))
    read = [wanted.read(line) for line in rows]
    return dated if rows and all(one is not None and "timestamp" in one.values for one in read) else pattern


def _inferred(lines: Iterable[str]) -> str | None:
    forms: dict[tuple[str, ...], list[list[str]]] = defaultdict(list)
    of_evaluation = set()
    for line in lines:
        if len(line) <= _MAX_LENGTH:
            parts, texts = _cut(line)
            form = tuple(re.sub(r"\s+", " ", part) for part in parts)
            if form not in forms and len(_ANY_LOSS.findall(line)) <= 1 and evaluation_in(line):
                of_evaluation.add(form)
            forms[form].append(texts)
    often = {
        parts: rows
        for parts, rows in forms.items()
        if len(rows) >= _MIN_LINES and parts not in of_evaluation and not _EVALUATION.match(parts[0])
    }
    by_count = sorted(
        (parts for parts in often if len({part.lower() for part in _PARTS.findall(" ".join(parts))}) < 2),
        key=lambda parts: -len(often[parts]),
    )
    ways = (
        partial(_pattern, named=_LOSS_WORDS),
        partial(_by_rows, named=_THE_LOSS),
        partial(_pattern, named=None),
        partial(_by_rows, named=_LOSS_WORDS),
    )
    found = ((way(parts, list(zip(*often[parts], strict=True))), parts) for way in ways for parts in by_count)
    pattern, parts = next((one for one in found if one[0]), (None, ()))
    if pattern is None:
        named = (
            _of_parts(form, list(zip(*often[form], strict=True)))
            for form in sorted(often, key=lambda one: -len(often[one]))
        )
        return next(filter(None, named), None)
    if not pattern.endswith("{val_loss}"):
        return pattern
    without = any(form[:2] == parts[:2] for form in forms if form != parts)  # lines between two evaluations
    return pattern.partition("{loss}")[0] + "{loss}" if without else pattern


def _of_parts(parts: Sequence[str], columns: Sequence[Sequence[str]]) -> str | None:
    """A pattern for lines with a step and the parts of a loss alone: `7 [D loss: 0.6] [G loss: 1.9]`."""
    steps = [place for place, column in enumerate(columns) if _is_step(column, np.array([_value(x) for x in column]))]
    names = {place: name for place in range(len(columns)) if (name := part_before(parts[place])) is not None}
    if not steps or len(set(names.values())) < 2 or len(set(names.values())) < len(names) or steps[0] in names:
        return None
    groups = {place: f"{{{name}}}" for place, name in names.items()}
    return _spelled(parts, columns, {steps[0]: "{step}", **groups})


def _by_rows(parts: Sequence[str], columns: Sequence[Sequence[str]], *, named: re.Pattern[str]) -> str | None:
    """A pattern by which each line is a step, for lines that name a loss and no step.

    By its own name it counts whatever it does, also if it rises or is NaN; by another one if it falls.
    """
    for place, column in enumerate(columns):
        if named.search(parts[place]) is None or _OTHER_LOSS.search(parts[place]):
            continue
        values = np.array([_value(text) for text in column])
        decimals = any("." in text or not text[-1:].isdigit() for text in column)
        if decimals and (named is _THE_LOSS or _fall(values) >= _LITTLE):
            return "{row}" + _spelled(parts, columns, {place: "{loss}"})
    return None


def _cut(line: str) -> tuple[tuple[str, ...], list[str]]:
    """The texts of a line that stay, one more than there are texts that vary, and those."""
    parts, texts, end = [], [], 0
    for found in _VARYING.finditer(line):
        parts.append(line[end : found.start()])
        texts.append(found[0])
        end = found.end()
    return (*parts, line[end:]), texts


def _pattern(parts: Sequence[str], columns: Sequence[Sequence[str]], *, named: re.Pattern[str] | None) -> str | None:
    """The pattern of one form with a step; `parts` are the texts between its numbers, `columns` the numbers. Its loss
    is `named`, or the number that falls most where that is None."""
    if len(columns) < 2:
        return None
    values = [np.array([_value(text) for text in column]) for column in columns]
    shares = {place for place, part in enumerate(parts[1:]) if part.startswith("%")}
    steps = [place for place, column in enumerate(columns) if place not in shares and _is_step(column, values[place])]
    if not steps:
        return None
    step = next((place for place in steps if _STEP_WORDS.search(parts[place])), steps[0])
    losses = [
        place
        for place, column in enumerate(columns)
        if place != step
        and _may_be_loss(column, values[place], values[step], parts[place])
        and not parts[place + 1].startswith(_PACE)
    ]
    if named is not None:
        losses = [place for place in losses if named.search(parts[place])]
        losses.sort(key=lambda place: _THE_LOSS.search(parts[place]) is None)
    else:
        losses.sort(key=lambda place: _fall(values[place]), reverse=True)
        losses = losses if len(losses) <= _MOST_NAMELESS else []
    chosen = losses[:1]
    if not chosen:
        return None
    groups = {step: "{step}", chosen[0]: "{loss}"}
    for place, column in enumerate(columns):
        if all(":" in text for text in column) and parts[place + 1].startswith("<"):
            groups[place] = "{elapsed_s}"  # of a progress bar: [0:12<1:03, 9.8it/s]
        for name, unit in _RATE_UNITS.items():
            taken = place in groups or f"{{{name}}}" in groups.values() or _MEANS.search(parts[place])
            if not taken and unit.match(parts[place + 1]):
                groups[place] = f"{{{name}}}"
        own = "{val_loss}" not in groups.values() and place not in groups
        if own and _is_validation(parts[place], parts[chosen[0]]):
            groups[place] = "{val_loss}"
    return _spelled(parts, columns, groups)


def _value(text: str) -> float:
    number = parse_number(text)
    return float("nan") if number is None else number


def _is_step(texts: Sequence[str], values: Floats) -> bool:
    """Whole numbers that rise by one stride, but for a first or last one."""
    if not all(re.fullmatch(r"\d+(?:[,_]\d{3})*", text) for text in texts):
        return False
    strides = np.diff(values)
    return bool((strides > 0).all() and (strides == np.median(strides)).mean() >= 0.6)


def _may_be_loss(texts: Sequence[str], values: Floats, steps: Floats, before: str) -> bool:
    """Numbers with decimals that fall, and not in proportion to the step, as what remains of the time does."""
    if _THE_LOSS.search(before):
        return any(not text.isdigit() for text in texts)
    if not any("." in text or "e" in text for text in texts):
        return False
    finite = np.isfinite(values)
    if _LOSS_WORDS.search(before):
        return bool(finite[0]) and not _BEST.search(before)
    until = len(values) if finite.all() else int(np.argmin(finite))
    if until < _MIN_LINES or finite[until:].any():
        return False  # one that is not finite any more was a loss, and one that is now and then is not
    values, steps = values[:until], steps[:until]
    if (values <= 0).any() or _OTHER_WORDS.search(before) or _fall(values) < _LITTLE or float(values.std()) == 0:
        return False
    return bool(abs(np.corrcoef(values, steps)[0, 1]) < 0.9995)


def _fall(values: Floats) -> float:
    """How far the last third lies below the first, as a share of the first."""
    third = max(1, len(values) // 3)
    first = float(values[:third].mean())
    return (first - float(values[-third:].mean())) / first if first else 0.0


def _spelled(parts: Sequence[str], columns: Sequence[Sequence[str]], groups: dict[int, str]) -> str:
    """The form as a pattern, from a text before its first group to its last group."""
    first, last = min(groups), max(groups)
    made = "" if parts[first].strip() else "^"
    start = 0 if made else first
    for place in range(start, last + 1):
        text = re.sub(r"(?:\\ |\\\t)+", r"\\s+", re.escape(parts[place]))
        # Blanks that fill a number's width are gone where it has more digits.
        made += text.removesuffix("+") + "*" if re.search(r"(?:^|\W)\s+$", parts[place]) else text
        bar = parts[place].endswith("|") and not any(any(sign.isdigit() for sign in text) for text in columns[place])
        made += groups.get(place, "[^|]*" if bar else r"\S+?")
    return made
