"""The settings of a command that a validation sets itself: how long the trainer runs, and where it writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from validator.model.arguments import undashed_in

What = Literal["steps", "epochs", "out"]

_STEPS = (
    *("max_steps", "max_iters", "train_iters", "training.steps", "max_train_steps", "num_train_steps"),
    *(
        "train_steps",
        "total_steps",
        "total_iters",
        "num_iterations",
        "max_iterations",
        "num_training_steps",
        "max_iter",
    ),
    *("training_steps", "train.steps", "steps", "iterations", "num_iters", "n_iters", "iters"),
    *(
        "total_iterations",
        "max_update",
        "max_updates",
        "num_updates",
        "n_updates",
        "updates",
        "max_step",
        "num_steps",
        "n_steps",
        "nsteps",
        "max_steps_per_epoch",
    ),
)
_OF_ONE_EPOCH = "max_steps_per_epoch"
"""A length in steps where the command asks for no more than one epoch."""

_ROLLOUT = frozenset({"num_steps", "n_steps", "nsteps"})
_TIMESTEPS = frozenset(
    {
        *("total_timesteps", "num_timesteps", "n_timesteps", "max_timesteps", "timesteps", "total_env_steps"),
        *("num_env_steps", "max_env_steps", "total_frames"),
    }
)
"""Lengths of reinforcement learning, in steps of environments and not of the optimizer: they stay as they are."""

_ENVIRONMENTS = _TIMESTEPS | {"num_envs", "n_envs"}
"""Beside one of these `num_steps` is what each environment does before an update."""

EPOCHS_ALONE = (
    *("num_train_epochs", "max_epochs", "num_epochs", "n_epochs", "nepochs", "total_epochs", "max_epoch"),
    *("train_epochs", "num_epoch"),
)
"""Names of the number of epochs that mean nothing else, as `epoch: 3` of a row may."""

_EPOCHS = (*EPOCHS_ALONE, "epochs", "epoch")
_OUT = (
    *(
        "output_dir",
        "out_dir",
        "default_root_dir",
        "dump_folder",
        "outdir",
        "save_dir",
        "work_dir",
        "workdir",
        "run_dir",
        "exp_dir",
    ),
    *("experiment_dir", "results_dir", "result_dir", "project_dir", "output_path", "output_folder", "output", "out"),
    *("hydra.run.dir", "save_path", "save", "logging_dir", "log_dir", "logdir", "tensorboard_dir"),
)
_NAMES: dict[What, tuple[str, ...]] = {"steps": _STEPS, "epochs": _EPOCHS, "out": _OUT}
"""Names of settings as common trainers have them, the likelier ones first."""

_PERHAPS_OUT = ("checkpoint_dir", "ckpt_dir", "checkpoint_path", "ckpt_path", "save_folder")
"""Names of folders that a trainer may write to, or read from."""

_LONELY = frozenset({"steps", "epoch", "out", "output", "save"})
"""Names that mean this only where nothing stands before them: `eval.steps` is another setting."""

_ASSIGNED = re.compile(r"(--?|\+{1,2})?([A-Za-z][\w.-]*)=(.*)", re.DOTALL)  # --max-steps=5 | +trainer.max_steps=5
_COUNT = re.compile(r"-?\d[\d_]*(?:\.0*)?(?:[eE]\+?\d+)?")  # 600 | 10_000 | 1e5 | -1


@dataclass(frozen=True)
class SetByUs:
    """A setting that the runbook holds as a placeholder. `value` is what the command had there, None if it had none."""

    what: What
    name: str
    value: str | None
    written: str
    """As the runbook's command has it: `--max_iters={steps}`."""

    @property
    def count(self) -> int | None:
        """The steps or epochs that the command asked for; None where it asked for no number above 0."""
        if self.value is None or not _COUNT.fullmatch(self.value):
            return None
        number = int(float(self.value.replace("_", "")))
        return number if number > 0 else None


def meaning_of(name: str) -> What | None:
    """What a setting is by its name: `--training.steps`, `trainer.max_epochs`, `output-dir`."""
    flat = name.lstrip("-+").replace("-", "_").lower()
    last = flat.rpartition(".")[2]
    for what, names in _NAMES.items():
        if flat in names or (last in names and last not in _LONELY):
            return what
    return None


def _is_rollout(name: str, others: Iterable[str]) -> bool:
    """Whether a setting is the steps before an update, by the other settings of the same command."""
    if _last_part(name) not in _ROLLOUT:
        return False
    return not _ENVIRONMENTS.isdisjoint(map(_last_part, others))


def _last_part(name: str) -> str:
    return name.lstrip("-+").rstrip("=").replace("-", "_").lower().rpartition(".")[2]


