"""The commands beside training: prepare a corpus, continue a text, measure a machine."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nsa.generate
import nsa.prepare
import nsa.probe
from benchmarks.loss_by_position import main as loss_by_position_main
from nsa.config import DataConfig
from nsa.data import DataError, open_sources, open_tokenizer
from nsa.data.local import is_held_out
from nsa.data.shards import ShardWindows
from nsa.generate import generate, load_model
from nsa.generate import main as generate_main
from nsa.parity.speed import main as speed_main
from nsa.prepare import main as prepare_main
from nsa.prepare import prepare
from nsa.probe import bus_bandwidth_gb_s
from nsa.probe import main as probe_main
from nsa.train import main as train_main
from tests.nsa.conftest import TINY
from tests.nsa.ranks import RankServer
from tests.processes import python

BYTES = open_tokenizer("byte")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i:02}.txt").write_text(f"this is document {i}, with some words in it. " * (i % 4 + 1))
    return folder


def shards(path: Path, **changes: Any) -> DataConfig:
    return DataConfig(data="local", data_path=str(path), seq_len=16, **changes)


def test_shards_hold_the_corpus_and_train_like_it(tmp_path: Path, corpus: Path) -> None:
    manifest = prepare(str(corpus), tmp_path / "shards", val_fraction=0.2, part_mib=0.001)
    assert len(manifest["train"]) > 2
    texts = [p.read_text() for p in sorted(corpus.iterdir())]
    for split, held_out in (("train", False), ("val", True)):
        tokens = [np.fromfile(tmp_path / "shards" / e["file"], "<u2") for e in manifest[split]]
        documents = np.split(np.concatenate(tokens), np.flatnonzero(np.concatenate(tokens) == BYTES.eos_id) + 1)
        expected = [t for t in texts if is_held_out(t, 0.2) == held_out]
        assert [BYTES.decode(d.tolist()) for d in documents if len(d)] == expected

    sources = open_sources(shards(tmp_path / "shards", val_every=1), BYTES, seed=1)
    assert sources.val is not None
    assert sources.info["documents"] == 40
    n = sources.train.n_windows  # type: ignore[attr-defined]
    first, second = sources.train.batch(range(n)), sources.train.batch(range(n, 2 * n))
    assert first.shape == (n, 17)
    assert sorted(map(tuple, first)) == sorted(map(tuple, second))
    assert (first != second).any()


def test_an_interrupted_preparation_goes_on(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = prepare(str(corpus), tmp_path / "whole", part_mib=0.001)
    tokenized: list[str] = []
    read = nsa.prepare.read_documents

    def counted(path: Path, field: str) -> Any:
        if len(tokenized) == 25:
            raise KeyboardInterrupt
        tokenized.append(path.name)
        return read(path, field)

    with monkeypatch.context() as patch:
        patch.setattr(nsa.prepare, "read_documents", counted)
        with pytest.raises(KeyboardInterrupt):
            prepare(str(corpus), tmp_path / "cut", part_mib=0.001)
    with pytest.raises(DataError, match="a preparation that was not finished"):  # not usable before it is whole
        open_sources(shards(tmp_path / "cut"), BYTES, seed=1)
    first = set(tokenized)
    tokenized.clear()
    tokenized.extend(["-"] * 26)
    monkeypatch.setattr(nsa.prepare, "read_documents", counted)
    assert prepare(str(corpus), tmp_path / "cut", part_mib=0.001) == whole
    assert 0 < len(first & set(tokenized)) < 15  # only the part that was cut is read again


def test_preparing_into_another_corpus_is_refused(tmp_path: Path, corpus: Path) -> None:
    prepare(str(corpus), tmp_path / "shards")
    with pytest.raises(DataError, match="holds parts of another corpus or of other settings"):
        prepare(str(corpus), tmp_path / "shards", val_fraction=0.5)


def test_damaged_or_foreign_shards_are_refused(tmp_path: Path, corpus: Path) -> None:
    manifest = prepare(str(corpus), tmp_path / "shards")
    path = tmp_path / "shards" / manifest["train"][0]["file"]
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"train_00000\.bin has \d+ bytes"):
        open_sources(shards(tmp_path / "shards"), BYTES, seed=1)
    record = tmp_path / "shards" / "shards.json"
    record.write_text(record.read_text().replace('"tokenizer": "byte"', '"tokenizer": "gpt2"'))
    with pytest.raises(DataError, match="prepared with tokenizer=gpt2, not byte"):
        open_sources(shards(tmp_path / "shards"), BYTES, seed=1)


def test_a_token_that_the_tokenizer_does_not_have_is_named(tmp_path: Path, corpus: Path) -> None:
    """Past the embedding it would be an IndexError without a file's name, and on a GPU an assertion in a kernel."""
    manifest = prepare(str(corpus), tmp_path / "shards", val_fraction=0)
    path = tmp_path / "shards" / manifest["train"][0]["file"]
    tokens = np.fromfile(path, "<u2")
    tokens[40] = 300
    tokens.tofile(path)
    source = open_sources(shards(tmp_path / "shards"), BYTES, seed=1).train
    assert isinstance(source, ShardWindows)
    with pytest.raises(DataError, match=r"train_00000\.bin: token 300 .* the tokenizer has 257"):
        source.batch(range(source.n_windows))


