"""GPT-2's tokenizer over a vocabulary made here, and what is said where the real one cannot be had."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken

from nsa.config import ConfigError, DataConfig, UnreachableError
from nsa.data import DataError, open_sources, open_tokenizer
from nsa.data.smoke import main as smoke_main
from nsa.data.tokenizer import Gpt2Tokenizer
from nsa.generate import load_model
from nsa.prepare import main as prepare_main
from nsa.resolve import resolve

MERGES = [b"th", b"the", b" the", b"an", b"and", b" and", b"in", b"ing", b"er", b" er"]


def write_vocabulary(path: Path, merges: list[bytes] = MERGES) -> Path:
    """A byte-pair vocabulary: all bytes, then some merges, each of two tokens before it."""
    tokens = [bytes([i]) for i in range(256)] + merges
    path.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)))
    return path


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    return write_vocabulary(tmp_path / "small.tiktoken")


def test_a_vocabulary_from_a_file_merges_as_it_says(vocabulary: Path) -> None:
    tokenizer = open_tokenizer("gpt2", file=str(vocabulary))
    assert (tokenizer.eos_id, tokenizer.vocab_size, tokenizer.padded_vocab_size) == (266, 267, 320)
    ids = tokenizer.encode("the and thing")
    assert ids.dtype == np.uint16
    assert ids.tolist() == [257, 261, 32, 256, 263]  # the | and | space | th | ing: " th" is no token
    assert tokenizer.decode([*ids.tolist(), tokenizer.eos_id, 300]) == "the and thing"


def test_any_text_survives_and_a_special_token_in_it_is_text(vocabulary: Path) -> None:
    tokenizer = open_tokenizer("gpt2", file=str(vocabulary))
    text = "naïve ☃ <|endoftext|>\n\n\ttabs  12 and 東京"
    ids = tokenizer.encode(text)
    assert tokenizer.eos_id not in ids
    assert tokenizer.decode(ids.tolist()) == text


def test_gpt2_prepares_trains_and_generates(
    tmp_path: Path, vocabulary: Path, train: Callable[..., int], capsys: Any
) -> None:
    for i in range(40):
        (tmp_path / f"{i}.txt").write_text("the thing and the other thing, and then another " * 20)
    shards = tmp_path / "shards"
    asked = ["--tokenizer", "gpt2", "--tokenizer-file", str(vocabulary)]
    assert prepare_main([str(tmp_path), str(shards), "--glob", "*.txt", "--val-fraction", "0", *asked]) == 0
    tokens = np.fromfile(shards / "train_00000.bin", "<u2")
    assert (tokens == 266).sum() == 40  # an end for each document, and none in a text
    data = ["--data", "local", "--data-path", str(shards), *asked]
    capsys.readouterr()
    assert smoke_main([*data, "--seq-len", "32", "--batches", "3", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["vocab_size"] == 267 > record["largest_id"] > 255
    assert "the other thing" in record["sample"]
    assert train(tmp_path / "run", "--steps", "3", "--save-final", *data) == 0
    assert json.loads((tmp_path / "run" / "env.json").read_text())["tokenizer"]["vocab_size"] == 267
    _, tokenizer = load_model(tmp_path / "run")
    assert tokenizer.vocab_size == 267


def test_shards_of_another_vocabulary_are_refused(tmp_path: Path, vocabulary: Path) -> None:
    (tmp_path / "a.txt").write_text("the thing and the other thing " * 50)
    asked = ["--tokenizer", "gpt2", "--val-fraction", "0", "--tokenizer-file"]
    assert prepare_main([str(tmp_path / "a.txt"), str(tmp_path / "shards"), *asked, str(vocabulary)]) == 0
    other = open_tokenizer("gpt2", file=str(write_vocabulary(tmp_path / "other.tiktoken", [b"on", *MERGES])))
    settings = DataConfig(data="local", data_path=str(tmp_path / "shards"), tokenizer="gpt2", seq_len=16)
    with pytest.raises(DataError, match="another vocabulary of tokenizer=gpt2"):
        open_sources(settings, other, seed=1)
    open_sources(settings, open_tokenizer("gpt2", file=str(vocabulary)), seed=1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        ("bm90IGEgcmFuaw== first\n", "line 1: expected base64 and a rank"),
        ("%%% 0\n", "line 1: expected base64 and a rank"),
        ("YQ== 0\nYg== 2\n", "ranks are not 0, 1, 2"),
        ("YQ== 0\nYg== 1\n", "no token for 254 of the 256 bytes, the first is 0"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "bad.tiktoken"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=said):
        open_tokenizer("gpt2", file=str(path))


def test_a_vocabulary_that_cannot_be_fetched_says_how_to_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """tiktoken itself, with an empty cache and a network that refuses."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        UnreachableError, match="TIKTOKEN_CACHE_DIR: connect, fill the cache, name a file as tokenizer_file"
    ):
        open_tokenizer("gpt2")
    assert smoke_main(["--tokenizer", "gpt2", "--json"]) == 5
    assert json.loads(capsys.readouterr().out)["error"] == "unreachable"


def test_a_download_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: never.wait(10))
    began = time.monotonic()
    with pytest.raises(UnreachableError, match=r"no vocabulary within 0\.2 s"):
        Gpt2Tokenizer(timeout_s=0.2)
    assert time.monotonic() - began < 5
    never.set()


def test_a_vocabulary_file_needs_its_tokenizer() -> None:
    with pytest.raises(ConfigError, match="set tokenizer=gpt2"):
        resolve(["--tokenizer-file", "x.tiktoken"], {})
