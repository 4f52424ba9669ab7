"""The language model: RMSNorm, attention (NSA, or dense for comparison), SwiGLU, pre-norm residuals.

Shapes are named by suffix: B batch, S sequence, D width, V vocabulary, T targets (B·S).
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nsa.attention.gate import UnsetLinear
from nsa.attention.rope import RopeTable, prefix_table
from nsa.config import ModelConfig
from nsa.flops import FlopsPerToken, flops_per_token

__all__ = ["Block", "LanguageModel", "SwiGLU", "default_ffn_dim", "model_flops_per_token"]

# Logits of a large vocabulary are made a slice at a time: 2²⁷ fp32 numbers are half a GiB, and as much again
# for their gradient. A byte vocabulary stays below up to half a million tokens per micro-batch.
MAX_LOGITS = 2**27


def default_ffn_dim(dim: int) -> int:
    """8/3 of the width, which gives SwiGLU's three matrices the size of the usual two, rounded up to 64."""
    return -(-8 * dim // 3 // 64) * 64


def _out_std(config: ModelConfig) -> float:
    """Of projections that write to the residual stream: scaled by 1/√(2·layers), as in GPT-2."""
    return config.init_std / (2 * config.n_layers) ** 0.5


def _build_attention(config: ModelConfig, generator: torch.Generator) -> nn.Module:
    shape: dict[str, Any] = {
        name: getattr(config, name) for name in ("dim", "n_heads", "n_kv_groups", "d_k", "d_v", "rope_base")
    } | {"std": config.init_std, "out_std": _out_std(config), "generator": generator}
    if config.attention == "dense":
        from nsa.dense import DenseAttention

        return DenseAttention(**shape)
    from nsa.attention import NSAAttention

    sparse = ["l_sel", "n_sel", "w", "phi", "gate", "gate_hidden", "prefill", "sel_ranges", "query_chunk"]
    return NSAAttention(**shape, l=config.l_cmp, d=config.d_cmp, **{name: getattr(config, name) for name in sparse})


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)), without biases; gate and up are one matrix.

    The first weights are normal, of deviation `std`, those of `down` of `out_std`.
    """

    def __init__(self, dim: int, hidden: int, *, std: float, out_std: float, generator: torch.Generator) -> None:
        super().__init__()
        self.gate_up = UnsetLinear(dim, 2 * hidden, bias=False)
        self.down = UnsetLinear(hidden, dim, bias=False)
        nn.init.normal_(self.gate_up.weight, std=std, generator=generator)
        nn.init.normal_(self.down.weight, std=out_std, generator=generator)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """`[B, S, D]` to `[B, S, D]`."""
        gate, up = self.gate_up(x_BSD).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    """One layer: attention, then SwiGLU, each on the normalized stream and added to it; `seed` draws its weights."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        generator = torch.Generator().manual_seed(seed)
        self.attention = _build_attention(config, generator)
        self.ffn_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        hidden = config.ffn_dim or default_ffn_dim(config.dim)
        self.ffn = SwiGLU(config.dim, hidden, std=config.init_std, out_std=_out_std(config), generator=generator)

    def forward(self, x_BSD: Tensor, table: RopeTable) -> Tensor:
        """`[B, S, D]` to `[B, S, D]`; `table` holds the rotation of the S positions."""
        x_BSD = x_BSD + self.attention(self.attention_norm(x_BSD), table=table)
        return x_BSD + self.ffn(self.ffn_norm(x_BSD))

    def fill(self, x_BSD: Tensor, cache: Any) -> Tensor:
        """A whole prompt at once, put into the attention's empty cache."""
        x_BSD = x_BSD + self.attention.fill(self.attention_norm(x_BSD), cache)
        return x_BSD + self.ffn(self.ffn_norm(x_BSD))

    def decode(self, x_B1D: Tensor, cache: Any) -> Tensor:
        """One further position, appended to the attention's cache."""
        x_B1D = x_B1D + self.attention.decode(self.attention_norm(x_B1D), cache)
        return x_B1D + self.ffn(self.ffn_norm(x_B1D))


