"""The language model, its optimizer's schedule and the arithmetic it is said to do."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import nsa.model
from nsa.config import Config, ModelConfig, OptimConfig, replace_flat
from nsa.flops import dense_keys_per_query, nsa_keys_per_query
from nsa.model import LanguageModel, model_flops_per_token
from nsa.optim import build_optimizer, clip_gradients, learning_rate

SHAPE: dict[str, Any] = {
    "vocab_size": 40,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_groups": 2,
    "d_k": 8,
    "d_v": 6,
    "ffn_dim": 64,
    "l_cmp": 8,
    "d_cmp": 4,
    "l_sel": 8,
    "n_sel": 3,
    "w": 8,
}


def build(*, grad_checkpointing: bool = False, **changes: Any) -> LanguageModel:
    torch.manual_seed(0)
    config = replace_flat(Config(), **{**SHAPE, **changes}).model
    return LanguageModel(config, grad_checkpointing=grad_checkpointing)


def tokens(n: int = 33) -> torch.Tensor:
    return torch.randint(0, 40, (2, n), generator=torch.Generator().manual_seed(1))


def loss_and_gradients(model: LanguageModel) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    batch = tokens()
    loss = model(batch[:, :-1], batch[:, 1:])
    loss.backward()
    return loss.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("attention", ["nsa", "dense"])
def test_no_weight_is_left_as_memory_held_it(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)  # what is only allocated is now filled with NaN
    try:
        model = build(attention=attention)
    finally:
        torch.use_deterministic_algorithms(False)
    assert [name for name, weight in model.named_parameters() if not weight.isfinite().all()] == []
    for block in model.blocks:
        assert 0.015 < block.ffn.gate_up.weight.std() < 0.025
        assert 0.0075 < block.ffn.down.weight.std() < 0.0125


@pytest.mark.parametrize("attention", ["nsa", "dense"])
def test_loss_is_the_mean_cross_entropy_of_the_logits(attention: str) -> None:
    model, batch = build(attention=attention), tokens()
    logits = model(batch[:, :-1])
    expected = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    torch.testing.assert_close(model(batch[:, :-1], batch[:, 1:]), expected)
    assert expected.item() == pytest.approx(math.log(40), abs=0.1)  # a fresh model knows nothing


@pytest.mark.parametrize("attention", ["nsa", "dense"])
def test_no_position_sees_a_later_token(attention: str) -> None:
    model, batch = build(attention=attention), tokens(32)
    changed = batch.clone()
    changed[:, 20:] = (changed[:, 20:] + 1) % 40
    before, after = model(batch), model(changed)
    torch.testing.assert_close(before[:, :20], after[:, :20])
    assert not torch.equal(before[:, 20:], after[:, 20:])


@pytest.mark.parametrize(
    "changes",
    [{}, {"attention": "dense"}, {"phi": "mlp"}, {"phi": "conv", "gate": "softmax"}, {"tie_embeddings": True}],
)
def test_every_parameter_gets_a_gradient(changes: dict[str, Any]) -> None:
    model = build(**changes)
    _, gradients = loss_and_gradients(model)
    assert set(gradients) == {name for name, _ in model.named_parameters()}
    assert all(g.abs().sum() > 0 for g in gradients.values())


def test_gradient_checkpointing_changes_nothing() -> None:
    plain, recomputed = loss_and_gradients(build()), loss_and_gradients(build(grad_checkpointing=True))
    assert torch.equal(plain[0], recomputed[0])
    for name, gradient in plain[1].items():
        torch.testing.assert_close(recomputed[1][name], gradient, rtol=0, atol=0)


FULLGRAPH = """
import warnings
import torch
from nsa.attention.dispatch import fallback_counters
from nsa.config import Config, replace_flat
from nsa.model import LanguageModel
from tests.interpreting import mend_indices

mend_indices()
shape = dict(vocab_size=40, dim=32, n_layers=1, n_heads=2, n_kv_groups=1, d_k=16, d_v=16, l_cmp=8, d_cmp=4, l_sel=16)
config = replace_flat(Config(), **shape, n_sel=4, w=16, prefill="triton").model
tokens = torch.randint(0, 40, (1, 65), generator=torch.Generator().manual_seed(0))
results = []
warnings.filterwarnings("error", message=".*lru_cache")  # what is traced past a cache is made anew in every pass
for compiled in (True, False):  # first, so that nothing is set up when the compiler comes
    torch.manual_seed(0)
    model = LanguageModel(config)
    if compiled:
        for block in model.blocks:
            block.compile(fullgraph=True, backend="aot_eager")
    loss = model(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    results.append([loss, *(p.grad for p in model.parameters())])
for a, b in zip(*results):
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
assert fallback_counters() == {}
attention = model.blocks[0].attention
x = torch.randn(1, 64, 32)
alone = torch.compile(attention, fullgraph=True, backend="aot_eager")(x)
torch.testing.assert_close(alone, attention(x), rtol=1e-5, atol=1e-6)
"""


def test_a_block_on_the_kernels_compiles_without_a_break() -> None:
    """The kernels run in Triton's interpreter, which has to be chosen before Triton is imported."""
    pytest.importorskip("triton", reason="Triton is Linux only")
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", FULLGRAPH], check=True, env=env, cwd=root, timeout=240)


def test_loss_in_slices_equals_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = loss_and_gradients(build())
    monkeypatch.setattr(nsa.model, "MAX_LOGITS", 40 * 7)  # slices of 7 rows; the last one is shorter
    sliced = loss_and_gradients(build())
    torch.testing.assert_close(sliced[0], whole[0])
    for name, gradient in whole[1].items():
        torch.testing.assert_close(sliced[1][name], gradient)


def test_weights_start_at_the_configured_spread() -> None:
    model = build(dim=128, init_std=0.05, n_layers=2)
    assert model.embedding.weight.std().item() == pytest.approx(0.05, rel=0.1)
    block: Any = model.blocks[0]
    assert block.ffn.gate_up.weight.std().item() == pytest.approx(0.05, rel=0.1)
    assert block.ffn.down.weight.std().item() == pytest.approx(0.05 / 2, rel=0.1)
    assert block.attention.out_proj.weight.std().item() == pytest.approx(0.05 / 2, rel=0.15)


def test_bf16_autocast_stays_near_fp32() -> None:
    model, batch = build(), tokens()
    exact = model(batch[:, :-1], batch[:, 1:])
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(batch[:, :-1], batch[:, 1:])
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, rtol=2e-3, atol=0)


