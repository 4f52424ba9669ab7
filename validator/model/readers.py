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
    "records",
    "steps",
    "iterations",
    "batches",
    "steps-of-epochs",
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
        Reader("nanogpt", "lines of nanoGPT", ("nanoGPT",)),
        Reader("torchtitan", "lines of torchtitan", ("torchtitan",)),
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
        Reader("records", "a JSON object, or a dictionary of Python, printed a line", ("records",)),
        Reader("steps", "lines that name a step and a loss", ("step and loss",)),
        Reader("iterations", "lines that name an iteration and a loss", ("iteration and loss",)),
        Reader("batches", "lines that name a batch and a loss", ("batch and loss",)),
        Reader("steps-of-epochs", "lines with `[12/938]`, an epoch and a loss", ("epoch and step in brackets",)),
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
