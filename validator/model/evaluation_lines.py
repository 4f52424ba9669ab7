"""The loss of a validation on a line of its own, in whatever words a trainer has for it.

Patterns of print formats read the lines of steps. What a trainer prints between them about held-out data is recognized
here, for every format alike: `Validation: loss = 2.31`, `Loss on the test set: 2.31`, `Eval | epoch 3 | loss 2.31`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from validator.model.pattern import NUMBER, PLACE, Printed, parse_number

_WORDS = re.compile(r"val|eval|dev|test|held|hold|unseen|验证|测试", re.IGNORECASE)
"""A line without one of these holds no validation."""

_LONGEST = 400

_VALIDATION = r"(?:val(?:id(?:at(?:ion|ing|e))?)?|held[-_ ]?out|hold[-_ ]?out|dev(?:elopment)?|unseen)"
_EVALUATION = r"(?:eval(?:uat(?:ion|ing|e))?)"
_TEST = r"(?:test(?:ing)?)"
_ALL = f"(?:{_VALIDATION}|{_EVALUATION}|{_TEST})"
_MEAN = r"(?:(?:avg|average|mean|total|overall|final|global)\.?[ _/-])?"
_SET = (
    r"(?:[ _-]?(?:set|data(?:set)?|examples?|samples?|text|sentences?|images?|split|stage|phase|epoch|step|batch"
    r"|results?))?"
)
_LOSS = (
    r"(?:(?:avg|average|mean|total|lm|ce|token)[ _/-])?"
    r"(?P<what>loss(?:es|[ _](?:avg|mean))?|nll|xent|ce|cross[-_ ]?entropy|mse|bce)(?![\w/])"
)
_IS = (
    r"(?: \(?(?:(?:at|after|for|@) )?(?:the )?(?:epoch|step|iter(?:ation)?|update) {0,4}#?\d+(?:/\d+)?\)?)?"
    r"[\"')\]]{0,2}\s{0,8}(?:[:=]{1,2}|->|is\b|was\b|of\b)?\s{0,8}[\"'(\[]?(?:tensor\(\[?)?"
)
_VALUE = rf"(?P<value>{NUMBER})(?![\w%]|[.,]?\d|\s?%)(?: {{0,2}}\( {{0,4}}(?P<mean>{NUMBER})\))?"
"""A number, and behind it perhaps the mean of what was evaluated so far."""
_NOT = r"best|min(?:imum)?|lowest|prev(?:ious)?|patience|threshold|target|weight|early|aux|worst"
_NO_RECORD = rf"(?<![a-z])(?:{_NOT}|improved|saved?|saving|train(?:ing)?|t_loss|args|namespace|config)(?![a-z])"

_FORMS = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        # val_loss, avg_val_loss, Validation set loss, metrics/eval/loss
        rf"(?<![a-z])(?<!best )(?<!best_)(?<!min )(?<!min_)(?<!lowest )(?<!previous )(?<!prev )(?<!last )(?<!smoothed )"
        rf"{_MEAN}(?P<of>{_ALL}){_SET}[ _/.-]?{_LOSS}{_IS}{_VALUE}",
        # loss_val, loss/val, Loss on the validation set
        rf"(?<![a-z])(?<!best )(?<!best_){_MEAN}(?P<what>loss)(?:(?: on | for | of )(?:the )?|[ _/]?[\[(]|[ _/])"
        rf"(?P<of>{_ALL}){_SET}(?![\w/]){_IS}{_VALUE}",
        # Eval | epoch 3 | loss 2.31, Validation: loss = 2.31, [test] Average loss: 2.31
        rf"^[^\n]{{0,60}}?(?<![\w/.-])(?P<of>{_ALL}){_SET}(?![\w/]|\.\w)"
        rf"(?:(?!{_NO_RECORD})[^\n]){{1,80}}?(?<![\w/.-]){_LOSS}{_IS}{_VALUE}",
        rf"(?P<of>验证|测试)集?(?:平均)?(?:的)?(?P<what>损失)(?:值)?\s{{0,4}}[::=]?\s{{0,4}}{_VALUE}",
    )
)
_NO_LINE = re.compile(
    rf"(?<!100)%\||\bnamespace\(|\b(?:args|hparams)\b"
    rf"|(?<![a-z])(?:{_NOT})(?![a-z])[^|,;\n]{{0,40}}\b(?:loss|nll|ce|mse)\b"
    rf"|\bloss\b[^|,;\n]{{0,20}}\b(?:improved|did not)\b",
    re.IGNORECASE,
)
"""A bar of an evaluation's batches, settings, the best one so far."""

