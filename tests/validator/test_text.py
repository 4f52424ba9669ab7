from __future__ import annotations

import math

import pytest

from validator.text import (
    clean,
    format_change,
    format_distinct,
    format_interval,
    format_number,
    format_percent,
    format_quantity,
    format_time,
    format_value,
    one_line,
    plural,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (300, "300"),
        (12_840.0, "12,840"),
        (50_000, "50,000"),
        (847.25, "847.2"),
        (0.05, "0.05"),
        (0.1595014, "0.1595"),
        (8.62003, "8.62"),
        (3e-4, "0.0003"),
        (3.2e-5, "3.2e-5"),
        (1.5e12, "1.5e+12"),
        (0.99998, "1"),
        (-4.0, "-4"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
    ],
)
def test_numbers_keep_four_significant_digits_and_are_never_padded(value: float | None, text: str) -> None:
    assert format_number(value) == text


def test_whole_numbers_are_never_rounded() -> None:
    assert format_number(123_456_789) == "123,456,789"


def test_a_quantity_is_a_number_and_its_unit() -> None:
    assert format_quantity(12_840.0, "tok/s") == "12,840 tok/s"
    assert format_quantity(None, "tok/s") == "–"


def test_values_of_every_kind() -> None:
    assert format_value(True) == "true"
    assert format_value([1, "a"]) == "1, a"
    assert format_value({"a": 1}) == "a: 1"
    assert format_value("") == "–"
    assert format_value("14 passed") == "14 passed"


def test_shares_changes_and_intervals() -> None:
    assert format_change(0.1234) == "+12.3 %"
    assert format_change(-0.6708) == "-67.1 %"
    assert format_change(None) == "–"
    assert format_percent(0.021) == "2.1 %"
    assert format_percent(6.6e-5) == "0.007 %"
    assert [format_percent(share) for share in (0, 0.34, 0.1234, 1.1, 12.345)] == [
        "0 %",
        "34 %",
        "12.3 %",
        "110 %",
        "1,234 %",
    ]
    assert format_interval(1.0, None) == ""
    assert format_interval(-0.02, 0.01, format_change) == "[-2.0 %, +1.0 %]"
    assert format_interval(812.1, 861.44) == "[812.1, 861.4]"


def test_two_numbers_get_the_digits_that_show_their_difference() -> None:
    assert format_distinct(38.996, 39) == ("38.996", "39")
    assert format_distinct(12_345.4, 12_345.3) == ("12,345.4", "12,345.3")
    assert format_distinct(39.0, 39.0) == ("39", "39")


@pytest.mark.parametrize(
    ("iso", "shown"),
    [
        ("2025-08-27T14:03:11.250Z", "2025-08-27 14:03:11 UTC"),
        ("2025-08-27T16:03:11+02:00", "2025-08-27 14:03:11 UTC"),
        ("2025-08-27T14:03:11", "2025-08-27 14:03:11 UTC"),
        ("0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00+14:00"),
        ("yesterday", "yesterday"),
    ],
)
def test_times_are_shown_in_utc(iso: str, shown: str) -> None:
    assert format_time(iso) == shown


def test_foreign_text_loses_what_could_hide_or_forge() -> None:
    assert clean("\x1b[31mred\x1b[0m") == "red"
    assert clean("\x1b]0;title\x07rest") == "rest"
    assert clean("a\x00b\x07") == "a\\x00b\\x07"
    assert clean("\u202eevil") == "\\u202eevil"
    assert clean("\ud800 \ufffe") == "\\ud800 \\ufffe"
    assert clean("replaced \ufffd stays, tabs\tand\nlines too") == "replaced \ufffd stays, tabs\tand\nlines too"
    assert one_line("a\nb\tc") == "a\\nb\\tc"


def test_an_unfinished_escape_hides_nothing() -> None:
    assert "secret" in clean("\x1b]0;secret and no end")


def test_long_text_says_how_much_is_left_out() -> None:
    assert clean("x" * 5000, limit=10) == "x" * 10 + "… [4,990 more characters]"


def test_plural() -> None:
    assert plural(1, "run") == "1 run"
    assert plural(0, "criterion", "criteria") == "0 criteria"
