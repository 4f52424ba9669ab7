"""Whether the trainer obeys its settings, by what it does: runs as declared, and runs with one setting changed.

A trainer that ignores a setting, through a misspelled flag or a config file that wins, does the same with another
value. One that reports its effective config says so itself; of any other this is the only proof.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from validator.kinds.base import Found, ImplicitCriterion, PlannedArm, Planner, Seen, Site, TrainingKind, safe_name
from validator.model.arguments import (
    declared_value,
    is_learning_rate,
    must_show_at_first,
    shows_at_first,
    value_in,
    with_value,
)
from validator.model.repeated_phases import SettingsPhase
from validator.model.runbook import Runbook, Setting
from validator.model.settings import accepted_at, args_of, flat_name, has_placeholder, repeats_of, setting_text
from validator.runbook.meaning import check_reaches
from validator.runbook.problems import Problem
from validator.stats.effect import LossContrast, contrast_losses, contrast_times

if TYPE_CHECKING:
    from validator.model.plan import Role, RunSpec
    from validator.model.record import PhaseRecord, RunRecord, ValidationRecord
    from validator.model.result import Series
    from validator.model.verdict import SettingEffect

_CONFIRMED = "confirm"
"""The arm that has the values of the config file in its command."""

_SHOWN_ROWS = 5
_OTHER_MEMORY = 0.02
"""Relative difference from which the largest GPU memory of a run is another."""

_MEMORY = ("gpu_mem_alloc_mib", "gpu_mem_reserved_mib")

_SEED = "set `seed` of the phase, so that runs as declared agree, or the trainer's own seed under its `args`"
_WITH_SEED = "the trainer draws from elsewhere than the seed of the phase: give it one of its own under `args`"

_Answer = tuple[Literal["PASS", "FAIL", "INCONCLUSIVE"], str]


class Settings(TrainingKind[SettingsPhase]):
    """Runs as declared, and between them one for each changed setting."""

    schema = SettingsPhase
    asks_unwritten = (("args.NAME", "env.NAME"), "the trainer obeys each setting of `change`: another value changes it")

    def check(self, phase: SettingsPhase, site: Site) -> Iterator[Problem]:
        """Every setting reaches the run, and its other value is another one."""
        yield from super().check(phase, site)
        for where in ("change", "confirm"):
            for key in getattr(phase, where):
                yield from check_reaches(site.built, site.runbook, phase, site.path(where, key), key)
        trainer = site.runbook.trainer
        if phase.seed is not None and (trainer.container is not None or trainer.launcher == "plain"):
            message = f"seed of {phase.id} is set by Python on this machine, and the trainer is started by another way"
            yield site.problem(message, "remove seed, and give the trainer its own under args", "seed", key=True)
        for key, value in phase.change.items():
            declared = declared_value(key, site.runbook, phase)
            if declared is not None and has_placeholder(declared):
                message = f"{key} is {declared}, which each run of a validation sets"
                yield site.problem(message, "remove it", "change", key, key=True)
            elif setting_text(value) == (declared if declared is not None else _confirmed(key, phase)):
                message = f"change.{key} is {setting_text(value)}, the declared value"
                yield site.problem(message, "write another value", "change", key)

    def asks(self, phase: SettingsPhase, runbook: Runbook) -> bool:
        """A setting can be ignored."""
        return phase.decide_all

    def varied(self, phase: SettingsPhase) -> Iterator[str]:
        """What it changes."""
        yield from phase.change

    def runs(self, phase: SettingsPhase, planner: Planner) -> Iterator[RunSpec]:
        """One as declared, those with something changed, and the others as declared, so that a drift shows."""
        yield _run_with(planner, phase, {}, None)
        for key, value in phase.change.items():
            name = safe_name(f"{key.partition('.')[2]}-{setting_text(value)}")
            yield _run_with(planner, phase, {key: value}, name)
        if phase.confirm:
            yield _run_with(planner, phase, phase.confirm, _CONFIRMED)
        for repeat in range(2, repeats_of(planner.runbook, phase) + 1):
            yield _run_with(planner, phase, {}, None, repeat=repeat)

    def effects(self, phase: SettingsPhase, runs: Sequence[RunRecord]) -> tuple[SettingEffect, ...]:
        """What each changed setting changed, and whether the values of a config file are those that ran."""
        declared = [_RunFacts.of(run) for run in runs if run.spec.role == "measure"]
        found = []
        for key, value in phase.change.items():
            run = _changed_run(key, runs)
            found.append(_effect(key, setting_text(value), phase, declared, None if run is None else _RunFacts.of(run)))
        if phase.confirm:
            run = _changed_run(_CONFIRMED, runs)
            found.append(_confirmation(phase, declared, None if run is None else _RunFacts.of(run)))
        return tuple(found)

    def measured_criteria(self, record: PhaseRecord, validation: ValidationRecord) -> Iterator[ImplicitCriterion]:
        """Each setting is obeyed."""
        phase = record.phase
        assert isinstance(phase, SettingsPhase), phase.kind
        accepted = "config-ignored" in accepted_at(validation.runbook, phase)
        for one in self.effects(phase, record.runs):
            found = _found(one, record.runs)
            decides = one.status == "PASS" or not accepted
            if one.status == "INCONCLUSIVE":  # runs that are missing leave nothing to be undecided about
                decides = phase.decide_all or not _has_runs(one.setting, record.runs)
            text = f"the trainer obeys {one.setting}"
            if one.setting == _CONFIRMED:
                text = "the values of the config file are those that ran"
            yield ImplicitCriterion(
                one.setting,
                text,
                lambda run, found=found: found,  # type: ignore[misc]
                required=lambda runs, decides=decides: decides,  # type: ignore[misc]
                whole=True,
            )


# The runs.


def _run_with(
    planner: Planner, phase: SettingsPhase, settings: Mapping[str, Setting], arm: str | None, *, repeat: int = 1
) -> RunSpec:
    """A run with other values of some settings: in the runbook's `args`, in the command, or in the environment."""
    given = args_of(planner.runbook, phase)
    names = {flat_name(key): key for key in given}
    args: dict[str, Setting] = {}
    command = planner.runbook.trainer.command
    bundled = planner.runbook.trainer.bundled
    for key, value in settings.items():
        family, name = key.split(".", 1)
        if family == "args" and (flat_name(name) in names or bundled):
            args[names.get(flat_name(name), name)] = value
        elif family == "args":
            command = with_value(command, name, setting_text(value))
    env = _seeding(planner.runbook, phase) | {k[4:]: value for k, value in settings.items() if k.startswith("env.")}
    role: Role = "changed" if settings else "measure"
    spec = planner.training(phase, PlannedArm(arm, env, args), repeat=repeat, role=role, command=command)
    return spec.model_copy(update={"settings": dict(settings)})