def with_placeholders(
    words: Sequence[str], *, length: Literal["steps", "epochs"] = "steps"
) -> tuple[tuple[str, ...], tuple[SetByUs, ...]]:
    """A command with `{steps}` and `{out}` in it where its settings of length and folder are, and these settings.

    A length in epochs stays, unless a row of what the trainer writes is an epoch: how many steps it has is not known.
    """
    found = list(_found(words))
    if any(what == "epochs" and value != "1" for _, what, _, value in found):
        found = [one for one in found if _last_part(one[2]) != _OF_ONE_EPOCH]
    lengths = [_NAMES[what].index(_setting_known(name, what)) for _, what, name, _ in found if what == length]
    best = min(lengths, default=None)
    made = [_escaped(word) for word in words]
    ours: list[SetByUs] = []
    folders = 0
    for index, what, name, value in found:
        if what == length and _NAMES[what].index(_setting_known(name, what)) != best:
            continue
        folders += what == "out"
        filled = "{steps}" if what == length else _folder(name, value, first=folders == 1)
        if what not in (length, "out"):
            written = words[index]
        elif "=" in words[index]:
            written = f"{words[index].partition('=')[0]}={filled}"
            made[index] = written
        else:
            made[index + 1], written = filled, f"{words[index]} {filled}"
        ours.append(SetByUs(what, name, value, written))
    return tuple(made), tuple(ours)


def _folder(name: str, value: str, *, first: bool) -> str:
    """The output folder in place of what the command names; below it where that is a file, or a second folder."""
    if Path(value).suffix:
        return f"{{out}}/{Path(value).name}"
    return "{out}" if first else f"{{out}}/{_setting_known(name, 'out')}"


def _setting_known(name: str, what: What) -> str:
    """The name under which the table has it."""
    flat = name.lstrip("-+").replace("-", "_").lower()
    return flat if flat in _NAMES[what] else flat.rpartition(".")[2]


def _found(words: Sequence[str]) -> Iterator[tuple[int, What, str, str]]:
    """Each setting that is one of ours: the word's index, what it is, its name and its value."""
    undashed = undashed_in(words)
    given = [
        word.partition("=")[0]
        for index, word in enumerate(words)
        if index in undashed or word.startswith("-") or "=" in word
    ]
    for index, word in enumerate(words):
        assigned = _ASSIGNED.fullmatch(word)
        if assigned is not None:
            name, value = (assigned[1] or "") + assigned[2], assigned[3]
        elif index in undashed or (word.startswith("-") and index + 1 < len(words)):
            name, value = word, words[index + 1]
        else:
            continue
        what = None if _is_rollout(name, given) else meaning_of(name)
        names_folder = bool(value) and (assigned is not None or not value.startswith("-"))
        if what is not None and (names_folder if what == "out" else _COUNT.fullmatch(value)):
            yield index, what, name, value


def perhaps_folders(words: Sequence[str]) -> Iterator[str]:
    """Settings that may name a folder that the trainer writes to; they are left as they are."""
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("-") and name.lstrip("-").replace("-", "_").lower() in _PERHAPS_OUT:
            yield name


def _escaped(word: str) -> str:
    """A word that holds braces of its own, so that they are taken for no placeholder."""
    doubtful = re.search(r"\{[a-z_][a-z0-9_]*\}|\{\{|\}\}", word)
    return word.replace("{", "{{").replace("}", "}}") if doubtful else word


# What a trainer offers though the command does not use it.

_OPTION = re.compile(r"(?<![\w-])--([A-Za-z][\w.-]*)")
_GIVEN = re.compile(r"(--[A-Za-z][\w.-]*)(?:=.*)?", re.DOTALL)
_PARSERS = ("argparse", "ArgumentParser", "HfArgumentParser", "click", "typer", "fire", "absl", "tyro", "jsonargparse")
_CONFIGURATOR = re.compile(r"exec\(open\(['\"][\w./]*configurator\.py['\"]\)")
_ASSIGNMENT = re.compile(r"^([a-z_]\w*) *= *[^=]", re.MULTILINE)


def offered_in(source: str) -> tuple[str, ...]:
    """Settings, as `--name=`, that a script takes by a `configurator.py`, which sets its own global variables."""
    if not _CONFIGURATOR.search(source):
        return ()
    return tuple(f"--{name}=" for name in dict.fromkeys(_ASSIGNMENT.findall(source)))


def has_parser(source: str) -> bool:
    """Whether a script reads its arguments by a library that knows --help."""
    return any(re.search(rf"\b{name}\b", source) for name in _PARSERS)


def offered_by_help(text: str) -> tuple[str, ...]:
    """Settings, as `--name`, that the text of --help lists."""
    return tuple(dict.fromkeys(f"--{name}" for name in _OPTION.findall(text)))