def test_shards_without_held_out_text_cannot_be_validated_on(tmp_path: Path, corpus: Path) -> None:
    prepare(str(corpus), tmp_path / "shards", val_fraction=0)
    with pytest.raises(DataError, match="has no validation window: set val_every=0"):
        open_sources(dataclasses.replace(shards(tmp_path / "shards"), val_every=5), BYTES, seed=1)


def test_shards_too_short_for_a_window_name_the_setting(tmp_path: Path, corpus: Path) -> None:
    prepare(str(corpus), tmp_path / "shards")
    with pytest.raises(DataError, match=r"no shard holds seq_len \+ 1 = 1000001 tokens"):
        open_sources(dataclasses.replace(shards(tmp_path / "shards"), seq_len=10**6), BYTES, seed=1)


def test_a_manifest_with_holes_is_refused(tmp_path: Path, corpus: Path) -> None:
    prepare(str(corpus), tmp_path / "shards")
    record = tmp_path / "shards" / "shards.json"
    record.write_text(record.read_text().replace('"documents"', '"papers"'))
    with pytest.raises(DataError, match=r"shards\.json cannot be read: KeyError\('documents'\)"):
        open_sources(shards(tmp_path / "shards"), BYTES, seed=1)


def test_shards_of_the_same_size_are_told_apart(tmp_path: Path, corpus: Path) -> None:
    prepare(str(corpus), tmp_path / "a")
    for path in corpus.iterdir():
        path.write_bytes(path.read_bytes().replace(b"e", b"o"))
    prepare(str(corpus), tmp_path / "b")
    first, second = (open_sources(shards(tmp_path / name), BYTES, seed=1).info for name in "ab")
    assert first["documents"] == second["documents"]
    assert first["digest"] != second["digest"]


