"""Tables of numbers by step, whole and damaged."""

from __future__ import annotations

import hashlib
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from validator.ingest import collect_dir, table
from validator.ingest.read_log import ReadLog
from validator.ingest.table import StepTable, names_in, read_table


def read(tmp_path: Path, data: bytes | str, names: dict[str, str] | None = None) -> tuple[StepTable, dict[str, str]]:
    path = tmp_path / "training.csv"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    read_log = ReadLog(tmp_path)
    table = read_table(path, read_log, series={column: name for name, column in (names or {}).items()})
    assert table is not None
    return table, {i.code: i.message for i in read_log.irregularities}


def column(table: StepTable, name: str) -> list[tuple[int, float]]:
    steps, values = table.columns[name]
    return list(zip(steps.tolist(), values.tolist(), strict=True))


PLAIN = "step,loss,lr,toks_per_s\n1,3.5,0.001,100\n2,3.25,0.001,110\n"


def test_a_sound_file_gives_its_columns_and_its_hash(tmp_path: Path) -> None:
    table, irregular = read(tmp_path, PLAIN)
    assert column(table, "loss") == [(1, 3.5), (2, 3.25)]
    assert column(table, "toks_per_s") == [(1, 100.0), (2, 110.0)]
    assert table.source.sha256 == hashlib.sha256(PLAIN.encode()).hexdigest()
    assert (table.source.path, table.source.bytes) == ("training.csv", len(PLAIN))
    assert irregular == {}


@pytest.mark.parametrize(
    "data",
    [
        "1,3.5,0.001,100\n2,3.25,0.001,110\n",  # the older trainer's file has no header
        PLAIN.replace("\n", "\r\n"),
        "\ufeff" + PLAIN,
        "\n\n" + PLAIN.replace("\n2", "\n\n2"),
        PLAIN.replace("step,", "iter,").replace("toks_per_s", "tokens_per_sec"),
        'step,"loss", lr ,toks_per_s\n1,"3.5",0.001,100\n2, 3.25 ,0.001,110\n',
    ],
    ids=["headerless", "crlf", "bom", "blank lines", "other names", "quotes and spaces"],
)
def test_spelling_makes_no_difference(tmp_path: Path, data: str) -> None:
    table, irregular = read(tmp_path, data)
    assert column(table, "loss") == [(1, 3.5), (2, 3.25)]
    assert column(table, "toks_per_s") == [(1, 100.0), (2, 110.0)]
    assert irregular == {}


def test_nan_and_infinity_are_kept_as_written(tmp_path: Path) -> None:
    table, irregular = read(tmp_path, "step,loss\n1,2.0\n2,nan\n3,-inf\n")
    values = table.columns["loss"][1]
    assert math.isnan(values[1])
    assert values[2] == -math.inf
    assert irregular == {}


def test_an_empty_cell_is_absent_and_no_fault(tmp_path: Path) -> None:
    table, irregular = read(tmp_path, "step,loss,val_loss\n1,2.0,\n2,1.9,3.0\n3,,\n")
    assert column(table, "val_loss") == [(2, 3.0)]
    assert column(table, "loss") == [(1, 2.0), (2, 1.9)]
    assert irregular == {}


def test_garbage_costs_only_its_own_row(tmp_path: Path) -> None:
    table, irregular = read(tmp_path, "step,loss\n1,2.0\n<<<<!\n2,1.9\n3,oops\n4,1.7\n1.5,9\n")
    assert column(table, "loss") == [(1, 2.0), (2, 1.9), (4, 1.7)]
    assert set(irregular) == {"garbage-row", "garbage-cell"}
    assert "2 rows without a step" in irregular["garbage-row"]


def test_a_line_cut_short_gives_no_number(tmp_path: Path) -> None:
    """The 8 of 847 is no rate of 8."""
    table, irregular = read(tmp_path, PLAIN + "3,3.0,0.001,8")
    assert column(table, "toks_per_s") == [(1, 100.0), (2, 110.0)]
    assert column(table, "loss")[-1] == (3, 3.0)
    assert "truncated-line" in irregular