_HELP_HEAD = re.compile(r"[\s│|]*(-\S.*?)(?:\s{2,}(?!-).*)?")  # `  -b N, --batch-size N  images of a step`
_COMMANDS = re.compile(r"(?im)^\W*commands\b|^\s+\{[\w,-]+\}")  # Commands: | {train,eval}
_SHORT = re.compile(r"(?<![\w-])-[A-Za-z][\w-]*")
_GIVEN_SHORT = re.compile(r"(-[A-Za-z])(\d.*)|(-[A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)  # -b256 | -b | -bs=256


def long_names(text: str) -> dict[str, str]:
    """The long name of each option that --help lists with one dash and with two; none for one that has several.

    None at all for a program with commands, which have options of their own.
    """
    found: dict[str, set[str]] = {}
    if _COMMANDS.search(text):
        return {}
    for line in text.splitlines():
        head = _HELP_HEAD.fullmatch(line)
        longs = [] if head is None else _OPTION.findall(head[1])
        for short in _SHORT.findall(head[1]) if head is not None and longs else ():
            found.setdefault(short, set()).add(f"--{longs[0]}")
    return {short: next(iter(names)) for short, names in found.items() if len(names) == 1}


def has_short(words: Sequence[str]) -> bool:
    """Whether a command has an option of one dash with a value."""
    return any(value is not None for _, _, value in _short_options(words))


def in_full(words: Sequence[str], longs: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The command with long names in place of short ones that have a value, and each of these with its long name."""
    made, renamed = list(words), {}
    for index, name, value in _short_options(words):
        if name in longs and value is not None:
            made[index] = longs[name] if words[index] == name else f"{longs[name]}={value}"
            renamed[name] = longs[name]
    return tuple(made), tuple(renamed.items())


def _short_options(words: Sequence[str]) -> Iterator[tuple[int, str, str | None]]:
    """Each option of one dash: its place, its name, and its value where it has one."""
    for index, word in enumerate(words):
        found = _GIVEN_SHORT.fullmatch(word)
        if found is None or (index == 0 and word == "-m"):
            continue
        value = found[2] or found[4]
        if value is None and index + 1 < len(words) and not re.match(r"--|-[A-Za-z]", words[index + 1]):
            value = words[index + 1]
        yield index, found[1] or found[3], value


_LIKE, _VERY_LIKE = 0.6, 0.8
"""Likeness from which a setting may be the one that was meant, and from which it is where --help lists none of the
command's settings, as of a program whose commands have their own."""


def not_listed(words: Iterable[str], offered: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Settings `--name` of a command that --help does not list, and for each the listed one that may be meant.

    Listed settings may be shortened, negated by `no`, and written with `-` in place of `_`.
    """
    listed = {_plain(one): one for one in offered if not one.endswith("=")}
    given = [found[1] for found in map(_GIVEN.fullmatch, words) if found is not None]
    unknown = [one for one in dict.fromkeys(given) if not any(name.startswith(_plain(one)) for name in listed)]
    about_these = len(unknown) < len(set(given))
    for one in unknown if listed else ():
        likely = get_close_matches(_plain(one), listed, n=1, cutoff=_LIKE if about_these else _VERY_LIKE)
        if about_these or likely:
            yield one, listed[likely[0]] if likely else None


def _plain(option: str) -> str:
    return option.lstrip("-").replace("_", "-").lower().removeprefix("no-")


def chosen_from(offered: Iterable[str], what: What, *, perhaps_file: bool = False) -> str | None:
    """The likeliest setting of this kind among those that a trainer offers; None where there is none.

    `perhaps_file`: also one like `--out`, which may name a file as well as a folder.
    """
    names: dict[str, str] = {}
    every = list(offered)
    if what == "steps" and not _TIMESTEPS.isdisjoint(map(_last_part, every)):
        return None  # what else it offers, as the number of updates, is computed from that
    for option in every:
        bare = option.rstrip("=")
        folder = perhaps_file or what != "out" or re.search(r"(?:dir|folder)$", bare) is not None
        if meaning_of(bare) == what and _last_part(bare) != _OF_ONE_EPOCH and folder and not _is_rollout(bare, every):
            names.setdefault(_setting_known(bare, what), option)
    return next((names[name] for name in _NAMES[what] if name in names), None)


def added(option: str, what: What) -> tuple[tuple[str, ...], SetByUs]:
    """The words that give a setting its placeholder, and the setting."""
    filled = "{steps}" if what == "steps" else "{out}"
    words = (f"{option}{filled}",) if option.endswith("=") else (option, filled)
    return words, SetByUs(what, option.rstrip("="), None, " ".join(words))
