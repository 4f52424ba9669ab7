"""Operators whose schema no release of torch has to guess from annotations."""

from __future__ import annotations

import subprocess
import sys
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
    before = seen._version
    got, zeros = scaled(torch.arange(4.0), seen, [1, 3], 2.0, True)
    assert got.tolist() == [4.0, 12.0]
    assert (zeros.tolist(), seen.item()) == ([0.0, 0.0], 1.0)
    assert seen._version > before, "autograd knows that it was written to"
    with torch.inference_mode():  # such a tensor counts no versions
        assert scaled(torch.arange(4.0), torch.zeros(1), [2], 2.0, False)[0].tolist() == [4.0]


def test_there_is_one_way_to_make_an_operator() -> None:
    package = Path(nsa.__file__ or "").parent
    users = {p.name for p in package.rglob("*.py") if "library.define(" in p.read_text(encoding="utf-8")}
    assert users == {"operators.py"}


WITHOUT_COMPILER = """
import sys
import torch
from torch import Tensor
from nsa.kernels.operators import operator

@operator("nsa_test::squared")
def squared(x: "Tensor") -> "Tensor":
    return x * x

torch.library.register_autograd(
    "nsa_test::squared",
    lambda ctx, grad: grad * 2 * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
torch.library.register_fake("nsa_test::squared", torch.empty_like)
x = torch.arange(3.0, requires_grad=True)
squared(x).sum().backward()
print(x.grad.tolist(), "torch._dynamo" in sys.modules)
if len(sys.argv) > 1:
    print(torch.compile(lambda x: squared(x) + 1, backend="eager", fullgraph=True)(x).tolist())
"""


def test_an_operator_runs_without_torchs_compiler_and_under_it() -> None:
    """The import of the compiler was 3.2 s of the 10 s of a trainer's start."""
    command = [sys.executable, "-c", WITHOUT_COMPILER, "compile"]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert out == "[0.0, 2.0, 4.0] False\n[1.0, 2.0, 5.0]\n"
