"""The names under which loggers write what the contract calls otherwise, for files and for printed records alike.

`-` and blanks count as `_`, capitals as small.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

_LOGGED: Mapping[str, tuple[str, ...]] = {
    "loss": (
        "train/loss",
        "loss/train",
        "train_loss",
        "train/train_loss",
        "training_loss",
        "training/loss",
        "train/loss_step",
        "train_loss_step",
        "loss_step",
        "loss_train",
        "loss_metrics/global_avg_loss",
        "lm_loss",
        "reduced_train_loss",
        "train/lm_loss",
        "train/total_loss",
        "loss/train/total",
    ),
    "lr": ("learning_rate", "train/learning_rate", "train/lr", "lr/train", "learning_rate/train"),
    "grad_norm": ("train/grad_norm", "gradient_norm", "train/gradient_norm", "train/gnorm", "gnorm", "grad_norm/total"),
    "val_loss": ("val/loss", "loss/val", "eval/loss", "eval_loss", "validation_loss", "validation/loss", "valid/loss"),
    "toks_per_s": (
        "tokens_per_s",
        "tokens_per_sec",
        "tokens_per_second",
        "tok_per_s",
        "tok/s",
        "toks/s",
        "tokens/s",
        "tokens/sec",
        "train/toks_per_s",
        "train/tok_per_s",
        "train/tokens_per_sec",
        "train/tokens_per_second",
        "throughput/tokens_per_sec",
        "throughput_tokens_per_sec",
        "perf/tokens_per_sec",
    ),
    "toks_per_s_per_rank": (
        "throughput(tps)",
        "throughput/device/tokens_per_sec",
        "tokens_per_sec_per_gpu",
        "tokens_per_second_per_gpu",
        "train/tokens_per_second_per_gpu",
        "tgs",
    ),
    "step_time_s": (
        "dt",
        "train/dt",
        "dt_s",
        "iter_dt",
        "step_s",
        "sec_per_step",
        "seconds_per_step",
        "s/it",
        "s/step",
        "time_per_step",
        "time/step",
        "step_seconds",
        "batch_time",
        "time_per_batch",
        "sec_per_batch",
        "seconds_per_batch",
        "iteration_time",
        "iter_time",
        "train/iter_time",
        "step_time",
        "train/step_time",
        "train/step_time_s",
        "perf/step_time",
        "time_metrics/end_to_end(s)",
        "train_step_timing_in_s",
        "train_step_timing",
    ),
    "step_time_ms": (
        "dt_ms",
        "train/dt_ms",
        "step_ms",
        "iter_ms",
        "iter_time_ms",
        "train/step_time_ms",
        "ms_per_step",
        "ms/step",
        "time_per_step_ms",
    ),
    "steps_per_s": ("steps_per_sec", "steps_per_second", "steps/s", "steps/sec", "it/s", "its/s", "it_per_s"),
    "samples_per_s": (
        "samples_per_sec",
        "samples/sec",
        "samples/s",
        "images_per_sec",
        "images/sec",
        "samples_per_second",
        "throughput/samples_per_sec",
    ),
    "elapsed_s": (
        "_runtime",
        "elapsed",
        "elapsed_time",
        "time_elapsed",
        "time/elapsed",
        "train/elapsed_time",
        "total_time",
    ),
    "timestamp": ("_timestamp", "ts", "date", "datetime", "asctime", "created_at", "wall_time", "unix_time"),
    "tokens_seen": (
        "num_input_tokens_seen",
        "train/num_input_tokens_seen",
        "total_tokens",
        "train/tokens_seen",
        "num_tokens",
    ),
    "epoch": ("train/epoch", "trainer/epoch"),
}
"""`dt` and its like are a step's own time, `elapsed` and its like run since the start, and `time` may be either: how
the values grow decides (`clocks` of `validator.ingest.derived`), and the validator's clock whether seconds or
milliseconds are meant. Running means (`avg_…`, `train_samples_per_second` of a whole run) are in none of these rows:
they are no rates."""

_MEANT = {other: name for name, others in _LOGGED.items() for other in others}

_LESS_CERTAIN: Mapping[str, tuple[str, ...]] = {
    "loss": (
        *(
            "total_loss",
            "step_loss",
            "trainloss",
            "batch_loss",
            "ce_loss",
            "cross_entropy_loss",
            "nll_loss",
            "mse_loss",
        ),
        *(
            "train_xent",
            "xent",
            "train_nll",
            "nll",
            "train_ce",
            "cross_entropy",
            "train_cross_entropy",
            "train_mse",
            "mse",
            "objective",
            "cost",
        ),
        *("avg_loss", "mean_loss", "loss_avg"),
    ),
    "step_time_ms": ("ms", "msec", "update_msec", "step_msec", "batch_ms", "update_ms"),
    "toks_per_s": ("tps",),
    "elapsed_s": ("runtime",),
    "samples_per_s": ("seq/s",),
}
"""Names that count in a record which has no other of the same meaning."""

_OF_TRAINING = (
    r"(?:(?:metrics?|train(?:ing|er)?|perf(?:ormance)?|throughput|speed|timings?|logs?|scalars|stats|summary|results"
    r"|values|progress)[/.]|metrics?_|(?:optim(?:izer|ization)?|opt)[/.](?=lr|learning|grad))"
)
"""What may stand before a name without changing what it means: neither `val/loss` nor `critic/loss` is the loss."""

_BEFORE = re.compile(_OF_TRAINING)

STEP_KEYS = (
    "step",
    "train/global_step",
    "trainer/global_step",
    "global_step",
    "train/step",
    "optimizer_step",
    "current_steps",
    "iteration",
    "iter",
    "training_steps",
)
"""Keys of a record that hold its step, the most certain first; capitals as small."""

PARTS = ("d", "g", "disc", "gen", "discriminator", "generator", "critic", "actor", "policy", "value")
"""Words beside losses that are lowered against each other, or side by side: none is the one that a training lowers."""

_COUNTS = (
    *("update", "updates", "num_updates", "n_updates", "steps", "itr", "it", "iterations", "n_iter", "train_steps"),
    *("train_step", "num_steps", "iter_num"),
    *("total/steps", "total_steps", "total_timesteps", "time/total_timesteps", "timesteps", "env_steps"),
)
"""Keys that hold it where a record has none of those."""


COUNTS_BY_ONE = ("epoch", "epochs", "batch", "batch_idx", "n", "i", "idx")
"""Columns that hold the step of a table which has no other, if each row has one more than the row before."""


_REWARD = re.compile(
    r"(?:^|[_/])(?:ep(?:isode)?_?(?:rew(?:ard)?|return)|(?:mean|avg)_(?:rew(?:ard)?|return)|returns?)(?:_|$)"
)
"""What episodes reach on average; neither a reward of one sample nor one that a part of a loss has."""

_OF_EPISODE = re.compile(r"(?i)rewards?|returns?|episod|(?<![a-z])ep_?(?:len|rew|ret)")


def is_reward(name: str) -> bool:
    """Whether a column is what episodes reach on average."""
    return _REWARD.search(name) is not None


def of_episode(name: str) -> bool:
    """Whether a column is about episodes of an agent, of which several may end at one step."""
    return _OF_EPISODE.search(name) is not None


def plain_key(raw: str) -> str:
    """A key as the tables above have it."""
    return raw.strip().lower().replace("-", "_").replace(" ", "_")


def logged_name(raw: str) -> str:
    """The series that a logger's key means; of an unknown one a name for criteria, `val_acc` for `val/acc`."""
    key = plain_key(raw)
    name = _MEANT.get(key, key)
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "value"


