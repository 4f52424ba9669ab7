"""What cannot be judged, since the evidence for it was never written."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnose.rule import WORKLOAD, Diagnosis, RunFacts, ValidationFacts, evidence, rule
from validator.diagnose.settings import stated_unclearly
from validator.judge.config import obeyed_text, unreported
from validator.judge.data import by_own_word
from validator.model.arguments import is_seed, may_show_at_first, settings_in, stated_tokens
from validator.model.catalogue import METRICS
from validator.model.logged_names import is_reward
from validator.model.loss_parts import is_opposed
from validator.model.settings import flat_name
from validator.stats.clock import FITS, OWN_WORD
from validator.stats.means import fell
from validator.text import listed, plural

_FALLING_ROWS = 20
"""Rows of a series from which it may be taken for a loss because it falls."""

_NAMED = 6
"""Settings that a sentence names; those that the first losses show come first."""


@rule("config-unknown", "info", of="run")
def config_unknown(run: RunFacts) -> Iterator[Diagnosis]:
    """The trainer does not report its effective config, or not all of it."""
    if run.training and run.effective:
        yield from _unreported_workload(run)
    if not run.training or run.effective or (run.spec.phase == "inspect" and not run.result.series):
        return
    if run.steps_done is None:
        return
    printed = {one.name for one in run.evidence.stated} - stated_unclearly(run)
    left = [key for key in run.undecided if flat_name(key).rpartition(".")[2].lower() not in printed]
    named = listed(left, most=_NAMED)
    unknown = f"so whether the settings were obeyed is not known{f': {named}' if named else ''}"
    if run.obeyed:
        unknown = f"but {obeyed_text(run.obeyed)}; whether it obeys {named or 'the others'} is not known"
    config = run.evidence.printed_config
    listed_only = (
        f" It lists {plural(len(config), 'setting')} before its first step: what it was given." if config else ""
    )
    to_show = listed([key for key in left if may_show_at_first(key) and not is_seed(key)], most=_NAMED) or "settings"
    yield Diagnosis(
        f"The trainer does not write its effective config, {unknown}.{listed_only}",
        because=[evidence("no `effective` in the trainer's environment file")],
        next_step="Let the trainer write env.json with `requested` and `effective` (docs/trainer-contract.md) and "
        f"name it in trainer.metrics.env; or let a phase of kind settings show by effect that it obeys {to_show} "
        "(docs/settings.md).",
    )


def _unreported_workload(run: RunFacts) -> Iterator[Diagnosis]:
    """Settings that decide how much work a step is, and that a trainer which reports others does not report."""
    silent = [name for name in unreported(run.record) if name in WORKLOAD]
    if silent:
        yield Diagnosis(
            f"The trainer was given {', '.join(silent)} and does not report the effective value.",
            because=[evidence(f"no effective.{name}", run.config_path) for name in silent[:4]],
            next_step="Let the trainer write the same keys under `requested` and `effective`; a flag that it does not "
            "know should be an error.",
        )


@rule("not-judged", "info", of="run")
def not_judged(run: RunFacts) -> Iterator[Diagnosis]:
    """What cannot be judged, since the trainer does not write what is needed; reported once for all runs."""
    if not run.training or run.failed or not run.result.series:
        return
    timed = [rank for rank, own in run.result.rank_series.items() if "compute_time_s" in own]
    parts = list(filter(is_opposed, run.result.series))
    missing = [
        text
        for text, lacks in (
            ("stragglers: fewer than two ranks report compute_time_s", run.world_size > 1 and len(timed) < 2),
            ("NaN, divergence and zero losses: no loss", run.series("loss") is None and not parts),
            (f"a fall of {listed(parts)}: opposed losses need have none", run.series("loss") is None and parts),
            ("steadiness and pauses: no rate and no time per step", run.times is None and run.timed),
        )
        if lacks
    ]
    if missing:
        falling = [] if parts or run.series("loss") is not None else _that_fall(run)
        named = f" One of these falls as a loss does: {listed(falling)}; trainer.metrics.names says so (loss: ITS KEY)."
        yield Diagnosis(
            f"Not judged, since the trainer does not write it: {'; '.join(missing)}.",
            because=[evidence(text) for text in missing],
            next_step="Let the trainer write these fields (docs/own-trainer.md) where the answer matters."
            + (named if falling else ""),
        )


def _that_fall(run: RunFacts) -> list[str]:
    """Series of the trainer's own names that fall, as a loss does: up to three."""
    own = (one for name, one in run.result.series.items() if name not in METRICS and not name.startswith("telemetry."))
    falls = (one.name for one in own if len(one.values) >= _FALLING_ROWS and fell(one.values.tolist()))
    return [name for name in falls if not is_reward(name)][:3]


@rule("clock-unverified", "info", of="validation")
def clock_unverified(whole: ValidationFacts) -> Iterator[Diagnosis]:
    """No run has arrival stamps, so the times that the trainer reports were compared with no clock but its own."""
    timed = [run for run in whole.runs if run.outcome is not None and run.result.series]
    if not timed or any(run.evidence.arrivals for run in timed):
        return
    yield Diagnosis(
        "The rows have no arrival stamps, so rates and times per step rest on the trainer's own clock.",
        because=[evidence(f"no arrivals.jsonl in the folder of {timed[0].spec.id}", None, timed[0].spec.id)],
        next_step="None for a folder of an earlier version; `validator run` stamps every row on arrival.",
    )


@rule("clock-unverified", "warning", of="run")
def level_unverified(run: RunFacts) -> Iterator[Diagnosis]:
    """A trainer prints tokens per second and nothing says how many tokens a step has: its level was compared with
    nothing. By the arrival of its lines only changes of it are seen."""
    word = by_own_word(run.record) if run.timed else None
    if word is None:
        return
    given = {**settings_in(run.spec.argv), **run.requested}
    stated = stated_tokens(given, ranks=run.world_size) or stated_tokens(
        run.evidence.printed_config, ranks=run.world_size
    )
    beyond = stated is not None and stated.exact and word.usual > FITS[1] * stated.tokens
    meant = f"{word.usual:,.0f} tokens a step"
    said = "At the pace at which its lines arrive"
    if word.changes:
        said = f"{said} it means {meant} in most of the run and {word.tokens:,.0f} in its best part, which counts"
    else:
        said = f"{said} it means {meant}"
    if stated is not None:
        said = f"{said}; {stated.text} {'are' if stated.exact else 'may be'} {stated.tokens:,}"
    fix = "Set trainer.tokens_per_step to the tokens of a step of all ranks"
    yield Diagnosis(
        f"{OWN_WORD.replace('The level', 'The level of toks_per_s')} {said}. If a step has fewer, the trainer's timer "
        "leaves out time, and the rate is lower than it says by that factor.",
        severity="warning" if beyond or word.changes else "info",
        confidence="medium" if beyond or word.changes else "high",
        because=[evidence(f"toks_per_s means {meant}", run.source("toks_per_s"))],
        next_step=f"{fix}: {stated.tokens}, if {stated.text} is right." if stated is not None else f"{fix}.",
    )
