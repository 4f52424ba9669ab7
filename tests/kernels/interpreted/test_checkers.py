"""What the other tests here rely on: the memory checker finds an access outside of a tensor, programs really wait."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from tests.kernels.interpreted.together import run_together


@triton.jit
def _copy_kernel(x, y, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + i, mask=i < n, other=0.0))


@pytest.mark.parametrize(("n", "room", "what"), [(5, 8, "load of 1 "), (4, 7, "store of 1 ")])
def test_an_access_outside_of_a_tensor_is_an_error(n: int, room: int, what: str) -> None:
    x, y = torch.ones(4), torch.ones(room)
    with pytest.raises(InterpreterError, match=f"{what}elements outside"):
        _copy_kernel[(1,)](x, y, n, N=8)


def test_an_access_that_is_masked_off_is_none() -> None:
    x, y = torch.ones(4), torch.full((8,), 2.0)
    _copy_kernel[(1,)](x, y, 4, N=8)
    assert y.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]


@triton.jit
def _ring_kernel(counter, x, P: tl.constexpr):
    p = tl.program_id(0)
    # The last program goes first: in the order of the grid, the first would wait for ever.
    while tl.atomic_add(counter, 0) != P - 1 - p:
        pass
    tl.store(x + p, tl.atomic_add(counter, 1))


def test_programs_that_wait_for_each_other_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    run_together(_ring_kernel, monkeypatch)
    counter, x = torch.zeros(1, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    _ring_kernel[(4,)](counter, x, P=4)
    assert x.tolist() == [3, 2, 1, 0]
