"""What a bisection found, as bisect.json holds it and as a sentence says it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from validator.bisect.search import Contribution, Explanation
from validator.bisect.side import End, differences
from validator.bisect.trials import Trial, Trials
from validator.judge.wording import listed, number
from validator.model.bisection import Bisection, BisectionOutcome, BisectTrial, Cause, DifferingSetting
from validator.model.catalogue import METRICS

__all__ = ["bisection"]

_HIDDEN = ("[redacted]", "[redacted]")
"""A setting that differs by a secret alone."""

_BEYOND = 0.5
"""Share of the difference beyond either end that noise and a setting with a smaller effect do not make."""


def bisection(
    good: End,
    bad: End,
    names: Iterable[str],
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
        for name in names
    }
    causes = tuple(_cause(one, differing, trials) for one in found.contributions) if found is not None else ()
    ends = trials.ends
    return Bisection(
        good=good.name,
        bad=bad.name,
        metric=f"{trials.metric}.{trials.statistic}",
        unit=METRICS[trials.metric].unit,
        outcome=outcome,
        message=_message(outcome, why, causes, found, trials),
        good_value=None if ends is None or ends.good is None else ends.good.point,
        bad_value=None if ends is None or ends.bad is None else ends.bad.point,
        differences=tuple(differing.values()),
        causes=causes,
        suspects=found.suspects if found is not None else (),
        rest_share=found.rest_share if found is not None else None,
        uncertain=tuple(tuple(sorted(subset)) for subset in found.uncertain) if found is not None else (),
        trials=tuple(_told(trial, trials) for trial in trials.done[: trials.told]),
        folder=str(folder),
    )


def _cause(one: Contribution, differing: dict[str, DifferingSetting], trials: Trials) -> Cause:
    factor = None
    ends = trials.ends
    if one.share is not None and ends is not None and ends.good is not None and ends.bad is not None:
        factor = (ends.good.point / ends.bad.point) ** one.share
    return Cause(settings=tuple(differing[name] for name in one.names), share=one.share, alone=one.alone, factor=factor)


def _told(trial: Trial, trials: Trials) -> BisectTrial:
    share = None
    ends = trials.ends
    if (
        trial.value is not None
        and ends is not None
        and not ends.works
        and ends.good is not None
        and ends.bad is not None
    ):
        share = math.log(ends.good.point / trial.value) / math.log(ends.good.point / ends.bad.point)
    elif ends is not None and ends.works:
        share = 1.0 if trial.value is None else 0.0
    return BisectTrial(
        number=trial.number,
        from_bad=tuple(sorted(trial.names)),
        value=trial.value,
        ci_low=None if trial.value is None else trial.value - trial.half,
        ci_high=None if trial.value is None else trial.value + trial.half,
        share=share,
        duration_s=trial.duration_s,
        why=trial.why,
    )


def _message(
    outcome: BisectionOutcome, why: str, causes: Sequence[Cause], found: Explanation | None, trials: Trials
) -> str:
    runs = f"{trials.told} run{'' if trials.told == 1 else 's'}"
    if outcome == "interrupted":
        return f"Interrupted after {runs}."
    if found is None or outcome in ("no_difference", "not_in_settings"):
        return f"Not found: {why}."
    if outcome == "budget_spent":
        kept = f"{listed(list(found.names))} matters, and " if found.names else ""
        return f"Not finished after {runs}: {kept}a cause is among {listed(list(found.suspects), most=12)}."
    names = [_setting(setting) for cause in causes for setting in cause.settings]
    one = len(names) == 1
    rest = len(trials.names) - len(names)
    others = (
        f"; the other {rest} make {_percent(found.rest_share)} of it" if rest and found.rest_share is not None else ""
    )
    if trials.ends is not None and trials.ends.works:
        why_bad = next((trial.why for trial in trials.done if trial.names == frozenset(trials.names) and trial.why), "")
        told = f" ({why_bad})" if why_bad else ""
        return f"{' and '.join(names)} make{'s' if one else ''} it fail{told}. Found in {runs}."
    ends = trials.ends
    assert ends is not None, "explained means that both ends were measured"
    assert ends.good is not None, "a rate is compared only where good has one"
    assert ends.bad is not None, "a rate is compared only where bad has one"
    unit = METRICS[trials.metric].unit
    return (
        f"{' and '.join(names)} explain{'s' if one else ''} {number(ends.good.point)} → {number(ends.bad.point)} {unit}"
        f"{others}. Found in {runs}.{_drift(trials)}"
    )


def _drift(trials: Trials) -> str:
    """A warning when runs lie far beyond both ends: no setting did that."""
    assert trials.ends is not None, "both ends were measured"
    shares = [_told(trial, trials).share for trial in trials.done[: trials.told]]
    beyond = [share for share in shares if share is not None and not -_BEYOND <= share <= 1 + _BEYOND]
    if not beyond:
        return ""
    return (
        f" {len(beyond)} of them lie{'s' if len(beyond) == 1 else ''} far beyond both ends: something else changed the "
        "speed of the machine meanwhile, so shares are rough; repeat it when the machine is idle."
    )


def _setting(one: DifferingSetting) -> str:
    return f"{one.name} ({_value(one.good)} → {_value(one.bad)})"


def _value(value: object) -> str:
    return "unset" if value is None else str(value)


def _percent(share: float | None) -> str:
    return "an unknown part" if share is None else f"{100 * share:.0f} %"