class RecordName(NamedTuple):
    """The series that a key of a record means, and how certain that is: 0 where the whole key is a known name."""

    name: str
    doubt: int


@lru_cache(maxsize=4096)
def record_name(raw: str) -> RecordName:
    """What a key of a record means, `outer/inner` of a nested one: the whole key, or its last part behind words that
    change nothing, as in `metrics/train/loss`."""
    tables = (_MEANT, {other: name for name, others in _LESS_CERTAIN.items() for other in others})
    first, *inner = _without_prefixes(plain_key(raw))
    for doubt, (keys, table) in enumerate((one, table) for table in tables for one in ((first,), inner)):
        for key in keys:
            if key in table or key in _LOGGED:
                return RecordName(table.get(key, key), doubt)
    return RecordName(logged_name(raw), 0)


def step_key(keys: Iterable[str]) -> str | None:
    """The key that holds a record's step; None where it has none."""
    whole: dict[str, str] = {}
    inner: dict[str, str] = {}
    for raw in keys:
        first, *others = _without_prefixes(plain_key(raw))
        whole.setdefault(first, raw)
        for name in others:
            inner.setdefault(name, raw)
    return next(
        (found[name] for names in (STEP_KEYS, _COUNTS) for found in (whole, inner) for name in names if name in found),
        None,
    )


def table_names(cells: Sequence[str], known: Iterable[str]) -> dict[str, str]:
    """Columns of a table that hold a series under another name, by that series; `known` are the series that its own
    names mean. Without a step, an epoch is one."""
    keys = {plain_key(cell): cell for cell in reversed(cells)}
    missing = _LOGGED.keys() - {"epoch"} - set(known)
    named: dict[str, str] = {}
    for cell in sorted(cells, key=lambda cell: record_name(cell).doubt):
        name = record_name(cell).name
        if name in missing and name != cell.lower():
            named.setdefault(name, cell)
    if "step" not in known:
        step = step_key(cells) or next((keys[name] for name in COUNTS_BY_ONE if name in keys), None)
        named |= {} if step is None else {"step": step}
        of_epoch = next((keys[name] for name in _TIMES_OF_EPOCHS if name in keys), None)
        if step is not None and "epoch" in plain_key(step) and of_epoch is not None and "step_time_s" in missing:
            named.setdefault("step_time_s", of_epoch)
    return named


_TIMES_OF_EPOCHS = ("epoch_time_s", "epoch_time", "epoch_seconds", "epoch_s", "time_per_epoch")


def _without_prefixes(key: str) -> Iterator[str]:
    """The key, and what is left of it without the words that change nothing, one after the other."""
    yield key
    while found := _BEFORE.match(key):
        key = key[found.end() :]
        yield key


def key_pattern(name: str, *, certain: bool = True) -> str:
    """A regular expression for every key of a record that means a series; those that are less certain by themselves."""
    names = (name, *_LOGGED.get(name, ())) if certain else _LESS_CERTAIN[name]
    return _spelled(names)


def step_pattern(*, whole: bool) -> str:
    """The same for the keys of its step: that of the `whole` training, or any other."""
    names = [key for key in STEP_KEYS if key.endswith("global_step") == whole]
    return _spelled([*names, *(f"{key}s" for key in names if whole)])


def _spelled(names: Sequence[str]) -> str:
    every = set(names)
    needed = (
        name for name in names if every.isdisjoint([*_without_prefixes(name)][1:])
    )  # the others follow from what precedes
    texts = (re.escape(name).replace("_", "[_ -]") for name in needed)
    return f"{_OF_TRAINING}*(?:{'|'.join(texts)})"
