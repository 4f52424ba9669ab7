"""What a bisection found, as bisect.json holds it and as a sentence says it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from validator.bisect.search import Contribution, Ends, Explanation, Trial, Trials
from validator.bisect.side import End, differences
from validator.model.units import Frozen
from validator.report.terminal.lines import paint, text_table, wrap
from validator.text import format_number, format_percent, format_quantity, listed, one_line, plural

BisectionOutcome = Literal["explained", "no_difference", "not_in_settings", "budget_spent", "interrupted"]


class DifferingSetting(Frozen):
    """One setting that is not the same at both ends; None where an end leaves it to the trainer."""

    name: str
    good: str | int | float | bool | None
    bad: str | int | float | bool | None


class BisectTrial(Frozen):
    """One short run: good with these settings from bad. `share` of the difference is None when it gave no value."""

    number: int
    from_bad: tuple[str, ...]
    value: float | None
    ci_low: float | None = None
    ci_high: float | None = None
    share: float | None = None
    duration_s: float
    why: str | None = Field(None, description="Why it gave no value.")


class Cause(Frozen):
    """A setting of the explanation, or several that only run together.

    `share` is how much of the difference goes when it alone is put back, `alone` how much it shows without the others,
    `factor` what putting it back does to the metric. None where that was not run.
    """

    settings: tuple[DifferingSetting, ...]
    share: float | None = None
    alone: float | None = None
    factor: float | None = None


class Bisection(Frozen):
    """The whole answer. Shares are of the logarithm of good over bad, so that factors add up."""

    schema_version: Literal[1] = 1
    good: str
    bad: str
    metric: str
    unit: str
    outcome: BisectionOutcome
    message: str
    good_value: float | None = None
    bad_value: float | None = None
    differences: tuple[DifferingSetting, ...]
    causes: tuple[Cause, ...] = ()
    suspects: tuple[str, ...] = Field((), description="Where the cause is, when the search has not finished.")
    rest_share: float | None = Field(None, description="Share that all other settings show together.")
    uncertain: tuple[tuple[str, ...], ...] = Field((), description="Combinations too near the threshold to be sure of.")
    trials: tuple[BisectTrial, ...] = ()
    commands: tuple[str, ...] = Field((), description="What searches the commits where no setting differs.")
    folder: str | None = None


_HIDDEN = ("[redacted]", "[redacted]")
"""A setting that differs by a secret alone."""

_BEYOND = 0.5
"""Share of the difference beyond either end that noise and a setting with a smaller effect do not make."""


def bisection(
    good: End,
    bad: End,
    trials: Trials,
    found: Explanation | None,
    *,
    outcome: BisectionOutcome,
    why: str,
    folder: Path,
) -> Bisection:
    """The answer, from the trials and from what the search made of them. The ends come without their secrets."""
    shown = differences(good, bad)
    differing = {
        name: DifferingSetting(name=name, good=shown.get(name, _HIDDEN)[0], bad=shown.get(name, _HIDDEN)[1])
        for name in trials.names
    }
    causes = tuple(_cause(one, differing, trials) for one in found.contributions) if found is not None else ()
    ends = trials.ends
    return Bisection(
        good=good.name,
        bad=bad.name,
        metric=trials.reference,
        unit=trials.compared.unit,
        outcome=outcome,
        message=_explanation_text(outcome, why, causes, found, trials),
        good_value=None if ends is None or ends.good is None else ends.good.point,
        bad_value=None if ends is None or ends.bad is None else ends.bad.point,
        differences=tuple(differing.values()),
        causes=causes,
        suspects=found.suspects if found is not None else (),
        rest_share=found.rest_share if found is not None else None,
        uncertain=tuple(tuple(sorted(subset)) for subset in found.uncertain) if found is not None else (),
        trials=_used_trials(trials),
        folder=str(folder),
    )


def _cause(one: Contribution, differing: dict[str, DifferingSetting], trials: Trials) -> Cause:
    factor = None
    ends = trials.ends
    if one.share is not None and ends is not None and ends.good is not None and ends.bad is not None:
        factor = (ends.good.point / ends.bad.point) ** one.share
    return Cause(settings=tuple(differing[name] for name in one.names), share=one.share, alone=one.alone, factor=factor)


def _used_trials(trials: Trials) -> tuple[BisectTrial, ...]:
    return tuple(_bisect_trial(trial, trials.ends) for trial in trials.done[: trials.used])


def _bisect_trial(trial: Trial, ends: Ends | None) -> BisectTrial:
    value = trial.value
    return BisectTrial(
        number=trial.number,
        from_bad=tuple(sorted(trial.names)),
        value=value,
        ci_low=None if value is None else value - trial.half,
        ci_high=None if value is None else value + trial.half,
        share=None if ends is None else _trial_share(value, ends),
        duration_s=trial.duration_s,
        why=trial.why,
    )


def _trial_share(value: float | None, ends: Ends) -> float | None:
    """Share of the difference in one trial: of the logarithm of the rates, or whether it fails as bad does."""
    if ends.works:
        return 1.0 if value is None else 0.0
    if value is None or ends.good is None or ends.bad is None:
        return None
    return math.log(ends.good.point / value) / math.log(ends.good.point / ends.bad.point)


def _explanation_text(
    outcome: BisectionOutcome, why: str, causes: Sequence[Cause], found: Explanation | None, trials: Trials
) -> str:
    runs = plural(trials.used, "run")
    if outcome == "interrupted":
        return f"Interrupted after {runs}."
    if found is None or outcome in ("no_difference", "not_in_settings"):
        return f"Not found: {why}."
    if outcome == "budget_spent":
        kept = f"{listed(list(found.names))} matters, and " if found.names else ""
        return f"Not finished after {runs}: {kept}a cause is among {listed(list(found.suspects), most=12)}."
    settings = [setting for cause in causes for setting in cause.settings]
    names = [f"{each.name} ({_value_text(each.good)} → {_value_text(each.bad)})" for each in settings]
    one = len(names) == 1
    rest = len(trials.names) - len(names)
    others = (
        f"; the other {rest} make {format_percent(found.rest_share)} of it"
        if rest and found.rest_share is not None
        else ""
    )
    if trials.ends is not None and trials.ends.works:
        why_bad = next((trial.why for trial in trials.done if trial.names == frozenset(trials.names) and trial.why), "")
        shown = f" ({why_bad})" if why_bad else ""
        return f"{' and '.join(names)} make{'s' if one else ''} it fail{shown}. Found in {runs}."
    ends = trials.ends
    assert ends is not None, "explained means that both ends were measured"
    assert ends.good is not None, "a rate is compared only where good has one"
    assert ends.bad is not None, "a rate is compared only where bad has one"
    good, bad = format_number(ends.good.point), format_quantity(ends.bad.point, trials.compared.unit)
    return f"{' and '.join(names)} explain{'s' if one else ''} {good} → {bad}{others}. Found in {runs}.{_drift(trials)}"


def _drift(trials: Trials) -> str:
    """A warning when runs lie far beyond both ends: no setting did that."""
    assert trials.ends is not None, "both ends were measured"
    shares = [trial.share for trial in _used_trials(trials) if trial.share is not None]
    beyond = [share for share in shares if not -_BEYOND <= share <= 1 + _BEYOND]
    if not beyond:
        return ""
    return (
        f" {len(beyond)} of them lie{'s' if len(beyond) == 1 else ''} far beyond both ends: something else changed the "
        "speed of the machine meanwhile, so shares are rough; repeat it when the machine is idle."
    )


def _value_text(value: object) -> str:
    return "unset" if value is None else str(value)


# A bisection in the terminal: the sentence, the causes, the trials.

_STYLES = {"explained": "good bold", "interrupted": "warn bold", "budget_spent": "warn bold"}
_HEADINGS = {
    "explained": "FOUND",
    "no_difference": "NO DIFFERENCE",
    "not_in_settings": "NOT IN THE SETTINGS",
    "budget_spent": "NOT FINISHED",
    "interrupted": "INTERRUPTED",
}


def bisection_lines(found: Bisection, *, width: int = 80, color: bool = False) -> list[str]:
    """The answer as lines of about `width` columns."""
    lines = [paint(_HEADINGS[found.outcome], _STYLES.get(found.outcome, "bad bold"), color=color)]
    lines += wrap(found.message, width=width)
    if found.causes:
        rows = [row for cause in found.causes for row in _cause_rows(cause)]
        columns = ("Setting", "Good", "Bad", "Share", "Alone", "Factor")
        lines += ["", *text_table(columns, rows, width=width, numeric=columns[3:], color=color)]
    for subset in found.uncertain:
        lines += wrap(f"! too near the threshold to be sure: {', '.join(subset)}", width=width, indent="  ", first="")
    if found.trials:
        rows = [
            (
                str(trial.number),
                format_number(trial.value),
                format_percent(trial.share),
                _from_bad_text(trial.from_bad, len(found.differences))
                + (f"; no value: {one_line(trial.why, limit=200)}" if trial.why else ""),
            )
            for trial in found.trials
        ]
        columns_of_trials = ("Run", f"{found.metric}, {found.unit}", "Share", "From bad")
        lines += ["", *text_table(columns_of_trials, rows, width=width, numeric=("Run", "Share"), color=color)]
    if found.commands:
        lines += ["", *(f"{'' if place else 'Next':8}{one_line(one)}" for place, one in enumerate(found.commands))]
    if found.folder:
        lines += ["", f"Runs    {one_line(found.folder)}"]
        resumed = f"validator bisect --resume {shlex.quote(one_line(found.folder))}"
        if found.outcome == "interrupted":
            lines.append(f"Next    {resumed}")
        if found.outcome == "budget_spent":
            lines.append(f"Next    {resumed} --max-runs {2 * len(found.trials)}")
    return lines


def _cause_rows(cause: Cause) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for place, setting in enumerate(cause.settings):
        factor = "–" if cause.factor is None else f"{cause.factor:.2f}×"
        values = ("", "", "") if place else (format_percent(cause.share), format_percent(cause.alone), factor)
        rows.append((setting.name, _value_text(setting.good), _value_text(setting.bad), *values))
    return rows


def _from_bad_text(names: tuple[str, ...], total: int) -> str:
    if not names:
        return "none: good as it is"
    return "all: bad" if len(names) == total else ", ".join(names)