def test_rows_of_another_width_are_noted(tmp_path: Path) -> None:
    table, irregular = read(tmp_path, PLAIN + "3,3.0\n4,2.9,0.001,120,7\n5,2.8,0.001,130\n")
    assert column(table, "toks_per_s")[2:] == [(4, 120.0), (5, 130.0)]
    assert column(table, "loss")[2] == (3, 3.0)
    assert set(irregular) == {"short-row", "long-row"}


def test_nul_bytes_are_skipped(tmp_path: Path) -> None:
    table, irregular = read(tmp_path, PLAIN.encode() + b"\0" * 500 + b"\n3,3.0,0.001,120\n")
    assert column(table, "toks_per_s") == [(1, 100.0), (2, 110.0), (3, 120.0)]
    assert set(irregular) == {"nul-bytes"}


def test_a_second_header_starts_another_run_and_the_last_one_counts(tmp_path: Path) -> None:
    table, irregular = read(tmp_path, PLAIN + "step,loss,lr,toks_per_s\n1,9.5,0.001,50\n2,9.25,0.001,55\n3,9,0.001,5\n")
    assert column(table, "loss") == [(1, 9.5), (2, 9.25), (3, 9.0)]
    assert "2 runs share this file" in irregular["mixed-runs"]


def test_a_second_header_counts_even_where_steps_go_on(tmp_path: Path) -> None:
    table, irregular = read(tmp_path, PLAIN + "step,loss,lr,toks_per_s\n3,9,0.001,5\n")
    assert column(table, "loss") == [(3, 9.0)]
    assert "second header" in irregular["mixed-runs"]


def test_a_step_that_goes_back_for_good_starts_another_run(tmp_path: Path) -> None:
    table, irregular = read(tmp_path, "1,5,0,1\n2,5,0,1\n3,5,0,1\n1,7,0,1\n2,7,0,1\n")
    assert column(table, "loss") == [(1, 7.0), (2, 7.0)]
    assert "step 1 comes after step 3" in irregular["mixed-runs"]


def test_a_run_that_goes_on_from_an_earlier_step_replaces_only_what_it_repeats(tmp_path: Path) -> None:
    table, irregular = read(tmp_path, "1,5,0,1\n2,5,0,1\n3,5,0,1\n2,7,0,1\n3,7,0,1\n4,7,0,1\n")
    assert column(table, "loss") == [(1, 5.0), (2, 7.0), (3, 7.0), (4, 7.0)]
    assert set(irregular) == {"mixed-runs"}


def test_a_lone_row_that_falls_back_is_left_out(tmp_path: Path) -> None:
    table, irregular = read(tmp_path, "1,5,0,1\n2,5,0,1\n1,99,0,1\n3,5,0,1\n4,5,0,1\n")
    assert column(table, "loss") == [(1, 5.0), (2, 5.0), (3, 5.0), (4, 5.0)]
    assert "two processes" in irregular["mixed-runs"]


def test_of_a_repeated_step_the_later_row_counts(tmp_path: Path) -> None:
    table, irregular = read(tmp_path, "1,5,0,1\n2,5,0,1\n2,6,0,1\n3,5,0,1\n")
    assert column(table, "loss") == [(1, 5.0), (2, 6.0), (3, 5.0)]
    assert set(irregular) == {"duplicate-step"}


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "empty"),
        (b"step,loss\n", "empty"),
        (b"time,loss\n1,2\n", "no-step-column"),
        (bytes(range(256)) * 40, "no-step-column"),
        ("1,2\n".encode("utf-16"), "no-step-column"),
    ],
)
def test_what_is_no_table_gives_no_columns(tmp_path: Path, data: bytes, code: str) -> None:
    path = tmp_path / "training.csv"
    path.write_bytes(data)
    read_log = ReadLog(tmp_path)
    table = read_table(path, read_log)
    assert dict(table.columns) == {}
    assert code in {i.code for i in read_log.irregularities}


NAMES = {"step": "update", "loss": "bits", "step_time_ms": "msec"}


