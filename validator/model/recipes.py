"""Print formats that many trainers have: for the readers that a runbook names, and for logs without a pattern."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from validator.model.columns import series_name
from validator.model.pattern import line_pattern

_WANTED = frozenset(
    {"loss", "grad_norm", "toks_per_s", "toks_per_s_per_rank", "step_time_s", "samples_per_s", "elapsed_s", "timestamp"}
)
"""Series of which a row holds at least one besides its number."""

_ENOUGH = 400
"""Rows of one format after which no further line is looked at."""

_FEWEST = 2
_GENERAL = 3
"""The last formats, which go by words that many lines hold; they are tried where no other one fits."""


class Recipe(NamedTuple):
    """A known print format. `words` are texts of which every line holds at least one, in lower case."""

    name: str
    words: tuple[str, ...]
    pattern: str
    about: str = ""


def _json_text(keys: str, group: str) -> str:
    return rf"""(?=(?:.*?["'](?:{keys})["']: ?"?{{{group}}})?)"""


_JSON_VALUES = "".join(
    _json_text(keys, group)
    for keys, group in (
        ("loss|train_loss|total_loss|step_loss|reduced_train_loss", "loss"),
        ("grad_norm|gradient_norm", "grad_norm"),
        ("lr|learning_rate", "lr"),
        ("tokens_per_sec|tokens_per_second|tok_per_s|toks_per_s|tps", "toks_per_s"),
        ("elapsed|elapsed_time|time_elapsed|total_time|runtime", "elapsed_s"),
        ("dt|step_time|step_time_s|iter_time|iteration_time|iter_dt|train_step_timing|step_s|dt_s", "step_time_s"),
        ("dt_ms|step_ms|step_time_ms|iter_ms|iter_time_ms|ms_per_step", "step_time_ms"),
        ("time", "any_time"),
        ("time_ms", "any_time_ms"),
        ("timestamp|_timestamp|ts", "timestamp"),
        ("seq/s|samples_per_second|samples_per_sec", "samples_per_s"),
    )
)

_RATE = r"(?:tok(?:en)?s?/s(?:ec)?|tokens[ _]per[ _]sec(?:ond)?|tps)"
_A_STEP = r"(?: ?/ ?| per )(?:step|it|iter|iteration|batch)\b"
_UNITS = (
    ("step_time_ms", rf"ms{_A_STEP}"),
    ("step_time_s", rf"s(?:ec(?:ond)?s?)?{_A_STEP}"),
    ("steps_per_s", r"(?:it(?:er(?:ation)?)?|step|batch)(?:e?s)?(?:/| per )s(?:ec(?:ond)?)?\b"),
)
"""Units that say that a number is the time of a step, by the group that has it."""


def _per(group: str, unit: str) -> str:
    """A number before its unit, `21 ms/step`, or behind it, `ms/step: 21`. Between two numbers, as in `loss 2.3 ms/step
    21`, the unit belongs to neither, unless a sign or the lack of a label says to which."""
    number = f"{{{group}}}"
    before = rf"(?<![\w.,])(?:(?<![A-Za-z] ){number} ?{unit}|{number} ?{unit}(?!\s+[\d.]))(?![\"']?\s*[:=]\s*[\d.])"
    behind = rf"(?<![a-z])(?:{unit}[\"']?\s*[:=]\s*|(?<![\d.] )(?<![\d.]){unit}\s+){number}"
    return f"(?:{before}|.*?{behind})"


_GENERIC = "".join(
    rf"(?=(?:.*?{one})?)"
    for one in (
        r"(?<![a-z_])(?:train(?:ing)?[ _/]?|lm |total_)?loss\b[\"']?\s*[:=]?\s*{loss}",
        r"(?<![a-z])(?:grad(?:ient)?[_ ]?norm|gnorm|norm)\b[\"']?\s*[:=]?\s*{grad_norm}",
        r"(?<![a-z])(?:lr|learning[ _]rate)\b[\"']?\s*[:=]?\s*{lr}",
        rf"(?:{_RATE}[\"']?\s*[:=]\s*{{toks_per_s}}|.*?(?<![\w.,]){{toks_per_s}} ?{_RATE}(?!\s+[\d.])"
        rf"|.*?{_RATE}\s+{{toks_per_s}}(?![\d.]|\s*(?:%|[a-zA-Z])))",
        r"(?<![a-z])(?:dt|time|step_time|iter_time|time/step)(?:_ms|\(ms\))?[\"']?\s*[:= ]\s*{step_time_ms} ?ms",
        r"(?<![a-z])dt_ms[\"']?\s*[:= ]\s*{step_time_ms}",
        r"(?<![a-z])(?:dt|step_time|iter_time|time/step)[\"']?\s*[:= ]\s*{step_time_s} ?s(?![a-z])",
        *(_per(group, unit) for group, unit in _UNITS),
    )
)

RECIPES: tuple[Recipe, ...] = (
    Recipe(
        "llm.c",
        (" tok/s",),
        r"step +{step}/{steps_total} \| (?:train )?loss +{loss} .*?norm +{grad_norm} .*?lr +{lr} \| +{step_time_ms} ms"
        r"(?:.*? {smoothed_toks_per_s} tok/s)?",
        "`ms` is the step's own time; `tok/s` is a running average and no rate",
    ),
    Recipe("llm.c main.log", ("trl:",), r"^s:{step} trl:{loss}", "no time is printed"),
    Recipe("nanoGPT", ("iter ",), r"iter {step}: loss {loss}, time {own_step_time_ms}ms"),
    Recipe("nanoGPT evaluation", ("val loss",), r"^step {step}: train loss [^ ,]+, val loss {val_loss}"),
    Recipe("minGPT", ("iter_dt",), r"iter_dt {own_step_time_ms}ms; iter {step}: train loss {loss}"),
    Recipe(
        "modded-nanogpt",
        ("train_time:", " t:"),
        r"^step:{step}/{steps_total}(?= )(?=(?:.*? (?:train_loss|loss):{loss})?)(?=(?:.*? val_loss:{val_loss})?)"
        r".*? (?:train_time|t):{elapsed_ms}ms",
        "`train_time` runs over the whole training and stands still during validation",
    ),
    Recipe(
        "parameter-golf",
        ("train_time: ",),
        r"^{step}/{steps_total} train_loss: {loss} train_time: {elapsed_min}m",
        "`train_time` runs over the whole training; `tok/s` is a mean since the start and is not used",
    ),
    Recipe(
        "nanochat",
        ("tok/sec:",),
        r"^step {step}(?:/{steps_total})? \([\d.]+%\) \| loss: {loss} .*?dt: {step_time_ms}ms \| tok/sec: {toks_per_s}",
    ),
    Recipe("nanochat SFT", ("training loss:",), r"^Step {step}/{steps_total} \| Training loss: {loss}", "no time"),
    Recipe(
        "Megatron-LM",
        ("elapsed time per iteration",),
        r"(?:\[{timestamp}\] +)?iteration +{step}/ *{steps_total} \|.*?elapsed time per iteration \(ms\): "
        r"{step_time_ms}(?:/[\d.]+)?(?=(?:.*?learning rate:? {lr})?)(?=(?:.*?lm loss:? {loss})?)"
        r"(?=(?:.*?grad norm: {grad_norm})?)(?=(?:.*?number of nan iterations: +{nan_iterations})?)",
        "the time is the mean over the iterations since the line before; a line of NaN iterations prints no loss",
    ),
    Recipe(
        "DeepSpeed",
        ("currsamplespersec",),
        r"^(?:\w+: )?\[{timestamp}\].*global_step={step}, .*CurrSamplesPerSec={samples_per_s}",
    ),
    Recipe("DeepSpeed steps", ("iter time",), r"steps: {step} loss: {loss} iter time \(s\): {step_time_s}"),
    Recipe(
        "DeepSpeed-Chat",
        ("act_loss", "e2e latency"),
        r"^epoch: {epoch}\|step: {step}\|.*?act_loss: {loss}\|cri_loss: {critic_loss}|^\|E2E latency={step_time_s}s",
        "the time is on a line of its own, behind the step's",
    ),
    Recipe("DeepSpeed log", ("skipped=",), r"^\[{timestamp}\].*\[Rank 0\] step={step}, skipped="),
    Recipe(
        "torchtitan",
        (" tps:",),
        r"(?<!validate )step: +{step} +loss: +{loss}(?=(?:.*? grad_norm: +{grad_norm})?)"
        r".*? tps: +{toks_per_s_per_rank}",
    ),
    Recipe("torchtitan validation", ("validate step",), r"validate step: +{step} +loss: +{val_loss}"),
    Recipe(
        "Hugging Face Trainer",
        ("it/s", "s/it", "'loss'"),
        r"^ *\d+%\|[^|]*\| {step}/{steps_total} \[{elapsed_s}<[^,]*, +[\d.?]+(?:it/s|s/it)\](?:\{'loss': '?{loss})?"
        r"|\{'loss': '?{loss}(?=(?:.*?'grad_norm': '?{grad_norm})?)(?=(?:.*?'learning_rate': '?{lr})?)",
        "the step comes from the progress bar, the loss from the line behind it",
    ),
    Recipe(
        "Hugging Face Trainer, without its progress bar",
        ("'loss'",),
        r"{row}\{'loss': '?{loss}(?=(?:.*?'grad_norm': '?{grad_norm})?)(?=(?:.*?'learning_rate': '?{lr})?)",
        "no step is printed: lines are counted",
    ),
    Recipe(
        "Lightning progress bar",
        ("it/s", "s/it"),
        r"^(?:Training|Epoch) +{epoch}: +\d+%\|[^|]*\| (?!0/){step}/{steps_per_epoch} \[{elapsed_s}<[^\]]*?"
        r"(?<![\w/])(?:train_|train/)?loss(?:_step)?={loss}",
        "the loss behind `val_`, `test_` or `eval_` is another one; `it/s` is a running average and is not used",
    ),
    Recipe(
        "Lightning rich progress bar",
        ("it/s",),
        r"^Epoch {epoch}/-?\d+ [^\w]*? (?!0/){step}/{steps_per_epoch} {elapsed_s} • \S+ +\S+it/s"
        r"(?:.*?(?<![\w/])(?:train_|train/)?loss(?:_step)?: {loss})?"
        r"|^ {16,}(?:train_|train/)?loss(?:_step)?: {loss}",
        "outside a terminal it prints one line, when the run has ended",
    ),
    Recipe(
        "Keras",
        ("/step",),
        r"{step}/{steps_per_epoch} .*? {step_time_ms}ms/step - (?:\w+: [\d.]+ - )*?loss: {loss}",
    ),
    Recipe(
        "GNMT",
        ("tok/s",),
        r"^(?:0: )?TRAIN \[{epoch}\]\[{step}/{steps_per_epoch}\]\s+Time {own_step_time_s} \({mean_step_time_s}\)"
        r".*?Tok/s {toks_per_s_per_rank} \(.*?Loss/tok {loss} ",
        "the time is that of one step in ten, its running mean that of all steps, the rate that of rank 0",
    ),
    Recipe(
        "PyTorch examples",
        ("time",),
        r"Epoch: \[{epoch}\]\[ *{step}/{steps_per_epoch}\]\s+Time +{own_step_time_s} \(.*?Loss +{loss} \(",
    ),
    Recipe(
        "DLRM",
        ("step_time",),
        r"Epoch:\[{epoch}/\d+\] \[{step}/{steps_per_epoch}\].*?loss: {loss} +step_time: {step_time_ms} ms",
    ),
    Recipe(
        "SSD", ("loss function",), r"Iteration: +{step}, Loss function: {loss}, .*avg\. samples / sec: {samples_per_s}"
    ),
    Recipe(
        "MXNet",
        ("samples/sec",),
        r"^{timestamp} Node\[0\] Epoch\[{epoch}\] Batch \[\d+-{step}\]\s+Speed: {samples_per_s} samples/sec",
    ),
    Recipe(
        "MiniMind",
        ("epoch:[",),
        r"Epoch:\[{epoch}/\d+\]\({step}/{steps_per_epoch}\)(?=(?:.*?(?:, |Actor )[lL]oss: {loss})?)"
        r"(?=(?:.*?(?:learning_rate|lr|LR): ?{lr})?)",
        "`epoch_time` is the time that remains and is not used",
    ),
    Recipe(
        "detectron2",
        ("total_loss",),
        r"^\[{timestamp}\].* iter: {step} +total_loss: {loss} .*?lr: {lr}",
        "the date gives the time, pauses included; `time` is an average and is not used",
    ),
    Recipe(
        "MLPerf GPT-3",
        ("train_step_timing",),
        r'{row}:::MLLOG .*"time_ms": {timestamp}, .*"train_step_timing": {step_time_s}, '
        r'"reduced_train_loss": {loss}\}.*"step": {tokens_seen}',
        "its steps count tokens; the fewest between two lines are one step",
    ),
    Recipe(
        "MLPerf loss",
        ("train_loss",),
        r'{row}:::MLLOG .*"time_ms": {timestamp},.*"key": "train_loss", "value": {loss},.*'
        r'"samples_count": {samples_seen}',
        "its steps count samples; the fewest between two lines are one step",
    ),
    Recipe(
        "records",
        ("step", "iteration"),
        r"^(?=.*?\{)(?:(?=.*?[\"']global_steps?[\"']: ?{step}\b)"
        r"|(?=.*?[\"'](?:current_steps|step|iteration|iter|training_steps)[\"']: ?{step}\b))" + _JSON_VALUES,
        "one JSON object, or one dictionary of Python, a line",
    ),
    Recipe("table", ("\t",), r"^{step}\t{loss}\s*$"),
    Recipe(
        "step and loss",
        ("step", "iter"),
        r"(?i)^(?=(?:\W*{timestamp})?)"
        r"(?=.*?(?<![a-z_])(?<!tokens/)(?<!toks/)(?<!tok/)(?<!samples/)"
        r"(?:global_step|step|iter|iteration)s?\b[\"']?\s*[:=#\[ ]?\s*{step}\b)" + _GENERIC,
        "recognized by the words in it; give a pattern where it is mistaken",
    ),
    Recipe(
        "loss only",
        ("loss",),
        r"(?i)^(?!.*\b(?:average|avg|mean)\b.{0,20}\bloss){row}\W*{timestamp}"
        r".*?(?<!val )(?<!val_)(?<!test )(?<!valid )(?<!eval )\bloss\b\s*[:=]\s*{loss}",
        "no step is printed: lines are counted",
    ),
    Recipe(
        "epochs",
        ("epoch",),
        r"(?i)^\W*epoch\W*{step}\b(?!.*\bbatch).*?(?<!val )(?<!val_)\bloss\W+{loss}",
        "a row an epoch",
    ),
)
"""Formats in the order in which they are preferred."""


def recognize(lines: Iterable[tuple[int, str]]) -> tuple[Recipe, int] | None:
    """The first format that a fair part of these lines have, and how many have it; None where none is known."""
    held = list(lines)
    return _recognize(held, RECIPES[:-_GENERAL]) or _recognize(held, RECIPES[-_GENERAL:])


def _recognize(lines: list[tuple[int, str]], recipes: tuple[Recipe, ...]) -> tuple[Recipe, int] | None:
    patterns = [(recipe, line_pattern(recipe.pattern)) for recipe in recipes]
    rows: Counter[str] = Counter()
    for _, text in lines:
        lower = text.lower()
        for recipe, pattern in patterns:
            if not any(word in lower for word in recipe.words):
                continue
            printed = pattern.read(text)
            counts = printed is not None and (printed.step is not None or "row" in printed.texts)
            if (
                printed is not None
                and counts
                and printed.odd is None
                and not _WANTED.isdisjoint(map(series_name, printed.values))
            ):
                rows[recipe.name] += 1
        if rows and max(rows.values()) >= _ENOUGH:
            break
    least = max(_FEWEST, max(rows.values(), default=0) // 50)
    return next(((recipe, rows[recipe.name]) for recipe in recipes if rows[recipe.name] >= least), None)
