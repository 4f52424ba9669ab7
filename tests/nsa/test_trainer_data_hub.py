"""FineWeb-Edu's way in, through `datasets` itself, over folders of parquet files with its columns."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from nsa.config import ConfigError, DataConfig, UnreachableError
from nsa.data import BatchLoader, DataError, StreamSource, open_sources, open_tokenizer
from nsa.data.failures import is_transient
from nsa.effective import settle_config
from nsa.parallel import World
from nsa.resolve import resolve
from tests.nsa.conftest import Beats, Rows, Train, TrainRanks
from tests.nsa.ranks import RankServer

BYTES = open_tokenizer("byte")
SEQ_LEN = 64


def write_dataset(folder: Path, *, files: int, documents: int) -> Path:
    """A dataset with the columns of FineWeb-Edu: `documents` in all, numbered through the files in order."""
    (folder / "data").mkdir(parents=True)
    per_file = -(-documents // files)
    for number in range(files):
        mine = range(number * per_file, min((number + 1) * per_file, documents))
        records = [
            {
                "text": f"<{i}>" + "edu " * (i % 23),
                "id": f"<urn:uuid:{i}>",
                "dump": "CC-MAIN-2024-10",
                "url": f"https://example.org/{i}",
                "file_path": "s3://commoncrawl/x.warc.gz",
                "language": "en",
                "language_score": 0.9,
                "token_count": 5 + i % 23,
                "score": 3.1,
                "int_score": 3,
            }
            for i in mine
        ]
        name = f"train-{number:05}-of-{files:05}.parquet"
        pq.write_table(pa.Table.from_pylist(records), folder / "data" / name, row_group_size=7)
    return folder


@pytest.fixture(params=[4, 1], ids=["many files", "one file"])
def dataset(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return write_dataset(tmp_path / "edu", files=request.param, documents=100)


def config(folder: Path, **changes: Any) -> DataConfig:
    settings: dict[str, Any] = {"seq_len": SEQ_LEN, "batch_size": 1, "val_fraction": 0.0, "loader_timeout_s": 60.0}
    return DataConfig(data="fineweb_edu", hub_dataset=str(folder), **(settings | changes))


def loader(settings: DataConfig, *, rank: int = 0, world: int = 1, accum: int = 1, **more: Any) -> BatchLoader:
    source = open_sources(settings, BYTES, seed=1).train
    return BatchLoader(
        source, rank=rank, world=world, batch_size=settings.batch_size, accum=accum, timeout_s=60.0, **more
    )


def documents_in(windows: list[np.ndarray]) -> set[int]:
    """Numbers of the documents of which the beginning is in consecutive windows."""
    text = BYTES.decode([i for window in windows for i in window[0, 1:].tolist()])
    return {int(part.split(">")[0]) for part in text.split("<")[1:] if ">" in part}


def test_two_ranks_read_disjoint_documents_and_together_all(dataset: Path) -> None:
    seen = []
    for rank in (0, 1):
        source = loader(config(dataset, stream_lanes=2), rank=rank, world=2)
        epoch = [source.next().numpy()]
        read = source._source
        while all(place["epoch"] == 0 for place in source.position.values()):
            epoch.append(source.next().numpy())
        source.close()
        assert isinstance(read, StreamSource)
        seen.append(documents_in(epoch[:-1]))
    # The first document begins with the first token, which is no target; the last ones may lie behind the last window.
    missing = set(range(100)) - seen[0] - seen[1]
    assert not seen[0] & seen[1]
    assert len(seen[0]) > 40
    assert len(seen[1]) > 40
    assert len(missing) <= 2 * (1 + SEQ_LEN // 4)


def test_every_document_is_given_to_exactly_one_lane(dataset: Path) -> None:
    from nsa.data.hub import HubDataset

    opened = HubDataset(config(dataset))
    for lanes in (1, 2, 3, 5):
        parts = [list(opened.open(lane, lanes)) for lane in range(lanes)]
        assert sorted(text for part in parts for text in part) == sorted(opened.open(0, 1))
        assert sum(len(part) for part in parts) == 100
        assert min(len(part) for part in parts) > 0


def test_as_many_lanes_as_files_read_a_file_each(tmp_path: Path) -> None:
    """Taking documents in turn would give each to one lane as well, and have every lane fetch every file."""
    from nsa.data.hub import HubDataset

    opened = HubDataset(config(write_dataset(tmp_path / "edu", files=4, documents=100)))
    for lane in range(4):
        numbers = [int(text[1 : text.index(">")]) for text in opened.open(lane, 4)]
        assert numbers == list(range(lane * 25, lane * 25 + 25))


def test_nobody_but_patience_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` would keep a lost hub to itself for a hundred seconds."""
    import datasets

    from nsa.data.hub import OWN_RETRIES, HubDataset

    for name in OWN_RETRIES:
        monkeypatch.setattr(datasets.config, name, 20)
    HubDataset(config(write_dataset(tmp_path / "edu", files=1, documents=3))).open(0, 1)
    assert {name: getattr(datasets.config, name) for name in OWN_RETRIES} == OWN_RETRIES


