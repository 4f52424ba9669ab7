"""Operators whose schema no release of torch has to guess from annotations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import nsa
from nsa.kernels.operators import operator


def test_a_schema_is_written_out_and_never_read_off_annotations(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.6 refuses list[int] in annotations: with it, the kernels' package could not be imported at all."""

    infer = torch.library.infer_schema

    def refuse(function: Callable[..., Any], **options: Any) -> str:
        if function.__name__ == "scaled":
            raise ValueError("unsupported type")
        return infer(function, **options)  # torch's own operators, some of them defined when first needed

    monkeypatch.setattr(torch.library, "infer_schema", refuse)

    @operator("nsa_test::scaled", mutates_args=("seen",))
    def scaled(x: Tensor, seen: Tensor, rows: list[int], scale: float, twice: bool) -> list[Tensor]:
        seen += 1
        return [x[rows] * scale * (2 if twice else 1), x.new_zeros(len(rows))]

    schema = torch.ops.nsa_test.scaled.default._schema
    assert str(schema) == (
        "nsa_test::scaled(Tensor x, Tensor(a1!) seen, int[] rows, float scale, bool twice) -> Tensor[]"
    )
    seen = torch.zeros(1)
    got, zeros = scaled(torch.arange(4.0), seen, [1, 3], 2.0, True)
    assert got.tolist() == [4.0, 12.0]
    assert (zeros.tolist(), seen.item()) == ([0.0, 0.0], 1.0)


def test_there_is_one_way_to_make_an_operator() -> None:
    package = Path(nsa.__file__ or "").parent
    users = {p.name for p in package.rglob("*.py") if "library.custom_op(" in p.read_text(encoding="utf-8")}
    assert users == {"operators.py"}