def test_prepare_command(tmp_path: Path, corpus: Path, capsys: Any) -> None:
    assert prepare_main([str(corpus), str(tmp_path / "s"), "--val-fraction", "0"]) == 0
    assert "40 documents" in capsys.readouterr().out
    assert prepare_main([str(tmp_path / "nowhere"), str(tmp_path / "t")]) == 2
    assert "no file matches" in capsys.readouterr().err


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned its text; tests read it."""
    folder, threads = tmp_path_factory.mktemp("trained"), torch.get_num_threads()
    (folder / "text.txt").write_text("abcdefgh" * 400)
    data = ["--data", "local", "--data-path", str(folder / "text.txt"), "--lr", "1e-2"]
    assert train_main([*TINY, "--out", str(folder / "run"), "--steps", "60", "--save-final", *data]) == 0
    torch.set_num_threads(threads)
    return folder / "run"


def test_a_trained_model_continues_its_text_with_and_without_caches(trained: Path, capsys: Any) -> None:
    model, tokenizer = load_model(trained)
    ids = tokenizer.encode("abcdefghabcdefgh").tolist()
    settings = {"max_new_tokens": 24, "vocab_size": 257, "eos_id": 256, "temperature": 0.0}
    cached = list(generate(model, ids, **settings))  # type: ignore[arg-type]
    whole = list(generate(model, ids, use_cache=False, **settings))  # type: ignore[arg-type]
    assert tokenizer.decode(cached) == "abcdefgh" * 3
    assert cached == whole

    arguments = ["--prompt", "abcdefghab", "--max-new-tokens", "6", "--temperature", "0", "--device", "cpu"]
    assert generate_main([str(trained), *arguments]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "abcdefghabcdefgh"


def test_nothing_to_load_is_said(tmp_path: Path, capsys: Any) -> None:
    assert generate_main([str(tmp_path)]) == 2
    assert "no sound checkpoint" in capsys.readouterr().err
    assert generate_main([str(tmp_path / "nowhere")]) == 2
    assert "no such file or folder" in capsys.readouterr().err


def test_a_gpu_that_is_not_there_is_said(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert generate_main([str(tmp_path), "--device", "cuda"]) == 2
    assert "device=cuda but torch sees no CUDA device" in capsys.readouterr().err
    for command in (probe_main, speed_main):
        assert command(["--device", "cuda"]) == 2
        assert "device=cuda but torch sees no CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "args", "said"),
    [
        (generate_main, [".", "--max-new-tokens", "-4"], "--max-new-tokens: -4: must be greater than 0"),
        (generate_main, [".", "--temperature", "nan"], "--temperature: nan: must be 0 or greater"),
        (generate_main, [".", "--top-k", "2.5"], "--top-k: 2.5: expected a whole number"),
        (probe_main, ["--repeats", "0"], "--repeats: 0: must be greater than 0"),
        (speed_main, ["--seq-len", "0"], "--seq-len: 0: must be greater than 0"),
        (prepare_main, [".", "dest", "--val-fraction", "2"], "--val-fraction: 2: must lie between 0 and 1"),
        (prepare_main, [".", "dest", "--part-mib", "none"], "--part-mib: none: expected a number"),
    ],
)
def test_a_number_that_cannot_be_meant_is_refused(
    command: Callable[[list[str]], int], args: list[str], said: str, capsys: Any
) -> None:
    with pytest.raises(SystemExit) as ending:
        command(args)
    assert ending.value.code == 2
    assert said in capsys.readouterr().err


def test_interrupted_commands_say_what_there_is(
    tmp_path: Path, trained: Path, corpus: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> Any:
        yield from drawn
        raise KeyboardInterrupt

    drawn = b"abc"
    monkeypatch.setattr(nsa.generate, "generate", interrupted)
    assert generate_main([str(trained), "--prompt", ">", "--device", "cpu"]) == 130
    assert capsys.readouterr().out.splitlines()[-1] == ">abc"
    drawn = b""
    monkeypatch.setattr(nsa.generate, "load_checkpoint", lambda path: next(interrupted()))
    assert generate_main([str(trained), "--device", "cpu"]) == 130
    assert capsys.readouterr().err == "nsa.generate: interrupted while the model was loaded\n"
    monkeypatch.setattr(nsa.prepare, "read_documents", interrupted)
    assert prepare_main([str(corpus), str(tmp_path / "s")]) == 130
    assert "the same command continues" in capsys.readouterr().err
    monkeypatch.setattr(nsa.probe, "probe", lambda *args, **kwargs: next(interrupted()))
    assert probe_main(["--device", "cpu"]) == 130
    assert capsys.readouterr() == ("", "nsa.probe: interrupted; nothing was written\n")


def _beside_torch_of(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the trainer with the `torch` that stands in the folder."""
    path = os.pathsep.join((str(folder), str(Path(nsa.probe.__file__).parents[1])))
    return python("-m", *words, cwd=folder, env={"PYTHONPATH": path})