def test_a_position_brings_back_the_same_samples_through_datasets(dataset: Path) -> None:
    settings = config(dataset, stream_lanes=2)
    whole = loader(settings, accum=2)
    expected = [whole.next().numpy() for _ in range(60)]
    whole.close()
    for step in (0, 3, 17):
        first = loader(settings, accum=2)
        for _ in range(2 * step):
            first.next()
        position = json.loads(json.dumps(first.position, default=lambda tensor: tensor.tolist()))
        assert all(isinstance(place["carry"], list) for place in position.values())  # plain values and tensors only
        source = open_sources(settings, BYTES, seed=1).train
        assert isinstance(source, StreamSource)
        source.seek(first.position)
        resumed = BatchLoader(source, rank=0, world=1, batch_size=1, accum=2, start_step=step, timeout_s=60.0)
        got = [resumed.next().numpy() for _ in range(20)]
        np.testing.assert_array_equal(got, expected[2 * step : 2 * step + 20])
        first.close()
        resumed.close()


def test_other_files_refuse_an_old_position(tmp_path: Path) -> None:
    source = loader(config(write_dataset(tmp_path / "then", files=2, documents=50)))
    source.next()
    position = source.position
    source.close()
    changed = open_sources(config(write_dataset(tmp_path / "now", files=3, documents=50)), BYTES, seed=1).train
    assert isinstance(changed, StreamSource)
    changed.seek(position)
    with pytest.raises(DataError, match="other files than when its position was saved"):
        changed.batch([1])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hub_split": "valid"}, "hub_split=valid"),
        ({"text_field": "body"}, r"no column `body` among .*'text'.*: set text_field"),
        ({"hub_name": "sample-1T"}, "hub_name=sample-1T"),
    ],
)
def test_what_is_not_in_the_dataset_names_the_setting(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    source = loader(config(write_dataset(tmp_path / "edu", files=1, documents=5), **changes))
    with pytest.raises(DataError, match=said):
        source.next()
    source.close()


def test_a_folder_that_is_not_there_is_told_before_anything_is_opened(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no folder, and no owner/name of the hub"):
        open_sources(config(tmp_path / "missing"), BYTES, seed=1)


def test_the_text_is_that_of_the_column_asked_for(tmp_path: Path) -> None:
    settings = config(write_dataset(tmp_path / "edu", files=1, documents=30), text_field="url")
    assert BYTES.decode(loader(settings).next()[0].tolist()).startswith("https://example.org/0https://example.org/1")


def test_validation_needs_held_out_documents(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "edu", files=1, documents=3)
    with pytest.raises(DataError, match="val_every=5 but val_fraction=0 holds nothing out"):
        open_sources(config(folder, val_every=5), BYTES, seed=1)


def test_a_hub_that_may_not_be_asked_is_named_with_its_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    from nsa.data.hub import HubDataset

    dataset, lost = HubDataset(config(write_dataset(tmp_path / "edu", files=1, documents=3))), ConnectionError("lost")
    assert dataset._explained(lost) is lost  # to be tried again
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    explained = dataset._explained(lost)
    assert isinstance(explained, UnreachableError)
    assert "HF_HUB_OFFLINE forbids to fetch it: unset it" in str(explained)


def test_records_without_text_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "edu"
    folder.mkdir()
    pq.write_table(pa.table({"text": ["good", None]}), folder / "train.parquet")
    source = loader(config(folder))
    with pytest.raises(DataError, match="record 2 has no text under `text`"):
        source.next()
    source.close()


class HttpStatusError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.response = type("Response", (), {"status_code": status})()


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (ConnectionResetError("reset"), True),
        (TimeoutError("late"), True),
        (HttpStatusError(503), True),
        (HttpStatusError(429), True),
        (HttpStatusError(404), False),
        (HttpStatusError(401), False),
        (FileNotFoundError("no such file"), False),
        (ValueError("bad split"), False),
        (UnreachableError("given up"), False),
    ],
)
def test_only_what_may_pass_is_tried_again(error: Exception, transient: bool) -> None:
    assert is_transient(error) is transient
    wrapped = RuntimeError("reading failed")
    wrapped.__cause__ = error
    assert is_transient(wrapped) is transient


