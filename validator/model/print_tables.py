"""Tables in a log: a line of names, and rows of numbers below it that name nothing; and boxes of names and numbers.

Each row is read as a line of its own that names its numbers. A header counts where one column is the step, or else the
epoch, and one alone the loss, or none and one the reward of an agent. A box, lines such as `| loss | 0.31 |` between
two rules, is a row: OpenAI's baselines print it, and Stable-Baselines3, Spinning Up and guided diffusion.
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
_RULE = re.compile(r"[-=+]{6,}")
_IN_BOX = re.compile(r"\|\s*(\S.{0,60}?)\s*\|\s*(\S{0,40})\s*\|")
_STEPS_OF_BOX = (
    *("step", "steps", "total_timesteps", "timesteps_so_far", "timestepssofar", "totalenvinteracts", "nupdates"),
    *("iterations", "epoch"),
)
"""What counts the rows of a box, the first of these that it holds."""
_OF_BOX = {"eprewmean": "mean_reward", "averageepret": "mean_reward", "time_elapsed": "", "time": ""}
"""Names of boxes alone. Their times are whole seconds since the start."""

_HEADED = re.compile(r"loss|reward|return|score|rew_mean|rmse", re.IGNORECASE)
_LOSSES = frozenset({"training_loss", "tr_loss", "rmse_trn", "rmse_train", "train_rmse"})


class PrintedTable:
    """The rows of one log, as they come."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._separator = _SEPARATORS[0]
        self._box: dict[str, str] | None = None
        self._last, self._stride = 0, 0

    def row(self, text: str) -> str | None:
        """A row as a line that names its numbers: `⊞ step=10 loss=3.93 lr=0.001`; None for any other line."""
        if len(text) > _LONGEST or not text.strip():
            return None
        if _RULE.fullmatch(text.strip()):
            box, self._box = self._box, {}
            return self._of_box(box) if box else None
        if self._box is not None:
            line = _IN_BOX.fullmatch(text.strip())
            if line is not None:
                self._box[plain_key(line[1]).rpartition("/")[2]] = line[2]
                return None
            self._box = None
        if self._names:
            cells = self._separator.split(text.strip().strip("|").strip())
            if len(cells) == len(self._names) and all(map(_CELL.fullmatch, cells)):
                return self._named(cells)
        self._take_header(text)
        return None

    def _of_box(self, box: dict[str, str]) -> str | None:
        counted = next((box[name] for name in _STEPS_OF_BOX if name in box), "")
        step = self._step(counted)
        named = {_OF_BOX.get(key, _meaning(key)): value for key, value in reversed(box.items())}
        shown = [name for name in _WANTED if parse_number(named.get(name, "")) is not None]
        if step is None or {"loss", "mean_reward"}.isdisjoint(shown):
            return None
        self._last, self._stride = step, step - self._last
        return " ".join([MARK, f"step={step}", *(f"{name}={named[name]}" for name in shown)])

    def _step(self, counted: str) -> int | None:
        """What a box counts. Some round it to three digits, `1.01e+03`: then it is the step that follows, if that
        rounds to it."""
        if counted.isdigit():
            return int(counted)
        rounded, follows = parse_number(counted), self._last + self._stride
        return follows if rounded is not None and self._stride > 0 and float(f"{follows:.3g}") == rounded else None

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
