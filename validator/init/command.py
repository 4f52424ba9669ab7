"""A person's command as a runbook has it: launcher, words with placeholders, and how the trainer comes to its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from validator.files import open_file
from validator.init.launch import CommandLaunch, launch_of, visible_gpus
from validator.init.settings import (
    SetByUs,
    added,
    chosen_from,
    has_parser,
    has_short,
    in_full,
    long_names,
    not_listed,
    offered_by_help,
    offered_in,
    perhaps_folders,
    with_placeholders,
)
from validator.secrets.redact import redact, redact_words

_SOURCE_BYTES = 2**20
_NEW_FOLDER = "trained"
"""Folder below a run's output folder, which holds validator's logs from the start."""

_NEAR = 2
"""Folders above the runbook that are still near it: a runbook is often in `runbooks/` or `ci/gpu/`."""


@dataclass(frozen=True)
class TrainerCommand:
    """What a command means. `words` has the placeholders, `ours` are the settings in whose place they are."""

    given: tuple[str, ...]
    launch: CommandLaunch
    words: tuple[str, ...]
    ours: tuple[SetByUs, ...]
    offered: tuple[str, ...] = ()
    """Settings that the program was found to take, as `--name` or `--name=`; empty where it was not asked."""

    lines_are_steps: bool = False
    in_own_folder: bool = False
    """Whether each run works in its output folder, since the trainer writes to where it works."""

    renamed: tuple[tuple[str, str], ...] = ()
    """Short options that `launch.words` has by their long names, each with that name."""

    @property
    def length(self) -> SetByUs | None:
        """The setting that says how many steps are done; None where none is known."""
        return next((one for one in self.ours if "{steps}" in one.written), None)

    @property
    def epochs(self) -> int | None:
        """The epochs that the command asks for; None where it names none."""
        _, found = with_placeholders(self.launch.words, length="epochs")
        return next((one.count for one in found if one.what == "epochs" and "{steps}" in one.written), None)

    @property
    def configs(self) -> tuple[Path, ...]:
        """The config files that the command or its variables name, also those that are Python."""
        first = 2 if self.launch.words[:1] == ("-m",) else 1
        values = [Path(word.rpartition("=")[2]) for word in self.launch.words[first:] if word.endswith(".py")]
        return (*config_files(self.launch.words, self.launch.env), *(path for path in values if path.is_file()))

    @property
    def folder(self) -> SetByUs | None:
        """The setting that says where the trainer writes; None where none is known."""
        return next((one for one in self.ours if one.what == "out"), None)

    @property
    def nproc(self) -> int:
        """Processes that the launcher starts; 0 where Python or the program is started alone."""
        if self.launch.nproc is None:
            return max(1, visible_gpus())
        return self.launch.nproc

    @property
    def shown(self) -> str:
        """The command on one line, without secrets."""
        return " ".join(redact_words(self.given, redact))

    def by_epochs(self) -> TrainerCommand:
        """The same command where a step, as the trainer writes it, is an epoch."""
        if not any(one.what == "epochs" for one in self.ours):
            return self
        words, ours = with_placeholders(self.launch.words, length="epochs")
        return replace(self, words=words, ours=ours)

    def by_lines(self) -> TrainerCommand:
        """The same command where no step is printed and each line counts as one: it keeps its own length, and validator
        ends it."""
        setting = self.length
        if setting is None:
            return self
        gone = () if setting.value is not None else setting.written.split(" ")
        words = (word.replace("{steps}", setting.value or "") for word in self.words if word not in gone)
        ours = tuple(one for one in self.ours if one is not setting)
        return replace(self, words=tuple(words), ours=ours, lines_are_steps=True)

    def in_its_folder(self) -> TrainerCommand:
        """The same command for a trainer that works in its output folder; paths in it become absolute."""
        here = Path.cwd()
        env = {name: _absolute_paths(value, here) for name, value in self.launch.env.items()}
        if self.words[:1] == ("-m",):
            given = env.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
            env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(here), given)))
        launch = replace(self.launch, env=env)
        words = tuple(_absolute(word, here) for word in self.words)
        return replace(self, launch=launch, words=words, in_own_folder=True)

    def in_named_folder(self) -> TrainerCommand | None:
        """The same command with a setting like `--out`, which may name its output folder; None where it has none."""
        option = chosen_from(self.offered, "out", perhaps_file=True)
        if option is None:
            return None
        further, setting = added(option, "out")
        return replace(self, words=(*self.words, *further), ours=(*self.ours, setting))

    def in_new_folder(self) -> TrainerCommand:
        """The same command for a trainer that refuses an output folder which is there: one below it, which is not."""

        def below(word: str) -> str:
            return f"{word}/{_NEW_FOLDER}" if word.endswith("{out}") else word

        ours = tuple(replace(one, written=below(one.written)) for one in self.ours)
        return replace(self, words=tuple(map(below, self.words)), ours=ours)

    def misspelled(self) -> Iterator[str]:
        """Settings that --help of the program does not list, each with the one that may be meant, in words."""
        for option, likely in not_listed(self.launch.words, self.offered):
            meant = "" if likely is None else f" ({likely} may be meant)"
            yield f"{option}, which --help does not list{meant}"

    def notes(self) -> Iterator[str]:
        """What a person should know of how the command was taken."""
        for text in self.misspelled():
            yield f"{text}: the trainer does not refuse it, and may ignore it"
        for short, name in self.renamed:
            yield f"{short} is written as {name}, its long name by --help"
        for option in perhaps_folders(self.launch.words):
            yield f"{option} is left as it is: if the trainer writes there, every run does"
        if self.in_own_folder:
            yield "it writes to its working folder, so each run works in one of its own (cwd), by absolute paths"
        elif self.folder is None:
            yield "no setting of the output folder is known: what the trainer writes goes where it always does"
        if self.lines_are_steps:
            yield "no step is printed, so each line counts as one, and validator ends the trainer behind as many"
        elif self.length is None:
            yield (
                "no setting of the length in steps is known: validator ends the trainer when a phase's steps are done; "
                "put {steps} where it belongs, if there is one"
            )
        if self.launch.left_out:
            yield f"{' '.join(self.launch.left_out)} is left out: validator gives each run its own port and logs"
        if tuple(redact_words(self.given, redact)) != self.given:
            yield "the command holds what looks like a secret; hand it over in a variable, and name that under secrets"


def name_of(launch: CommandLaunch) -> str:
    """A name for the runbook, from the program: `train` for `train.py`, `-m torchtitan.train` and `./train.sh`."""
    words = launch.words
    module = words[0] == "-m" and len(words) > 1
    raw = words[1].rpartition(".")[2] if module else Path(words[0]).stem
    slug = "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in raw.lower()).strip("-")
    return slug or "trainer"


def _absolute(word: str, here: Path) -> str:
    """A word, or the value behind its `=`, that names a file beside it, by its absolute path."""
    name, equals, value = word.partition("=") if word.startswith("-") or "=" in word else ("", "", word)
    there = value and not Path(value).is_absolute() and (here / value).exists()
    return f"{name}{equals}{here / value}" if there else word


def _absolute_paths(value: str, here: Path) -> str:
    """A variable's value with the files and folders that it names beside it, such as those of PYTHONPATH, absolute."""
    parts = value.split(os.pathsep)
    return os.pathsep.join(
        str(here / one) if one and not Path(one).is_absolute() and (here / one).exists() else one for one in parts
    )