class LanguageModel(nn.Module):
    """Next-token model. `config.vocab_size` must be set. Its weights are drawn on the CPU, from torch's own generator.

    Called with targets it returns the mean cross-entropy in nats, a 0-d fp32 tensor; without, the logits.
    """

    def __init__(self, config: ModelConfig, *, grad_checkpointing: bool = False) -> None:
        super().__init__()
        assert config.vocab_size is not None, "resolved from the tokenizer before the model is built"
        self.config, self.grad_checkpointing = config, grad_checkpointing
        unset = torch.empty(config.vocab_size, config.dim)
        self.embedding = nn.Embedding.from_pretrained(nn.init.normal_(unset, std=config.init_std), freeze=False)
        # One thread draws ten million weights in 0.1 s, and layers need not wait for each other.
        seeds = torch.randint(2**62, (config.n_layers,)).tolist()
        with ThreadPoolExecutor(min(os.cpu_count() or 1, config.n_layers)) as pool:
            self.blocks = nn.ModuleList(pool.map(lambda seed: Block(config, seed), seeds))
        self.norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.head = UnsetLinear(config.dim, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.head.weight = self.embedding.weight
        else:
            nn.init.normal_(self.head.weight, std=config.init_std)

    def forward(self, tokens_BS: Tensor, targets_BS: Tensor | None = None) -> Tensor:
        """Logits `[B, S, V]`, or the mean loss against `targets_BS`."""
        x_BSD = self.embedding(tokens_BS)
        config = self.config
        # Made outside of the blocks: a compiled block would compute it again in every pass.
        table = prefix_table(tokens_BS.shape[1], dim=config.d_k, base=config.rope_base, device=tokens_BS.device)
        for block in self.blocks:
            if self.grad_checkpointing and torch.is_grad_enabled():
                x_BSD = checkpoint(block, x_BSD, table, use_reentrant=False, preserve_rng_state=False)
            else:
                x_BSD = block(x_BSD, table)
        x_BSD = self.norm(x_BSD)
        if targets_BS is None:
            return self.head(x_BSD)
        return self._loss(x_BSD.flatten(0, 1), targets_BS.flatten())

    def _loss(self, x_TD: Tensor, targets_T: Tensor) -> Tensor:
        rows = max(MAX_LOGITS // self.head.out_features, 1)
        if x_TD.shape[0] <= rows:
            return self._summed_loss(x_TD, targets_T) / targets_T.numel()
        total = x_TD.new_zeros((), dtype=torch.float32)
        for x, targets in zip(x_TD.split(rows), targets_T.split(rows), strict=True):
            total = total + checkpoint(self._summed_loss, x, targets, use_reentrant=False, preserve_rng_state=False)
        return total / targets_T.numel()

    def _summed_loss(self, x_TD: Tensor, targets_T: Tensor) -> Tensor:
        return F.cross_entropy(self.head(x_TD).float(), targets_T, reduction="sum")

    def init_caches(self, batch: int, max_len: int, *, dtype: torch.dtype) -> list[Any]:
        """Empty attention caches for `decode`, one per layer (NSA only)."""
        device = self.embedding.weight.device
        return [b.attention.init_cache(batch, max_len, device=device, dtype=dtype) for b in self.blocks]

    def fill(self, tokens_BS: Tensor, caches: list[Any]) -> Tensor:
        """Logits `[B, 1, V]` after a prompt, which goes into the empty caches in one pass."""
        x_BSD = self.embedding(tokens_BS)
        for block, cache in zip(self.blocks, caches, strict=True):
            x_BSD = block.fill(x_BSD, cache)
        return self.head(self.norm(x_BSD[:, -1:]))

    def decode(self, tokens_B1: Tensor, caches: list[Any]) -> Tensor:
        """Logits `[B, 1, V]` of one further position; the caches grow by it."""
        x_B1D = self.embedding(tokens_B1)
        for block, cache in zip(self.blocks, caches, strict=True):
            x_B1D = block.decode(x_B1D, cache)
        return self.head(self.norm(x_B1D))


def model_flops_per_token(model: LanguageModel, seq_len: int) -> FlopsPerToken:
    """Operations per token of a training step of `model`, and of the same with dense attention (see nsa.flops)."""
    config = model.config
    linears = {n: m.weight.numel() for n, m in model.named_modules() if isinstance(m, nn.Linear) and ".phi" not in n}
    in_attention = sum(size for name, size in linears.items() if ".attention." in name)
    widths = (config.n_heads + config.n_kv_groups) * (config.d_k + config.d_v)  # q, k, v and the output
    return flops_per_token(
        config,
        seq_len,
        matmul_params=sum(linears.values()),
        dense_matmul_params=sum(linears.values()) - in_attention + config.n_layers * config.dim * widths,
    )
