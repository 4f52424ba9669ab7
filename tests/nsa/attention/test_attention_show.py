"""The command that prints the selection of a position."""

from __future__ import annotations

import pytest

from nsa.attention import Geometry
from nsa.attention.show import describe_selection, main


def test_given_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--position", "300", "--blocks", "4,0,1,-1,99"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "position 300, in block 4 of 64 tokens" in out
    assert "compressed: 17 blocks of 32, one every 16" in out
    assert "window: [0, 301)" in out
    assert "  blocks  F#..F" in out
    assert [line.strip() for line in out if line.strip().startswith("[")] == [
        "[0, 128)  128 tokens",
        "[256, 301)  45 tokens",
    ]


def test_random_keys_show_a_full_selection(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--position", "900", "--n-sel", "5"]) == 0
    out = capsys.readouterr().out
    assert out.count("5 of 15 blocks") == 2
    assert "random keys, group 1" in out


def test_quotes_the_text_of_each_range() -> None:
    geometry = Geometry(l=4, d=4, l_sel=4, n_sel=3, w=4)
    text = describe_selection([0, 2], 9, geometry=geometry, text=list("abcdefghij"))
    assert "[0, 4)  4 tokens  'abcd'" in text
    assert "[8, 10)  2 tokens  'ij'" in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--position", "-1"], "--position -1: must be 0 or more"),
        (["--position", "9", "--l", "5"], "l=5: must be a multiple of d=16"),
        (["--position", "9", "--checkpoint", "x"], "give both or neither"),
        (["--position", "9", "--blocks", "a,b"], "invalid literal"),
        (["--position", "9", "--checkpoint", "nowhere", "--text", __file__], "nowhere"),
    ],
)
def test_mistakes_end_in_two(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