def understand(command: Sequence[str], *, help_of: Callable[[CommandLaunch], str]) -> TrainerCommand:
    """What a person's command means.

    Args:
        help_of: what the program prints for --help; asked only where the command does not say enough, and where the
            program is known to read its arguments by a library.

    Raises:
        UserError: when it starts nothing.
    """
    launch = launch_of(command)
    words, ours = with_placeholders(launch.words)
    made = TrainerCommand(tuple(command), launch, words, ours)
    known = made.length is not None and made.folder is not None
    if known and not config_files(words, launch.env) and not has_short(words):
        return made
    offered, longs = _offered(launch, help_of)
    full, renamed = in_full(launch.words, longs)
    words, ours = with_placeholders(full)
    launch = replace(launch, words=full)
    made = replace(made, launch=launch, words=words, ours=ours, offered=offered, renamed=renamed)
    for what in ("steps", "out"):
        option = chosen_from(offered, "steps" if what == "steps" else "out")
        if option is not None and (made.length if what == "steps" else made.folder) is None:
            further, setting = added(option, "steps" if what == "steps" else "out")
            made = replace(made, words=(*made.words, *further), ours=(*made.ours, setting))
    return made


def config_files(words: Sequence[str], env: Mapping[str, str]) -> tuple[Path, ...]:
    """Config files that a command or a variable in front of it names."""
    values = (word.rpartition("=")[2] for word in (*words, *env.values()))
    paths = (Path(value) for value in values if Path(value).suffix in (".toml", ".yaml", ".yml", ".json"))
    return tuple(dict.fromkeys(path for path in paths if path.is_file()))


def _offered(
    launch: CommandLaunch, help_of: Callable[[CommandLaunch], str]
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Settings that the program takes besides those of the command, and the long names of its short options."""
    if launch.launcher == "plain":
        return (), {}
    source = _source(launch.script)
    offered = offered_in(source)
    module = launch.words[:1] == ("-m",) and launch.script is None
    if offered or not (module or has_parser(source)):
        return offered, {}
    text = help_of(launch)
    return offered_by_help(text), long_names(text)


def _source(script: Path | None) -> str:
    if script is None:
        return ""
    try:
        with open_file(script) as file:
            return file.read(_SOURCE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


# As the keys of a runbook.


def trainer_keys(command: TrainerCommand, *, base: Path) -> dict[str, Any]:
    """The mapping `trainer` of a runbook in the folder `base`, without its metrics."""
    launch = command.launch
    keys: dict[str, Any] = {"command": list(command.words), "args": {}}
    keys |= {"cwd": "{out}"} if command.in_own_folder else {"workdir": near(Path.cwd(), base)}
    usual = "torchrun" if command.nproc else "python"
    if launch.launcher == usual and launch.python is None and not launch.args:
        return keys | _stop(command)
    if launch.launcher != usual:
        keys["launcher"] = launch.launcher
    if launch.args:
        keys["launcher_args"] = list(launch.args)
    if launch.python is not None:
        keys["python"] = _written(Path(launch.python), base)
    return keys | _stop(command)


def nproc_key(command: TrainerCommand) -> int:
    """`defaults.nproc` of the runbook."""
    return command.nproc


def _stop(command: TrainerCommand) -> dict[str, Any]:
    """How a trainer without a setting for its length comes to its end."""
    return {"stop": "at_steps"} if command.length is None else {}


def _written(python: Path, base: Path) -> str:
    """A Python as a runbook names it: its environment's folder where it has one."""
    return near(python.parent.parent if (python.parent.parent / "pyvenv.cfg").is_file() else python, base)


def near(path: Path, base: Path) -> str:
    """A path as a runbook in the folder `base` names it: relative where it lies near, so that both can move."""
    for ups, root in enumerate((base, *base.parents[:_NEAR])):
        if path.is_relative_to(root) and root != Path("/"):
            return str(Path(*[".."] * ups, path.relative_to(root)))
    return str(path)
