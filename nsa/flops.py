"""Arithmetic of one training step per token: what NSA computes, and what a dense model of the same shape would.

A multiply-accumulate counts as two operations, the backward pass as twice the forward one; work done again under
gradient checkpointing is not counted, nor are norms, rotary angles, softmax and gates' activations. Key counts are
exact averages over the positions 0…S−1 of a sequence (arXiv 2502.11089, section 3, with the 0-based visibility rule
⌊(t+1−l)/d⌋+1 for compressed blocks).
"""

from __future__ import annotations

from dataclasses import dataclass

from nsa.config import ModelConfig

__all__ = [
    "FlopsPerToken",
    "KeysPerQuery",
    "compress_macs_per_block",
    "dense_keys_per_query",
    "flops_per_token",
    "nsa_keys_per_query",
]


@dataclass(frozen=True)
class KeysPerQuery:
    """Mean number of keys a query attends to in each branch."""

    cmp: float
    sel: float
    win: float

    @property
    def total(self) -> float:
        """Over the three branches."""
        return self.cmp + self.sel + self.win


@dataclass(frozen=True)
class FlopsPerToken:
    """Forward and backward operations per token; both are the same for dense attention."""

    nsa: float
    dense_equivalent: float


def dense_keys_per_query(seq_len: int) -> float:
    """Mean keys of full causal attention: (S + 1) / 2."""
    return (seq_len + 1) / 2


def nsa_keys_per_query(model: ModelConfig, seq_len: int) -> KeysPerQuery:
    """Mean keys per branch over a causal sequence of `seq_len` tokens."""
    visible = selected = window = 0
    for t in range(seq_len):
        visible += 0 if t + 1 < model.l_cmp else (t + 1 - model.l_cmp) // model.d_cmp + 1
        blocks = min(t // model.l_sel + 1, model.n_sel)
        selected += (blocks - 1) * model.l_sel + t % model.l_sel + 1  # the query's own block ends at t
        window += min(t + 1, model.w)
    return KeysPerQuery(visible / seq_len, selected / seq_len, window / seq_len)


def compress_macs_per_block(model: ModelConfig) -> int:
    """Multiply-accumulates that turn one block of keys and one of values into a compressed pair, over all groups.

    `avg` and `conv` weight each of l tokens once; `mlp` has a hidden layer of twice the head's width.
    """
    if model.phi == "mlp":
        return model.n_kv_groups * sum(model.l_cmp * w * 2 * w + 2 * w * w for w in (model.d_k, model.d_v))
    return model.n_kv_groups * model.l_cmp * (model.d_k + model.d_v)


def flops_per_token(model: ModelConfig, seq_len: int, *, matmul_params: int, dense_matmul_params: int) -> FlopsPerToken:
    """Operations per token of a training step.

    `matmul_params` counts the weights every token is multiplied with (no embedding, no ϕ), `dense_matmul_params`
    those of the same model with dense attention.
    """
    per_key = 2 * (model.d_k + model.d_v) * model.n_heads
    dense = 2 * dense_matmul_params + model.n_layers * per_key * dense_keys_per_query(seq_len)
    if model.attention == "dense":
        return FlopsPerToken(3 * dense, 3 * dense)
    attend = model.n_layers * per_key * nsa_keys_per_query(model, seq_len).total
    blocks = max((seq_len - model.l_cmp) // model.d_cmp + 1, 0)
    compress = 2 * model.n_layers * compress_macs_per_block(model) * blocks / seq_len
    return FlopsPerToken(3 * (2 * matmul_params + attend + compress), 3 * dense)
