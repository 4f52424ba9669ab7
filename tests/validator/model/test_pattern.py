"""Patterns for lines: any number that a trainer prints is read whole, by short groups and by narrow ones."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from validator.kinds.registry import load
from validator.model.pattern import PatternError, has_decimal_comma, line_pattern, narrow_groups, parse_number

SHORT = "step {step} loss {loss} tok/s {toks_per_s}"
NARROW = r"step (?P<step>\d+) loss (?P<loss>[\d.]+) tok/s (?P<toks_per_s>[\d.]+)"
NUMBERS = [
    ("2.5", 2.5),
    ("-0.5", -0.5),
    ("+3", 3.0),
    (".25", 0.25),
    ("7.", 7.0),
    ("1.2e-4", 1.2e-4),
    ("1E+05", 1e5),
    ("1,234.5", 1234.5),
    ("1_234", 1234.0),
    ("12,345,678", 12345678.0),
    ("12.3k", 12300.0),
    ("1.5M", 1.5e6),
    ("nan", math.nan),
    ("NaN", math.nan),
    ("-nan", math.nan),
    ("inf", math.inf),
    ("-inf", -math.inf),
    ("Infinity", math.inf),
]


@pytest.mark.parametrize("pattern", [SHORT, NARROW])
@pytest.mark.parametrize(("text", "value"), NUMBERS)
def test_a_number_is_read_whole(pattern: str, text: str, value: float) -> None:
    for line in (f"step 7 loss {text} tok/s 5", f"step 7 loss 5 tok/s {text}", f"step 7 loss 5 tok/s {text}, next"):
        printed = line_pattern(pattern).read(line)
        assert printed.odd is None
        found = printed.values["loss" if line.endswith("tok/s 5") else "toks_per_s"]
        assert found == value or (math.isnan(found) and math.isnan(value))
        assert printed.step == 7


@pytest.mark.parametrize("pattern", [SHORT, NARROW])
@pytest.mark.parametrize("text", ["None", "n/a", "1.2.3", "1,5", "--"])
def test_what_is_no_number_is_said_and_not_passed_over(pattern: str, text: str) -> None:
    printed = line_pattern(pattern).read(f"step 7 loss {text} tok/s 5")
    assert printed.odd[0] == "loss"
    assert "loss" not in printed.values
    assert printed.values.get("toks_per_s", 5.0) == 5.0


@pytest.mark.parametrize("text", ["2,31", "0,312", "0,3", "-2,3123", "12,5e-4"])
@pytest.mark.parametrize("pattern", ["step {step} .*loss {loss}", r"step (?P<step>\d+) loss (?P<loss>[\d.]+)"])
def test_a_decimal_comma_is_no_end_of_a_number(pattern: str, text: str) -> None:
    """2,31 was read as 2 at the end of a line, and 0,312 as 312."""
    printed = line_pattern(pattern).read(f"step 7 loss {text}")
    assert printed.odd is not None
    assert "loss" not in printed.values
    assert has_decimal_comma(printed.odd[1])


@pytest.mark.parametrize(
    ("pattern", "line", "loss"),
    [
        ("^{step},{loss},{tokens}", "7,2,5", 2.0),
        ("step {step}, loss {loss},", "step 7, loss 2,5", 2.0),
        ("step {step} losses .{loss}", "step 7 losses [2,5,3]", 2.0),
        ("step {step} losses .{loss}", "step 7 losses [2,5.5]", 2.0),
        ("step {step} loss {loss}", "step 7 loss 12,345", 12345.0),
        ("^{step},[^,]*,{loss},", "7,4000,85.37,749.6", 85.37),
        (r"^(?P<step>\d+),[^,]*,(?P<loss>[\d.]+)", "7,4000,85.37,749.6", 85.37),
        ("^{step},[^,]*,{loss}$", "7,12,345", 345.0),
    ],
)
def test_a_comma_that_separates_is_no_decimal_one(pattern: str, line: str, loss: float) -> None:
    printed = line_pattern(pattern).read(line)
    assert printed.odd is None
    assert printed.values["loss"] == loss


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("^step {step} .*,{loss}", "step 7 at 1,234.5"),
        (r"^step {step} \S+,{loss}", "step 7 1,234.5"),
        ("^step {step}[^,]*,{loss}", "step 7 loss 1,234.5"),
        (r"step {step} loss (?P<loss>[\d.]+)", "step 7 loss 1.234,567"),
    ],
)
def test_a_comma_that_may_be_within_the_number_separates_nothing(pattern: str, line: str) -> None:
    printed = line_pattern(pattern).read(line)
    assert printed.odd is not None
    assert "loss" not in printed.values


def test_a_date_with_its_zone_is_read_whole() -> None:
    """Behind 05:06:07 an offset of +00:00 was read as 0 seconds since 1970."""
    read = line_pattern("{timestamp} step {step} loss {loss}").read
    days = [read(f"1970-01-02T00:00:01{zone} step 7 loss 2.5") for zone in ("", "Z", "+00:00", ".0+0000")]
    assert [day and day.values["timestamp"] for day in days] == [86401.0] * 4


@pytest.mark.parametrize("line", ["loading step by step", "step 7: loss is computed", "saved step 7", ""])
def test_other_lines_are_none(line: str) -> None:
    assert line_pattern(SHORT).read(line) is None
    assert line_pattern(NARROW).read(line) is None


@pytest.mark.parametrize("step", ["1200", "1,200", "1_200"])
def test_a_step_may_have_thousands(step: str) -> None:
    for pattern in (SHORT, NARROW):
        printed = line_pattern(pattern).read(f"step {step} loss 2 tok/s 5")
        assert printed.step == 1200


def test_thousands_in_a_group_that_says_so_are_not_counted_twice() -> None:
    for pattern in ("{step} {ktoks_per_s}", r"(?P<step>\d+) (?P<ktoks_per_s>\d+)k"):
        printed = line_pattern(pattern).read("7 39k")
        assert printed.values == {"ktoks_per_s": 39.0}


def test_a_sign_that_the_pattern_leaves_out_is_not_lost() -> None:
    printed = line_pattern(r"step (?P<step>\d+)\D+(?P<loss>[\d.]+)").read("step 7 loss: -2.5")
    assert printed.values.get("loss") != 2.5
    assert printed.odd is not None or printed.values["loss"] == -2.5


def test_a_name_may_be_used_in_several_branches() -> None:
    pattern = line_pattern("a {step} {loss}|b {step} {loss}")
    assert pattern.names == ("step", "loss")
    assert [printed.values["loss"] for line in ("a 1 2", "b 1 3") if (printed := pattern.read(line))] == [2, 3]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1:02:03", 3723.0),
        ("02:03", 123.0),
        ("2 days, 5:22:20", 2 * 86400 + 5 * 3600 + 22 * 60 + 20.0),
        ("1 day, 0:00:01", 86401.0),
        ("1970-01-02 00:00:01", 86401.0),
        ("1970-01-02T00:00:01.5", 86401.5),
        ("1970-01-02 00:00:01,250", 86401.25),
        ("1970-01-02T00:00:01Z", 86401.0),
        ("1970-01-02T02:00:01.5+02:00", 86401.5),
        ("1970-01-01 18:30:01-0530", 86401.0),
        ("nonsense", None),
    ],
)
def test_clocks_are_read_in_seconds(text: str, seconds: float | None) -> None:
    assert parse_number(text) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *((day, 1772600767.0) for day in ("2026-03-04,05:06:07", "03/04/2026 05:06:07", "03/04/26 05:06:07")),
        *((day, 1772600767.0) for day in ("04-03-2026 05:06:07", "04.03.2026 05:06:07", "04.03.26 05:06:07")),
        *((day, 1772600767.0) for day in ("Wed Mar  4 05:06:07 2026", "Wed Mar 4 05:06:07 UTC 2026")),
        *((day, 1772600767.0) for day in ("4 Mar 2026 05:06:07", "March 4, 2026 05:06:07", "04/Mar/2026:05:06:07")),
        *((day, 1772600767.0) for day in ("20260304-050607", "20260304_050607", "2026-03-04 05:06.07")),
        *(
            (day, 1772600767.0)
            for day in ("2026年03月04日 05:06:07", "2026年3月4日 05:06:07", "03/04/2026 05:06:07 AM")
        ),
        ("03/04/2026 05:06:07 PM", 1772643967.0),
        ("03/04/2026 12:06:07 AM", 1772582767.0),
        ("24/03/2026 05:06:07", 1774328767.0),
        ("26-03-04 05:06:07.5", 1772600767.5),
        ("Mar 4 05:06:07", 952146367.0),
        ("03-04 05:06:07", 952146367.0),
        ("05:06:07,250", 18367.25),
        ("2026 05:06:07", None),
        ("32.13.2026 05:06:07", None),
        ("Mar 40 05:06:07", None),
    ],
)
def test_dates_of_loggers(text: str, seconds: float | None) -> None:
    assert parse_number(text) == seconds
    if seconds is not None:
        printed = line_pattern("^{timestamp} loss {loss}").read(f"{text} loss 2.5")
        assert printed is not None
        assert printed.values == {"timestamp": seconds, "loss": 2.5}


def test_quantifiers_and_escaped_braces_stay_what_they_are() -> None:
    assert line_pattern(r"a{2,3} \{loss\} {step}").names == ("step",)
    with pytest.raises(PatternError):
        line_pattern("{step} (")


def test_groups_that_miss_numbers_are_named_with_the_first_one() -> None:
    assert narrow_groups(NARROW) == {"loss": "nan", "toks_per_s": "nan"}
    assert narrow_groups(SHORT) == {}
    assert narrow_groups(r"{step} (?P<loss>\S+) (?P<name>[a-z]+)") == {}
    assert narrow_groups(r"{step} (?P<loss>[-\w.]+)") == {"loss": "1,234.5"}


def test_check_warns_of_a_narrow_group_with_place_and_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    text = """\
schema: 1
name: mine
trainer:
  command: [train.py, "{steps}", "{out}"]
  metrics: {stdout: 'row (?P<step>\\\\d+) (?P<loss>[\\\\d.]+)'}
phases: [{id: baseline, kind: train, steps: 200, accept: [loss.last < 3]}]
""".replace("\\\\", "\\")
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    (warning,) = load(path).warnings
    assert (warning.line, warning.fix) == (5, "write {loss}, which matches any number")
    path.write_text(text.replace(r"(?P<loss>[\d.]+)", "{loss}"), encoding="utf-8")
    assert load(path).warnings == ()