def test_two_ranks_train_and_resume_like_one(
    tmp_path: Path, train_ranks: TrainRanks, train: Train, rows: Rows, beats: Beats
) -> None:
    """Two processes stop after step 4; one process goes on from their checkpoint, and is the run that never stopped."""
    folder = write_dataset(tmp_path / "edu", files=2, documents=60)
    data = ["--data", "fineweb_edu", "--hub-dataset", str(folder), "--val-fraction", "0.1"]
    settings = [*data, "--stream-lanes", "2", "--val-every", "4", "--val-batches", "2", "--save-every", "4"]
    settings += ["--schedule", "constant", "--global-batch-size", "4"]
    train_ranks(tmp_path / "cut", *settings, "--steps", "4")
    assert [r["msg"] for r in beats(tmp_path / "cut", 1) if r["msg"].startswith("loader")] == ["loader_ready"]
    assert train(tmp_path / "cut", *settings, "--steps", "9", "--resume") == 0
    assert train(tmp_path / "whole", *settings, "--steps", "9") == 0
    for file, name in (("training.csv", "loss"), ("val.csv", "val_loss")):
        cut, whole = ([float(r[name]) for r in rows(tmp_path / run / file)] for run in ("cut", "whole"))
        # Two processes validate on twice as many samples as one: only the validation at step 8 can be compared.
        assert cut[-1 if file == "val.csv" else 0 :] == pytest.approx(whole[-1 if file == "val.csv" else 0 :], abs=1e-5)
    env = json.loads((tmp_path / "whole" / "env.json").read_text())
    assert env["data"]["lanes"] == 2
    assert train(tmp_path / "cut", *data, "--steps", "12", "--resume", "--global-batch-size", "4") == 2  # one lane now


def test_lanes_that_were_not_read_between_two_checkpoints_keep_their_place(
    tmp_path: Path, train: Train, rows: Rows
) -> None:
    """Four lanes, and a step reads one: a start that saves after two steps has opened two of them."""
    folder = write_dataset(tmp_path / "edu", files=4, documents=200)
    settings = ["--data", "fineweb_edu", "--hub-dataset", str(folder), "--stream-lanes", "4", "--schedule", "constant"]
    for last in (8, 10, 16):
        resume = ["--resume"] if last > 8 else []
        assert train(tmp_path / "cut", *settings, "--steps", str(last), "--save-final", *resume) == 0
    assert train(tmp_path / "whole", *settings, "--steps", "16") == 0
    cut, whole = ([r["loss"] for r in rows(tmp_path / run / "training.csv")] for run in ("cut", "whole"))
    assert cut == whole


def test_lanes_that_the_processes_do_not_divide_are_refused() -> None:
    two = World(rank=0, local_rank=0, size=2, device=torch.device("cpu"), backend="gloo")
    asked = ["--data", "fineweb_edu", "--device", "cpu", "--prefill", "batched"]
    with pytest.raises(ConfigError, match="stream_lanes=3 is not a multiple of the 2 processes"):
        settle_config(resolve([*asked, "--stream-lanes", "3"], {}), two, BYTES)
    assert settle_config(resolve(asked, {}), two, BYTES).config.data.stream_lanes == 2
    assert settle_config(resolve([*asked, "--stream-lanes", "8"], {}), two, BYTES).config.data.stream_lanes == 8


@pytest.fixture
def silent_server() -> Iterator[str]:
    """The address of a server that accepts connections and never says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(16)
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("how", ["silent", "offline"])
def test_an_unreachable_hub_ends_in_time_with_its_own_exit_code(
    tmp_path: Path, tiny: list[str], beats: Beats, silent_server: str, how: str, rank_server: RankServer
) -> None:
    env = {"HF_HOME": str(tmp_path / "hf")}
    if how == "offline":
        env["HF_HUB_OFFLINE"] = "1"
    else:
        env["HF_ENDPOINT"] = silent_server
    out = tmp_path / "out"
    timeout_s = 60 if how == "offline" else 3  # offline is answered at once, whatever the limit
    settings = ["--data", "fineweb_edu", "--loader-timeout-s", str(timeout_s)]
    run = rank_server.start_alone("nsa.train", [*tiny, *settings, "--out", str(out)], **env)
    assert run.wait() == [5], run.said
    assert "HuggingFaceFW/fineweb-edu (sample-10BT)" in run.err
    assert "Traceback" not in run.err
    records = beats(out)
    (error,) = [r for r in records if r["msg"] == "loader_error"]
    assert error["reason"] == "unreachable"
    assert error["ts"] - records[0]["ts"] < timeout_s + 20  # the start before it, on a busy machine
    assert records[-1]["status"] == "unreachable"
    assert json.loads((out / "metrics.json").read_text())["status"] == "unreachable"


def test_the_smoke_command_tells_a_hub_that_refuses_apart(tmp_path: Path, rank_server: RankServer) -> None:
    settings = ["--data", "fineweb_edu", "--loader-timeout-s", "2", "--json"]
    began = time.monotonic()
    run = rank_server.start_alone("nsa.data", settings, HF_ENDPOINT="http://127.0.0.1:9", HF_HOME=str(tmp_path))
    assert run.wait() == [5], run.said
    record = json.loads(run.out)
    assert (record["ok"], record["error"]) == (False, "unreachable")
    assert record["elapsed_s"] < 10
    assert time.monotonic() - began < 60
