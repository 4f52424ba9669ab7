"""A prompt goes through prefill once; what follows it is what token-by-token decoding and whole passes give."""

from __future__ import annotations

import pytest
import torch

from nsa.config import Config, replace_flat
from nsa.generate import generate
from nsa.model import LanguageModel

SIZES = {"l_cmp": 8, "d_cmp": 4, "l_sel": 8, "n_sel": 3, "w": 12}


def model(phi: str = "avg") -> LanguageModel:
    torch.manual_seed(0)
    settings = {"dim": 16, "n_layers": 2, "n_heads": 4, "n_kv_groups": 2, "d_k": 6, "d_v": 5, "vocab_size": 40}
    return LanguageModel(replace_flat(Config(), **settings, **SIZES, phi=phi, init_std=0.3).model).double().eval()


@pytest.mark.parametrize("phi", ["avg", "conv", "mlp"])
@pytest.mark.parametrize("prompt", [1, 7, 8, 9, 24, 37])
def test_logits_after_a_prompt_and_of_every_step_behind_it(phi: str, prompt: int) -> None:
    """By prefill and decoding, by decoding alone, and by one pass over everything."""
    language_model = model(phi)
    tokens = torch.randint(0, 40, (2, 60), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole = language_model(tokens)
        caches = language_model.init_caches(2, 60, dtype=torch.float64)
        stepped = language_model.init_caches(2, 60, dtype=torch.float64)
        got = language_model.fill(tokens[:, :prompt], caches)
        for t in range(prompt):
            alone = language_model.decode(tokens[:, t : t + 1], stepped)
        torch.testing.assert_close(got, alone)
        for t in range(prompt, 60):
            torch.testing.assert_close(got[:, 0], whole[:, t - 1], rtol=1e-9, atol=1e-11)
            got = language_model.decode(tokens[:, t : t + 1], caches)


def test_the_prompt_takes_one_pass_and_each_token_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    for name in ("fill", "decode"):
        original = getattr(LanguageModel, name)

        def counting(self: LanguageModel, tokens: torch.Tensor, caches: object, name: str = name, run=original):  # type: ignore[no-untyped-def]
            calls.append((name, tokens.shape[1]))
            return run(self, tokens, caches)

        monkeypatch.setattr(LanguageModel, name, counting)
    prompt = list(range(1, 31))
    settings = {"max_new_tokens": 20, "vocab_size": 39, "eos_id": 99, "temperature": 0.0}
    cached = list(generate(model(), prompt, **settings))  # type: ignore[arg-type]
    assert calls == [("fill", 30), *[("decode", 1)] * 19]
    assert cached == list(generate(model(), prompt, use_cache=False, **settings))  # type: ignore[arg-type]