@pytest.mark.parametrize("command", ["nsa.probe", "nsa.generate", "nsa.prepare", "nsa.data", "nsa.train"])
def test_an_interrupt_while_torch_is_imported_ends_a_command_at_once(tmp_path: Path, command: str) -> None:
    """Torch takes seconds to import, and some of its imports swallow what is raised in them."""
    (tmp_path / "torch.py").write_text(
        "import os, signal, time\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT); time.sleep(1)\n"
        "except BaseException: pass\n"
        "print('went on')\n"
    )
    done = _beside_torch_of(tmp_path, command, *([] if command == "nsa.train" else ["--help"]))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_start_that_is_asked_for_its_stacks_shows_them_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "import os, signal, sys\nos.kill(os.getpid(), signal.SIGUSR1)\nprint('went on', flush=True)\nos._exit(7)\n"
    )
    done = _beside_torch_of(tmp_path, "nsa.train")
    assert (done.returncode, done.stdout) == (7, "went on\n")
    assert "most recent call first" in done.stderr


def test_loss_by_position_reads_each_checkpoint_once(
    trained: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    load = torch.load

    def counted(path: Any, *args: Any, **kwargs: Any) -> Any:
        read.append(Path(path))
        return load(path, *args, **kwargs)

    monkeypatch.setattr(torch, "load", counted)
    other = shutil.copytree(trained, tmp_path / "other")
    figures = tmp_path / "figures.json"
    words = [str(trained), str(other), "--batches", "2", "--device", "cpu", "--out", str(figures)]
    assert loss_by_position_main(words) == 0
    assert [path.parents[1] for path in read] == [trained, other]
    row, *_ = json.loads(figures.read_text())["rows"]
    assert row["first"] == row["second"] < 2.0, "the same weights, which know their text"


def test_sampling_is_seeded_and_never_draws_padding(trained: Path) -> None:
    model, _ = load_model(trained)
    settings: dict[str, Any] = {"max_new_tokens": 30, "vocab_size": 257, "eos_id": -1, "temperature": 50.0}
    first, again = (list(generate(model, [97], seed=3, **settings)) for _ in range(2))
    assert first == again
    assert first != list(generate(model, [97], seed=4, **settings))
    assert max(first) < 257
    top = list(generate(model, [97], top_k=1, **settings))
    assert top == list(generate(model, [97], **{**settings, "temperature": 0.0}))
    assert json.dumps(top)


def test_the_probe_measures_this_machine(tmp_path: Path) -> None:
    out = tmp_path / "probe.json"
    assert probe_main(["--device", "cpu", "--gemm-size", "64", "--mib", "1", "--repeats", "3", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert set(record["rates"]) == {"gemm_bf16", "gemm_fp32", "copy"}  # what is not there is absent
    for rate in record["rates"].values():
        assert 0 < rate["worst"] <= rate["value"] <= rate["best"]
    assert record["ranks"] == [record["rates"]]


def test_two_processes_probe_their_all_reduce(tmp_path: Path, rank_server: RankServer) -> None:
    sizes = ["--gemm-size", "64", "--mib", "1", "--repeats", "3"]
    ranks = rank_server.start("nsa.probe", ["--device", "cpu", *sizes, "--out", str(tmp_path / "p.json")])
    assert ranks.wait() == [0, 0], ranks.said
    record = json.loads((tmp_path / "p.json").read_text())
    assert record["rates"]["all_reduce"]["backend"] == "gloo"
    assert record["rates"]["all_reduce"]["value"] > 0
    assert len(record["ranks"]) == 2


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    assert bus_bandwidth_gb_s(10**9, 2, 0.5) == pytest.approx(2.0)
    assert bus_bandwidth_gb_s(10**9, 8, 0.5) == pytest.approx(3.5)