@pytest.mark.parametrize("header", ["update,bits,msec", "bits,step,update,msec", '"update", bits ,"msec",step'])
def test_columns_of_other_names_are_read_by_those_that_are_given(tmp_path: Path, header: str) -> None:
    """A column that is named like a series, and is not the one that was given, is something else."""
    cells = {"update": "{0}", "bits": "2.5", "msec": "85", "step": "9{0}"}
    order = [cells[cell.strip(' "')] for cell in header.split(",")]
    rows = "".join(",".join(order).format(step) + "\n" for step in (4, 8, 12))
    table, faults = read(tmp_path, f"{header}\n{rows}", NAMES)
    assert faults == {}
    assert column(table, "loss") == [(4, 2.5), (8, 2.5), (12, 2.5)]
    assert [value for _, value in column(table, "step_time_ms")] == [85.0] * 3


def test_what_no_column_is_named_is_said_with_the_way_to_name_it(tmp_path: Path) -> None:
    _, faults = read(tmp_path, "update,bits\n1,2.5\n")
    assert "metrics.names says which it is: {step: COLUMN}" in faults["no-step-column"]


def test_a_folder_in_its_place_is_an_irregularity(tmp_path: Path) -> None:
    read_log = ReadLog(tmp_path)
    assert read_table(tmp_path, read_log) is None
    assert [i.code for i in read_log.irregularities] == ["unreadable"]


def test_the_fast_way_and_the_careful_way_read_the_same(tmp_path: Path) -> None:
    """One flaw in a block sends all of it the careful way; the sound rows must come out alike."""
    rows = [f"{i},{3 - i / 5000!r},{1e-3 / i!r},{800 + i % 7}" for i in range(1, 2001)]
    sound, _ = read(tmp_path, "\n".join(rows) + "\n")
    flawed, _ = read(tmp_path, "\n".join([*rows[:1000], "#", *rows[1000:]]) + "\n")
    for name in sound.columns:
        for left, right in zip(sound.columns[name], flawed.columns[name], strict=True):
            np.testing.assert_array_equal(left, right)


def test_lines_are_numbered_across_blocks(tmp_path: Path) -> None:
    rows = [f"{i},{3.0},{0.001},{800}{' ' * 90}" for i in range(1, 60_000)]
    path = tmp_path / "training.csv"
    path.write_text("step,loss,lr,toks_per_s\n" + "\n".join(rows) + "\nbroken\n60000,1,1,1\n")
    assert path.stat().st_size > 4 * 2**20
    read_log = ReadLog(tmp_path)
    table = read_table(path, read_log)
    assert table.rows == 60_000
    assert [(i.code, i.line) for i in read_log.irregularities] == [("garbage-row", 60_001)]


