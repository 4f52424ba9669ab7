"""The settings in a trainer's command: which they are, the same command with another value, and what they change."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from validator.model.settings import flat_name

_ASSIGNED = re.compile(r"(--?|\+{1,2})?([A-Za-z][\w.-]*)=(.*)", re.DOTALL)  # --batch-size=8 | batch_size=8 | +lr=1


def _setting_places(words: Sequence[str]) -> Iterator[tuple[str, int, str, str]]:
    """Each setting: its name, the word that holds its value, what is in front of the value there, and the value."""
    for index, word in enumerate(words):
        assigned = _ASSIGNED.fullmatch(word)
        if assigned is not None:
            yield assigned[2], index, word[: assigned.start(3)], assigned[3]
        elif word.startswith("--") and word.strip("-") and index + 1 < len(words):
            following = words[index + 1]
            if not following.startswith("--"):
                yield word.lstrip("-"), index + 1, "", following


def settings_in(words: Sequence[str]) -> dict[str, str]:
    """Each setting of a command by its name as it is written, without dashes in front; of one given twice the last."""
    return {name: value for name, _, _, value in _setting_places(words)}


def value_in(words: Sequence[str], name: str) -> str | None:
    """The value of a setting in a command; None where it has none."""
    same = [value for one, value in settings_in(words).items() if flat_name(one) == flat_name(name)]
    return same[-1] if same else None


def with_value(words: Sequence[str], name: str, value: str) -> tuple[str, ...]:
    """The command with another value of a setting: in its place, else behind the others and written as they are."""
    made = list(words)
    places = [(index, front) for one, index, front, _ in _setting_places(words) if flat_name(one) == flat_name(name)]
    for index, front in places:
        made[index] = f"{front}{value}"
    return tuple(made) if places else (*made, *_added(words, name, value))


def _added(words: Sequence[str], name: str, value: str) -> tuple[str, ...]:
    forms = [(words[index], front) for _, index, front, _ in _setting_places(words)]
    ours = [one for one in forms if "{steps}" in one[0]] or forms
    if not ours or not ours[-1][1]:
        return (f"--{name}", value)
    return (f"--{name}={value}" if ours[-1][1].startswith("--") else f"{name}={value}",)


_BATCH = re.compile(r"(?:(?:per_device|device|local|micro|global)_)?(?:train_)?(?:batch_size|batchsize|bs|batch)")
_LENGTH = re.compile(
    r"(?:max_)?(?:seq|sequence|context)_?(?:len|length)|seqlen|block_size|ctx_len|n_ctx|context_window|max_length"
)
_ACCUMULATION = re.compile(r"(?:gradient_|grad_)?(?:accum|accumulation)(?:_steps)?|accumulate_grad_batches")


@dataclass(frozen=True)
class StatedTokens:
    """Tokens of a step by the settings of a command, as `text` says them. `exact` is false where the batch may be that
    of a rank or of a micro-batch, or of all."""

    tokens: int
    text: str
    exact: bool


def stated_tokens(settings: Mapping[str, object], *, ranks: int = 1) -> StatedTokens | None:
    """What a batch and a sequence length among settings make; None where one is missing, or is there twice."""
    named = {name: flat_name(name).rpartition(".")[2].replace("-", "_").lower() for name in settings}
    batch, length, accumulation = (
        [
            (name, int(text))
            for name, flat in named.items()
            if form.fullmatch(flat) and (text := str(settings[name])).isdecimal() and int(text) > 0
        ]
        for form in (_BATCH, _LENGTH, _ACCUMULATION)
    )
    batch = [one for one in batch if "global" in one[0]] or batch
    if len(batch) != 1 or len(length) != 1 or len(accumulation) > 1:
        return None
    factors = [*batch, *length]
    whole = "global" in batch[0][0]
    if not whole:
        factors += [*accumulation, *([("ranks", ranks)] if ranks > 1 else [])]
    text = " × ".join(f"{name.rpartition('.')[2]} {count:,}" for name, count in factors)
    return StatedTokens(math.prod(count for _, count in factors), text, exact=whole or len(factors) == 2)


# What a setting changes, by the words of its name.

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


_OF_A_KERNEL = frozenset({"attn", "attention", "kernel", "triton", "tile", "kv", "sel", "sparse", "cache"})
"""Words beside which a block is one of a kernel, not a sequence."""


def _words_of(name: str) -> set[str]:
    words = set(re.split(r"[^a-z0-9]+", name.partition(".")[2].lower() or name.lower()))
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


def is_learning_rate(name: str) -> bool:
    """Whether a setting is the learning rate, which changes no loss before the second step."""
    words = _words_of(name)
    return "lr" in words or {"learning", "rate"} <= words


def is_seed(name: str) -> bool:
    """Whether a setting is a seed, which a trainer of fixed data and initial weights may rightly not need."""
    return "seed" in _words_of(name)
