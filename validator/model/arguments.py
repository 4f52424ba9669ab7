"""The settings in a trainer's command: which they are, the same command with another value, and what they change."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from validator.model.runbook import Runbook, TrainingPhase
from validator.model.settings import args_of, flat_name, setting_text

_ASSIGNED = re.compile(r"(--?|\+{1,2})?([A-Za-z][\w.-]*)=(.*)", re.DOTALL)  # --batch-size=8 | batch_size=8 | +lr=1
_DASHED = re.compile(r"--.*[^-].*|-[A-Za-z][\w.-]*", re.DOTALL)  # --batch-size | -b | -lr
_ATTACHED = re.compile(r"(-([A-Za-z]))(\d+(?:\.\d*)?)")  # -b256
_OPTION = re.compile(r"--|-[A-Za-z]")
_NODE = re.compile(r"[A-Z][A-Z0-9_]*(?:\.[A-Z][A-Z0-9_]*)+")  # SOLVER.BASE_LR
_NODE_OR_LEAF = re.compile(r"[A-Z][A-Z0-9_]*(?:\.[A-Z][A-Z0-9_]*)*")  # OUTPUT_DIR


class _SettingPlace(NamedTuple):
    """A setting: its name, the word that holds its value, what is in front of the value there, and the value."""

    name: str
    at: int
    front: str
    value: str
    key: str
    """The word that names it."""


def _setting_places(words: Sequence[str]) -> Iterator[_SettingPlace]:
    """Each setting of a command, in order. Names in capitals need no dashes where one of them has a section."""
    nodes = any(map(_NODE.fullmatch, words))
    taken = -1
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else "--"
        if (assigned := _ASSIGNED.fullmatch(word)) is not None:
            yield _SettingPlace(assigned[2], index, word[: assigned.start(3)], assigned[3], word)
        elif (attached := _ATTACHED.fullmatch(word)) is not None:
            yield _SettingPlace(attached[2], index, attached[1], attached[3], word)
        elif _OPTION.match(following) or _NODE.fullmatch(following):
            continue  # a flag, which has no value
        elif _DASHED.fullmatch(word) or (nodes and index > taken and _NODE_OR_LEAF.fullmatch(word)):
            taken = index + 1
            yield _SettingPlace(word.lstrip("-"), index + 1, "", following, word)


def undashed_in(words: Sequence[str]) -> frozenset[int]:
    """Words that name a setting in capitals and have its value behind them: `SOLVER.BASE_LR 0.02`."""
    return frozenset(one.at - 1 for one in _setting_places(words) if _NODE_OR_LEAF.fullmatch(one.key))


def settings_in(words: Sequence[str]) -> dict[str, str]:
    """Each setting of a command by its name as it is written, without dashes in front; of one given twice the last."""
    return {one.name: one.value for one in _setting_places(words)}


def value_in(words: Sequence[str], name: str) -> str | None:
    """The value of a setting in a command; None where it has none."""
    same = [value for one, value in settings_in(words).items() if flat_name(one) == flat_name(name)]
    return same[-1] if same else None


def with_value(words: Sequence[str], name: str, value: str) -> tuple[str, ...]:
    """The command with another value of a setting: in its place, else behind the others and written as they are."""
    made = list(words)
    places = [one for one in _setting_places(words) if flat_name(one.name) == flat_name(name)]
    for one in places:
        made[one.at] = f"{one.front}{value}"
    return tuple(made) if places else (*made, *_added(words, name, value))


def _added(words: Sequence[str], name: str, value: str) -> tuple[str, ...]:
    forms = list(_setting_places(words))
    like = next(reversed([one for one in forms if "{steps}" in words[one.at]] or forms), None)
    if like is not None and _NODE_OR_LEAF.fullmatch(like.key) and _NODE_OR_LEAF.fullmatch(name):
        return (name, value)
    if like is None or "=" not in like.front:
        return (f"--{name}", value)
    return (f"--{name}={value}" if like.front.startswith("--") else f"{name}={value}",)


_BATCH = re.compile(
    r"(?:(?:per_device|device|local|micro|global)_)?(?:train_)?(?:batch_size|batchsize|bsz|bs|batch)|ims_per_batch"
)
_LENGTH = re.compile(
    r"(?:max_)?(?:seq|sequence|context|target)_?(?:len|length)|seqlen|block_size|ctx_len|n_ctx|context_window|max_length"
)
_ACCUMULATION = re.compile(r"(?:gradient_|grad_)?(?:accum|accumulation)(?:_steps)?|accumulate_grad_batches")


@dataclass(frozen=True)
class StatedTokens:
    """Tokens of a step by the settings of a command, as `text` says them. `exact` is false where the batch may be that
    of a rank or of a micro-batch, or of all."""

    tokens: int
    text: str
    exact: bool


def declared_value(key: str, runbook: Runbook, phase: TrainingPhase) -> str | None:
    """The declared value of a setting (`env.NAME`, `args.NAME`), where the runbook has it."""
    family, name = key.split(".", 1)
    if family == "env":
        value = {**runbook.defaults.env, **phase.env}.get(name)
        return None if value is None else setting_text(value)
    given = {flat_name(one): value for one, value in args_of(runbook, phase).items()}
    if flat_name(name) in given:
        return setting_text(given[flat_name(name)])
    return value_in(runbook.trainer.command, name)


def stated_samples(settings: Mapping[str, object]) -> tuple[str, int, int] | None:
    """The name and the number of a batch among settings, that of a rank, of a micro-batch or of all, and how many
    micro-batches a step has; None without a batch, or with two."""
    batch, accumulation = _stated(settings, _BATCH, _ACCUMULATION)
    batch = [one for one in batch if "global" in one[0]] or batch
    return (*batch[0], max([1, *(count for _, count in accumulation)])) if len(batch) == 1 else None


def _stated(settings: Mapping[str, object], *forms: re.Pattern[str]) -> Iterator[list[tuple[str, int]]]:
    """Of each form the settings with such a name, and their positive whole numbers."""
    named = {name: flat_name(_SHORT.get(name, name)).rpartition(".")[2].lower() for name in settings}
    for form in forms:
        yield [
            (name, int(text))
            for name, flat in named.items()
            if form.fullmatch(flat) and (text := str(settings[name]).removesuffix(".0")).isdecimal() and int(text) > 0
        ]


def stated_tokens(settings: Mapping[str, object], *, ranks: int = 1) -> StatedTokens | None:
    """What a batch and a sequence length among settings make; None where one is missing, or is there twice."""
    batch, length, accumulation = _stated(settings, _BATCH, _LENGTH, _ACCUMULATION)
    batch = [one for one in batch if "global" in one[0]] or batch
    if len(batch) != 1 or len(length) != 1 or len(accumulation) > 1:
        return None
    factors = [*batch, *length]
    whole = "global" in batch[0][0]
    if not whole:
        factors += [*(one for one in accumulation if one[1] > 1), *([("ranks", ranks)] if ranks > 1 else [])]
    text = " × ".join(f"{name.rpartition('.')[2]} {count:,}" for name, count in factors)
    return StatedTokens(math.prod(count for _, count in factors), text, exact=whole or len(factors) == 2)


# What a setting changes, by the words of its name.

_SHORT: Mapping[str, str] = {"b": "batch_size"}
"""Names of one letter that trainers agree on."""

_SYNONYMS: Mapping[str, str] = {
    **dict.fromkeys(("bs", "bsz", "gbs", "minibatch"), "batch"),
    **dict.fromkeys(("mbs", "microbatch"), "micro_batch"),
    **dict.fromkeys(("lr0", "blr"), "lr"),
    **{"bptt": "seq", "accumulate": "accum", "emsize": "embed", "nhid": "hidden", "dmodel": "dim"},
}
"""Words of public trainers' settings, each with the usual ones."""

