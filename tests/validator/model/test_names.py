"""Names, placeholders, defaults and units: the small meanings that check, plan and judgement share."""

from __future__ import annotations

from typing import Any

import pytest

from validator.model.expression import Reference
from validator.model.resolve import UnresolvedReference, resolve, series_of
from validator.model.runbook import BUNDLED_METRICS, Runbook, TrainerMetrics
from validator.model.settings import (
    fill,
    flat_name,
    min_effect_of,
    setting_text,
    sole_placeholder,
    unknown_placeholders,
)


def book(**top: Any) -> Runbook:
    phases = [
        {"id": "loss", "kind": "train", "steps": 50},
        {"id": "here", "kind": "train", "steps": 50},
    ]
    return Runbook.model_validate({"schema": 1, "name": "x", "phases": phases, **top})


def test_a_phase_may_be_called_like_a_metric() -> None:
    runbook = book()
    own = resolve(Reference("loss.last"), runbook=runbook, phase=runbook.phase("here"))
    other = resolve(Reference("loss.loss.last"), runbook=runbook, phase=runbook.phase("here"))
    assert (own.phase_id, own.name, own.statistic, own.unit, own.window) == ("here", "loss", "last", "nat", "whole")
    assert other.phase_id == "loss"


def test_statistics_have_their_own_units() -> None:
    runbook = book()
    units = {
        name: resolve(Reference(name), runbook=runbook, phase=runbook.phase("here")).unit
        for name in ("toks_per_s.mean", "toks_per_s.cv", "toks_per_s.n", "toks_per_s.stdev")
    }
    assert units == {
        "toks_per_s.mean": "tok/s",
        "toks_per_s.cv": "",
        "toks_per_s.n": "steps",
        "toks_per_s.stdev": "tok/s",
    }


def test_what_only_the_trainer_knows_has_no_known_unit() -> None:
    runbook = book()
    found = resolve(Reference("effective.seq_len"), runbook=runbook, phase=runbook.phase("here"))
    assert (found.kind, found.unit, found.unit_known) == ("scalar", "", False)


@pytest.mark.parametrize(
    ("name", "column"), [("los.last", 4), ("loss.lst", 9), ("loss.los.last", 9), ("x.loss.last", 4)]
)
def test_the_column_is_that_of_the_wrong_word(name: str, column: int) -> None:
    runbook = book()
    with pytest.raises(UnresolvedReference) as raised:
        resolve(Reference(name, 4), runbook=runbook, phase=runbook.phase("here"))
    assert raised.value.column == column
    assert raised.value.fix


def test_sources_decide_which_series_there_are() -> None:
    assert "lr" in series_of(BUNDLED_METRICS)
    assert "lr" in series_of(TrainerMetrics(heartbeat="h{rank}"))  # the contract lists it in `progress`
    text = TrainerMetrics(stdout=r"(?P<step>\d+) (?P<toks_per_s>\S+) (?P<acc>\S+)", extra={"acc": "%"})
    assert set(series_of(text)) == {"toks_per_s", "toks_per_s_per_rank", "acc"}
    assert series_of(text)["acc"].unit == "%"


def test_placeholders_are_words_in_braces_and_nothing_else() -> None:
    text = '{out}/${out}/{{out}}/{"a": 1}/{ x }/{port}'
    assert fill(text, {"out": "O"}) == 'O/${out}/{out}/{"a": 1}/{ x }/{port}'
    assert fill("{port}", {"port": 5}) == "5"
    assert list(unknown_placeholders("a {ouch} ${ouch} {{ouch}} {out}")) == [("ouch", 2)]
    assert sole_placeholder("{steps}") == "steps"
    assert sole_placeholder("{steps}0") is None


def test_small_conversions() -> None:
    assert flat_name("--batch-size") == "batch_size"
    assert [setting_text(value) for value in (True, False, 3, 0.5, 1e-7, "x")] == ["1", "0", "3", "0.5", "1e-07", "x"]
    assert min_effect_of(book(defaults={"min_effect": 0.05}), book().phases[0]) == 0.05


def test_durations_and_sizes_can_be_read_back() -> None:
    runbook = book(
        hardware={"disk_free": "5 GiB", "memory": "1.5 MiB"},
        defaults={"timeout": "250ms", "watchdog": {"stall": "1h30m", "interval": "0.1s"}},
    )
    assert runbook.defaults.watchdog.stall == 5400.0
    assert Runbook.model_validate(runbook.model_dump(by_alias=True)) == runbook
    assert Runbook.model_validate_json(runbook.model_dump_json(by_alias=True)) == runbook


@pytest.mark.parametrize("steps", [True, "5", 5.0, 5.5])
def test_whole_numbers_are_written_as_such(steps: object) -> None:
    with pytest.raises(ValueError, match="steps"):
        Runbook.model_validate({"schema": 1, "name": "x", "phases": [{"id": "a", "kind": "train", "steps": steps}]})
