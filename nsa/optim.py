"""AdamW over two groups of weights, the learning-rate schedule, and the global gradient norm."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable

import torch
from torch import nn

from nsa.config import OptimConfig
from nsa.sharded import local_part, whole

__all__ = ["build_optimizer", "clip_gradients", "learning_rate", "optimizer_state_bytes"]


class _EagerAdamW(torch.optim.AdamW):
    """torch's AdamW as it is when no compiler looks at it.

    torch guards these methods against being compiled, and the guards import its compiler at their first call: a second
    of every start, for nothing here, where only blocks of the model are ever compiled.
    """

    add_param_group = inspect.unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.AdamW.zero_grad)
    state_dict = inspect.unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.AdamW.load_state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


def build_optimizer(model: nn.Module, config: OptimConfig, *, fused: bool) -> torch.optim.AdamW:
    """AdamW that decays matrices and spares vectors (norm gains, biases)."""
    weights = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in weights if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in weights if p.ndim < 2], "weight_decay": 0.0},
    ]
    return _EagerAdamW(
        [g for g in groups if g["params"]],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.adam_eps,
        fused=fused,
        foreach=not fused,
    )


def learning_rate(config: OptimConfig, step: int, steps: int) -> float:
    """The rate of optimizer step `step` (from 1) of `steps`: linear warm-up to `lr`, then the schedule's shape.

    Step 1 of a warm-up already moves (lr / warmup_steps), and the last step runs at lr · min_lr_ratio.
    """
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    progress = min((step - config.warmup_steps) / max(steps - config.warmup_steps, 1), 1.0)
    shape = 1 - progress if config.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * shape)


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> torch.Tensor:
    """The gradients' global norm before clipping, a 0-d tensor; they are scaled to `max_norm` if that is > 0.

    Nothing here waits for the device.
    """
    return whole(torch.nn.utils.clip_grad_norm_(parameters, max_norm if max_norm > 0 else math.inf))


def optimizer_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes held by the optimizer's tensors on this rank."""
    tensors = (v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor))
    return sum(t.numel() * t.element_size() for t in map(local_part, tensors))
