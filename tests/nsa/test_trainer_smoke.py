"""The loader tried alone: what it prints can be parsed whatever happened, and its exit code says what that was."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsa.config import DataConfig, UnreachableError
from nsa.data import Sources, smoke
from nsa.data.smoke import main
from tests.nsa.ranks import RankServer


def run(capsys: Any, *args: str) -> tuple[int, dict[str, Any]]:
    code = main([*args, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_sound_source_is_measured(tmp_path: Path, capsys: Any) -> None:
    for i in range(50):
        (tmp_path / f"{i:02}.txt").write_text(f"document {i} begins here " + "and goes on " * 30)
    settings = ["--data", "local", "--data-path", str(tmp_path), "--seq-len", "64", "--batch-size", "3"]
    code, record = run(capsys, *settings, "--batches", "7", "--val-fraction", "0.2")
    assert code == 0
    assert record["ok"]
    assert record["error"] is None
    assert record["tokens"] == 7 * 3 * 64
    assert record["toks_per_s"] > 0
    assert record["first_batch_s"] >= record["open_s"] > 0
    assert record["fetch_max_ms"] >= record["fetch_p95_ms"] >= record["fetch_p50_ms"] > 0
    assert record["largest_id"] <= 256 < record["vocab_size"]
    assert "and goes on" in record["sample"]
    assert record["has_val"]
    assert record["source"]["documents"] == 50


def test_one_batch_gives_no_rate(capsys: Any) -> None:
    code, record = run(capsys, "--batches", "1", "--seq-len", "16")
    assert (code, record["toks_per_s"]) == (0, None)


def test_settings_of_a_whole_run_are_taken(tmp_path: Path, capsys: Any) -> None:
    code, record = run(capsys, "--config", "tiny_cpu", "--steps", "9", "--out", str(tmp_path), "--batches", "2")
    assert code == 0
    assert record["seq_len"] == 128


class _Source:
    """Fails, or hangs, in the way that a test needs."""

    def __init__(self, error: Exception | None) -> None:
        self._error, self._never = error, threading.Event()

    def batch(self, indices: Sequence[int]) -> np.ndarray:
        if self._error is not None:
            raise self._error
        self._never.wait(5)
        return np.zeros((len(indices), 17), np.int64)


@pytest.mark.parametrize(
    ("error", "word", "expected"),
    [
        (UnreachableError("the hub gave no answer"), "unreachable", 5),
        (OSError("disk gone"), "failed", 1),
        (None, "timeout", 1),
    ],
)
def test_each_failure_has_its_word_and_code(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, error: Exception | None, word: str, expected: int
) -> None:
    def open_sources(config: DataConfig, tokenizer: Any, *, seed: int) -> Sources:
        return Sources(train=_Source(error), val=None)

    monkeypatch.setattr(smoke, "open_sources", open_sources)
    code, record = run(capsys, "--seq-len", "16", "--loader-timeout-s", "0.2")
    assert code == expected
    assert not record["ok"]
    assert record["error"] == word
    assert record["message"]


@pytest.mark.parametrize(
    ("args", "word", "said"),
    [
        (["--batches", "0"], "usage", "--batches=0"),
        (["--rank", "2", "--world", "2"], "usage", "--rank=2"),
        (["--sequence-length", "5"], "usage", "unknown flag --sequence-length"),
        (["--data", "local", "--data-path", "/no/such/folder"], "data", "no file matches"),
    ],
)
def test_mistakes_are_told_as_json_too(capsys: Any, args: list[str], word: str, said: str) -> None:
    code, record = run(capsys, *args)
    assert (code, record["error"]) == (2, word)
    assert said in record["message"]


def test_the_command_prints_json_alone_or_lines_for_people(rank_server: RankServer) -> None:
    args = ["--seq-len", "16", "--batches", "3"]
    told = rank_server.start_alone("nsa.data", [*args, "--json"])
    assert told.wait() == [0]
    assert json.loads(told.out)["batches"] == 3
    said = rank_server.start_alone("nsa.data", args)
    assert said.wait() == [0]
    assert "first batch" in said.out


def test_ctrl_c_ends_it_without_a_traceback(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(smoke, "measure", interrupted)
    assert main(["--batches", "2"]) == 130
    assert capsys.readouterr().err == "nsa.data: interrupted\n"


def test_lines_for_people_keep_errors_off_standard_output(capsys: Any) -> None:
    assert main(["--batches", "-1"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "--batches=-1" in said.err