def test_numbers_are_the_same_whichever_way_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells are read as JSON numbers where they are some, and otherwise by numpy, to the same bits."""
    draw = random.Random(3)
    cells = [repr(draw.uniform(-1, 1) * 10.0 ** draw.randint(-30, 30)) for _ in range(3000)]
    rows = "".join(
        f"{n},{a},{b},{c}\n" for n, (a, b, c) in enumerate(zip(cells[::3], cells[1::3], cells[2::3], strict=True))
    )
    for odd in ("", "1000,.5,1.,+1\n", "1000,nan,-inf,1e400\n", "1000,007,-0,\n"):
        quick, irregular = read(tmp_path, "step,a,b,c\n" + rows + odd)
        assert irregular == {}
        with monkeypatch.context() as patch:
            patch.setattr(table, "decode_numbers", lambda *arguments: None)
            slow, _ = read(tmp_path, "step,a,b,c\n" + rows + odd)
        for name in "abc":
            for one, other in zip(quick.columns[name], slow.columns[name], strict=True):
                assert np.array_equal(one, other, equal_nan=True)


def test_a_short_row_is_not_made_up_for_by_a_long_one(tmp_path: Path) -> None:
    _, irregular = read(tmp_path, "step,loss,lr\n1,2.0,3.0\n2,2.0\n3,2.0,3.0,4.0\n")
    assert set(irregular) == {"short-row", "long-row"}


def test_a_digit_separator_is_no_number(tmp_path: Path) -> None:
    """Python reads 1_0 as ten; in a table it is a damaged cell."""
    assert set(read(tmp_path, "step,loss\n1,1_0\n2,3.0\n")[1]) == {"garbage-cell"}


def test_a_column_of_words_is_no_damage_and_a_few_words_among_numbers_are(tmp_path: Path) -> None:
    rows = "".join(f"{n},2.5,warm,{'?' if n == 7 else n}\n" for n in range(1, 21))
    table, irregular = read(tmp_path, f"step,loss,phase,score\n{rows}")
    assert set(irregular) == {"garbage-cell"}
    assert "1 cells" in irregular["garbage-cell"]
    assert "score" in irregular["garbage-cell"]
    assert column(table, "loss") == [(n, 2.5) for n in range(1, 21)]
    rows = "".join(f"{n},2.5,{'saved' if n % 50 == 0 else ''}\n" for n in range(1, 201))
    assert read(tmp_path, f"step,loss,comment\n{rows}")[1] == {}, "a remark now and then"
    _, irregular = read(tmp_path, "step,loss\n" + "".join(f"{n},oops\n" for n in range(1, 9)))
    assert set(irregular) == {"garbage-cell"}, "words for a loss are damage however many there are"


@pytest.mark.parametrize("text", ["step,loss,lr\n1,2.5,0.1\n2,2.4,0.1", "step,loss,lr\r\n1,2.5,0.1\r\n2,2.4,0.1"])
def test_a_trainer_that_ended_need_not_end_its_last_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "training.csv"
    path.write_text(text, newline="")
    for ended, rows, flaws in ((True, [2.5, 2.4], set()), (False, [2.5, 2.4], {"truncated-line"})):
        read_log = ReadLog(tmp_path)
        table = read_table(path, read_log, ended=ended)
        assert table.columns["loss"][1].tolist() == rows
        assert {one.code for one in read_log.irregularities} == flaws
        assert len(table.columns["lr"][1]) == (2 if ended else 1)
    path.write_text("step,loss,lr\n1,2.5,0.1\n2,2.4")
    read_log = ReadLog(tmp_path)
    read_table(path, read_log, ended=True)
    assert {one.code for one in read_log.irregularities} == {"truncated-line"}, "a line that lacks cells is cut short"


def test_a_comma_between_quotes_separates_no_cells(tmp_path: Path) -> None:
    rows = "".join(f'{n},{3 - n / 10},"warm, steady",5\n' for n in range(1, 9))
    table, irregular = read(tmp_path, f'step,loss,"note, if any",extra\n{rows}')
    assert irregular == {}
    assert column(table, "loss")[-1] == (8, 2.2)
    assert column(table, "extra")[-1] == (8, 5.0)
    assert set(read(tmp_path, 'step,loss\n1,"2.0\n2,1.9"\n')[1]) <= {"garbage-cell"}


def test_a_first_line_of_one_quoted_cell_without_end_is_a_damaged_table(tmp_path: Path) -> None:
    """Python's own reader of CSV refuses cells of more than 128 KiB."""
    _, irregular = read(tmp_path, '"' * 500_000)
    assert irregular


def named(tmp_path: Path, header: str, *rows: str) -> dict[str, str] | None:
    path = tmp_path / "log.csv"
    path.write_text("\n".join((header, *rows)) + "\n")
    return names_in(path)


def test_columns_of_other_names_are_known_by_what_they_are_called(tmp_path: Path) -> None:
    epochs = [f"{i},{2 - i / 10},0.1" for i in range(5)]
    assert named(tmp_path, "epoch,Train Loss,eval_loss", *epochs) == {
        "step": "epoch", "loss": "Train Loss", "val_loss": "eval_loss"
    }  # fmt: skip
    assert named(tmp_path, "epoch,loss,val_loss", *epochs) == {"step": "epoch"}, "as Keras' CSVLogger writes"
    assert named(tmp_path, "step,loss,epoch", *epochs) == {}
    assert named(tmp_path, "update,loss", "10,2.0") == {"step": "update"}
    assert named(tmp_path, "epoch,batch,loss", *("0,1,2.0", "0,2,1.9", "1,1,1.8")) is None, "several rows an epoch"
    assert named(tmp_path, "epoch,loss", "0.1,2.0", "0.2,1.9") is None, "shares of an epoch"
    assert named(tmp_path, "name,value", "a,1") is None
    assert named(tmp_path, "update,train_xent,learning_rate,msec", "7,2.3,0.0005,11.58") == {
        "step": "update", "loss": "train_xent", "step_time_ms": "msec"
    }  # fmt: skip