def _seeding(runbook: Runbook, phase: SettingsPhase) -> dict[str, Setting]:
    """The variables that have a seed set in every Python process of a run."""
    if phase.seed is None:
        return {}
    given = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), **runbook.defaults.env, **phase.env}["PYTHONPATH"]
    places = filter(None, (str(Path(__file__).with_name("seeding")), setting_text(given)))
    return {"PYTHONPATH": os.pathsep.join(places), "VALIDATOR_SEED": phase.seed}


def _confirmed(key: str, phase: SettingsPhase) -> str | None:
    value = phase.confirm.get(key)
    return None if value is None else setting_text(value)


def _started_with(key: str, spec: RunSpec) -> str | None:
    """The value of a setting in the command or the environment of a run."""
    family, name = key.split(".", 1)
    return spec.env.get(name) if family == "env" else value_in(spec.argv, name)


def _changed_run(setting: str, runs: Sequence[RunRecord]) -> RunRecord | None:
    """The run with another value of a setting, or with those of a config file."""
    confirms = setting == _CONFIRMED
    changed = (run for run in runs if run.spec.role == "changed" and (run.spec.arm == _CONFIRMED) == confirms)
    return next((run for run in changed if confirms or setting in run.spec.settings), None)


def _has_runs(setting: str, runs: Sequence[RunRecord]) -> bool:
    """Whether the run with the other value has ended, and two as declared."""
    changed = _changed_run(setting, runs)
    declared = [run for run in runs if run.spec.role == "measure" and run.outcome is not None]
    return changed is not None and changed.outcome is not None and len(declared) > 1


