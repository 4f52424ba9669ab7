"""Gate health, selection statistics, fallback counters: the numbers are right, and nothing happens when off."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from nsa.attention import NSAAttention, fallback_counters, nsa_attention, reset_fallback_counters
from nsa.attention.spans import set_spans
from nsa.attention.stats import AttentionStats, LayerRecorder, collect_stats
from nsa.parity.cases import Case, inputs

CASE = Case(B=1, S=40, G=1, heads_per_group=2, Dk=4, Dv=4, l=8, d=4, l_sel=8, n_sel=3, w=10)
KEYS = {
    "gate_entropy_mean", "gate_entropy_min", "gate_max_gate", "gate_collapse_frac", "gate_branch_shares",
    "sel_k_mean", "sel_k_max", "sel_rows", "sel_pct_at_max",
}  # fmt: skip


def model(n_layers: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    sizes = {"dim": 16, "n_heads": 4, "n_kv_groups": 2, "d_k": 4, "d_v": 4, "l": 8, "d": 4, "l_sel": 8, "n_sel": 3}
    return nn.Sequential(*(NSAAttention(**sizes, w=10) for _ in range(n_layers)))  # type: ignore[arg-type]


def test_numbers_by_hand() -> None:
    gates = torch.tensor([[1.0, 1.0, 1.0], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.02, 0.0, 0.98]]).view(1, 2, 2, 3)
    blocks = torch.tensor([[0, -1, -1], [0, 1, 2]]).view(1, 2, 1, 3)
    recorder = LayerRecorder("cpu")
    recorder(gates, blocks)
    got = AttentionStats({"a": recorder}).summary()
    last = -(0.02 * math.log(0.02) + 0.98 * math.log(0.98)) / math.log(3)
    assert got["gate_entropy_mean"] == pytest.approx((1.0 + math.log(2) / math.log(3) + 0.0 + last) / 4)
    assert got["gate_entropy_min"] == 0.0
    assert got["gate_max_gate"] == 1.0
    assert got["gate_collapse_frac"] == 0.5
    assert got["gate_branch_shares"] == pytest.approx(
        [(1 / 3 + 0.5 + 1 + 0.02) / 4, (1 / 3 + 0.5) / 4, (1 / 3 + 0.98) / 4]
    )
    assert (got["sel_k_mean"], got["sel_k_max"], got["sel_rows"], got["sel_pct_at_max"]) == (2.0, 3.0, 2.0, 50.0)


def test_a_copy_keeps_its_figures_when_the_tensors_are_written_anew() -> None:
    """As those of a CUDA graph are by its next replay."""
    layers = model()
    with collect_stats(layers) as stats:
        layers(torch.randn(2, 30, 16))
    stats.stop()
    before, copy = stats.summary(), stats.on_host()
    stats.table().fill_(1.0)
    assert stats.summary() != before
    assert copy.summary() == before
    assert AttentionStats({}).on_host().summary() == {}


def test_a_pass_after_the_stop_does_not_count() -> None:
    """As that of a backward pass that recomputes the layers."""
    layers = model()
    with collect_stats(layers) as stats:
        layers(torch.randn(2, 30, 16))
        stats.stop()
        before = stats.summary()
        layers(torch.randn(2, 30, 16))
    assert stats.summary() == before


def test_all_layers_and_all_passes_count() -> None:
    layers = model()
    with collect_stats(layers) as stats:
        layers(torch.randn(2, 30, 16))
        layers(torch.randn(1, 10, 16))
    got = stats.summary()
    assert set(got) == KEYS
    assert got["sel_rows"] == 3 * 2 * (2 * 30 + 10)
    assert got["sel_k_max"] == 3.0
    assert sum(got["gate_branch_shares"]) == pytest.approx(1.0)
    assert list(stats.per_layer()) == ["0", "1", "2"]
    assert stats.per_layer()["1"]["sel_rows"] == 2 * (2 * 30 + 10)


def test_a_collapsed_layer_is_seen_among_healthy_ones() -> None:
    layers = model()
    with torch.no_grad():
        layers[1].gate.down.bias.view(-1, 3).copy_(torch.tensor([-20.0, 20.0, -20.0]))
    with collect_stats(layers) as stats:
        layers(torch.randn(2, 30, 16))
    assert stats.summary()["gate_collapse_frac"] == pytest.approx(1 / 3)
    assert stats.per_layer()["1"]["gate_branch_shares"] == pytest.approx([0.0, 1.0, 0.0], abs=1e-6)


def test_decoding_counts_too() -> None:
    layers = model(1)
    cache = layers[0].init_cache(1, 5, device="cpu", dtype=torch.float32)
    with collect_stats(layers) as stats:
        layers[0].decode(torch.randn(1, 1, 16), cache)
    assert stats.summary()["sel_rows"] == 2.0


def test_off_means_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of the context no statistic is computed and the selection is not asked for."""
    layers = model()
    with collect_stats(layers) as stats:
        pass
    assert stats.summary() == {}
    assert stats.per_layer() == {}
    monkeypatch.setattr(LayerRecorder, "__call__", lambda *_: pytest.fail("recorded while off"))
    layers(torch.randn(1, 10, 16))


