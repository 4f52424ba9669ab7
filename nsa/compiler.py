"""DDP without torch's compiler, where nothing is compiled: its import takes 1 to 4 s of each rank's start."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

__all__ = ["without_compiler"]


class _Unasked:
    """A module of the compiler that is not imported: it has some answers, and all else imports it."""

    def __init__(self, name: str, **answers: Any) -> None:
        self.__dict__ |= answers
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


def _mode() -> str:
    """How DDP is to be optimized in compiled models."""
    return "no_optimization"


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Make ``DistributedDataParallel`` within; neither that nor its forward pass imports the compiler.

    Its constructor asks in which mode compiled models are optimized, and torch hides a part of its forward pass from
    the compiler. Where that is imported already, all is as it was.
    """
    if "torch._dynamo" in sys.modules:
        yield
        return
    # The mode was in both places since torch 2.6.
    config = _Unasked("torch._dynamo.config", _get_optimize_ddp_mode=_mode)
    utils = _Unasked("torch._dynamo.utils", get_optimize_ddp_mode=_mode)
    unasked: Any = _Unasked("torch._dynamo", config=config, utils=utils)
    torch._dynamo = unasked
    try:
        yield
    finally:
        if torch.__dict__.get("_dynamo") is unasked:  # else it was imported meanwhile
            del torch._dynamo
    # torch._compile keeps there what it calls in place of a hidden function.
    entered = inspect.unwrap(DistributedDataParallel._inside_ddp_forward)
    setattr(entered, "__dynamo_disable", entered)