# What they did.


class _RunFacts(NamedTuple):
    """A run of the phase: its losses by step, the learning rates that it prints, its step times and its memory."""

    run: RunRecord
    losses: Mapping[int, float]
    rates: Mapping[int, float]
    times: Sequence[float]
    memory: float | None

    @classmethod
    def of(cls, run: RunRecord) -> _RunFacts:
        """What is known of a run."""
        series: Mapping[str, Series] = {} if run.result is None else run.result.series
        known = next((series[name] for name in _MEMORY if name in series), None)
        memory = max(known.values.tolist(), default=None) if known is not None else None
        return cls(run, _by_step(series.get("loss")), _by_step(series.get("lr")), _step_times(run), memory)

    @property
    def ended_well(self) -> bool:
        """Whether it came to its end."""
        return self.run.outcome is not None and self.run.outcome.ok

    @property
    def refused(self) -> bool:
        """Whether the trainer ended by itself with an error."""
        outcome = self.run.outcome
        return outcome is not None and outcome.reason == "exited" and outcome.rc is not None and outcome.rc > 0


def _by_step(series: Series | None) -> dict[int, float]:
    return {} if series is None else dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def _step_times(run: RunRecord) -> list[float]:
    """Seconds of a step between rows by the validator's own clock, without those of the start."""
    if run.result is None:
        return []
    loss = run.result.series.get("loss")
    arrivals = run.result.evidence.arrivals
    stamps = arrivals.get("" if loss is None else loss.source.path)
    steps, seconds = stamps or max(arrivals.values(), key=lambda one: len(one[0]), default=((), ()))
    rows = list(zip(map(int, steps), map(float, seconds), strict=True))[1:]
    return [(t - s) / (b - a) for (a, s), (b, t) in pairwise(rows) if b > a]


def _effect(
    key: str, tried: str, phase: SettingsPhase, declared: Sequence[_RunFacts], changed: _RunFacts | None
) -> SettingEffect:
    """What another value of one setting changed."""
    given = _started_with(key, declared[0].run.spec) if declared else None
    value = _confirmed(key, phase) if given is None else given
    found = _without_comparison(declared, changed)
    contrast = None
    if found is None and changed is not None:
        contrast = contrast_losses([one.losses for one in declared], changed.losses, after_update=is_learning_rate(key))
        name = key.partition(".")[2]
        far = _is_far(value, tried)
        found = _answer(key, contrast, declared, changed, far=far, seeded=phase.seed is not None)
        if found[0] == "INCONCLUSIVE" and changed.refused:
            found = _refusal(name, tried, value, changed, in_command=given is not None)
    assert found is not None, "each run that is there has an answer"
    status, why = found
    return _recorded(key, value, tried, status, why, contrast, declared, changed)


def _is_far(one: str | None, other: str) -> bool:
    """Whether two numbers differ by a factor of two or more."""
    try:
        low, high = sorted((float(one or "nan"), float(other)))
    except ValueError:
        return False
    return 0 < 2 * low <= high


def _recorded(
    key: str,
    value: str | None,
    tried: str,
    status: Literal["PASS", "FAIL", "INCONCLUSIVE"],
    why: str,
    contrast: LossContrast | None,
    declared: Sequence[_RunFacts],
    changed: _RunFacts | None,
) -> SettingEffect:
    from validator.model.verdict import SettingEffect  # which `check` does without

    steps = contrast.steps[:_SHOWN_ROWS] if contrast is not None else ()
    return SettingEffect(
        setting=key,
        declared=value,
        tried=tried,
        status=status,
        message=why,
        steps=steps,
        declared_losses=tuple(declared[0].losses[step] for step in steps) if declared else (),
        tried_losses=tuple(changed.losses[step] for step in steps) if changed is not None else (),
    )