def test_statistics_do_not_change_the_result_or_its_gradients() -> None:
    layers = model()
    x = torch.randn(1, 30, 16)
    layers(x).sum().backward()
    want = [p.grad.clone() for p in layers.parameters()]
    layers.zero_grad()
    with collect_stats(layers):
        layers(x).sum().backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(layers.parameters(), want, strict=True))


def test_recording_transfers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a value was read back during the forward pass")

    layers = model()
    x = torch.randn(1, 30, 16)
    with collect_stats(layers) as stats, monkeypatch.context() as patch:
        for name in ("item", "tolist", "__bool__", "__float__", "__int__", "cpu", "numpy"):
            patch.setattr(torch.Tensor, name, refuse)
        layers(x)
    assert stats.summary()["sel_rows"] == 3 * 2 * 30


@pytest.mark.filterwarnings("default")  # torch.compile warns of what it imports and traces
def test_compiled_layers_share_their_variants_whether_recorded_or_not() -> None:
    """Torch compiles eight variants of a function and then none: one for each of twelve layers left none compiled."""

    def compiled(n_layers: int) -> int:
        graphs = []

        def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., object]:
            graphs.append(graph)
            return graph.forward

        torch.compiler.reset()
        layers = model(n_layers)
        for layer in layers:
            layer.prefill = "reference"  # the fewest operations to trace
            layer.compile(backend=backend)
        x = torch.randn(1, 30, 16)
        for _ in range(2):
            with collect_stats(layers) as stats:
                layers(x)
            layers(x)
        assert stats.summary()["sel_rows"] == n_layers * 2 * 30
        return len(graphs)

    assert compiled(10) == compiled(2)


def test_fallbacks_are_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    reset_fallback_counters()
    xs = inputs(CASE)
    with caplog.at_level(logging.WARNING, logger="nsa.attention"):
        for _ in range(3):
            nsa_attention(*xs, **CASE.geometry, impl="triton")
    counters = fallback_counters()
    assert len(counters) == 1
    ((name, count),) = counters.items()
    assert name.startswith("fb_triton_")
    assert count == 3
    assert [r.getMessage() for r in caplog.records if name in r.getMessage()] == [caplog.records[0].getMessage()]
    reset_fallback_counters()
    assert fallback_counters() == {}


def test_choosing_batched_on_the_cpu_is_no_fallback() -> None:
    reset_fallback_counters()
    xs = inputs(CASE)
    torch.testing.assert_close(
        nsa_attention(*xs, **CASE.geometry, impl="auto"), nsa_attention(*xs, **CASE.geometry, impl="batched")
    )
    assert fallback_counters() == {}


def test_ranges_of_the_profiler() -> None:
    """One range per branch and the one for the selection, in both directions, only when switched on."""
    xs = inputs(CASE)

    def seen() -> set[str]:
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, acc_events=True) as profile:  # some versions warn without
            nsa_attention(*xs, **CASE.geometry, impl="batched").sum().backward()
        return {event.key for event in profile.key_averages() if event.key.startswith("nsa.")}

    set_spans(True)
    try:
        on = seen()
    finally:
        set_spans(False)
    assert {"nsa.cmp", "nsa.sel.ranges_v2", "nsa.sel", "nsa.win", "nsa.gate", "nsa.sel.backward"} <= on
    assert seen() == set()
