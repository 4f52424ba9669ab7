"""A heartbeat read by whole blocks says exactly what it says read line by line, whatever it holds."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.validator.ingest.folders import START_S, record, write_csv, write_heartbeat
from validator.ingest import collect_dir, heartbeat, read_log
from validator.ingest import ranks as readers
from validator.ingest.heartbeat import Heartbeat, read_heartbeat
from validator.ingest.read_log import LEAN, ReadLog, Shape, decode_shaped

ODD = (None, True, "nan", "-inf", "x", 5, 2**53 + 1, 10**30, 1e300, [1, 2], {"a": 1}, [], -1, 5.0, float("nan"), "")
MESSAGES = (*["progress"] * 12, "beat", "boot", "done", "step_end", "")
FIELDS = ((), ("loss",), ("loss", "step_time_s"), ("loss", "lr", "compute_time_s"))


def lines(draw: random.Random) -> list[bytes]:
    """Up to 60 records, most of them as they should be."""
    made, step, ts = [], 0, START_S
    oddness = draw.choice([0.0, 0.02, 0.1])
    for _ in range(draw.randint(1, 60)):
        step += draw.choice([0, 1, 1, 1, 1, 1, 1, 2]) if draw.random() > oddness else -3
        ts += 1.0 if draw.random() > oddness else draw.choice([0.0, -0.5, -3600.0, 86_400.0])
        message = draw.choice(MESSAGES)
        one: dict[str, Any] = {"ts": ts, "iso": "", "pid": 7, "rank": 0, "step": max(0, step), "msg": message}
        one |= {name: round(draw.uniform(-9, 9), 3) for name in draw.choice(FIELDS)}
        if draw.random() < oddness:
            one[draw.choice([*one, "train_loss", "gpu_mem_alloc", "fb"])] = draw.choice(ODD)
        if draw.random() < oddness:
            one.pop(draw.choice(list(one)))
        text = json.dumps(one).encode()
        made.append(text if draw.random() > oddness else draw.choice([text[:-5], b"", b"[1]", text + b" {}", b"\xff"]))
    return made


def told(found: Heartbeat | None, noted: ReadLog) -> Any:
    """Everything that reading gave, fit to be compared; NaN is equal to itself."""
    if found is None:
        return None, noted.irregularities
    columns = {name: (s.tolist(), [repr(v) for v in values.tolist()]) for name, (s, values) in found.columns.items()}
    marks = tuple(part.tolist() for part in found.step_times_s)
    gaps = (found.gaps.first, found.gaps.last, found.gaps.longest, found.gaps.back, found.gaps.furthest_back_s)
    rest = (found.lines, found.last_progress_s, found.jumps, found.pids, found.first_step, found.last_step)
    return columns, marks, gaps, rest, found.last_msg, found.done, noted.irregularities


@pytest.mark.parametrize("seed", range(60))
def test_blocks_and_lines_agree(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    written, brief, ended = lines(draw), draw.random() < 0.5, draw.random() < 0.5
    path = tmp_path / "heartbeat_rank0.jsonl"
    path.write_bytes(b"\n".join(written) + (b"\n" if ended else b""))
    with pytest.MonkeyPatch.context() as patch:
        plain = read_log.blocks
        patch.setattr(read_log, "blocks", lambda p, digest: plain(p, digest, block_bytes=700))
        noted = ReadLog(tmp_path)
        by_block = told(read_heartbeat(path, 0, noted, brief=brief, limit_s=5000.0), noted)
        patch.setattr(heartbeat, "_at_once", lambda *arguments, **options: False)
        noted = ReadLog(tmp_path)
        by_line = told(read_heartbeat(path, 0, noted, brief=brief, limit_s=5000.0), noted)
    assert by_block == by_line


def long_run(folder: Path, *, ranks: int = 3, steps: int = 400) -> Path:
    write_csv(folder, [845.0] * steps)
    for rank in range(ranks):
        beats = [record(0, ts=1, rank=rank, msg="boot")]
        for step in range(1, steps + 1):
            fields = {"loss": 3 - step / 1000, "compute_time_s": 0.9, "step_time_s": 1.0, "grad_norm": 0.5}
            beats.append(record(step, ts=1 + step, rank=rank, **fields))
        write_heartbeat(folder, [*beats, record(steps, ts=2 + steps, rank=rank, msg="done")], rank=rank)
    return folder


def test_a_rank_read_in_brief_keeps_what_all_are_judged_by(tmp_path: Path) -> None:
    path = long_run(tmp_path) / "heartbeat_rank1.jsonl"
    found = read_heartbeat(path, 1, ReadLog(tmp_path), brief=True)
    assert set(found.columns) == set(LEAN)
    assert len({id(steps) for steps, _ in found.columns.values()}) == 1, "equal steps are kept once"
    assert found.last_progress_s == START_S + 401
    assert found.done


def test_sound_records_are_decoded_without_building_what_is_not_needed(tmp_path: Path) -> None:
    path = long_run(tmp_path, ranks=1) / "heartbeat_rank0.jsonl"
    shape = Shape(rank=0, pids=(100,), numbers=("loss", "absent"))
    found = decode_shaped(path.read_bytes(), 402, shape)
    assert found is not None, "msgspec is a dependency, so it is there"
    assert (found[5].step, found[5].n0, math.isnan(found[5].n1)) == (5, 2.995, True)
    assert len(found[5].__struct_fields__) == 7, "five marks and two numbers"
    assert decode_shaped(path.read_bytes(), 402, replace(shape, closed=True)) is None, "there are further fields"
    assert decode_shaped(path.read_bytes(), 402, replace(shape, rank=1)) is None
    assert decode_shaped(path.read_bytes(), 402, replace(shape, pids=(100, 2))) is not None
    assert decode_shaped(path.read_bytes(), 402, replace(shape, pids=(2,))) is None


def test_a_wanted_field_may_be_nested_in_another(tmp_path: Path) -> None:
    """`compute: {time_s: …}` tells compute_time_s, also where it comes after blocks that did not nest it."""
    flat = [record(step, ts=step, loss=1.0) for step in range(1, 40)]
    nested = [record(step, ts=step, loss=1.0, compute={"time_s": 0.5}) for step in range(40, 80)]
    path = write_heartbeat(tmp_path, [*flat, *nested])
    with pytest.MonkeyPatch.context() as patch:
        plain = read_log.blocks
        patch.setattr(read_log, "blocks", lambda p, digest: plain(p, digest, block_bytes=1000))
        found = read_heartbeat(path, 0, ReadLog(tmp_path), brief=True)
    assert found.columns["compute_time_s"][0].tolist() == list(range(40, 80))


def test_processes_of_their_own_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = long_run(tmp_path / "r")
    (folder / "heartbeat_rank2.jsonl").write_bytes((folder / "heartbeat_rank2.jsonl").read_bytes() + b"{")
    here = collect_dir(folder)
    monkeypatch.setattr(readers, "LARGE_BYTES", 1)
    monkeypatch.setattr(readers.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(readers, "_read_order", lambda order: pytest.fail("read in this process"))
    (tmp_path / "types.py").write_text("raise SystemExit(1)", encoding="utf-8")  # a trainer's module is no concern here
    monkeypatch.chdir(tmp_path)
    there = collect_dir(folder)
    assert there.irregularities == here.irregularities
    assert there.sources == here.sources
    assert there.scalars == here.scalars
    assert here.evidence.step_times_s is not None
    assert there.evidence.step_times_s is not None
    for own, other in zip(here.evidence.step_times_s, there.evidence.step_times_s, strict=True):
        assert np.array_equal(own, other)
    assert replace(there.evidence, step_times_s=None) == replace(here.evidence, step_times_s=None)
    assert there.rank_series.keys() == here.rank_series.keys() == {0, 1, 2}
    for rank, series in here.rank_series.items():
        for name, one in series.items():
            assert np.array_equal(one.values, there.rank_series[rank][name].values)


def test_a_reader_that_cannot_be_started_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = long_run(tmp_path / "r", ranks=2)
    monkeypatch.setattr(readers, "LARGE_BYTES", 1)
    monkeypatch.setattr(readers.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(readers.sys, "executable", "/nonexistent/python")
    assert collect_dir(folder).scalars["steps.done"].value == 400
    monkeypatch.setattr(readers.sys, "executable", "/bin/false")
    assert collect_dir(folder).scalars["steps.done"].value == 400


def test_bytes_that_are_no_text_are_noticed_in_fields_that_nobody_asks_for(tmp_path: Path) -> None:
    path = long_run(tmp_path, ranks=1) / "heartbeat_rank0.jsonl"
    path.write_bytes(path.read_bytes().replace(b"grad_norm", b"grad_\xed\xceorm", 300).replace(b"\xed\xce", b"_n", 299))
    noted = ReadLog(tmp_path)
    read_heartbeat(path, 0, noted, brief=True)
    assert [one.code for one in noted.irregularities] == ["not-utf8"]
