"""Whether the evidence is there, whole, and of one clock."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.validator.diagnose.cases import (
    UNCERTAIN,
    healthy,
    of_folder,
    of_run,
    steady,
)
from tests.validator.ingest.folders import outcome, record, write_csv, write_heartbeat, write_logs
from validator.model.runbook import TrainerMetrics
from validator.model.verdict import Finding


@pytest.mark.parametrize(
    ("name", "find", "put"),
    [
        ("training.csv", b"\n30,", b"\n3x0,"),
        ("training.csv", b"\n30,2.2", b"\n30,abc"),
        ("heartbeat_rank1.jsonl", b'{"ts"', b'{ts"'),
        ("metrics.json", b"{}", b"{"),
        (
            "env.json",
            b"{",
            b"[",
        ),
    ],
)
def test_garbled_evidence_forbids_go_where_the_run_ended_well(
    tmp_path: Path, name: str, find: bytes, put: bytes
) -> None:
    folder = healthy(tmp_path / "r")
    whole = (folder / name).read_bytes()
    assert find in whole
    (folder / name).write_bytes(whole.replace(find, put, 1))
    finding = of_run(folder)["damaged-evidence"]
    assert (finding.severity, finding.evidence[0].path) == ("veto", f"r/{name}")
    assert of_run(folder, ended=outcome(rc=1))["damaged-evidence"].severity == "warning"


def test_a_last_line_cut_by_a_kill_is_no_damage(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    for name in ("training.csv", "heartbeat_rank0.jsonl"):
        (folder / name).write_bytes((folder / name).read_bytes()[:-9])
    assert "damaged-evidence" not in of_run(folder, ended=outcome(rc=-9))
    assert "damaged-evidence" not in of_folder(folder)
    assert of_run(folder)["damaged-evidence"].severity == "veto"


def test_a_garbled_file_that_nothing_is_measured_by_is_a_warning(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    (folder / "k_stats.csv").write_text("step,k\n1,2\nx,y\n3,4\n")
    assert of_run(folder)["damaged-evidence"].severity == "warning"


@pytest.mark.parametrize("name", ["training.csv", "heartbeat_rank1.jsonl", "env.json", "metrics.json"])
def test_what_was_declared_and_never_written_forbids_go(tmp_path: Path, name: str) -> None:
    folder = healthy(tmp_path / "r")
    (folder / name).unlink()
    assert of_run(folder)["missing-evidence"].severity == "veto"
    assert "missing-evidence" not in of_run(folder, ended=outcome(rc=1))


@pytest.mark.parametrize(
    ("name", "lines", "words"),
    [
        ("training.csv", slice(30, 33), "no row between steps 29 and 33"),
        ("training.csv", slice(2, 3), "no row between steps 1 and 3"),
        ("heartbeat_rank1.jsonl", slice(30, 31), "no row between steps 29 and 31"),
        ("heartbeat_rank1.jsonl", slice(31, None), "the heartbeat of rank 1 ends at step 30, another at 60"),
        ("heartbeat_rank1.jsonl", slice(61, None), "the heartbeat of rank 1 lacks its end"),
    ],
)
def test_rows_that_were_taken_out_are_missed(tmp_path: Path, name: str, lines: slice, words: str) -> None:
    folder = healthy(tmp_path / "r")
    kept = (folder / name).read_text().splitlines(keepends=True)
    del kept[lines]
    (folder / name).write_text("".join(kept))
    finding = of_run(folder)["missing-evidence"]
    assert (finding.severity, words in finding.message) == ("veto", True), finding.message


def test_a_trainer_that_ends_well_and_prints_nothing_found_its_steps_done(tmp_path: Path) -> None:
    """A checkpoint of the run that was watched held them all. The advice was to write files into the output folder."""
    write_logs(tmp_path / "r")
    metrics = TrainerMetrics(stdout="step {step} loss {loss}")
    done = of_run(tmp_path / "r", metrics=metrics)["missing-evidence"]
    assert done.next_step.startswith("The trainer printed nothing and ended well, as one does that finds a checkpoint")
    write_logs(tmp_path / "r", stdout="it 5, 4.2\n")
    assert of_run(tmp_path / "r", metrics=metrics)["missing-evidence"].next_step.startswith("Let the trainer write")


@pytest.mark.parametrize(("end", "missed"), [("\r", False), ("\n", True)])
def test_a_bar_need_not_show_each_step_and_a_line_a_step_must(tmp_path: Path, end: str, missed: bool) -> None:
    shown = [step for step in range(1, 61) if step % 7 or step == 60]
    write_logs(tmp_path, stdout="".join(f"{step}/60 loss: {3 / step:.4f} {50 + step % 3}ms{end}" for step in shown))
    metrics = TrainerMetrics(stdout="{step}/{steps_total} loss: {loss} {own_step_time_ms}ms")
    assert ("missing-evidence" in of_run(tmp_path, steps=60, metrics=metrics)) is missed


@pytest.mark.parametrize(
    "steps",
    [
        (1, 5, 10, 15, 20, 25, 30),
        (10, 20, 30, 40, 50, 60, 64),
        (1, 20, 40, 60, 80, 100),
        (1, 2, 4, 8, 16, 32, 64, 100),
        (*range(1, 10), *range(10, 101, 10)),
        (37, 78, 117, 169, 207, 247, 291, 300),
    ],
)
def test_a_table_that_is_written_now_and_then_misses_nothing(tmp_path: Path, steps: tuple[int, ...]) -> None:
    folder = tmp_path / "r"
    write_csv(folder, [845.0] * len(steps), steps=steps)
    found = of_run(folder, steps=steps[-1], metrics=TrainerMetrics(csv="training.csv"))
    assert "missing-evidence" not in found


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((1, 2, 4, 8, 32, 64, 100), "no row between"),
        ((*range(1, 51), 100), "no row between steps 50 and 100"),
        ((37, 78, 117, 169, 330, 371, 410), "no row between steps 169 and 330"),
    ],
)
def test_rows_that_follow_no_rule_are_missed(tmp_path: Path, steps: tuple[int, ...], words: str) -> None:
    folder = tmp_path / "r"
    write_csv(folder, [845.0] * len(steps), steps=steps)
    found = of_run(folder, steps=steps[-1], metrics=TrainerMetrics(csv="training.csv"))
    assert words in found["missing-evidence"].message


@pytest.mark.parametrize("every", [3, 4, 7])
@pytest.mark.parametrize("pace", [1, 20])
@pytest.mark.parametrize("evaluated", [False, True])
def test_every_nth_row_that_is_missing(tmp_path: Path, every: int, pace: int, evaluated: bool) -> None:
    """Every third row of detectron2's was missing, and it was GO: the usual stride was that over a gap.

    A trainer may print an evaluation in place of a row.
    """
    lines = []
    for at in range(1, 61):
        if at % every:
            lines.append(f"step {pace * at}: loss {4 - at / 60:.4f}\n")
        elif evaluated:
            lines.append(f"step {pace * at}: val loss {4 - at / 60:.4f}\n")
    write_logs(tmp_path, stdout="".join(lines))
    pattern = "step {step}: loss {loss}|step {step}: val loss {val_loss}"
    found = of_run(tmp_path, steps=60 * pace, metrics=TrainerMetrics(stdout=pattern))
    assert ("missing-evidence" in found) == (not evaluated)


@pytest.mark.parametrize("steps", [
    [n for n in range(1, 400) if n % 20 == 0 or n % 30 == 0],
    [n for n in range(1, 400) if n % 20 == 0 or n % 50 == 0],
    [n for n in range(1, 120) if n % 2 == 0 or n % 3 == 0],
    [1, *range(20, 400, 20), 399],
])  # fmt: skip
def test_rows_on_two_grids_miss_nothing(tmp_path: Path, steps: list[int]) -> None:
    folder = tmp_path / "r"
    write_csv(folder, [845.0] * len(steps), steps=steps)
    assert "missing-evidence" not in of_run(folder, steps=steps[-1], metrics=TrainerMetrics(csv="training.csv"))


def test_every_other_row_that_is_dropped_late_in_a_run_is_a_warning(tmp_path: Path) -> None:
    """Steps 1, 2, …, 60, 62, 64, …, 100 passed without a word, as those of a trainer that thins out by a rule."""
    folder = tmp_path / "r"
    steps = (*range(1, 61), *range(62, 101, 2))
    write_csv(folder, [845.0] * len(steps), steps=steps)
    found = of_run(folder, steps=100, metrics=TrainerMetrics(csv="training.csv"))["missing-evidence"]
    assert found.severity == "warning"
    assert "a row every step up to step 60 and one every 2 steps behind it" in found.message
    assert "20 rows are missing" in found.message


@pytest.mark.parametrize(("last", "mean", "codes"), [
    (149, "3.1", {"missing-evidence"}),
    (149, "nan", {"missing-evidence", "nonfinite-values"}),
    (299, "3.1", set()),
])  # fmt: skip
def test_rows_of_the_loss_that_stop_while_evaluations_continue(
    tmp_path: Path, last: int, mean: str, codes: set[str]
) -> None:
    """A trainer that skips its line where the loss is NaN, and prints `train loss nan` in an evaluation, was GO."""
    lines = []
    for n in range(301):
        if n % 100 == 0:
            lines.append(f"step {n}: train loss {3.1 if n < 200 else mean}, val loss 3.2\n")
        if n <= last:
            lines.append(f"iter {n}: loss {4 - n / 300:.4f}, time 50.00ms, mfu 1.00%\n")
    write_logs(tmp_path, stdout="".join(lines))
    found = of_run(tmp_path, steps=300, metrics=TrainerMetrics(reader=("nanogpt",)))
    assert found.keys() & {"missing-evidence", "nonfinite-values"} == codes
    if codes:
        assert (
            "loss has 150 rows, the last at step 149, where others continue to 300" in found["missing-evidence"].message
        )


def test_a_row_that_was_due_by_the_rule_is_missed(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    (folder).mkdir()
    rows = [f"{n},{3 - n / 100},{845.0 if n in (1, 2, 4, 8, 16) else ''}\n" for n in range(1, 65)]
    (folder / "training.csv").write_text("step,loss,toks_per_s\n" + "".join(rows))
    found = of_run(folder, steps=64, metrics=TrainerMetrics(csv="training.csv"))
    assert "toks_per_s has 5 rows, the last at step 16" in found["missing-evidence"].message
    rows = [row.replace(",\n", ",845.0\n") if row.startswith("32,") else row for row in rows]
    (folder / "training.csv").write_text("step,loss,toks_per_s\n" + "".join(rows))
    found = of_run(folder, steps=64, metrics=TrainerMetrics(csv="training.csv"))
    assert "toks_per_s has no row at step 64, which was due" in found["missing-evidence"].message


def test_what_follows_from_a_heartbeats_clock_begins_a_step_later_and_misses_nothing(tmp_path: Path) -> None:
    """A trainer that writes a rate and no step time: the time of its first step is not known."""
    folder = tmp_path / "r"
    write_csv(folder, steady())
    write_heartbeat(folder, [record(i, ts=5 * i, loss=3 - i / 100) for i in range(1, 61)])
    only = TrainerMetrics(csv="training.csv", heartbeat="heartbeat_rank{rank}.jsonl")
    assert set(of_run(folder, metrics=only, nproc=1)) == UNCERTAIN


def test_a_first_row_without_a_rate_misses_nothing(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    lines = (folder / "training.csv").read_text().splitlines()
    step, loss, lr, *_ = lines[1].split(",")
    lines[1] = f"{step},{loss},{lr},,,"
    (folder / "training.csv").write_text("\n".join(lines) + "\n")
    assert of_run(folder) == {}


def test_bytes_that_are_no_text_are_damage(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    (folder / "metrics.json").write_bytes(b'{"status": "d\xffne"}')
    assert "not UTF-8" in of_run(folder)["damaged-evidence"].message


def test_a_rank_that_writes_more_kinds_of_records_misses_nothing(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    path = folder / "heartbeat_rank0.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    more = [line.replace('"progress"', f'"{kind}"') for line in lines[1:-1] for kind in ("progress", "data", "memory")]
    path.write_text("".join([lines[0], *more, lines[-1]]))
    assert "missing-evidence" not in of_run(folder)


def test_inspect_sees_a_silent_rank_and_a_heartbeat_of_last_week(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "silent")
    path = folder / "heartbeat_rank1.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:20]))
    silent = of_folder(folder)["missing-evidence"]
    assert "the heartbeat of rank 1 ends at step 19, another at 60" in silent.message
    folder = healthy(tmp_path / "old")
    path = folder / "heartbeat_rank1.jsonl"
    beats = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**one, "ts": one["ts"] - 7 * 86_400 + 1e6}) + "\n" for one in beats))
    path = folder / "heartbeat_rank0.jsonl"
    beats = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**one, "ts": one["ts"] + 1e6}) + "\n" for one in beats))
    old = of_folder(folder)["foreign-results"]
    assert (old.severity, "The heartbeat of rank 1 ends 6 d 23 h" in old.message) == ("veto", True), old.message


def test_inspect_of_a_run_in_progress_misses_nothing(tmp_path: Path) -> None:
    """One rank is a step ahead when the folder is read."""
    folder = healthy(tmp_path / "r")
    for rank, lines in ((0, 41), (1, 40)):
        path = folder / f"heartbeat_rank{rank}.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))
    assert "missing-evidence" not in of_folder(folder)


@pytest.mark.parametrize(
    ("form", "pattern", "sick"),
    [
        ("{:.2f}", "step {step} .*loss {loss}", True),
        ("{:.3f}", "step {step} .*loss {loss}", True),  # 2,310 is a whole thousand by itself
        ("{:.2f},", "step {step} .*loss {loss},", True),  # the comma that the pattern names is the decimal one
        ("{:.2f},", "step {step} .*loss {loss}", False),
        ("{:.3f}", "step {step} .*loss {loss}", False),
    ],
)
def test_losses_with_a_decimal_comma_are_damage(tmp_path: Path, form: str, pattern: str, sick: bool) -> None:
    """2,31 was read as 2 and 2,310 as 2310, and nothing was said."""
    texts = [form.format(2 + 3 / s**0.5) for s in range(1, 61)]
    lines = [f"step {s} loss {text.replace('.', ',', 1) if sick else text}\n" for s, text in enumerate(texts, 1)]
    (tmp_path / "r" / "logs").mkdir(parents=True)
    (tmp_path / "r" / "logs" / "stdout.log").write_text("".join(lines), encoding="utf-8")
    found = of_run(tmp_path / "r", metrics=TrainerMetrics(stdout=pattern))
    assert ("damaged-evidence" in found) == sick
    assert not sick or (found["damaged-evidence"].severity == "veto" and "decimal" in found["damaged-evidence"].message)


def test_losses_that_begin_with_thousands_are_none(tmp_path: Path) -> None:
    lines = [f"step {s} loss {5000 / s:,.0f} tok/s 51,200\n" for s in range(1, 61)]
    (tmp_path / "r" / "logs").mkdir(parents=True)
    (tmp_path / "r" / "logs" / "stdout.log").write_text("".join(lines), encoding="utf-8")
    pattern = "step {step} loss {loss} tok/s {toks_per_s}"
    assert "damaged-evidence" not in of_run(tmp_path / "r", metrics=TrainerMetrics(stdout=pattern))


def test_a_rank_that_writes_boot_alone_misses_nothing(tmp_path: Path) -> None:
    """Lines were counted, not the steps that they cover."""
    folder = healthy(tmp_path / "r")
    path = folder / "heartbeat_rank1.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    found = of_run(folder)
    assert "missing-evidence" not in found
    assert found["not-judged"].severity == "info"


def test_what_falls_as_a_loss_does_is_offered_as_one(tmp_path: Path) -> None:
    """Of a trainer that calls its loss `contrastive/info_nce`, nothing said how to have it judged."""
    falls, level = [5 - 3 * i / 60 for i in range(60)], [0.9 + 0.01 * (i % 3) for i in range(60)]
    folder = healthy(tmp_path / "r", info_nce=falls, top1=level)
    path = folder / "training.csv"
    path.write_text(path.read_text().replace("loss", "other", 1))
    said = of_run(folder)["not-judged"].next_step
    assert "info_nce" in said
    assert "top1" not in said


def test_a_rate_that_is_no_number_is_damage(tmp_path: Path) -> None:
    rates = [*steady(30), float("nan"), *steady(29)]
    finding = of_run(healthy(tmp_path / "r", rates=rates))["damaged-evidence"]
    assert (finding.severity, "toks_per_s is nan at step 31" in finding.message) == ("veto", True)


def test_a_clock_that_was_set_is_named(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "r")
    records = [record(i, ts=5 * i - (3600 if i > 40 else 0)) for i in range(1, 61)]
    write_heartbeat(folder, records)
    assert "set back by 3595 s" in of_run(folder)["clock-jump"].message


_BATCHES = "epoch {epoch} .* {step}/{steps_per_epoch} batches .* loss {loss}"


def _by_epochs(
    folder: Path, printed: list[int], *, of: int, epochs: Iterable[int], lost: tuple[int, int] = (0, 0)
) -> Finding | None:
    """`missing-evidence` of a run that prints these batches of each epoch, but for the row `lost`: epoch and batch."""
    rows = [(e, s) for e in epochs for s in printed if (e, s) != lost]
    shown = [f"| epoch {e} | {s}/{of} batches | loss {3 / (of * e + s):.6f}" for e, s in rows]
    write_logs(folder / "r", stdout="\n".join(shown) + "\n")
    return of_run(folder / "r", metrics=TrainerMetrics(stdout=_BATCHES)).get("missing-evidence")


@pytest.mark.parametrize("epochs", [2, 3, 5])
@pytest.mark.parametrize(
    ("printed", "of"),
    [
        ([*range(5, 180, 5)], 180),  # batch % 5 == 0 and batch > 0, of 180 batches: from 175 to 185
        ([*range(10, 171, 10)], 178),  # the same, with a rest of the epoch behind the last row
        ([*range(50, 391, 50)], 391),  # batches from 1: the last interval is a part
        ([*range(5, 181, 5)], 180),
        ([*range(0, 180, 5)], 180),
        ([1, *range(10, 181, 10)], 180),
        ([20, 40], 60),
    ],
)
def test_batches_that_no_epoch_prints_at_its_border_are_not_missing(
    tmp_path: Path, printed: list[int], of: int, epochs: int
) -> None:
    assert _by_epochs(tmp_path, printed, of=of, epochs=range(1, epochs + 1)) is None


def test_a_longer_gap_is_meant_where_each_border_has_it(tmp_path: Path) -> None:
    printed = [*range(10, 101, 10)]
    assert _by_epochs(tmp_path, printed, of=160, epochs=range(1, 4)) is None
    assert _by_epochs(tmp_path, printed, of=160, epochs=range(1, 3)) is not None


@pytest.mark.parametrize("epochs", [2, 3, 5])
@pytest.mark.parametrize(
    ("printed", "of", "lost"),
    [
        ([*range(5, 180, 5)], 180, 90),
        ([*range(5, 180, 5)], 180, 175),
        ([*range(5, 180, 5)], 180, 5),
        ([*range(0, 180, 5)], 180, 0),
        ([*range(5, 181, 5)], 180, 180),
        ([*range(50, 391, 50)], 391, 350),
        ([*range(50, 391, 50)], 391, 50),
        ([*range(50, 391, 50)], 391, 200),
    ],
)
def test_a_row_that_one_epoch_lacks_is_missing(
    tmp_path: Path, printed: list[int], of: int, lost: int, epochs: int
) -> None:
    at = 1 if lost == printed[-1] else 2
    found = _by_epochs(tmp_path, printed, of=of, epochs=range(1, epochs + 1), lost=(at, lost))
    assert found is not None
    assert found.severity == "veto"
    assert "no row between steps" in found.message


def test_an_epoch_of_which_nothing_is_printed_is_missing(tmp_path: Path) -> None:
    found = _by_epochs(tmp_path, [*range(5, 180, 5)], of=180, epochs=(1, 2, 4, 5))
    assert found is not None
    assert found.severity == "veto"
