"""Peak memory of a pass with its backward pass, counted over the allocations: without a device, so at any size."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime.jit import JITFunction

from nsa.kernels import launch, launch_backward
from nsa.kernels.precompile import _beside_hopper
from nsa.kernels.problem import Problem


class Live(TorchDispatchMode):
    """Bytes of the storages that are alive, and the most at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: dict[int, int] = {}

    def _gone(self, key: int) -> None:
        self.now -= self._seen.pop(key)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and x.untyped_storage()._cdata not in self._seen:
                storage = x.untyped_storage()
                self._seen[storage._cdata] = storage.nbytes()
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._gone, storage._cdata)
        return out


def launched(*_: Any, **__: Any) -> None:
    """In place of a launch. A mock would keep the tensors that it is called with."""


def peak_gib(S: int, H: int, G: int, dk: int, dv: int, *, by_hopper: bool) -> float:
    def meta(*size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(size, dtype=dtype, device="meta")

    with Live() as live, mock.patch.object(JITFunction, "run", launched), contextlib.ExitStack() as stack:
        q, gates, do = meta(1, S, H, dk), meta(1, S, H, 3, dtype=torch.float32), meta(1, S, H, dv)
        streams = [meta(1, S, G, n) for _ in range(3) for n in (dk, dv)]
        p = Problem.of(q, *streams[2:4], sizes=(32, 16, 64, 16, 512), scale=0.1, deterministic=False)
        p = replace(p, n_processors=132)
        if by_hopper:
            stack.enter_context(_beside_hopper(p))
        compressed = [launch.compress(x, p) for x in streams[:2]]
        o, saved = launch.forward(q, *compressed, *streams[2:], gates, p)
        launch_backward.backward(do, q, *compressed, *streams[2:], gates, saved, p, per_token=True)
        assert o.shape == do.shape, "the output lives on beside its gradient"
    return live.peak / 2**30


@pytest.mark.parametrize(
    ("of", "by_triton", "by_hopper"),
    [
        ((65536, 64, 4, 128, 128), 11.5, 10.0),
        ((65536, 64, 4, 192, 128), 14.4, 11.4),
        ((65536, 32, 8, 128, 128), 9.5, 7.3),
        ((65536, 12, 2, 64, 64), 2.4, 2.0),
        ((8192, 64, 4, 128, 128), 2.8, 2.5),
        ((8192, 32, 8, 128, 128), 1.75, 1.75),
        ((32768, 16, 16, 128, 128), 6.3, 5.1),
        ((131072, 32, 8, 128, 128), 14.7, 11.8),
    ],
    ids=[
        "wide 64k",
        "paper 64k",
        "small groups 64k",
        "125M 64k",
        "wide 8k",
        "small groups 8k",
        "group of one 32k",
        "small groups 128k",
    ],
)
def test_peak_memory_in_gib_stays_where_it_is(
    of: tuple[int, int, int, int, int], by_triton: float, by_hopper: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert peak_gib(*of, by_hopper=True) <= by_hopper <= by_triton
    monkeypatch.setenv("HOPPER_KERNELS", "0")
    assert peak_gib(*of, by_hopper=False) <= by_triton
