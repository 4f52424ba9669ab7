"""A memory checker for interpreted kernels: what a program loads or stores must lie in a tensor that it was given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

__all__ = ["check_bounds"]


class _Given:
    """The memory of one launch's tensors, as sorted ``[begin, end)`` addresses."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        spans = sorted(self._span(x) for x in tensors if x.numel() > 0)
        self.begins = np.array([begin for begin, _ in spans], dtype=np.uint64)
        # A view and what it is a view of begin at the same place: the furthest end so far counts.
        self.ends = np.maximum.accumulate(np.array([end for _, end in spans], dtype=np.uint64))

    @staticmethod
    def _span(x: torch.Tensor) -> tuple[int, int]:
        last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
        return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()

    def check(self, what: str, pointers: Any, mask: Any) -> None:
        wanted = np.broadcast_to(mask.data, pointers.data.shape).astype(bool)
        address = pointers.data[wanted].astype(np.uint64)
        if address.size == 0:
            return
        nearest = np.searchsorted(self.begins, address, side="right").astype(np.int64) - 1
        size = np.uint64(max(pointers.get_element_ty().primitive_bitwidth // 8, 1))
        inside = (nearest >= 0) & (address + size <= self.ends[np.maximum(nearest, 0)])
        if not inside.all():
            raise IndexError(f"{what} of {np.count_nonzero(~inside)} elements outside of every tensor of the launch")


def check_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on every load, store and atomic read-modify-write of a kernel is checked.

    No kernel compares and swaps, so that is not.
    """
    given: list[_Given] = []
    builder = interpreter.InterpreterBuilder
    call, load, store, add = (
        interpreter.GridExecutor.__call__,
        builder.create_masked_load,
        builder.create_masked_store,
        builder.create_atomic_rmw,
    )

    def checked_call(self: Any, *args: Any, **options: Any) -> None:
        given.append(_Given([x for x in (*args, *options.values()) if isinstance(x, torch.Tensor)]))
        try:
            call(self, *args, **options)
        finally:
            given.pop()

    def checked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        given[-1].check("load", pointers, mask)
        return load(self, pointers, mask, *rest)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        given[-1].check("store", pointers, mask)
        return store(self, pointers, value, mask, *rest)

    def checked_add(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        given[-1].check("atomic operation", pointers, mask)
        return add(self, operation, pointers, value, mask, *rest)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", checked_call)
    monkeypatch.setattr(builder, "create_masked_load", checked_load)
    monkeypatch.setattr(builder, "create_masked_store", checked_store)
    monkeypatch.setattr(builder, "create_atomic_rmw", checked_add)
