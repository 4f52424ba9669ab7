"""Readers by name: what `trainer.metrics` may name in place of a pattern or a table.

A reader knows the lines that a trainer prints, the files that it or a logger writes, or both. A new one is a row of
`READERS`; a new format of files is a module in `validator.ingest.readers` as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from validator.model.recipes import RECIPES

ReaderName = Literal[
    "nanogpt",
    "torchtitan",
    "megatron",
    "deepspeed",
    "hf-trainer",
    "lightning",
    "llm.c",
    "tqdm",
    "table",
    "jsonl",
    "tensorboard",
    "wandb-offline",
    "mlflow-local",
]

FileFormat = Literal["csv", "jsonl", "tensorboard", "wandb", "mlflow-files", "mlflow-sqlite", "trainer-state"]


class LoggedFiles(NamedTuple):
    """Files of one format: `glob` is relative to the run's output folder, `**/` matches any folders."""

    format: FileFormat
    glob: str


class Reader(NamedTuple):
    """What a name means. `recipes` are print formats; `files` are tried in this order, and the first that is there is
    read. With `two_streams` the step is printed on standard error and the loss on standard output; `bar`: times are
    those of a progress bar, in whole seconds. `series` are all that there can be, where files may not hold any."""

    name: ReaderName
    about: str
    recipes: tuple[str, ...] = ()
    files: tuple[LoggedFiles, ...] = ()
    two_streams: bool = False
    bar: bool = False
    series: tuple[str, ...] = ()

    @property
    def files_alone(self) -> bool:
        """Whether nothing that is printed is read."""
        return not self.recipes and not self.two_streams

    @property
    def pattern(self) -> str | None:
        """The pattern for printed lines; None for a reader of files alone, and for one of two streams."""
        known = {recipe.name: recipe.pattern for recipe in RECIPES}
        return "|".join(known[name] for name in self.recipes) or None


READERS: Mapping[str, Reader] = {
    reader.name: reader
    for reader in (
        Reader("nanogpt", "lines of nanoGPT", ("nanoGPT", "nanoGPT evaluation")),
        Reader("torchtitan", "lines of torchtitan", ("torchtitan", "torchtitan validation")),
        Reader("megatron", "lines of Megatron-LM and its forks", ("Megatron-LM",)),
        Reader("deepspeed", "lines of DeepSpeed", ("DeepSpeed", "DeepSpeed steps")),
        Reader(
            "hf-trainer",
            "bar and dictionaries of the Trainer of Hugging Face, or its `trainer_state.json`",
            files=(LoggedFiles("trainer-state", "**/trainer_state.json"),),
            two_streams=True,
            bar=True,
            series=("loss", "lr", "grad_norm", "val_loss", "step_time_s"),
        ),
        Reader(
            "lightning",
            "the table or event files of Lightning, else its progress bar",
            ("Lightning progress bar", "Lightning rich progress bar"),
            (
                LoggedFiles("csv", "**/version_*/metrics.csv"),
                LoggedFiles("csv", "**/metrics.csv"),
                LoggedFiles("tensorboard", "**/events.out.tfevents.*"),
            ),
            bar=True,
        ),
        Reader("llm.c", "lines of llm.c, or its `main.log`", ("llm.c", "llm.c main.log")),
        Reader("tqdm", "a bar of tqdm with a loss behind or before it", ("progress bar",), bar=True),
        Reader("table", "rows of numbers below a line of names", ("table with names", "table of epochs")),
        Reader("jsonl", "JSON lines with a step", files=(LoggedFiles("jsonl", "**/*.jsonl"),)),
        Reader(
            "tensorboard", "event files of TensorBoard", files=(LoggedFiles("tensorboard", "**/events.out.tfevents.*"),)
        ),
        Reader(
            "wandb-offline", "the file of a run of Weights & Biases", files=(LoggedFiles("wandb", "**/run-*.wandb"),)
        ),
        Reader(
            "mlflow-local",
            "MLflow's folder `mlruns`, or its database",
            files=(
                LoggedFiles("mlflow-sqlite", "**/mlflow.db"),
                LoggedFiles("mlflow-sqlite", "**/mlruns.db"),
                LoggedFiles("mlflow-files", "**/metrics/**"),
            ),
        ),
    )
}


def readers_of(names: Iterable[str]) -> tuple[Reader, ...]:
    """The readers of these names, in their order."""
    return tuple(READERS[name] for name in names)


def matcher(glob: str) -> re.Pattern[str]:
    """A glob as a pattern for whole paths: `*` stays within a folder, `**/` and a last `**` go through any."""
    made = re.escape(glob).replace(r"\*\*/", "(?:.*/)?").replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
    return re.compile(made.replace(r"\?", "[^/]"), re.DOTALL)


# The names under which loggers write what the contract calls otherwise. `-` and blanks count as `_`, capitals as small.

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
    "samples_per_s": ("samples_per_sec", "samples/sec", "samples_per_second", "throughput/samples_per_sec"),
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


def plain_key(raw: str) -> str:
    """A key as the tables above have it."""
    return raw.strip().lower().replace("-", "_").replace(" ", "_")


def logged_name(raw: str) -> str:
    """The series that a logger's key means; of an unknown one a name for criteria, `val_acc` for `val/acc`."""
    key = plain_key(raw)
    name = _MEANT.get(key, key)
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "value"
