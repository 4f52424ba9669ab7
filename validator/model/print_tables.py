"""Tables in a log: a line of names, and rows of numbers below it that name nothing.

Each row is read as a line of its own that names its numbers. A header counts where one column is the step, or else the
epoch, and one alone the loss, or none and one the reward of an agent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from validator.model.logged_names import STEP_KEYS, logged_name, plain_key
from validator.model.pattern import parse_number
from validator.model.print_words import MARK

_SEPARATORS = tuple(map(re.compile, (r"\s*,\s*", r"\s*\|\s*", r"\t+", r"\s{2,}", r"\s+")))
_NAME = re.compile(r"[A-Za-z_][\w ./()%-]{0,40}")
_CELL = re.compile(r"[-+]?[\d.][\d.,:e+-]*%?|nan|[-+]?inf|n/?a|none|-|", re.IGNORECASE)
_LONGEST = 500

_WANTED = (
    *("loss", "lr", "grad_norm", "val_loss", "toks_per_s", "toks_per_s_per_rank", "step_time_s", "step_time_ms"),
    *("elapsed_s", "timestamp", "mean_reward"),
)
_STEPS = frozenset({*STEP_KEYS, "steps", "update", "num_updates"})
_EPISODES = frozenset({"ep", "episode", "episodes", "eps"})
_REWARDS = frozenset(
    {
        *("reward", "rewards", "return", "returns", "mean_reward", "mean_return", "avg_reward", "avg_return"),
        *("episode_reward", "episode_return", "ep_reward", "ep_return", "ep_rew_mean", "score", "train_return"),
    }
)
_HEADED = re.compile(r"loss|reward|return|score|rew_mean|rmse", re.IGNORECASE)
_LOSSES = frozenset({"training_loss", "tr_loss", "rmse_trn", "rmse_train", "train_rmse"})


class PrintedTable:
    """The rows of one log, as they come."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._separator = _SEPARATORS[0]

    def row(self, text: str) -> str | None:
        """A row as a line that names its numbers: `⊞ step=10 loss=3.93 lr=0.001`; None for any other line."""
        if len(text) > _LONGEST or not text.strip():
            return None
        if self._names:
            cells = self._separator.split(text.strip().strip("|").strip())
            if len(cells) == len(self._names) and all(map(_CELL.fullmatch, cells)):
                return self._named(cells)
        self._take_header(text)
        return None

    def _take_header(self, text: str) -> None:
        if _HEADED.search(text) is None:
            return
        for separator in _SEPARATORS:
            cells = separator.split(text.lstrip("# \t").strip().strip("|").strip())
            if len(cells) > 1 and all(map(_NAME.fullmatch, cells)):
                names = tuple(map(_meaning, cells))
                one = names.count("loss") == 1 or ("loss" not in names and names.count("mean_reward") == 1)
                if one and names.count("step") + ("step" not in names) * names.count("epoch") == 1:
                    self._names, self._separator = names, separator
                    return

    def _named(self, cells: list[str]) -> str | None:
        named = dict(zip(self._names, cells, strict=True))
        first = "step" if "step" in named else "epoch"
        if not named[first].isdigit():
            return None
        more = ("epoch",) if first == "step" and named.get("epoch", "").isdigit() else ()
        shown = (name for name in (*more, *_WANTED) if parse_number(named.get(name, "")) is not None)
        return " ".join([MARK, f"{first}={named[first]}", *(f"{name}={named[name]}" for name in shown)])


def _meaning(cell: str) -> str:
    """What a column is; of several columns of one meaning, and of those that mean nothing here, the name counts."""
    key = plain_key(cell)
    if key in _STEPS or key in _EPISODES:
        return "step"
    if key in _REWARDS:
        return "mean_reward"
    return logged_name("train_loss" if key in _LOSSES else cell)


def with_rows(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The lines, and behind each that is a row of a table the same with its names."""
    table = PrintedTable()
    for number, text in lines:
        yield number, text
        row = table.row(text)
        if row is not None:
            yield number, row
