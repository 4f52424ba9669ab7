"""The gate: how much of each branch a head takes at a position.

An MLP reads the layer's input and gives three numbers per head, each through a sigmoid (the paper's) or all three
through a softmax. Order: compressed, selected, window.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Gate", "GateKind", "UnsetLinear"]

GateKind = Literal["sigmoid", "softmax"]


class UnsetLinear(nn.Linear):
    """Weights that the module around it draws: to draw them twice takes a quarter of the time of building a model.

    (`skip_init` costs as much: it imports the meta device's operators.)
    """

    def reset_parameters(self) -> None:
        """Leave the weights as memory held them."""


class Gate(nn.Module):
    """Gates per head and query.

    Args:
        dim: width of the layer's input.
        n_heads: H.
        hidden: width of the MLP; an eighth of ``dim`` and at least 16 if None.
        kind: ``sigmoid`` or ``softmax``.
        generator: source of the first weights; torch's own if None.

    Raises:
        ValueError: unknown ``kind``.
    """

    def __init__(
        self,
        *,
        dim: int,
        n_heads: int,
        hidden: int | None = None,
        kind: GateKind = "sigmoid",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if kind not in ("sigmoid", "softmax"):
            raise ValueError(f"gate={kind!r}: must be sigmoid or softmax")
        width = hidden or max(dim // 8, 16)
        self.kind, self.n_heads = kind, n_heads
        self.up = UnsetLinear(dim, width)
        self.down = UnsetLinear(width, 3 * n_heads)
        self.reset_parameters(0.02, generator)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """``[B, S, dim]`` to activated gates ``[B, S, H, 3]``, float32 (float64 for float64 inputs).

        Activated in float32: bfloat16 has no value between 0.996 and 1, where a gate saturates.
        """
        logits = self.down(F.silu(self.up(x_BSD))).unflatten(-1, (self.n_heads, 3))
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return torch.sigmoid(logits) if self.kind == "sigmoid" else torch.softmax(logits, dim=-1)

    def reset_parameters(self, std: float, generator: torch.Generator | None = None) -> None:
        """Normal weights of the given deviation, zero biases: all branches start about equal."""
        for layer in (self.up, self.down):
            nn.init.normal_(layer.weight, std=std, generator=generator)
            nn.init.zeros_(layer.bias)
