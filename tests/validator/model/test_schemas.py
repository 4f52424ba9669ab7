"""The models of kinds are imported when something asks for them: what this rests on."""

from __future__ import annotations

from pathlib import Path

from validator import kinds
from validator.kinds.registry import every_kind
from validator.model.catalogue import METRICS, is_open_scalar
from validator.model.schemas import SCALARS, SCHEMAS


def test_kinds_are_the_files_that_define_one() -> None:
    shared = {"__init__", "base", "machine", "registry"}
    files = {path.stem for path in Path(kinds.__path__[0]).glob("*.py")}
    assert [kind.name for kind in every_kind()] == list(SCHEMAS)
    assert files - shared == set(SCHEMAS)


def test_no_number_is_called_like_a_series() -> None:
    assert not [name for name in SCALARS if name.partition(".")[0] in METRICS or is_open_scalar(name)]


def test_kinds_agree_on_the_numbers_that_they_share() -> None:
    for kind, model in SCHEMAS.items():
        assert {name: SCALARS[name] for name in model.known_scalars()} == model.known_scalars(), kind