_WORKLOAD = frozenset(
    {"batch", "accum", "accumulation", "lr", "rate", "seed", "vocab"}
    | {"seq", "len", "length", "context", "ctx", "block", "width", "dim", "hidden", "embd", "embed", "ffn"}
    | {"layer", "layers", "depth", "head", "heads", "dtype", "precision", "bf16", "fp16", "fp32", "fp8", "amp"}
)
_ARITHMETIC = _WORKLOAD | frozenset(
    {"schedule", "init", "std", "model", "dropout", "decay", "wd", "beta", "momentum", "clip", "optimizer", "optim"}
)
"""Words of settings that change the arithmetic of a step."""

_BY_RIGHT = frozenset(
    {"bucket", "workers", "threads", "prefetch", "compile", "fused", "nccl", "log", "heartbeat", "port"}
    | {"checkpointing"}
)
"""Words of settings with which the same numbers may come out, bit for bit."""

_NOT_AT_FIRST = frozenset(
    {"eval", "evaluation", "val", "valid", "validation", "test", "sample", "sampling", "generate", "dropout"}
    | {"warmup", "decay", "schedule", "scheduler", "min", "max", "end", "final", "clip", "micro", "beta", "momentum"}
    | {"parallel", "parallelism", "degree", "shard", "rank", "head", "heads"}
    | {"dtype", "precision", "bf16", "fp16", "fp32", "fp8", "amp"}
)
"""Words of settings that the losses of the first training steps may not show, though they change the arithmetic."""


