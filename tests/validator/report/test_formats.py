from __future__ import annotations

import math

import pytest

from validator.report.formats import (
    clean,
    format_interval,
    format_margin,
    format_number,
    format_percent,
    format_quantity,
    format_value,
    one_line,
    plural,
    text_width,
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
        (8.62003, "8.620"),
        (3e-4, "0.0003"),
        (3.2e-5, "3.2e-5"),
        (1.5e12, "1.5e+12"),
        (0.99998, "1.000"),
        (-4.0, "−4"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
    ],
)
def test_numbers_keep_four_significant_digits_and_are_never_padded(value: float | None, text: str) -> None:
    assert format_number(value) == text


def test_whole_numbers_are_never_rounded() -> None:
    assert format_number(123_456_789) == "123,456,789"


def test_a_unit_never_leaves_its_number() -> None:
    assert format_quantity(12_840.0, "tok/s") == "12,840\u00a0tok/s"
    assert format_quantity(None, "tok/s") == "–"


def test_values_of_every_kind() -> None:
    assert format_value(True) == "true"
    assert format_value([1, "a"]) == "1, a"
    assert format_value({"a": 1}) == "a: 1"
    assert format_value("") == "–"
    assert format_value("14 passed") == "14 passed"


def test_margin_and_percent_carry_sign_and_unit() -> None:
    assert format_margin(0.1234) == "+12.3\u00a0%"
    assert format_margin(-0.6708) == "−67.1\u00a0%"
    assert format_margin(None) == "–"
    assert format_percent(0.021) == "2.10\u00a0%"
    assert format_percent(6.6e-5) == "0.007\u00a0%"
    assert format_interval(1.0, None) == ""
    assert format_interval(812.1, 861.44) == "[812.1, 861.4]"


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


def test_plural_and_width() -> None:
    assert plural(1, "run") == "1 run"
    assert plural(0, "criterion", "criteria") == "0 criteria"
    assert text_width("日本e\u0301") == 5
