"""The runbook that is written: its lengths, its criteria with bounds still open, and its text with comments."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validator.init.command import nproc_key, trainer_keys
from validator.init.effects import MOST_ROWS, SHORT_ROWS, settings_to_try
from validator.init.watched import ENOUGH_STEPS, WatchedCommand
from validator.model.arguments import settings_in, stated_tokens
from validator.model.metrics import TrainerMetrics
from validator.model.resolve import series_of
from validator.stats.effect import rows_needed
from validator.text import format_number

DOCS = "docs/own-trainer.md"

_WIDTH = 116
_BASELINE_S = 120.0
_SOAK_S = 900.0
_MIN_ROWS = 30
_MIN_TIMEOUT_S = 600.0
_WARMUP = 20
_UNKNOWN_STEPS = 300
"""Steps of a baseline where the time of a step is not known."""

LEARNS = "loss.last < loss.first"
"""What is asked of a loss of which nothing else is known."""

_SKELETON = "step {step} .*loss {loss}"
"""A pattern to start from, where nothing was recognized."""

OPEN_STEPS = "steps_open: true    # nothing says how many steps the trainer does by itself"
"""A line of a phase."""

_PLAIN = re.compile(r"[A-Za-z0-9_./=+@~^-]+")  # what needs no quotes in YAML, unless it reads as a number or a word
_READS_AS_OTHER = re.compile(r"(?i)[-+]?\.?\d[\da-fox._+:-]*|true|false|null|yes|no|on|off|~|-|=|\.nan|[-+]?\.inf")


@dataclass(frozen=True)
class Lengths:
    """Steps of the phases, and what follows from the time of a step."""

    baseline: int
    warmup: int
    soak: int | None
    timeout_s: float


def lengths_of(watched: WatchedCommand, *, steps: int | None = None) -> Lengths:
    """About two minutes for the baseline and a quarter of an hour for the soak, within the command's own length.

    Args:
        steps: those of the baseline, where the user says it.
    """
    length = watched.command.length
    own = watched.total if length is None else length.count
    step_s = watched.step_s
    stride = 1 if watched.reading is None else watched.reading.stride
    least = max(ENOUGH_STEPS, _MIN_ROWS * stride)
    wanted = steps or max(least, two_digits(_UNKNOWN_STEPS if not step_s else _BASELINE_S / step_s))
    own = min(filter(None, (own, watched.most)), default=None)
    if own is not None and steps is None:
        wanted = min(wanted, own)
    soak = soak_steps(wanted, step_s)
    soak_fits = soak if own is None else min(soak, own)
    longest = max(wanted, soak_fits) * (step_s or 0.0)
    return Lengths(
        baseline=wanted,
        warmup=min(max(_WARMUP, 2 * stride if stride > 1 else 0), wanted // 4),
        soak=soak_fits if soak_fits > wanted else None,
        timeout_s=max(_MIN_TIMEOUT_S, timeout_minutes(longest) * 60.0),
    )


def timeout_minutes(expected_s: float) -> int:
    """Minutes that a run of so many seconds may take: a timeout ends what hangs and judges no rate."""
    return math.ceil((3 * expected_s + 300) / 60)


def soak_steps(baseline: int, step_s: float | None) -> int:
    """Steps of a soak: a quarter of an hour, and at least twice the baseline."""
    return max(2 * baseline, two_digits(_SOAK_S / step_s if step_s else 10 * baseline))


def two_digits(value: float, *, up: bool = False) -> int:
    """Steps of two significant digits, no more than `value`, or no less."""
    scale = 10 ** max(0, math.floor(math.log10(max(value, 1.0))) - 1)
    return max(1, int((math.ceil if up else math.floor)(value / scale) * scale))


def draft(
    watched: WatchedCommand,
    *,
    name: str,
    base: Path,
    steps: int | None = None,
    soak: bool = True,
) -> str:
    """The text of the runbook. Where nothing says how many steps the trainer does by itself, its steps are a guess.

    Args:
        name: its name.
        base: the folder that it will be in; paths are relative to it.
        steps: those of the baseline; by default about two minutes of them.
        soak: whether it has a long run as well.
    """
    lengths = lengths_of(watched, steps=steps)
    steps_open = steps is None and not watched.length_known
    parts = [
        *_head(watched),
        "schema: 1",
        f"name: {name}",
        *([f"hardware: {{gpus: {watched.gpus}}}"] if watched.gpus else []),
        "",
        *_trainer(watched, base=base, steps=lengths.baseline),
        "",
        *_defaults(watched, lengths),
        "",
        "phases:",
        *_settings(watched),
        *_baseline(watched, lengths, steps_open=steps_open),
    ]
    if soak and lengths.soak is not None:
        parts += ["", *soak_lines(watched_series(watched), steps=lengths.soak, steps_open=steps_open)]
    return "\n".join(parts) + "\n"


def watched_series(watched: WatchedCommand) -> frozenset[str]:
    """Names of the series that a runbook may ask of a run: what was seen, as far as the way it is read is known to give
    it, and the time of a step by the arrival of its lines."""
    if watched.reading is None:
        return frozenset()
    known = {*series_of(TrainerMetrics.model_validate(watched.reading.metrics)), "samples_per_s"}  # which is declared
    names = frozenset(known.intersection(watched.reading.result.series))
    return names if rate_of(names) or not watched.reading.rows else names | {"step_time_s"}


def _head(watched: WatchedCommand) -> Iterator[str]:
    reading = watched.reading
    yield f"# Written by validator, which watched this command for {watched.seconds:.0f} s:"
    yield from _comment(watched.command.shown, indent="#   ")
    if reading is None:
        yield from _comment(
            "Nothing that it writes was recognized: replace the pattern below by one for its lines, or by "
            f"csv: FILE ({DOCS}). Until then every run ends INCONCLUSIVE."
        )
    else:
        names = ", ".join(reading.series)
        yield from _comment(f"It reads {reading.source}: {names}.")
    for note in watched.notes():
        yield from _comment(f"{note[0].upper()}{note[1:]}.")


def _comment(text: str, *, indent: str = "# ") -> list[str]:
    return textwrap.wrap(
        text,
        width=_WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _trainer(watched: WatchedCommand, *, base: Path, steps: int) -> Iterator[str]:
    command = watched.command
    yield "trainer:"
    for setting in command.ours:
        was = "is added" if setting.value is None else f"was {setting.value}"
        if "{" in setting.written:
            yield f"  # {setting.written}: it {was}"
    for key, value in trainer_keys(command, base=base).items():
        yield from _key(key, value)
    if watched.limit is not None and steps <= watched.limit:
        yield f"  max_steps: {watched.limit}    # it came to its own end there, or says so; no phase may have more"
    metrics = {"stdout": _SKELETON} if watched.reading is None else _metrics(watched)
    yield "  metrics:"
    for key, value in metrics.items():
        yield f"    {key}: {yaml_text(value)}"
    if watched.reading is not None and not watched.reading.has_loss:
        seen = "one is not read, see above" if watched.unread else "none was seen"
        yield f"    no_loss: true    # {seen}; remove this where the trainer reports one, or NaN is unseen"
    ranks = max(1, command.nproc)
    yield tokens_line(settings_in(command.words), ranks=ranks, printed="toks_per_s" in watched_series(watched))


def tokens_line(settings: Mapping[str, str], *, ranks: int, printed: bool) -> str:
    """The comment that asks for the tokens of a step, with what a batch and a length among the settings make.

    Args:
        settings: those of the command, by name.
        ranks: of the run.
        printed: whether the trainer prints a rate, which the number then confirms.
    """
    stated = stated_tokens(settings, ranks=ranks)
    use = "then the printed rate is checked too" if printed else "then tokens per second are known too"
    guess = "" if stated is None else f"; a guess: {stated.text}"
    return (
        f"  # tokens_per_step: {12288 if stated is None else stated.tokens}     # of all ranks together; {use}{guess}"
    )


def _metrics(watched: WatchedCommand) -> dict[str, Any]:
    assert watched.reading is not None
    metrics = dict(watched.reading.metrics)
    if len(metrics.get("reader", ())) == 1:
        metrics["reader"] = metrics["reader"][0]
    if rate_of(watched_series(watched)) == "samples_per_s":
        metrics["extra"] = {
            "samples_per_s": {"unit": "samples/s", "better": "higher", "window": "steady", "headline": True}
        }
    return metrics


def _defaults(watched: WatchedCommand, lengths: Lengths) -> Iterator[str]:
    yield "defaults:"
    yield f"  nproc: {nproc_key(watched.command)}"
    yield f"  timeout: {round(lengths.timeout_s / 60)}m"
    yield f"  warmup_steps: {lengths.warmup}    # the first steps, which compile and fill caches, count for no rate"
    if watched.command.launch.env:
        yield f"  env: {yaml_text(dict(watched.command.launch.env))}"


def _settings(watched: WatchedCommand) -> Iterator[str]:
    """The phase that tries settings by their effect, where the trainer does not report its config."""
    found = settings_to_try(watched)
    if not found.change:
        return
    runs = len(found.change) + (3 if found.confirm else 2)
    stride = 1 if watched.reading is None else watched.reading.stride
    yield "  - id: settings"
    yield "    kind: settings"
    yield "    why: Whether the trainer obeys its settings, which it does not report, by what other values change."
    losses = None if watched.reading is None else watched.reading.series.get("loss")
    rows = SHORT_ROWS if losses is None else rows_needed(losses.values.tolist(), SHORT_ROWS, MOST_ROWS)
    # Of 60 steps that are logged at 0, 10, …, 50 the last nine are not known; of 61 all are.
    behind = stride > 1 and watched.reading is not None and watched.reading.first_step == 0
    steps, step_s = rows * stride + behind, watched.step_s or 0.0
    done = (watched.reading.last_step or 0) if watched.reading is not None else 0
    run_s = max(0.0, watched.seconds - done * step_s) + steps * step_s
    yield f"    steps: {steps}    # {runs} runs, about {_duration(runs * run_s)} with their starts"
    yield "    # What they do not decide, as without a seed, is reported and forbids no GO; what is ignored does."
    yield "    decide_all: false"
    if found.seed is not None:
        yield f"    args: {{{found.seed}: 1}}    # here alone, so that runs as declared agree"
    elif not found.seeded and watched.command.launch.launcher != "plain":
        yield "    seed: 1    # here alone, so that runs as declared agree though the command gives no seed"
    yield "    change:"
    yield from (f"      {yaml_text(one.key)}: {yaml_text(one.value)}    # {one.why}" for one in found.change)
    if found.left:
        yield from _comment(f"Not tried, to keep it short: {', '.join(found.left)}.", indent="      # ")
    if found.confirm:
        yield "    confirm:    # the values of the config file, in the command: a run must do the same with them"
        yield from (f"      {yaml_text(key)}: {yaml_text(value)}" for key, value in found.confirm.items())
    yield ""


def _baseline(watched: WatchedCommand, lengths: Lengths, *, steps_open: bool) -> Iterator[str]:
    series = watched_series(watched)
    about = f"  # about {_duration(lengths.baseline * watched.step_s)}" if watched.step_s else ""
    yield "  - id: baseline"
    yield "    kind: train"
    yield "    why: How fast it is, how steady, and whether it learns."
    yield f"    steps: {lengths.baseline}  {about}".rstrip()
    if steps_open:
        yield f"    {OPEN_STEPS}"
    yield "    accept:"
    if "loss" in series or not series:
        yield f"      - {LEARNS}"
    yield "      # A bound of ? is still open, and with one there is no GO. Write a number, or let a run fill it in:"
    yield "      # validator baseline reports/RUN --edit FILE --allow-not-go"
    yield from (f"      - {expr}" for expr in _open_bounds(watched))


def rate_of(series: frozenset[str]) -> str | None:
    """The series that shows best how fast the trainer is."""
    return next((name for name in ("toks_per_s", "step_time_s", "samples_per_s") if name in series), None)


def _open_bounds(watched: WatchedCommand) -> Iterator[str]:
    series = watched_series(watched)
    seen = f"    # about {format_number(watched.step_s)} s while it was watched" if watched.step_s else ""
    by_name = {
        "toks_per_s": "toks_per_s.mean >= ? tok/s",
        "step_time_s": f"step_time_s.mean <= ? s{seen}",
        "samples_per_s": "samples_per_s.mean >= ? samples/s",
    }
    rate = rate_of(series)
    yield by_name[rate] if rate is not None else "loss.last <= ? nat"
    memory = next((name for name in ("gpu_mem_reserved_mib", "gpu_mem_alloc_mib") if name in series), None)
    if watched.gpus and memory is not None:
        yield f"{memory}.max <= ? MiB"
    elif "host_mem_mib" in series:
        yield "host_mem_mib.max <= ? MiB"


def soak_lines(
    series: frozenset[str],
    *,
    steps: int,
    minutes: int | None = None,
    learns: str = LEARNS,
    steps_open: bool = False,
) -> Iterator[str]:
    """The phase that is long: what holds in the baseline must last.

    Args:
        series: names of what a run reports.
        steps: its length; a guess where `steps_open`.
        minutes: its timeout, where it has its own.
        learns: what is asked of the loss.
    """
    yield "  - id: soak"
    yield "    kind: soak"
    yield "    needs: [baseline]"
    yield "    why: The rate, the memory and the loss must last."
    yield f"    steps: {steps}"
    if steps_open:
        yield f"    {OPEN_STEPS}"
    if minutes is not None:
        yield f"    timeout: {minutes}m"
    yield "    accept:"
    if "loss" in series or not series:
        yield f"      - {learns}"
    if "toks_per_s" in series:
        yield "      - toks_per_s.mean >= 0.9 * baseline.toks_per_s.mean"
    elif "step_time_s" in series:
        yield "      - step_time_s.mean <= 1.1 * baseline.step_time_s.mean"
    if series & {"gpu_mem_alloc_mib", "gpu_mem_reserved_mib", "host_mem_mib"}:
        yield "      - {expr: memory.growth_mib_per_1k_steps <= 50 MiB, why: memory that grows ends the long run}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


# YAML, written so that a person reads it well.


def _key(key: str, value: Any) -> Iterator[str]:
    line = f"  {key}: {yaml_text(value)}"
    if len(line) <= _WIDTH or not isinstance(value, list):
        yield line
        return
    yield f"  {key}:"
    for part in value:
        yield f"    - {yaml_text(part)}"


def yaml_text(value: Any) -> str:
    """A value on one line: plain where it may be, else in quotes."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{yaml_text(key)}: {yaml_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(yaml_text, value)) + "]"
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and not _READS_AS_OTHER.fullmatch(value) and value[0] not in "@=~^":
        return value
    if value.isprintable() and ("\\" in value or '"' in value):
        return "'" + value.replace("'", "''") + "'"
    return json.dumps(value, ensure_ascii=not value.isprintable())