def test_a_loss_that_is_written_in_parts_is_their_sum(tmp_path: Path) -> None:
    """The `results.csv` of Ultralytics had no step, no loss and no time."""
    rows = "".join(f"{i},{31.5 * i},{2 / i},{3 / i},{1 / i},{4 / i},{0.01 / i}\n" for i in range(1, 10))
    header = "epoch,time,train/box_loss,train/cls_loss,val/box_loss,val/cls_loss,lr/pg0\n"
    table, irregular = read(tmp_path, header + rows, {"step": "epoch"})
    assert column(table, "loss")[:2] == [(1, 5.0), (2, 2.5)]
    assert column(table, "val_loss")[1] == (2, 2.5)
    assert column(table, "step_time_s")[1] == (3, pytest.approx(31.5))
    assert set(table.derived) == {"loss", "val_loss", "step_time_s"}
    assert irregular == {}
    whole, _ = read(tmp_path, header.replace("lr/pg0", "loss") + rows, {"step": "epoch"})
    assert column(whole, "loss")[0] == (1, 0.01)


@pytest.mark.parametrize(
    ("name", "series", "factor"),
    [
        *((name, "step_time_s", 1.0) for name in ("batch_time", "step_seconds", "time_per_batch", "sec", "duration")),
        *((name, "step_time_s", 1e-3) for name in ("ms", "time_ms")),
        *((name, "samples_per_s", 1.0) for name in ("samples/s", "images_per_sec")),
    ],
)
@pytest.mark.parametrize("written", ["table", "records"])
def test_columns_and_keys_for_speed(tmp_path: Path, written: str, name: str, series: str, factor: float) -> None:
    values = [round(0.4 + 0.01 * (i % 3), 3) for i in range(1, 41)]
    if written == "table":
        rows = [f"step,loss,{name}", *(f"{i},{4 - i / 50},{value}" for i, value in enumerate(values, 1))]
        path = tmp_path / "log.csv"
    else:
        rows = [json.dumps({"step": i, "loss": 4 - i / 50, name: value}) for i, value in enumerate(values, 1)]
        path = tmp_path / "log.jsonl"
    path.write_text("\n".join(rows) + "\n")
    found = collect_dir(tmp_path).series[series]
    assert found.values.tolist() == pytest.approx([factor * value for value in values])


@pytest.mark.parametrize("step", ["batch", "i", "idx", "n", "train_step"])
@pytest.mark.parametrize("loss", ["ce_loss", "trainLoss", "avg_loss", "cost"])
def test_columns_that_have_the_names_of_no_one_else(tmp_path: Path, step: str, loss: str) -> None:
    (tmp_path / "log.csv").write_text(
        "\n".join([f"{step},{loss}", *(f"{i},{4 - i / 50}" for i in range(1, 41))]) + "\n"
    )
    assert collect_dir(tmp_path).series["loss"].steps.tolist() == list(range(1, 41))


def test_lists_beside_each_other_are_rows(tmp_path: Path) -> None:
    losses = [4 - i / 50 for i in range(40)]
    text = json.dumps({"lr": 0.1, "train_losses": losses, "val_losses": losses[::2], "step_time": [0.4] * 40})
    (tmp_path / "history.json").write_text(text)
    series = collect_dir(tmp_path).series
    assert series["loss"].values.tolist() == losses
    assert series["loss"].steps.tolist() == list(range(1, 41))
    assert set(series["step_time_s"].values.tolist()) == {0.4}


def test_rows_without_a_step_are_counted_where_a_loss_is_all_that_counts(tmp_path: Path) -> None:
    """A table of `training_loss, training_acc, val_loss, val_acc` had no step, and nothing of it was read."""
    lines = ["training_loss, training_acc, val_loss", *(f"{3 / i:.4f}, 0.5, {4 / i:.4f}" for i in range(1, 31))]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    series = collect_dir(tmp_path).series
    assert series["loss"].steps.tolist() == series["val_loss"].steps.tolist() == list(range(1, 31))
    assert series["val_loss"].values.tolist() == [round(4 / i, 4) for i in range(1, 31)]
