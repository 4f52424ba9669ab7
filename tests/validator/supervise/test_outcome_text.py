"""The last words of a run: the exception of the rank that failed first, whatever stands in front of it or behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from validator.supervise.outcome_text import describe_exit, last_words, words_of

FRAMES = ["Traceback (most recent call last):", '  File "t.py", line 3, in <module>', "    step(batch)"]
SUMMARY = [
    "=" * 60,
    "t.py FAILED",
    "Failures:",
    "  <NO_OTHER_FAILURES>",
    "Root Cause (first observed failure):",
    "  rank      : 1 (local_rank: 1)",
    "  exitcode  : 1 (pid: 4711)",
    "  error_file: <N/A>",
    "=" * 60,
]
CHILD = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "


def said(tmp_path: Path, lines: list[str], name: str = "stderr.log") -> str | None:
    (tmp_path / "logs").mkdir(exist_ok=True)
    (tmp_path / "logs" / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = last_words(tmp_path)
    return None if found is None else str(found)


def described(tmp_path: Path) -> str:
    return describe_exit(1, words=words_of(1, out=tmp_path), step=None)


FORKED = "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with exit code 2"


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("[rank{r}]: ", 1),
        ("[default{r}]:", 1),
        ("{r}: ", 1),
        ("[1,{r}]<stderr>: ", 1),
        ("2026-03-04 05:06:07,890 ERROR ", None),
        ("[2026-03-04 05:06:07] [rank{r}]: ", 1),
        ("E0304 05:06:07.890000 4711 site-packages/launch/api.py:12] [rank{r}]: ", 1),
    ],
)
def test_the_exception_is_found_behind_prefixes_and_before_the_launchers_summary(
    tmp_path: Path, prefix: str, rank: int | None
) -> None:
    own = [prefix.format(r=1) + line for line in [*FRAMES, "ValueError: a batch of 3 cannot be cut in 2"]]
    words = said(tmp_path, ["loading", *own, *FRAMES, CHILD, *SUMMARY])
    owner = "" if rank is None else f" of rank {rank}"
    assert words == f"last words{owner}: ValueError: a batch of 3 cannot be cut in 2"


def test_the_cause_comes_before_what_other_ranks_report_of_it(tmp_path: Path) -> None:
    peer = "torch.distributed.DistBackendError: NCCL error: Connection closed by peer"
    lines = [f"[rank0]: {line}" for line in [*FRAMES, peer]] + [
        f"[rank1]: {line}" for line in [*FRAMES, "KeyError: 'x'"]
    ]
    assert said(tmp_path, lines) == "last words of rank 1: KeyError: 'x'"


def test_an_exception_of_a_name_of_its_own_is_known_by_its_traceback(tmp_path: Path) -> None:
    assert said(tmp_path, [*FRAMES, "mine.Diverged: loss 1e9"]) == "last words: mine.Diverged: loss 1e9"


def test_an_exception_that_was_caught_is_not_taken_for_the_last_one(tmp_path: Path) -> None:
    words = said(tmp_path, [*FRAMES, "OSError: try again", "trying again", *FRAMES, "RuntimeError: no more"])
    assert words == "last words: RuntimeError: no more"


def test_a_warning_behind_the_exception_is_not_the_cause(tmp_path: Path) -> None:
    words = said(tmp_path, [*FRAMES, "RuntimeError: no more", "/usr/lib/x.py:3: UserWarning: leaked semaphores"])
    assert words == "last words: RuntimeError: no more"


def test_an_exception_on_standard_output_is_found_as_well(tmp_path: Path) -> None:
    assert said(tmp_path, ["epoch 1", *FRAMES, "IndexError: 7"], "stdout.log") == "last words: IndexError: 7"


@pytest.mark.parametrize("empty", ["exited with code 1", "process exited with exit code 1.", *SUMMARY])
def test_what_says_nothing_is_not_said_twice(tmp_path: Path, empty: str) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "stderr.log").write_text(f"cannot open the tokenizer\n{empty}\n", encoding="utf-8")
    assert described(tmp_path) == "exited with code 1: last words: cannot open the tokenizer"
    (tmp_path / "logs" / "stderr.log").write_text(f"{empty}\n", encoding="utf-8")
    assert described(tmp_path) == "exited with code 1"


def test_a_record_that_only_names_the_exit_code_gives_way_to_the_log(tmp_path: Path) -> None:
    rank: Callable[[int], Path] = lambda r: tmp_path / "logs" / "ranks" / "none_x" / "attempt_0" / str(r)  # noqa: E731
    rank(0).mkdir(parents=True)
    record = {"message": {"message": "SystemExit: 1", "extraInfo": {"timestamp": "10"}}}
    (rank(0) / "error.json").write_text(json.dumps(record), encoding="utf-8")
    (rank(0) / "stderr.log").write_text("\n".join([*FRAMES, "OSError: no such shard"]) + "\n", encoding="utf-8")
    assert str(last_words(tmp_path)) == "last words of rank 0: OSError: no such shard"


def test_a_rank_that_ended_with_a_sentence_is_heard_before_the_exception_of_its_launcher(tmp_path: Path) -> None:
    """What torchrun says of a forked rank, "process 0 terminated with exit code 2", had hidden the wrong argument."""
    rank = tmp_path / "logs/ranks/none_x/attempt_0/0"
    rank.mkdir(parents=True)
    said = "nsa.train: data=text (--data): expected synthetic | local"
    (rank / "stderr.log").write_text(f"{said}\n", encoding="utf-8")
    (tmp_path / "logs/stderr.log").write_text("\n".join([*FRAMES, FORKED]) + "\n", encoding="utf-8")
    assert str(last_words(tmp_path)) == f"last words of rank 0: {said}"
    (rank / "stderr.log").write_text("\n".join([*FRAMES, "ValueError: no such shard"]) + "\n", encoding="utf-8")
    assert str(last_words(tmp_path)) == "last words of rank 0: ValueError: no such shard"
    (rank / "stderr.log").write_text("", encoding="utf-8")
    assert str(last_words(tmp_path)) == f"last words: {FORKED}"


def test_a_rank_of_a_thousand_digits_names_no_rank(tmp_path: Path) -> None:
    """Python refuses to read it as a number, and a runner that a trainer's words end has no verdict."""
    for prefix in ("[rank{}]: ", "{}: ", "[1,{}]<stderr>: "):
        (tmp_path / "logs").mkdir(exist_ok=True)
        (tmp_path / "logs/stderr.log").write_text(prefix.format("9" * 5000) + "RuntimeError: boom\n")
        assert "exited with code 1" in described(tmp_path)
        (tmp_path / "logs/stderr.log").write_text(prefix.format("7") + "RuntimeError: boom\n")
        assert described(tmp_path).endswith("last words of rank 7: RuntimeError: boom")


def test_a_folder_called_after_a_sign_that_is_no_number_is_no_rank(tmp_path: Path) -> None:
    for rank in ("²", "3"):
        (tmp_path / "logs/ranks/x/attempt_0" / rank).mkdir(parents=True)
        (tmp_path / "logs/ranks/x/attempt_0" / rank / "stderr.log").write_text(f"RuntimeError: of {rank}\n")
    assert described(tmp_path).endswith("last words of rank 3: RuntimeError: of 3")
