"""Preparing a corpus: killed at any moment and started again, it makes the same shards; and real parquet goes in."""

from __future__ import annotations

import json
import os
import random
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nsa.config import DataConfig
from nsa.data import DataError, open_sources, open_tokenizer
from nsa.outdir import hold_folder
from nsa.prepare import main, prepare
from tests.nsa.ranks import RankServer, is_running

BYTES = open_tokenizer("byte")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def write_corpus(folder: Path, *, documents: int) -> list[str]:
    """One long JSONL file, one parquet file and a few texts; returns the documents in the order of reading."""
    rng = random.Random(3)
    texts = [f"<{i}> " + "words of many kinds " * rng.randrange(30) for i in range(documents)]
    folder.mkdir()
    third = documents // 3
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts[:third]))
    records = [{"text": t, "id": str(i)} for i, t in enumerate(texts[third : 2 * third])]
    pq.write_table(pa.Table.from_pylist(records), folder / "b.parquet", row_group_size=50)
    for i, text in enumerate(texts[2 * third :]):
        (folder / f"c{i:05}.txt").write_text(text)
    return texts


def test_one_big_file_is_cut_into_parts_between_documents(tmp_path: Path) -> None:
    (tmp_path / "big.jsonl").write_text("".join(json.dumps({"text": f"{i:04}" + "x" * 96}) + "\n" for i in range(500)))
    manifest = prepare(str(tmp_path / "big.jsonl"), tmp_path / "out", val_fraction=0.0, part_mib=1000 / 2**20)
    assert [e["tokens"] for e in manifest["train"]] == [1010] * 50
    assert manifest["documents"] == 500


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_any_moment_it_makes_the_same_shards(tmp_path: Path, seed: int, rank_server: RankServer) -> None:
    write_corpus(tmp_path / "corpus", documents=3000)
    part_mib = 0.02
    prepare(str(tmp_path / "corpus"), tmp_path / "whole", val_fraction=0.1, part_mib=part_mib)
    wanted = contents(tmp_path / "whole")
    assert len(wanted) > 40
    args = [str(tmp_path / "corpus"), str(tmp_path / "cut"), "--val-fraction", "0.1", "--part-mib", str(part_mib)]
    rng = random.Random(seed)
    process = rank_server.start_alone("nsa.prepare", args)
    shards = rng.randrange(1, 30)
    deadline = time.monotonic() + 120
    while is_running(process.pids[0]) and len(list((tmp_path / "cut").glob("*.bin"))) < shards:
        assert time.monotonic() < deadline, "no shard in time"
        time.sleep(0.0005)
    time.sleep(rng.random() * 0.01)
    process.kill()
    process.wait()
    assert main(args) == 0
    assert contents(tmp_path / "cut") == wanted  # every byte of every file, and no file left over


def test_what_a_killed_run_was_writing_goes(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", documents=30)
    prepare(str(tmp_path / "corpus"), tmp_path / "out")
    before = contents(tmp_path / "out")
    for name in ("train_00007.tmp", ".parts.json.tmp4711", "shards.json.tmp4711"):
        (tmp_path / "out" / name).write_bytes(b"half")
    prepare(str(tmp_path / "corpus"), tmp_path / "out")
    assert contents(tmp_path / "out") == before


def test_a_lost_shard_is_made_again(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", documents=300)
    whole = prepare(str(tmp_path / "corpus"), tmp_path / "out", part_mib=0.01)
    wanted = contents(tmp_path / "out")
    (tmp_path / "out" / whole["train"][2]["file"]).unlink()
    assert prepare(str(tmp_path / "corpus"), tmp_path / "out", part_mib=0.01) == whole
    assert contents(tmp_path / "out") == wanted


def test_a_second_run_over_a_finished_folder_changes_nothing(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", documents=90)
    prepare(str(tmp_path / "corpus"), tmp_path / "out")
    before = contents(tmp_path / "out")
    prepare(str(tmp_path / "corpus"), tmp_path / "out")
    assert contents(tmp_path / "out") == before


def test_all_kinds_of_files_give_the_documents_in_order(tmp_path: Path) -> None:
    texts = write_corpus(tmp_path / "corpus", documents=60)
    manifest = prepare(str(tmp_path / "corpus"), tmp_path / "out", val_fraction=0.0)
    tokens = np.concatenate([np.fromfile(tmp_path / "out" / e["file"], "<u2") for e in manifest["train"]])
    ends = np.flatnonzero(tokens == BYTES.eos_id) + 1
    assert [BYTES.decode(d.tolist()) for d in np.split(tokens, ends) if len(d)] == texts


def test_the_bar_goes_to_the_end_and_counts(tmp_path: Path, capsys: Any) -> None:
    write_corpus(tmp_path / "corpus", documents=90)
    assert main([str(tmp_path / "corpus"), str(tmp_path / "out"), "--part-mib", "0.002"]) == 0
    said = capsys.readouterr()
    shares = [int(share) for share in re.findall(r"(\d+)%", said.err)]
    assert len(shares) > 5
    assert shares == sorted(shares)
    assert "90 documents" in said.out


def test_parquet_trains_as_jsonl_does(tmp_path: Path) -> None:
    texts = [f"document {i} " + "and more " * (i % 9) for i in range(200)]
    pq.write_table(pa.table({"body": texts, "id": list(range(200))}), tmp_path / "x.parquet", row_group_size=64)
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"body": t}) + "\n" for t in texts))
    settings: dict[str, Any] = {"data": "local", "seq_len": 32, "text_field": "body", "val_fraction": 0.2}
    of_parquet, of_jsonl = (
        open_sources(DataConfig(data_path=str(tmp_path / name), **settings), BYTES, seed=1)
        for name in ("x.parquet", "x.jsonl")
    )
    np.testing.assert_array_equal(of_parquet.train.batch(range(20)), of_jsonl.train.batch(range(20)))
    assert of_parquet.info == of_jsonl.info
    with pytest.raises(DataError, match=r"no column `text` among \['body', 'id'\]; set text_field"):
        open_sources(
            DataConfig(data_path=str(tmp_path / "x.parquet"), **settings | {"text_field": "text"}), BYTES, seed=1
        )


