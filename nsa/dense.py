"""Full causal attention with NSA's outer shape, for comparison; `attention: dense` selects it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsa.attention.gate import UnsetLinear
from nsa.attention.rope import RopeTable, apply_rope, prefix_table

__all__ = ["DenseAttention"]


class DenseAttention(nn.Module):
    """Grouped-query causal attention through `scaled_dot_product_attention`. `[B, S, dim]` to `[B, S, dim]`.

    `std`, `out_std` and `generator` are those of `NSAAttention`.
    """

    def __init__(
        self,
        *,
        dim: int,
        n_heads: int,
        n_kv_groups: int,
        d_k: int,
        d_v: int,
        rope_base: float = 10_000.0,
        std: float = 0.02,
        out_std: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.n_heads, self.n_kv_groups, self.d_k, self.d_v, self.rope_base = n_heads, n_kv_groups, d_k, d_v, rope_base
        self.q_proj = UnsetLinear(dim, n_heads * d_k, bias=False)
        self.k_proj = UnsetLinear(dim, n_kv_groups * d_k, bias=False)
        self.v_proj = UnsetLinear(dim, n_kv_groups * d_v, bias=False)
        self.o_proj = UnsetLinear(n_heads * d_v, dim, bias=False)
        for linear in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.normal_(linear.weight, std=std, generator=generator)
        nn.init.normal_(self.o_proj.weight, std=std if out_std is None else out_std, generator=generator)

    def forward(self, x_BSD: Tensor, *, table: RopeTable | None = None) -> Tensor:
        """Attend to every earlier position; `table` as in `NSAAttention.forward`."""
        B, S, _ = x_BSD.shape
        if table is None:
            table = prefix_table(S, dim=self.d_k, base=self.rope_base, device=x_BSD.device)
        q = apply_rope(self.q_proj(x_BSD).view(B, S, self.n_heads, self.d_k), table)
        k = apply_rope(self.k_proj(x_BSD).view(B, S, self.n_kv_groups, self.d_k), table)
        v = self.v_proj(x_BSD).view(B, S, self.n_kv_groups, self.d_v)
        heads = self.n_heads // self.n_kv_groups
        k, v = (t.repeat_interleave(heads, dim=2) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(o.transpose(1, 2).reshape(B, S, -1))
