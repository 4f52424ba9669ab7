"""Decoding one token at a time gives the rows of prefill, and reads as many tokens as the formula says."""

from __future__ import annotations

import pytest
import torch

from nsa.attention import NSAAttention, TokenReads

SIZES = {"l": 8, "d": 4, "l_sel": 16, "n_sel": 4, "w": 24}


def layer(**overrides: object) -> NSAAttention:
    torch.manual_seed(0)
    settings = {"dim": 16, "n_heads": 4, "n_kv_groups": 2, "d_k": 6, "d_v": 5, **SIZES, **overrides}
    module = NSAAttention(**settings)  # type: ignore[arg-type]
    module.reset_parameters(std=0.3)
    return module.double()


def test_geometry_covers_every_boundary() -> None:
    """2 w + 3 steps cross l, d, l_sel, n_sel * l_sel and w."""
    steps = 2 * SIZES["w"] + 3
    assert steps > max(SIZES["l"], SIZES["l_sel"], SIZES["w"])


@pytest.mark.parametrize("phi", ["avg", "conv", "mlp"])
def test_each_step_equals_the_row_of_prefill(phi: str) -> None:
    module = layer(phi=phi)
    steps = 3 * SIZES["w"] + 20
    x = torch.randn(2, steps, 16, dtype=torch.float64)
    want = module(x).detach()
    cache = module.init_cache(2, steps, device="cpu", dtype=torch.float64)
    for t in range(steps):
        got = module.decode(x[:, t : t + 1], cache)
        torch.testing.assert_close(got[:, 0], want[:, t], rtol=1e-10, atol=1e-12, msg=lambda m, t=t: f"step {t}: {m}")
    assert cache.length == steps


@pytest.mark.parametrize("prompt", [1, 3, 7, 8, 9, 12, 23, 24, 25, 40, 60])
def test_decode_after_a_prompt(prompt: int) -> None:
    module = layer(phi="conv")
    x = torch.randn(1, 70, 16, dtype=torch.float64)
    want = module(x).detach()
    cache = module.init_cache(1, 70, device="cpu", dtype=torch.float64)
    rows = [module.fill(x[:, :prompt], cache)]
    rows += [module.decode(x[:, t : t + 1], cache) for t in range(prompt, 70)]
    torch.testing.assert_close(torch.cat(rows, dim=1), want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("l", "d"), [(8, 8), (8, 2), (4, 4), (1, 1)])
def test_compressed_tokens_are_emitted_on_schedule(l: int, d: int) -> None:  # noqa: E741
    """The first after l tokens, then one every d, each equal to the one that prefill makes."""
    module = layer(l=l, d=d)
    x = torch.randn(1, 50, 16, dtype=torch.float64)
    cache = module.init_cache(1, 50, device="cpu", dtype=torch.float64)
    whole = module.init_cache(1, 50, device="cpu", dtype=torch.float64)
    module.fill(x, whole)
    emitted = []
    for t in range(50):
        before = cache.n_compressed
        module.decode(x[:, t : t + 1], cache)
        if cache.n_compressed > before:
            emitted.append(t + 1)
    assert emitted == list(range(l, 51, d))
    torch.testing.assert_close(cache.k_cmp, whole.k_cmp)
    torch.testing.assert_close(cache.v_cmp, whole.v_cmp)


@pytest.mark.parametrize(("n_tokens", "published"), [(8192, 2048), (16384, 2560), (32768, 3584), (65536, 5632)])
def test_tokens_read_around_a_published_length(n_tokens: int, published: int) -> None:
    """Prefill to just before the length and decode across it: every step reads what the closed form says, and at the
    length itself the paper's count is one more, for the compressed block that is not complete."""
    torch.manual_seed(0)
    module = NSAAttention(dim=8, n_heads=2, n_kv_groups=1, d_k=2, d_v=2)
    before, after = 33, 66
    cache = module.init_cache(1, n_tokens + after, device="cpu", dtype=torch.float32)
    module.fill(torch.randn(1, n_tokens - before, 8), cache)
    for t in range(n_tokens - before, n_tokens + after):
        module.decode(torch.randn(1, 1, 8), cache)
        reads = cache.last_reads
        assert reads is not None
        assert reads == module.geometry.reads(t)
        assert (reads.cmp, reads.sel, reads.win) == ((t + 1 - 32) // 16 + 1, 15 * 64 + t % 64 + 1, 512)
        assert reads.total <= module.geometry.published_reads(t + 1)
        if t == n_tokens - 1:
            assert module.geometry.published_reads(n_tokens) == published
            assert reads.total == published - 1


@pytest.mark.parametrize("sizes", [(8, 4, 16, 4, 24), (8, 8, 8, 2, 5), (12, 3, 12, 1, 40), (4, 1, 8, 5, 1)])
def test_tokens_read_from_the_first_step_on(sizes: tuple[int, int, int, int, int]) -> None:
    """Counted reads equal the closed form, and the closed form equals counting tokens in sets."""
    module = layer(**dict(zip(("l", "d", "l_sel", "n_sel", "w"), sizes, strict=True)))
    l, d, l_sel, n_sel, w = sizes  # noqa: E741
    cache = module.init_cache(1, 90, device="cpu", dtype=torch.float64)
    for t in range(90):
        module.decode(torch.randn(1, 1, 16, dtype=torch.float64), cache)
        complete = [start for start in range(0, t + 1, d) if start + l - 1 <= t]
        others = [set(range(b * l_sel, (b + 1) * l_sel)) for b in range(t // l_sel)][: n_sel - 1]
        own = set(range(t // l_sel * l_sel, t + 1))
        window = range(max(t - w + 1, 0), t + 1)
        want = TokenReads(len(complete), sum(map(len, others)) + len(own), len(window))
        assert cache.last_reads == want == module.geometry.reads(t)
        assert want.total <= module.geometry.published_reads(t + 1)


def test_a_full_cache_says_so() -> None:
    module = layer()
    cache = module.init_cache(1, 2, device="cpu", dtype=torch.float64)
    x = torch.randn(1, 1, 16, dtype=torch.float64)
    module.decode(x, cache)
    module.decode(x, cache)
    with pytest.raises(ValueError, match="exceed max_len=2"):
        module.decode(x, cache)
    assert cache.length == 2


def test_misuse_is_named() -> None:
    module = layer()
    cache = module.init_cache(1, 8, device="cpu", dtype=torch.float64)
    with pytest.raises(ValueError, match="decode takes one"):
        module.decode(torch.randn(1, 2, 16, dtype=torch.float64), cache)
    module.fill(torch.randn(1, 3, 16, dtype=torch.float64), cache)
    with pytest.raises(ValueError, match="holds 3 positions"):
        module.fill(torch.randn(1, 3, 16, dtype=torch.float64), cache)
    with pytest.raises(ValueError, match="max_len=0"):
        module.init_cache(1, 0, device="cpu", dtype=torch.float64)


def test_bfloat16_cache_stays_close() -> None:
    module = layer().float()
    x = torch.randn(1, 60, 16)
    want = module(x).detach()
    cache = module.init_cache(1, 60, device="cpu", dtype=torch.bfloat16)
    got = torch.cat([module.decode(x[:, t : t + 1], cache) for t in range(60)], dim=1)
    assert (got - want).abs().max() / want.abs().max() < 5e-2