@pytest.mark.parametrize("broken", [b"no parquet at all", b"PAR1 cut short"])
def test_a_broken_parquet_file_is_named(tmp_path: Path, broken: bytes) -> None:
    (tmp_path / "bad.parquet").write_bytes(broken)
    settings: dict[str, Any] = {"data": "local", "seq_len": 32}
    with pytest.raises(DataError, match=r"bad\.parquet: cannot be read as parquet"):
        open_sources(DataConfig(data_path=str(tmp_path / "bad.parquet"), **settings), BYTES, seed=1)


def test_the_command_under_a_killed_parent_leaves_no_half_folder(tmp_path: Path) -> None:
    """Before the manifest is written the folder is no data source, whatever lies in it."""
    write_corpus(tmp_path / "corpus", documents=30)
    prepare(str(tmp_path / "corpus"), tmp_path / "out")
    os.unlink(tmp_path / "out" / "shards.json")
    with pytest.raises(DataError, match="a preparation that was not finished"):
        open_sources(DataConfig(data="local", data_path=str(tmp_path / "out"), seq_len=16), BYTES, seed=1)


def test_shards_within_the_corpus_are_not_part_of_it(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", documents=30)
    dest = tmp_path / "corpus" / "shards"
    first = prepare(str(tmp_path / "corpus"), dest)
    assert prepare(str(tmp_path / "corpus"), dest) == first


def test_a_folder_that_another_process_writes_to_is_refused(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(tmp_path / "corpus", documents=30)
    dest = tmp_path / "shards"
    dest.mkdir()
    monkeypatch.setattr("nsa.outdir.LOCK_GRACE_S", 0.0)
    with hold_folder(dest, name="dest"):
        assert main([str(tmp_path / "corpus"), str(dest)]) == 2
    assert f"dest={dest} is being written to by another process" in capsys.readouterr().err
    assert list(dest.iterdir()) == []


def test_a_disk_that_is_full_is_said_and_the_same_command_goes_on(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(tmp_path / "corpus", documents=90)
    prepare(str(tmp_path / "corpus"), tmp_path / "whole", part_mib=0.002)
    command = [str(tmp_path / "corpus"), str(tmp_path / "shards"), "--part-mib", "0.002"]
    written: list[int] = []

    def fsync(handle: int) -> None:
        written.append(handle)
        if len(written) == 6:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("nsa.prepare.os.fsync", fsync)
        assert main(command) == 2
    assert "shards cannot be written: No space left on device; fix that, then run the same" in capsys.readouterr().err
    assert main(command) == 0
    assert contents(tmp_path / "shards").keys() == contents(tmp_path / "whole").keys()
    assert (tmp_path / "shards" / "shards.json").read_text() == (tmp_path / "whole" / "shards.json").read_text()


def test_a_corpus_without_text_makes_no_shards(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "empty.txt").touch()
    assert main([str(tmp_path / "empty.txt"), str(tmp_path / "shards")]) == 2
    assert "none of the 1 files holds any text" in capsys.readouterr().err
    assert not (tmp_path / "shards" / "shards.json").exists()


def test_a_parquet_column_that_holds_no_text_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([{"text": 5}]), tmp_path / "n.parquet")
    with pytest.raises(DataError, match=r"n\.parquet: column `text` holds int, no text"):
        prepare(str(tmp_path / "n.parquet"), tmp_path / "shards")


def test_a_source_that_was_rewritten_is_another_corpus(tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text("as long as before " * 20)
    prepare(str(source), tmp_path / "shards")
    before = source.stat()
    source.write_text("as LONG as before " * 20)
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000_000))
    with pytest.raises(DataError, match="holds parts of another corpus or of other settings"):
        prepare(str(source), tmp_path / "shards")
