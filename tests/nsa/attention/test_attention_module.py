"""The layer: gradients to every parameter on every path, DDP, autocast, checkpointing, packing, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from nsa.attention import NSAAttention
from nsa.attention.rope import apply_rope, rope_table
from tests.nsa.ranks import RankServer

SMALL = {
    "dim": 16, "n_heads": 4, "n_kv_groups": 2, "d_k": 6, "d_v": 5, "l": 8, "d": 4, "l_sel": 8, "n_sel": 3, "w": 10,
}  # fmt: skip


def layer(**overrides: object) -> NSAAttention:
    torch.manual_seed(0)
    module = NSAAttention(**{**SMALL, **overrides})  # type: ignore[arg-type]
    module.reset_parameters(std=0.3)
    return module


def parts_of_qkv(module: NSAAttention, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    names = ("q", "k_cmp", "k_sel", "k_win", "v_cmp", "v_sel", "v_win")
    widths = [4 * 6, 12, 12, 12, 10, 10, 10]
    return dict(zip(names, weight.split(widths), strict=True))


@pytest.mark.parametrize("prefill", ["sequential", "batched", "triton", "auto"])
@pytest.mark.parametrize("phi", ["avg", "conv", "mlp"])
@pytest.mark.parametrize("gate", ["sigmoid", "softmax"])
def test_no_dead_parameter(prefill: str, phi: str, gate: str) -> None:
    """Each of the seven projections inside qkv_proj counts as a parameter of its own here."""
    module = layer(prefill=prefill, phi=phi, gate=gate)
    module(torch.randn(2, 33, 16)).square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    assert module.qkv_proj.weight.grad is not None
    for name, grad in parts_of_qkv(module, module.qkv_proj.weight.grad).items():
        assert (grad.abs().sum(dim=1) > 0).all(), name


@pytest.mark.parametrize("prefill", ["sequential", "batched"])
@pytest.mark.parametrize("phi", ["avg", "conv", "mlp"])
def test_short_sequences_leave_no_parameter_without_a_gradient(prefill: str, phi: str) -> None:
    """Shorter than a compression block: gradients are zero, not missing, so DDP does not wait for them."""
    module = layer(prefill=prefill, phi=phi)
    module(torch.randn(1, 5, 16)).sum().backward()
    assert all(p.grad is not None for p in module.parameters())


@pytest.mark.parametrize("phi", ["avg", "conv", "mlp"])
def test_paths_agree(phi: str) -> None:
    module = layer(phi=phi).double()
    x = torch.randn(2, 50, 16, dtype=torch.float64)
    module.prefill = "batched"
    want = module(x)
    for module.prefill in ("batched", "sequential"):
        for module.sel_ranges in ("v1", "v2"):
            torch.testing.assert_close(module(x), want)


@pytest.mark.parametrize("phi", ["avg", "conv", "mlp"])
def test_packed_sequences_equal_separate_ones(phi: str) -> None:
    """Lengths on both sides of l, one token, and two of one length class."""
    module = layer(phi=phi).double()
    lengths = [3, 20, 1, 8, 27, 9, 40]
    ends = torch.tensor([0, *lengths]).cumsum(0)
    x = torch.randn(1, int(ends[-1]), 16, dtype=torch.float64, requires_grad=True)
    got = module(x, cu_seqlens=ends.to(torch.int32))
    want = torch.cat([module(part) for part in x.split(lengths, dim=1)], dim=1)
    torch.testing.assert_close(got, want)
    upstream = torch.randn_like(want)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, upstream)[0] for y in (got, want)))


@pytest.mark.parametrize(
    ("cu_seqlens", "message"),
    [
        ([0, 5], "end with the sequence length 10"),
        ([1, 10], "start with 0"),
        ([0, 5, 5, 10], "increase strictly"),
        ([0, 7, 5, 10], "increase strictly"),
        ([[0, 10]], "must be integers"),
    ],
)
def test_offsets_that_do_not_fit(cu_seqlens: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer()(torch.randn(1, 10, 16), cu_seqlens=torch.tensor(cu_seqlens))


def test_packed_sequences_need_a_batch_of_one() -> None:
    with pytest.raises(ValueError, match="batch is 2"):
        layer()(torch.randn(2, 10, 16), cu_seqlens=torch.tensor([0, 10]))


def test_autocast_keeps_scores_and_gates_in_float32() -> None:
    module = layer()
    x = torch.randn(2, 60, 16, requires_grad=True)
    want = module(x).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = module(x)
        assert module.gate(x).dtype == torch.float32
    assert got.dtype == torch.bfloat16
    assert (got.float() - want).abs().max() / want.abs().max() < 3e-2
    got.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in module.parameters())


def test_backward_inside_autocast_is_not_lowered() -> None:
    """A backward pass that runs within the autocast region must compute as one outside of it."""
    module = layer()
    x = torch.randn(1, 40, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        module(x).float().sum().backward()
    inside = module.qkv_proj.weight.grad
    module.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = module(x)
    y.float().sum().backward()
    torch.testing.assert_close(inside, module.qkv_proj.weight.grad, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("prefill", ["sequential", "batched"])
def test_gradient_checkpointing_changes_nothing(use_reentrant: bool, prefill: str) -> None:
    module = layer(prefill=prefill, phi="conv")
    x = torch.randn(1, 30, 16, requires_grad=True)
    module(x).square().sum().backward()
    want = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    module.zero_grad()
    checkpoint(module, x, use_reentrant=use_reentrant).square().sum().backward()
    for parameter, grad in zip(module.parameters(), want, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=0, atol=0)


def test_inference_mode_leaves_nothing_behind() -> None:
    """Tables made while in inference mode must not break the training that follows."""
    module = layer(rope_base=123.0)
    x = torch.randn(1, 30, 16)
    with torch.inference_mode():
        quiet = module(x)
    loud = module(x)
    torch.testing.assert_close(quiet, loud.detach(), rtol=0, atol=0)
    loud.sum().backward()


def test_rotation_depends_on_distance_alone() -> None:
    """q at i against k at j equals q at i + s against k at j + s."""
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).unbind(0)

    def score(i: int, j: int) -> torch.Tensor:
        turned = (apply_rope(x, rope_table(torch.tensor([p]), dim=8, base=100.0)) for x, p in ((q, i), (k, j)))
        a, b = turned
        return (a * b).sum()

    torch.testing.assert_close(score(9, 4), score(1009, 1004), rtol=1e-4, atol=1e-4)
    assert abs(float(score(9, 4) - score(9, 5))) > 1e-3


def test_rotation_by_hand() -> None:
    """The first pair of channels turns by one radian per position."""
    x = torch.tensor([1.0, 0.0, 0.0, 0.0]).view(1, 1, 1, 4)
    got = apply_rope(x, rope_table(torch.tensor([2]), dim=4, base=10_000.0)).flatten()
    want = torch.tensor([torch.cos(torch.tensor(2.0)), 0.0, torch.sin(torch.tensor(2.0)), 0.0])
    torch.testing.assert_close(got, want)


def test_convolution_starts_as_the_average() -> None:
    average, convolution = layer(phi="avg"), layer(phi="conv")
    convolution.load_state_dict(average.state_dict(), strict=False)
    x = torch.randn(1, 40, 16)
    torch.testing.assert_close(average(x), convolution(x), rtol=1e-5, atol=1e-6)


def test_mlp_compression_equals_the_unfolded_form() -> None:
    """Chunked and shifted products give what an MLP on copied-out blocks gives."""
    module = layer(phi="mlp").double().phi_k
    x = torch.randn(2, 30, 2, 6, dtype=torch.float64)
    blocks = (x.unfold(1, 8, 4).movedim(-1, -2) + module.place).flatten(-2)  # [B, C, G, l * D]
    want = module.down(nn.functional.silu(module.up(blocks)))
    torch.testing.assert_close(module(x), want)


def test_reset_parameters_sets_the_deviations() -> None:
    module = layer(dim=256, n_heads=8, d_k=32, d_v=32)
    module.reset_parameters(0.02, 0.005)
    assert module.qkv_proj.weight.std().item() == pytest.approx(0.02, rel=0.03)
    assert module.out_proj.weight.std().item() == pytest.approx(0.005, rel=0.03)
    assert module.gate(torch.zeros(1, 1, 256)).flatten().tolist() == [0.5] * 24


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"n_heads": 5}, "n_heads=5: must be a multiple of n_kv_groups=2"),
        ({"d_k": 7}, "d_k=7: must be even"),
        ({"d": 3}, "l=8: must be a multiple of d=3"),
        ({"l": 16}, "l=16: must not exceed l_sel=8"),
        ({"n_sel": 0}, "n_sel=0: must be a positive integer"),
        ({"phi": "max"}, "phi='max': must be avg, conv or mlp"),
        ({"gate": "relu"}, "gate='relu': must be sigmoid or softmax"),
        ({"prefill": "fast"}, "prefill='fast'"),
        ({"sel_ranges": "v3"}, "sel_ranges='v3'"),
        ({"dim": 0}, "dim=0: must be at least 1"),
    ],
)
def test_settings_that_do_not_fit_are_named(setting: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer(**setting)


def train_three_steps(folder: str) -> None:
    """What each rank of the test below does."""
    dist.init_process_group("gloo")
    rank, grads = dist.get_rank(), []
    for phi, prefill in (("avg", "batched"), ("conv", "batched"), ("mlp", "batched"), ("mlp", "sequential")):
        model = DistributedDataParallel(nn.Sequential(*(layer(phi=phi, prefill=prefill) for _ in range(2))))
        # A step that leaves a gradient out makes the next one fail. Five positions hold no compressed token; of sixty
        # the last go by pairs.
        for step, seq_len in enumerate((60, 5, 30)):
            torch.manual_seed(10 * step + rank)
            model(torch.randn(1, seq_len, 16)).square().sum().backward()
        grads += [p.grad for p in model.parameters()]
    assert all(g is not None for g in grads)
    torch.save(grads, Path(folder) / f"grads{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_without_find_unused_parameters(tmp_path: Path, rank_server: RankServer) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"from {__name__} import train_three_steps\ntrain_three_steps({str(tmp_path)!r})\n")
    ranks = rank_server.start(str(program), [])
    assert ranks.wait() == [0, 0], ranks.said
    first, second = (torch.load(tmp_path / f"grads{rank}.pt", weights_only=True) for rank in (0, 1))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