_JOINED = re.compile(
    r"(?P<learning>learning)(?P<rate>rate)"
    r"|(?:n|num)?(?P<first>batch|seq|block|context|hidden|layers?|heads?|embed|accum)(?:size|len|length|dim|steps|s)?"
)
"""Names in one word: `batchsize`, `seqlen`, `nlayers`, `learningrate`."""


_PER_GPU = re.compile(r"(?:sample|img|image|im|video)s_per_(?:gpu|device|rank)")
"""The batch of a rank."""

_OF_A_KERNEL = frozenset({"attn", "attention", "kernel", "triton", "tile", "kv", "sel", "sparse", "cache"})
"""Words beside which a block is one of a kernel, not a sequence."""


def _words_of(name: str) -> set[str]:
    family, _, own = name.partition(".")
    own = _SHORT.get(own, own) if family == "args" else own
    words = set(re.split(r"[^a-z0-9]+", own.lower() or name.lower()))
    words |= {one for word in words & _SYNONYMS.keys() for one in _SYNONYMS[word].split("_")}
    words |= {"dim"} if {"d", "model"} <= words else set()
    words |= {"batch"} if _PER_GPU.search(own.lower()) else set()
    joined = [found.groupdict() for one in words if (found := _JOINED.fullmatch(one)) is not None]
    return words | {value for groups in joined for value in groups.values() if value is not None}


def changes_arithmetic(name: str) -> bool:
    """Whether a setting (`args.batch-size`, `env.NSA_SEED`) makes another loss of the same step, by its words."""
    words = _words_of(name)
    return bool(words & _ARITHMETIC) and not words & _BY_RIGHT


def may_change_nothing(name: str) -> bool:
    """Whether the same numbers may come out with another value of a setting, bit for bit, by its words."""
    return bool(set(re.split(r"[^a-z0-9]+", name.lower())) & _BY_RIGHT)


def shows_at_first(name: str) -> bool:
    """Whether another value of a setting must change the losses of the first training steps, by its words."""
    words = _words_of(name)
    strong = words & (_WORKLOAD if "learning" in words else _WORKLOAD - {"rate"})
    if words & _OF_A_KERNEL:
        strong -= {"block"}
    return changes_arithmetic(name) and bool(strong) and not words & _NOT_AT_FIRST


_PERHAPS_LIMITS = frozenset({"max", "micro"})
"""Words of limits, which the first steps need not reach, and of parts of a batch, which need not change its loss."""

_PERHAPS_WORK = re.compile(
    r"max_(?:tokens|sentences|duration|frames)|update_freq|tokens_per_(?:sample|step)|num_frames|resolution"
    r"|(?:img|image|crop|input)_?(?:size|sz)"
)
"""Names that are the work of a step in some trainers, and something else in others."""


def may_show_at_first(name: str) -> bool:
    """Whether the first losses show another value of a setting if it is what its name says of it in many a trainer."""
    words = _words_of(name)
    others = words & _NOT_AT_FIRST
    limit = bool(words & _WORKLOAD) and changes_arithmetic(name) and bool(others) and others <= _PERHAPS_LIMITS
    last = flat_name(name).rpartition(".")[2].lower()
    return shows_at_first(name) or limit or _PERHAPS_WORK.fullmatch(last) is not None


_COUNTED_IN_UPDATES = frozenset({"max_update", "max_updates"})


def must_show_at_first(name: str, words: Sequence[str]) -> bool:
    """The same for certain, in a command of these words.

    A trainer whose length is `--max-update` is of the fairseq family: there `max_tokens` is the size of a batch, where
    no other size is given, and `update_freq` the batches of a step.
    """
    last = flat_name(name).rpartition(".")[2].lower()
    given = {flat_name(one).rpartition(".")[2].lower() for one in settings_in(words)}
    of_fairseq = name.startswith("args.") and bool(given & _COUNTED_IN_UPDATES)
    whole = last == "update_freq" or (last == "max_tokens" and not given & {"batch_size", "max_sentences"})
    return shows_at_first(name) or (of_fairseq and whole)


def is_learning_rate(name: str) -> bool:
    """Whether a setting is the learning rate, which changes no loss before the second step."""
    words = _words_of(name)
    return "lr" in words or {"learning", "rate"} <= words


def is_seed(name: str) -> bool:
    """Whether a setting is a seed, which a trainer of fixed data and initial weights may rightly not need."""
    return "seed" in _words_of(name)