_OF_AGENT = re.compile(r"(?i)(?<![a-z])(?:policy|reward|returns?|entropy|pg_loss|actor|critic)(?![a-z])")
_SHORT = re.compile(rf"(?i)(?<![\w/.-])(?P<of>v)_?(?P<what>loss){_IS}{_VALUE}")
"""`v_loss`, which is the loss of the value in a line about an agent."""

_TRAINING = re.compile(r"(?i)(?<![a-z])train")
_OF_A_BATCH = re.compile(rf"(?i){_ALL}[ _-]?(?:step|batch|iter)\W{{0,3}}\d")
"""`val step:0`, of one batch of an evaluation, if it is no step of the training."""

_CERTAIN = re.compile(rf"(?i){_VALIDATION}$|v$|验证")


class Evaluation(NamedTuple):
    """One line's loss. `form` is what stands before the number, without what varies; a lower `doubt` is more certain to
    be what a training is watched by: 0 validation, 1 evaluation, 2 test, 4 more for a loss by its function, 8 more for
    one that may be a batch's."""

    form: str
    loss: float
    doubt: int
    so_far: bool = False
    """Whether it is the mean of all batches up to this line's."""


Evaluations = dict[str, list[tuple[int, Evaluation]]]
"""Those of one log by their form, each with the place that it comes after: a row, or a step."""

_MOST_FORMS = 64
"""How many of them are kept."""

_MOST_AT_ONCE = 2
"""Of one form at one place, half the time at most; more are batches of one evaluation."""


def evaluation_in(line: str) -> Evaluation | None:
    """The loss of held-out data that a line names; None for any other line, and for the best one so far."""
    if _WORDS.search(line, 0, _LONGEST) is None and "v_loss" not in line and "vloss" not in line:
        return None
    text = line[:_LONGEST]
    forms = _FORMS if _OF_AGENT.search(text) else (*_FORMS, _SHORT)
    found = next((match for form in forms if (match := form.search(text))), None)
    if found is None or _NO_LINE.search(text, 0, found.end()):
        return None
    loss = parse_number(found["mean"] or found["value"])
    if loss is None:
        return None
    of, what = found["of"].lower(), found["what"].lower()
    doubt = 0 if _CERTAIN.match(of) else 1 if of.startswith("eval") else 2
    before = re.sub(r"\s+", " ", re.sub(r"[\d.,:/-]*\d", "0", text[: found.start("value")]))
    before = re.sub(r"(?<=[\[(]) | (?=[\])])", "", before)
    doubt += 8 * (_OF_A_BATCH.match(text, found.start("of")) is not None)
    by_function = not (what.startswith("loss") or what == "损失")
    return Evaluation(before, loss, doubt + 4 * by_function, so_far=found["mean"] is not None)


def evaluation_instead(printed: Printed | None, line: str) -> Evaluation | None:
    """The evaluation that a line is about, where a pattern for steps did not read the line, or took it for a step."""
    shown = {} if printed is None else printed.values
    measured = not PLACE.issuperset(shown)
    if (measured and ("val_loss" in shown or "loss" not in shown)) or (shown and _TRAINING.search(line)):
        return None
    found = evaluation_in(line)
    same = found is not None and repr(shown.get("loss", found.loss)) == repr(found.loss)  # NaN is not equal to itself
    return found if same else None


def keep(found: Evaluations, place: int, one: Evaluation) -> None:
    """Add one that comes after a place."""
    if one.form in found or len(found) < _MOST_FORMS:
        found.setdefault(one.form, []).append((place, one))


def chosen(found: Evaluations) -> list[tuple[int, Evaluation]]:
    """The evaluations of one form: the most certain one, then the commonest; none where all are batches."""
    whole = (one for one in found.values() if not _are_batches(one))
    return min(whole, key=lambda one: (one[0][1].doubt, -len(one)), default=[])


def _are_batches(found: list[tuple[int, Evaluation]]) -> bool:
    """Whether lines of one form say several things at most of the places that they come after."""
    if found[0][1].so_far:
        return False
    said: dict[int, set[float]] = {}
    for place, one in found:
        said.setdefault(place, set()).add(one.loss)
    counts = sorted(map(len, said.values()))
    return counts[(len(counts) - 1) // 2] > _MOST_AT_ONCE
