"""Torch operators from annotated functions, on every release of torch from 2.6 on.

``torch.library.custom_op`` reads a schema off annotations, but not every release understands the same ones: 2.6 knows
``typing.List[int]`` and refuses ``list[int]``. Here the schema is written out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

import torch

__all__ = ["operator"]

# Annotations are strings, since every module here imports them from __future__.
_SCHEMA_TYPES = {
    "Tensor": "Tensor",
    "list[Tensor]": "Tensor[]",
    "list[int]": "int[]",
    "int": "int",
    "float": "float",
    "bool": "bool",
}
_SCHEMA_RESULTS = {
    "Tensor": "Tensor",
    "list[Tensor]": "Tensor[]",
    "tuple[Tensor, Tensor]": "(Tensor, Tensor)",
    "None": "()",
}


def _schema(function: Callable[..., Any], mutates_args: Collection[str]) -> str:
    signature = inspect.signature(function)
    words = []
    for number, (name, parameter) in enumerate(signature.parameters.items()):
        kind = _SCHEMA_TYPES[parameter.annotation]
        words.append(f"{kind}(a{number}!) {name}" if name in mutates_args else f"{kind} {name}")
    return f"({', '.join(words)}) -> {_SCHEMA_RESULTS[signature.return_annotation]}"


def operator(name: str, *, mutates_args: Collection[str] = ()) -> Callable[[Callable[..., Any]], Any]:
    """Make a function the operator ``name`` (``namespace::name``); ``mutates_args`` are tensors that it writes to.

    Raises KeyError for an annotation that is no type of an operator here.
    """

    def define(function: Callable[..., Any]) -> Any:
        schema = _schema(function, mutates_args)
        return torch.library.custom_op(name, function, mutates_args=tuple(mutates_args), schema=schema)

    return define