def _without_comparison(declared: Sequence[_RunFacts], changed: _RunFacts | None) -> _Answer | None:
    """Why there is nothing to compare; None where there is."""
    if changed is None or changed.run.outcome is None:
        return "INCONCLUSIVE", "No run with the changed value has ended."
    bad = next((one.run.spec.id for one in declared if not one.ended_well), None)
    if bad is not None or len(declared) < 2:
        return "INCONCLUSIVE", f"Two runs as declared are needed, and {bad or 'a second'} did not come to its end."
    return None


def _answer(
    key: str,
    contrast: LossContrast,
    declared: Sequence[_RunFacts],
    changed: _RunFacts,
    *,
    far: bool,
    seeded: bool,
) -> _Answer:
    """Whether a setting is obeyed: by losses first, then by printed learning rates, memory and step times.

    Args:
        far: whether the values are so far apart that any print of a learning rate shows it.
        seeded: whether the phase sets a seed.
    """
    if contrast.outcome == "different":
        return "PASS", f"Obeyed: {contrast.why}."
    rates = _printed_rates(declared, changed) if is_learning_rate(key) and shows_at_first(key) and far else None
    if rates == "same":
        return "FAIL", f"Ignored: the trainer prints the same learning rate at every step, and {contrast.why}."
    memory = _other_memory(declared, changed)
    if contrast.outcome == "same":
        must = must_show_at_first(key, declared[0].run.spec.argv)
        return _unchanged(contrast, rates, memory, must=must)
    other = memory or contrast_times([one.times for one in declared], changed.times)
    if other is not None and changed.ended_well:
        return "PASS", f"Obeyed: {other}. By the losses it is open: {contrast.why}."
    advice = "run more steps, or try a value further away"
    if not contrast.repeatable:
        advice = _WITH_SEED if seeded else _SEED
    elif contrast.others:
        advice = "let it print every step (a bar of tqdm, which is drawn by time: mininterval=0, miniters=1)"
    prints = " The trainer prints another learning rate, which its optimizer need not use." if rates == "other" else ""
    return "INCONCLUSIVE", f"Not decided: {contrast.why}; {advice}.{prints}"


def _unchanged(contrast: LossContrast, rates: str | None, memory: str | None, *, must: bool) -> _Answer:
    """What follows from losses that are the same. `must` says that the setting has an effect on them."""
    if memory is not None:
        return "INCONCLUSIVE", f"Not decided: {contrast.why}, though {memory}; try a value further away."
    if rates == "other":
        why = f"the trainer prints another learning rate, yet {contrast.why}: its optimizer may not use it"
        return "INCONCLUSIVE", f"Not decided: {why}; run more steps."
    if must:
        return "FAIL", f"Ignored: {contrast.why}, with this value as with the declared one."
    why = f"{contrast.why}, which may be right for this setting; leave it out of `change`, or try a value further away"
    return "INCONCLUSIVE", f"Not decided: {why}."


def _printed_rates(declared: Sequence[_RunFacts], changed: _RunFacts) -> Literal["same", "other"] | None:
    """Whether the printed learning rates, where there are any above 0, are those as declared."""
    ours = declared[0].rates
    steps = sorted(ours.keys() & changed.rates.keys())
    if len(steps) < 3 or any(one.rates != ours for one in declared) or min(ours[step] for step in steps) <= 0:
        return None
    return "same" if all(ours[step] == changed.rates[step] for step in steps) else "other"


def _other_memory(declared: Sequence[_RunFacts], changed: _RunFacts) -> str | None:
    """That the GPU memory is clearly another, as a clause, where runs as declared agree in it."""
    known = [one.memory for one in declared if one.memory]
    if len(known) < len(declared) or not changed.memory:
        return None
    low, high = min(known), max(known)
    margin = _OTHER_MEMORY * high + 3 * (high - low)
    if low - margin <= changed.memory <= high + margin:
        return None
    return f"it uses {changed.memory:,.0f} MiB of GPU memory, and {high:,.0f} MiB as declared"


