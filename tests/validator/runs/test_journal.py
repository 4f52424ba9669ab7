"""The journal: what was acknowledged is there, what was torn is not, and nobody else writes."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from validator.model.record import Attempt
from validator.runs import journal as journal_module
from validator.runs.journal import Journal, JournalBusy, read


def write(path: Path, event: str, **fields: Any) -> None:
    with Journal.open(path) as journal:
        journal.append(event, **fields)


def test_events_come_back_in_order_with_their_fields(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal.open(path) as journal:
        journal.append("started", seed=7)
        journal.append("phase_started", phase="baseline")
    events = read(path)
    assert [(event.event, dict(event.fields)) for event in events] == [
        ("started", {"seed": 7}),
        ("phase_started", {"phase": "baseline"}),
    ]
    assert events[0].mono <= events[1].mono
    assert events[0].ts.endswith("+00:00")


def test_a_model_is_written_as_its_json_form_and_can_be_read_back(tmp_path: Path) -> None:
    attempt = Attempt(number=1, command=("true",), pid=1, started="now", duration_s=0.5, rc=0, reason="exited")
    write(tmp_path / "j", "attempt_ended", attempt=attempt)
    (event,) = read(tmp_path / "j")
    assert Attempt.model_validate(event.fields["attempt"]) == attempt


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    write(tmp_path / "j", "x", values=[1.5, float("nan"), float("inf")], where=tmp_path)
    line = json.loads((tmp_path / "j").read_text())
    assert line["values"] == [1.5, None, None]
    assert line["where"] == str(tmp_path)


@pytest.mark.parametrize("torn", [b'{"ts":"x","mono":1,"ev', b"\xff\xfe", b"{}" * 100_000])
def test_a_torn_last_line_is_passed_over_and_removed_before_the_next_event(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "j"
    write(path, "started")
    with path.open("ab") as file:
        file.write(torn)
    assert [event.event for event in read(path)] == ["started"]
    write(path, "resumed")
    assert [event.event for event in read(path)] == ["started", "resumed"]


def test_a_journal_that_is_one_torn_line_starts_empty(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b'{"ts"')
    write(path, "started")
    assert [event.event for event in read(path)] == ["started"]


def test_lines_that_are_no_events_do_not_hide_the_others(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write(path, "one")
    with path.open("ab") as file:
        file.write(b'nonsense\n[1]\n{"event":"x"}\n\n')
    write(path, "two")
    assert [event.event for event in read(path)] == ["one", "two"]


def test_lines_that_cannot_be_events_are_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal of somebody else's may be a million of them, and is read several times for one report."""
    path = tmp_path / "journal.jsonl"
    write(path, "started")
    path.write_bytes(b'\n{}\n{\n"\n' * 1000 + path.read_bytes())
    parsed: list[bytes] = []
    genuine = journal_module.parse_json
    monkeypatch.setattr(journal_module, "parse_json", lambda line: parsed.append(line) or genuine(line))
    assert [event.event for event in read(path)] == ["started"]
    assert len(parsed) == 1


def test_no_file_is_no_events(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == ()


def test_a_second_writer_is_refused_until_the_first_closes(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal.open(path), pytest.raises(JournalBusy, match="another validator"):
        Journal.open(path)
    Journal.open(path).close()


def test_text_is_redacted_with_the_name_that_holds_it(tmp_path: Path) -> None:
    def redact(text: str) -> str:
        return text.replace("HF_TOKEN=hunter2", "HF_TOKEN=[redacted]").replace("sesame", "[redacted]")

    with Journal.open(tmp_path / "j", redact=redact) as journal:
        journal.append("run_started", env={"HF_TOKEN": "hunter2", "N": "hunter2"}, command=["open", "sesame"])
    (event,) = read(tmp_path / "j")
    assert event.fields["env"] == {"HF_TOKEN": "[redacted]", "N": "hunter2"}
    assert event.fields["command"] == ["open", "[redacted]"]


def test_hostile_text_stays_one_line(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j") as journal:
        journal.append("x", text='a\nb\r\x00"\u2028\ud800')
        journal.append("y")
    assert [event.event for event in read(tmp_path / "j")] == ["x", "y"]


def _append_until_killed(path: Path, ready: multiprocessing.synchronize.Event) -> None:
    with Journal.open(path) as journal:
        number = 0
        while True:
            journal.append("tick", number=number, sync=False)
            number += 1
            if number == 50:
                ready.set()


def test_a_writer_killed_at_any_moment_leaves_a_readable_prefix(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    writer = context.Process(target=_append_until_killed, args=(tmp_path / "j", ready))
    writer.start()
    assert ready.wait(20)
    writer.kill()
    writer.join()
    writer.close()
    numbers = [event.fields["number"] for event in read(tmp_path / "j")]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= 50


@pytest.mark.timeout(20)
def test_a_journal_that_is_a_link_or_a_fifo_is_not_written(tmp_path: Path) -> None:
    """`run --resume` of a folder whose journal leads elsewhere cut and lengthened what it led to."""
    (tmp_path / "victim").write_text("one line\nand half a")
    (tmp_path / "journal.jsonl").symlink_to("victim")
    with pytest.raises(OSError, match="symbolic links"):
        Journal.open(tmp_path / "journal.jsonl")
    assert (tmp_path / "victim").read_text() == "one line\nand half a"
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        Journal.open(tmp_path / "fifo")
    with Journal.open(tmp_path / "own.jsonl") as journal:
        journal.append("started")
