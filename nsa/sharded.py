"""Models that one device cannot hold: FSDP2 (`torch.distributed.fsdp.fully_shard`), and states that know no shards.

Each block is its own group: its weights are gathered before its forward and backward pass and freed after them.
Weights, gradients and optimizer state live in pieces, one per rank, as DTensors, in fp32; the passes run on a bf16 copy
of the weights that is being used. A checkpoint holds whole tensors in the format of an unsharded run, so that it is
read on any number of processes, sharded or not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from nsa.model import LanguageModel
from nsa.parallel import World

if TYPE_CHECKING:  # a run that shards nothing does not wait for these imports
    from torch.distributed.tensor import DTensor

__all__ = [
    "accumulating",
    "load_whole_state",
    "local_part",
    "shard_model",
    "whole",
    "whole_model_state",
    "whole_optimizer_state",
]

REDUCE_DTYPES = {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def shard_model(model: LanguageModel, world: World, *, compute_bf16: bool, compress: str) -> None:
    """Cut `model`, which may still be on the CPU, into one piece per process, in place.

    Each group moves to the device only to be cut, so that no device ever holds more than one group whole.
    `compute_bf16` runs the passes on bf16 weights; gradients are averaged in fp32, or in the type of `compress`.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(world.device.type, (world.size,))
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if compute_bf16 else None,
        reduce_dtype=REDUCE_DTYPES[compress],
        cast_forward_inputs=False,  # the stream comes in bf16 from the embedding, and rotation needs its fp32 table
    )
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


@contextlib.contextmanager
def accumulating(model: nn.Module) -> Iterator[None]:
    """Add up gradients without reducing them, under FSDP, DDP or neither: the next pass outside of this reduces all."""
    if set_sync := getattr(model, "set_requires_gradient_sync", None):
        set_sync(False)
        try:
            yield
        finally:
            set_sync(True)
    elif isinstance(model, DistributedDataParallel):
        with model.no_sync():
            yield
    else:
        yield


def _is_part(value: Any) -> TypeGuard[DTensor]:
    return hasattr(value, "full_tensor")


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor of which `tensor` may be this rank's part. A collective call where it is one."""
    return tensor.full_tensor() if _is_part(tensor) else tensor


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of `tensor`."""
    return tensor.to_local() if _is_part(tensor) else tensor


def _on_host(value: Any, *, keep: bool) -> Any:
    """A state's value whole and on the CPU where it is kept; every rank has to ask for it."""
    if not _is_part(value):
        return value
    gathered = whole(value.detach())
    return gathered.cpu() if keep else None


def whole_model_state(model: nn.Module, *, keep: bool) -> dict[str, Any]:
    """`model.state_dict()` as an unsharded model would give it. Collective: one tensor at a time is gathered on the
    device, and put into host memory on ranks that `keep` it."""
    return {name: _on_host(value, keep=keep) for name, value in model.state_dict().items()}


def whole_optimizer_state(optimizer: torch.optim.Optimizer, *, keep: bool) -> dict[str, Any]:
    """`optimizer.state_dict()` as over unsharded weights; see `whole_model_state`."""
    saved = optimizer.state_dict()
    slots = {
        index: {name: _on_host(value, keep=keep) for name, value in of_weight.items()}
        for index, of_weight in saved["state"].items()
    }
    return {**saved, "state": slots}


def _cut_like(value: Any, weight: torch.Tensor) -> Any:
    """This rank's part of a whole tensor, cut as `weight` is; other values stay as they are."""
    if not _is_part(weight) or not isinstance(value, torch.Tensor) or value.shape != weight.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements)


@torch.no_grad()
def load_whole_state(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    model_state: Mapping[str, Any],
    optimizer_state: Mapping[str, Any],
) -> None:
    """Load whole tensors into a model and an optimizer that may be sharded. Collective where they are.

    Of the optimizer its moments are loaded and nothing else: betas, decay and the like stay as they are configured now,
    where `load_state_dict` alone would put the saved ones in their place without a word.

    Raises KeyError, RuntimeError or ValueError when the state is of another model.
    """
    shapes = model.state_dict()
    model.load_state_dict(
        {n: _cut_like(value, shapes[n]) if n in shapes else value for n, value in model_state.items()}
    )
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    saved_groups = optimizer_state["param_groups"]
    numbers = [number for group in saved_groups for number in group["params"]]
    by_number = dict(zip(numbers, weights, strict=True))
    slots = {
        number: {name: _cut_like(value, by_number[number]) for name, value in of_weight.items()}
        for number, of_weight in optimizer_state["state"].items()
    }
    groups = [
        {**now, "params": saved["params"]} for now, saved in zip(optimizer.param_groups, saved_groups, strict=True)
    ]
    optimizer.load_state_dict({"state": slots, "param_groups": groups})
