"""Garbled names of columns are noticed; names of one's own are not taken for garbled ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.validator.ingest.folders import record, write_csv, write_heartbeat
from validator.ingest import collect_dir
from validator.ingest.read_log import ReadLog
from validator.ingest.rows import misnamed, odd_names
from validator.ingest.table import read_table

CONTRACT = "step,loss,lr,toks_per_s,step_time_s,grad_norm"


def faults(path: Path, header: str | bytes, *, cells: int | None = None) -> list[str]:
    """What reading a table with this header noted."""
    head = header if isinstance(header, bytes) else header.encode()
    width = head.count(b",") + 1 if cells is None else cells
    rows = b"".join(b"%d%s\n" % (step, b",1.5" * (width - 1)) for step in (1, 2, 3))
    (path / "training.csv").write_bytes(head + b"\n" + rows)
    read_log = ReadLog(path)
    read_table(path / "training.csv", read_log)
    return [one.code for one in read_log.irregularities]


@pytest.mark.parametrize(
    "header",
    [
        CONTRACT,
        "step,loss,lr,toks_per_s",
        "iter,train_loss,learning_rate,tokens_per_sec,mfu",
        'step,"loss", lr ,toks_per_s',
        "step,loss,lr_0,lr_1,toks_per_step,step_time_ms,grad_norm_l2",
        "step,loss/train,loss/val,toks_per_s_per_gpu,step_time,grad_norms",
        "step,closs,gloss,%util,mem(MiB),größe",
        "step,loss,acc,toks_per_s",
        '"iter","train_loss","step_time_ms","ktoks_per_s","lr"',
        "step,loss,lr,step_time_ms,samples_per_s",
    ],
)
def test_a_name_of_ones_own_is_no_fault(tmp_path: Path, header: str) -> None:
    assert faults(tmp_path, header) == []


@pytest.mark.parametrize(
    "name",
    [
        *("ste\tp_time_s", "step_\0time_s", "s\x1b[2Jtep_time_s", "step<script>_time_s", "step_time_s\ufffd"),
        *('"step_time_s', "step_tim_s", "s_time_s", "step_time_", "stepnan_time_s", "Qtep_time_s", "1step_time_s"),
        *("", "nan", "0x1F", "null", "1e400", "loss"),
    ],
)
def test_a_garbled_name_is_noticed(tmp_path: Path, name: str) -> None:
    assert "garbage-header" in faults(tmp_path, CONTRACT.replace("step_time_s", name))


def test_bytes_that_are_no_text_are_noticed(tmp_path: Path) -> None:
    assert "garbage-header" in faults(tmp_path, b"step,lo\xffss,lr,toks_per_s")


@pytest.mark.parametrize("name", ["lrx", "xlr", "r", "l1r"])
def test_the_contracts_first_names_are_held_to_their_places(name: str) -> None:
    assert odd_names(("step", "loss", name, "toks_per_s"), ("step", "loss", name, "toks_per_s")) == [
        f"column 3 is named '{name}', which must be lr",
    ]
    assert odd_names(("step", "acc", name, "speed"), ("step", "acc", name, "speed")) == [], "another trainer's table"


def test_a_table_that_lost_its_header_is_noticed(tmp_path: Path) -> None:
    assert faults(tmp_path, "0,1.5,1.5,1.5") == []
    assert faults(tmp_path, "0,1.5,1.5,1.5,1.5") == ["garbage-header"]


def test_a_column_is_known_by_what_rank_0_recorded_as_well(tmp_path: Path) -> None:
    """Of a name that is gone as a whole nothing but the values tell."""
    times = [1.0 + step / 100 for step in range(20)]
    write_csv(tmp_path, [4096 / one for one in times], Q=times)
    beats = [record(step, ts=step, step_time_s=one) for step, one in enumerate(times, start=1)]
    write_heartbeat(tmp_path, beats)
    noted = {one.code: one.message for one in collect_dir(tmp_path).irregularities}
    assert noted["garbage-header"] == "its column 'Q' holds what the heartbeat calls step_time_s"


def test_columns_of_their_own_are_not_taken_for_each_other() -> None:
    steps = np.arange(1, 21)
    rate, times = (steps, 100.0 / steps), (steps, 1.0 * steps)
    still = (steps, np.ones(20))
    assert misnamed({"toks_per_s": rate, "mfu": (steps, 0.1 * steps)}, {"step_time_s": times}) == []
    assert misnamed({"util": still}, {"step_time_s": still}) == [], "what never varies proves nothing"
    assert misnamed({"util": times, "step_time_s": times}, {"step_time_s": times}) == []
    assert misnamed({"util": times}, {"step_time_s": times}) != []