def test_decoding_gives_the_logits_of_the_whole_sequence() -> None:
    model, batch = build().eval(), tokens(24)
    caches = model.init_caches(2, 24, dtype=torch.float32)
    with torch.no_grad():
        steps = torch.cat([model.decode(batch[:, t : t + 1], caches) for t in range(24)], dim=1)
        torch.testing.assert_close(steps, model(batch), rtol=1e-4, atol=1e-5)


def test_keys_per_query_match_an_enumeration() -> None:
    config = replace_flat(Config(), **SHAPE).model
    S = 50
    cmp = sum(sum(1 for i in range(S) if i * 4 + 8 <= t + 1) for t in range(S)) / S
    win = sum(sum(1 for s in range(S) if t - 8 < s <= t) for t in range(S)) / S
    sel = 0
    for t in range(S):
        own = t // 8
        blocks = {own, 0, max(own - 1, 0)} if own < 3 else {own, own - 1, 0}
        sel += sum(1 for s in range(S) if s // 8 in blocks and s <= t)
    keys = nsa_keys_per_query(config, S)
    assert (keys.cmp, keys.sel, keys.win) == pytest.approx((cmp, sel / S, win))
    assert keys.total == keys.cmp + keys.sel + keys.win


def test_keys_at_the_papers_sizes() -> None:
    keys = nsa_keys_per_query(ModelConfig(), 2048)
    assert keys.total == pytest.approx(1263, abs=12)
    assert dense_keys_per_query(2048) == 1024.5


def test_dense_flops_by_hand() -> None:
    model = build(attention="dense")
    weights = 2 * (32 * (4 * 8 + 2 * 8 + 2 * 6) + 4 * 6 * 32 + 3 * 32 * 64) + 32 * 40
    attend = 2 * 2 * 4 * (8 + 6) * (16 + 1) / 2  # layers × 2 × heads × (d_k + d_v) × mean keys
    flops = model_flops_per_token(model, 16)
    assert flops.dense_equivalent == flops.nsa == pytest.approx(3 * (2 * weights + attend))


@pytest.mark.parametrize("phi", ["avg", "conv", "mlp"])
def test_nsa_flops_by_hand(phi: str) -> None:
    model = build(phi=phi, gate_hidden=16)
    qkv = 32 * (4 * 8 + 3 * 2 * 8 + 3 * 2 * 6)
    weights = 2 * (qkv + 4 * 6 * 32 + 32 * 16 + 16 * 12 + 3 * 32 * 64) + 32 * 40
    attend = 2 * 2 * 4 * (8 + 6) * nsa_keys_per_query(model.config, 16).total
    per_block = 2 * 8 * (8 + 6) if phi != "mlp" else 2 * (8 * 8 * 16 + 16 * 8 + 8 * 6 * 12 + 12 * 6)
    blocks = (16 - 8) // 4 + 1
    flops = model_flops_per_token(model, 16)
    assert flops.nsa == pytest.approx(3 * (2 * weights + attend + 2 * 2 * per_block * blocks / 16))
    assert flops.dense_equivalent == model_flops_per_token(build(attention="dense"), 16).dense_equivalent


def test_schedule() -> None:
    config = OptimConfig(lr=1.0, min_lr_ratio=0.1, warmup_steps=10)
    rates = [learning_rate(config, step, 110) for step in range(1, 111)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == max(rates) == 1.0
    assert rates[59] == pytest.approx(0.55)  # half way down the cosine
    assert rates[-1] == pytest.approx(0.1)
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert learning_rate(OptimConfig(lr=2.0, schedule="constant"), 77, 100) == 2.0
    assert learning_rate(OptimConfig(lr=1.0, min_lr_ratio=0.0, schedule="linear"), 25, 100) == pytest.approx(0.75)


def test_vectors_are_not_decayed() -> None:
    optimizer = build_optimizer(build(), OptimConfig(weight_decay=0.5), fused=False)
    decayed, spared = optimizer.param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.5, 0.0)
    assert all(p.ndim >= 2 for p in decayed["params"])
    assert all(p.ndim < 2 for p in spared["params"])
    assert len(decayed["params"]) + len(spared["params"]) == len(list(build().parameters()))


@pytest.mark.parametrize(("limit", "after"), [(1.0, 1.0), (0.0, 5.0), (10.0, 5.0)])
def test_clipping_reports_the_norm_before(limit: float, after: float) -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    assert clip_gradients([weight], limit).item() == pytest.approx(5.0)
    assert weight.grad.norm().item() == pytest.approx(after, rel=1e-5)
