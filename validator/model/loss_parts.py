"""A loss that a trainer shows in parts only: `loss_cls 0.61 | loss_box 0.32`, `[D loss: 0.7] [G loss: 1.9]`.

Parts that are lowered together add up to the loss. Those that work against each other, as of a generator and what
judges it, do not, and stay series by their own names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from validator.model.logged_names import PARTS, plain_key
from validator.model.pattern import NUMBER, LinePattern, Printed, parse_number

_WORD = r"[A-Za-z][\w/-]{0,30}"
_LABEL = re.compile(rf"(?<![\w/.-])({_WORD} )?(\(?{_WORD}\)?)[\"')]{{0,2}}\s{{0,8}}[:=]?\s{{0,8}}(?:tensor\()?$")
"""The one or two words in front of a number."""
_NUMBER = re.compile(rf"(?<![\w.+-])(?:{NUMBER})(?!\s?%|[\w.]|/\d)")

_NAMED = re.compile(r"(?:train(?:ing)?_)?(?:[a-z0-9_]+_loss(?:es)?|loss_?[a-z0-9_]+|recon(?:struction)?|kld?)")
_NO_PART = frozenset(
    {
        *("val", "valid", "validation", "eval", "evaluation", "test", "dev", "best", "min", "max", "prev", "last"),
        *("avg", "average", "mean", "ema", "smooth", "smoothed", "running", "total", "sum", "overall", "epoch", "step"),
        *("all", "full", "joint", "combined", "scale", "scaler", "scaling", "weight", "weights", "coef", "fn", "std"),
        *("var", "ratio", "target", "final", "initial", "lm", "curr", "current", "batch", "reduced", "iter"),
        *("is", "at", "on", "of", "the", "for", "info", "debug", "root", "warning"),
    }
)
"""Words beside `loss` that make it the whole one, another view of it, or no loss."""

_OPPOSED = frozenset(
    {*PARTS, "pg", "vf", "pi", "real", "fake", "adv", "adversarial", "entropy", "q", "qf", "qf1", "qf2", "alpha"}
)
_MOST = 12

_WHOLE = re.compile(
    r"(?i)(?:(?:^|[^\w\s/.-]|\d)\s{0,4}|(?<![a-z])(?:train(?:ing)?|total|all|overall|full|lm|batch|step|info)[ _/])"
    rf"loss[\"')]{{0,2}}\s{{0,8}}[:=]?\s{{0,8}}(?:tensor\()?({NUMBER})"
)
"""The whole loss by its own name, behind a sign, a number, or a word that says so."""


def part_name(shown: str) -> str | None:
    """The series of a part that goes by this name, `d_loss` for `D loss`; None for what is no part."""
    name = re.sub(r"[\W_]+", "_", plain_key(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", shown)), flags=re.ASCII).strip("_")
    words = set(name.split("_")) - {"train", "training"}
    if words == {"loss"} or not words.isdisjoint(_NO_PART) or _NAMED.fullmatch(name) is None:
        return None
    return name


def summed_parts(names: Iterable[str], *, of: str = "train") -> tuple[str, ...]:
    """Of these series the parts whose sum is the loss `of` the training, or of the validation (`val`); none where fewer
    than two are there, or some are opposed."""
    begin = re.compile(r"(?i)(?:val|valid|validation|eval)[/_]" if of == "val" else "")
    parts = tuple(name for name in names if (found := begin.match(name)) and part_name(name[found.end() :]) is not None)
    return () if len(parts) < 2 or any(map(is_opposed, parts)) else parts


def is_opposed(name: str) -> bool:
    """Whether a series is the loss of one of two that work against each other, or side by side."""
    return part_name(name) is not None and not _OPPOSED.isdisjoint(re.split(r"[\W_]+", name.lower()))


def part_before(text: str) -> str | None:
    """The part that the words at the end of a text name, in front of its number; None where they name none."""
    label = _LABEL.search(text[-80:])
    if label is None:
        return None
    both = label[1] is not None and "loss" in (label[1].lower().strip(), label[2].lower().strip("()"))
    names = (part_name("".join(label.group(*range(first, 3)))) for first in ((1, 2) if both else (2,)))
    return next(filter(None, names), None)


def parts_in(line: str) -> dict[str, float]:
    """The parts of a loss that a line names, by their series."""
    found: dict[str, float] = {}
    for number in _NUMBER.finditer(line, 0, 1000):
        name, value = part_before(line[: number.start()]), parse_number(number[0])
        if name is not None and value is not None and len(found) < _MOST:
            found.setdefault(name, value)
    return found


def read_parts(printed: Printed, pattern: LinePattern, line: str, *, by_words: bool) -> Printed:
    """What a pattern read of a line, and the parts of the loss where it looks for a loss and the line has none.

    A pattern that goes `by_words` may have taken the first of several parts for the loss: then the parts count.
    """
    if "loss" not in pattern.names or not {"mean_reward", "val_loss"}.isdisjoint(printed.values):
        return printed
    whole = printed.values.get("loss")
    if whole is not None and (not by_words or line.lower().count("loss") < 2 or "actor/loss" in line):
        return printed
    parts = parts_in(line)
    if len(parts) < 2 or (whole is not None and repr(whole) not in map(repr, parts.values())):
        return printed
    others = {name: value for name, value in printed.values.items() if name != "loss"}
    named = None if whole is None else _WHOLE.search(line)
    own = None if named is None else parse_number(named[1])
    return printed._replace(values={**others, "loss": own} if own is not None else {**parts, **others})