def _refusal(name: str, tried: str, value: str | None, changed: _RunFacts, *, in_command: bool) -> _Answer:
    """What it says that the trainer does not train with the value: that it reads it, where its last lines name it."""
    result = changed.run.result
    tail = [] if result is None else [line for line in result.log_tail if line.strip()]
    last = tail[-1].strip() if tail else "its log is empty"
    named = _is_named(name, tried, tail)
    if in_command and named:
        return "PASS", f"Obeyed: the trainer refuses {tried}, with which it ends in: {last[:200]}"
    what = "is refused" if in_command else f"cannot be given as {name} on the command line"
    return "INCONCLUSIVE", f"Not decided: {tried} {what} ({last[:200]}); try a value that it can train with."


_ERROR = re.compile(r"\b\w*(?:Error|Exception)\b|\berror:")
_SOURCE_LINES = 2
"""Lines above an error that may quote what failed: `assert dim % heads == 0`, and the marks below it."""


def _is_named(name: str, tried: str, lines: Sequence[str]) -> bool:
    """Whether an error names the setting or the value; what a trainer prints of its settings before it does not count.

    A number of one digit is in many an error.
    """
    last = flat_name(name).rpartition(".")[2]
    words = "|".join(map(re.escape, {name, last, last.replace("_", "-")}))
    number = rf"|(?<![\w.]){re.escape(tried)}(?!\w|\.\d)" if len(tried) > 1 else ""
    named = re.compile(rf"(?<!\w)(?<!\w-)(?:{words})(?!\w){number}")
    places = [number for number, line in enumerate(lines) if _ERROR.search(line)]
    return any(named.search(line) for at in places for line in lines[max(0, at - _SOURCE_LINES) : at + 1])


def _confirmation(phase: SettingsPhase, declared: Sequence[_RunFacts], run: _RunFacts | None) -> SettingEffect:
    """Whether a run with the config file's values in its command does the same as those as declared."""
    shown = ", ".join(f"{key.partition('.')[2]}={setting_text(value)}" for key, value in phase.confirm.items())
    found, contrast = _without_comparison(declared, run), None
    if found is None and run is not None:
        contrast = contrast_losses([one.losses for one in declared], run.losses)
        if contrast.outcome == "different":
            found = "FAIL", f"These are not the values that ran: with them in the command {contrast.why}."
        elif contrast.outcome == "same":
            found = "PASS", f"They are the values that ran: with them in the command {contrast.why}."
        elif contrast.repeatable:
            found = "INCONCLUSIVE", f"Not decided: {contrast.why}; run more steps."
        else:
            found = "INCONCLUSIVE", f"Not decided: {contrast.why}; set `seed` of the phase, or remove `confirm`."
    assert found is not None, "a run that is there has an answer"
    return _recorded(_CONFIRMED, None, shown, *found, contrast, declared, run)


def _found(one: SettingEffect, runs: Sequence[RunRecord]) -> Found:
    """The verdict on a setting."""
    value = f" in place of {one.declared}" if one.declared is not None else ""
    why = f"With {one.tried}{value}: {one.message[0].lower()}{one.message[1:]}"
    return Found(one.status, why, _shown(one.tried_losses), _shown(one.declared_losses), _places(one, runs))


def _shown(losses: Sequence[float]) -> str | None:
    return ", ".join(f"{value:.6g}" for value in losses[:3]) + (", …" if len(losses) > 3 else "") if losses else None


def _places(one: SettingEffect, runs: Sequence[RunRecord]) -> tuple[Seen, ...]:
    """Where both losses can be read."""
    places = []
    for run in runs:
        loss = None if run.result is None else run.result.series.get("loss")
        mine = run.spec.role == "measure" or one.setting in run.spec.settings or run.spec.arm == one.setting
        if loss is not None and mine:
            known = _by_step(loss)
            shown = _shown([known[step] for step in one.steps if step in known])
            places.append(Seen(f"{run.spec.id}: loss {shown or 'not known'}", loss.source.path))
    return tuple(places)
