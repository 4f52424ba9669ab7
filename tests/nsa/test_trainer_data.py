"""Samples by number: the same on every rank, however a step is cut; and nothing held out is ever trained on."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from nsa.config import DataConfig
from nsa.data import BatchLoader, DataError, FetchStats, LoaderError, open_sources, open_tokenizer, share_of_step
from nsa.data.local import find_files, is_held_out, read_documents
from nsa.data.source import TokenWindows
from nsa.data.synthetic import ODDS, MarkovCopySource, UniformSource, markov_copy_floor_nats

BYTES = open_tokenizer("byte")


@pytest.mark.parametrize(("world", "batch_size", "accum"), [(1, 4, 2), (2, 4, 1), (1, 2, 4), (4, 1, 2), (8, 1, 1)])
def test_every_cut_of_a_global_batch_covers_the_same_samples(world: int, batch_size: int, accum: int) -> None:
    for step in (0, 3):
        shares = [
            share_of_step(step, micro, rank=rank, world=world, batch_size=batch_size, accum=accum)
            for micro in range(accum)
            for rank in range(world)
        ]
        assert sorted(i for share in shares for i in share) == list(range(step * 8, step * 8 + 8))


def test_synthetic_samples_repeat_their_first_half_and_depend_on_the_number_alone() -> None:
    source = MarkovCopySource(seq_len=64, seed=1)
    batch = source.batch([3, 9, 3])
    assert batch.shape == (3, 65)
    np.testing.assert_array_equal(batch[0], batch[2])
    assert (batch[0] != batch[1]).any()
    np.testing.assert_array_equal(batch[:, :33], batch[:, 32:])
    assert (MarkovCopySource(seq_len=64, seed=2).batch([3]) != batch[:1]).any()


def test_synthetic_chain_has_the_entropy_that_is_claimed() -> None:
    source = MarkovCopySource(seq_len=4000, seed=5)
    follows: dict[int, Counter[int]] = {}
    for sample in source.batch(range(100))[:, :2000]:
        for a, b in itertools.pairwise(sample):
            follows.setdefault(int(a), Counter())[int(b)] += 1
    assert len(follows) == 256
    assert all(len(after) == len(ODDS) for after in follows.values())
    n = sum(sum(after.values()) for after in follows.values())
    nats = -sum(c * math.log(c / sum(after.values())) for after in follows.values() for c in after.values()) / n
    full, chain = markov_copy_floor_nats(4000)
    assert nats == pytest.approx(chain, rel=0.01)
    assert full == pytest.approx(chain * 1999 / 4000)


def test_uniform_samples_use_all_symbols() -> None:
    batch = UniformSource(seq_len=5000, seed=1).batch([0])
    assert set(batch.flatten().tolist()) == set(range(256))


def test_validation_samples_differ_from_training_samples() -> None:
    sources = open_sources(DataConfig(seq_len=32), BYTES, seed=1)
    assert (sources.train.batch([0]) != sources.val.batch([0])).any()


def test_windows_cover_every_target_once_per_epoch_in_a_new_order() -> None:
    windows = TokenWindows(np.arange(101), seq_len=10, seed=1, what="x")
    first, second = windows.batch(range(10)), windows.batch(range(10, 20))
    assert sorted(first[:, 1:].flatten().tolist()) == list(range(1, 101))
    assert sorted(second[:, 0].tolist()) == sorted(first[:, 0].tolist())
    assert second[:, 0].tolist() != first[:, 0].tolist()
    np.testing.assert_array_equal(windows.batch([3]), first[3:4])  # back into an earlier epoch


def test_too_few_tokens_say_how_many_are_needed() -> None:
    with pytest.raises(DataError, match=r"x holds 10 tokens, fewer than seq_len \+ 1 = 11"):
        TokenWindows(np.arange(10), seq_len=10, seed=1, what="x")


def local(path: Path, **changes: object) -> DataConfig:
    return DataConfig(data="local", data_path=str(path), seq_len=8, **changes)  # type: ignore[arg-type]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for i in range(60):
        (tmp_path / f"{i:02}.txt").write_text(f"document number {i} with a few words\n" * (i % 3 + 1))
    (tmp_path / "records.jsonl").write_text(
        "".join(json.dumps({"text": f"record {i} of many"}) + "\n" for i in range(60))
    )
    (tmp_path / ".hidden.txt").write_text("hidden")
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    return tmp_path


def test_folder_is_read_in_order_without_hidden_or_foreign_files(corpus: Path) -> None:
    names = [p.name for p in find_files(str(corpus))]
    assert names == [*(f"{i:02}.txt" for i in range(60)), "records.jsonl"]
    assert [p.name for p in find_files(str(corpus), "1*.txt")] == [f"{i}.txt" for i in range(10, 20)]
    assert len(find_files(str(corpus / "0*.txt"))) == 10
    assert find_files(str(corpus / "records.jsonl")) == [corpus / "records.jsonl"]


def test_held_out_documents_are_never_trained_on(corpus: Path) -> None:
    sources = open_sources(local(corpus, val_fraction=0.3), BYTES, seed=1)
    assert sources.val is not None
    assert sources.info["val_split"] == "document"

    def text_of(source: TokenWindows) -> str:
        return BYTES.decode(source._tokens.tolist())

    train, val = text_of(sources.train), text_of(sources.val)  # type: ignore[arg-type]
    for i in range(60):
        line = f"document number {i} with a few words\n" * (i % 3 + 1)
        assert (line in val) == is_held_out(line, 0.3)
        assert (line in train) == (not is_held_out(line, 0.3))
    assert sources.info["train_tokens"] + sources.info["val_tokens"] == len(train) + len(val) + 120  # end marks


def test_one_long_file_is_split_by_position(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("abcdefghij" * 100)
    sources = open_sources(local(tmp_path / "one.txt", val_fraction=0.1), BYTES, seed=1)
    assert sources.info["val_split"] == "position"
    assert (sources.info["train_tokens"], sources.info["val_tokens"]) == (901, 100)


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"good \xff\xfe text")
    sources = open_sources(local(tmp_path, val_fraction=0.0), BYTES, seed=1)
    decoded = BYTES.decode(sources.train._tokens.tolist())  # type: ignore[attr-defined]
    assert decoded == "good \ufffd\ufffd text"


def test_a_limit_stops_the_reading(corpus: Path) -> None:
    sources = open_sources(local(corpus, val_fraction=0.0, data_limit_mib=200 / 2**20), BYTES, seed=1)
    assert sources.info["documents"] < 10


@pytest.mark.parametrize(
    ("line", "said"),
    [("{not json", r"bad\.jsonl:2: not a JSON record"), ('{"body": "x"}', r"bad\.jsonl:2: no text under `text`")],
)
def test_a_bad_record_is_named_by_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "good"}\n' + line + "\n")
    with pytest.raises(DataError, match=said):
        open_sources(local(tmp_path), BYTES, seed=1)


def test_missing_files_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file matches"):
        open_sources(local(tmp_path), BYTES, seed=1)


def test_validation_without_held_out_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some short text")
    with pytest.raises(DataError, match="val_every=5 but the held-out split"):
        open_sources(local(tmp_path, val_every=5), BYTES, seed=1)


def test_tokenizer_round_trip() -> None:
    ids = BYTES.encode("naïve ☃")
    assert ids.max() < 256
    assert BYTES.decode([*ids.tolist(), BYTES.eos_id]) == "naïve ☃"


class _Counting:
    """Sample i is a row of i."""

    def batch(self, indices: Sequence[int]) -> np.ndarray:
        return np.repeat(np.array(indices, np.int64)[:, None], 3, axis=1)


def loader(source: object, **changes: object) -> BatchLoader:
    settings = {"rank": 1, "world": 2, "batch_size": 2, "accum": 2, "prefetch": 2, "timeout_s": 5.0} | changes
    return BatchLoader(source, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("prefetch", [0, 3])
def test_loader_hands_out_the_ranks_share_in_order_from_any_step(prefetch: int) -> None:
    source = loader(_Counting(), start_step=5, prefetch=prefetch)
    firsts = [source.next()[:, 0].tolist() for _ in range(4)]
    source.close()
    assert firsts == [[42, 43], [46, 47], [50, 51], [54, 55]]


def test_loader_that_hangs_ends_with_the_settings_name() -> None:
    release = threading.Event()

    class Hanging:
        def batch(self, indices: Sequence[int]) -> np.ndarray:
            release.wait(10)
            return np.zeros((2, 3), np.int64)

    source = loader(Hanging(), timeout_s=0.05)
    with pytest.raises(LoaderError, match=r"loader_timeout_s=0\.05"):
        source.next()
    release.set()
    source.close()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_in_the_loader_reaches_the_trainer(prefetch: int) -> None:
    class Broken:
        def batch(self, indices: Sequence[int]) -> np.ndarray:
            raise OSError("disk gone")

    source = loader(Broken(), prefetch=prefetch)
    with pytest.raises(LoaderError, match="disk gone"):
        source.next()
    source.close()


def test_fetch_statistics_are_waits_since_the_last_reading() -> None:
    source = loader(_Counting(), prefetch=0)
    source.next()
    stats = source.take_stats()
    assert stats.wait_s > 0
    assert stats.p95_ms >= stats.p50_ms > 0
    assert source.take_stats().wait_s == 0
    source.close()


@pytest.mark.parametrize(
    "content",
    [
        b"\x1f\x8b\x08packed",
        b"PK\x03\x04",
        "text of another kind".encode("utf-16"),
        "другой".encode("koi8-r"),
        b"P\x00\xf0\xc3",
    ],
)
def test_what_is_no_text_is_refused_rather_than_learned(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(content * 50)
    with pytest.raises(DataError, match=r"corpus\.jsonl\.gz: is no text in UTF-8"):
        open_sources(DataConfig(data="local", data_path=str(path), seq_len=8), BYTES, seed=1)


def test_a_few_stray_bytes_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Un caf\xe9, \0 et puis encore un autre, s'il vous plait".encode("latin-1"))
    assert list(read_documents(tmp_path / "a.txt", "text")) == [
        "Un caf\ufffd, \0 et puis encore un autre, s'il vous plait"
    ]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone")
    (tmp_path / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "two"}\n')
    assert [text for path in find_files(str(tmp_path)) for text in read_documents(path, "text")] == ["one", "two"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for name in ("gone.txt", "gone.jsonl", "gone.parquet"):
        with pytest.raises(DataError, match=f"{name}: cannot be read"):
            list(read_documents(tmp_path / name, "text"))


def test_a_loader_of_so_many_batches_reads_no_further() -> None:
    class Counting(UniformSource):
        asked = 0

        def batch(self, indices: Sequence[int]) -> np.ndarray:
            type(self).asked += 1
            return super().batch(indices)

    loader = BatchLoader(Counting(seq_len=8, seed=1), rank=0, world=1, batch_size=2, accum=1, prefetch=1, batches=3)
    for _ in range(3):
        loader.next()
    loader._thread.join(5)
    assert not loader._thread.is_alive()
    assert Counting.asked == 3


def test_a_pattern_that_leaves_the_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data_glob=/etc/\*: .*; give a pattern below"):
        find_files(str(tmp_path), "/etc/*")


def test_waits_are_counted_once_and_their_percentiles_are_of_all_that_are_kept() -> None:
    loader = BatchLoader(UniformSource(seq_len=8, seed=1), rank=0, world=1, batch_size=1, accum=1, prefetch=0)
    assert loader.take_stats() == FetchStats(0.0, 0.0, 0.0)
    loader._waits_s.extend([0.001] * 90 + [0.1] * 10)
    loader._wait_since_take_s = 1.09
    assert loader.take_stats() == FetchStats(1.09, pytest.approx(1.0), pytest.approx(100.0))
    assert loader.take_stats().wait_s == 0.0


def test_empty_documents_are_none(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n\n{"text": ""}\n{"text": "four"}\n')
    (tmp_path / "b.txt").touch()
    sources = open_sources(local(tmp_path, val_fraction=0.0), BYTES, seed=1)
    assert sources.info["documents"] == 2
    assert sources.train.batch([0]).tolist() == [[*b"one", BYTES.eos_id, *b"four", BYTES.eos_id]]


def test_a_process_that_ends_at_once_writes_what_it_printed_and_keeps_its_code() -> None:
    """Also where nobody reads any more; a thread that hangs or a library that is put away has no say."""
    script = (
        "import threading; from nsa.data.ending import leave; "
        "threading.Thread(target=threading.Event().wait).start(); print('word'); leave(3)"
    )
    command = [sys.executable, "-c", script]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, env=buffered, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("word\n", "", 3)
    read, write = os.pipe()
    os.close(read)
    unread = subprocess.run(command, env=buffered, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write)
    assert (unread.stderr, unread.returncode) == (b"", 3)
