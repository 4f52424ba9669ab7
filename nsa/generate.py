"""`python -m nsa.generate OUT --prompt "…"`: continue a text with a trained model.

NSA takes the prompt in one pass and then decodes with its caches, one token at a time and at a cost that hardly grows;
`--no-cache`, and dense attention, run the whole sequence again for each token.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nsa.interrupt import answer_ctrl_c, leave_at_ctrl_c

if __name__ == "__main__":
    leave_at_ctrl_c()

import torch

from nsa.argument_types import not_negative, not_negative_int, positive_int
from nsa.checkpoint import CheckpointError, find_newest, load_checkpoint
from nsa.config import Config, ModelConfig, SetupError, replace_flat
from nsa.data import Tokenizer, open_tokenizer
from nsa.model import LanguageModel
from nsa.parallel import pick_device

__all__ = ["generate", "load_model", "main", "model_of"]


def load_model(path: Path, *, device: str = "cpu") -> tuple[LanguageModel, Tokenizer]:
    """The model of a checkpoint, or of the newest sound one of a run's folder, in evaluation mode.

    Raises CheckpointError when there is none or it cannot be read.
    """
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder; name a run's output folder or one of its checkpoints")
    found: Path | None = path
    if path.is_dir():
        found = find_newest(path, say=lambda text: print(text, file=sys.stderr))  # noqa: T201
    if found is None:
        raise CheckpointError(f"{path}: no sound checkpoint; train with --save-final or --save-every")
    return model_of(load_checkpoint(found), device=device)


def model_of(state: Mapping[str, Any], *, device: str = "cpu") -> tuple[LanguageModel, Tokenizer]:
    """The model that a checkpoint's state holds, in evaluation mode, and its tokenizer."""
    saved = state["config"]
    known = {name: saved[name] for name in ModelConfig.__dataclass_fields__ if name in saved}
    config = replace_flat(Config(), **(known | {"prefill": "auto"})).model
    model = LanguageModel(config)
    model.load_state_dict(state["model"])
    return model.to(device).eval(), open_tokenizer(saved["tokenizer"], file=saved.get("tokenizer_file"))


def _sample(logits_V: torch.Tensor, *, temperature: float, top_k: int, generator: torch.Generator) -> int:
    if temperature <= 0:
        return int(logits_V.argmax())
    logits = logits_V.float() / temperature
    if 0 < top_k < logits.numel():
        logits[logits < logits.topk(top_k).values[-1]] = float("-inf")
    return int(torch.multinomial(logits.softmax(-1), 1, generator=generator))


def _cached_step(model: LanguageModel, max_len: int) -> Callable[[list[int]], torch.Tensor]:
    """Logits after the given tokens: the prompt fills the caches in one pass, the rest is decoded token by token."""
    caches: list[Any] = model.init_caches(1, max_len, dtype=model.embedding.weight.dtype)
    device = model.embedding.weight.device
    seen = 0

    def step(ids: list[int]) -> torch.Tensor:
        nonlocal seen
        new = torch.tensor([ids[seen:]], device=device)
        seen, first = len(ids), seen == 0
        logits = model.fill(new, caches) if first else model.decode(new, caches)
        return logits[0, -1]

    return step


@torch.no_grad()
def generate(
    model: LanguageModel,
    ids: Sequence[int],
    *,
    max_new_tokens: int,
    vocab_size: int,
    eos_id: int,
    temperature: float = 0.8,
    top_k: int = 0,
    seed: int = 0,
    use_cache: bool = True,
) -> Iterator[int]:
    """Token ids that continue `ids`, until `eos_id` or `max_new_tokens`.

    Temperature 0 takes the likeliest token; `top_k` 0 keeps all. Ids from `vocab_size` on are padding of the
    embedding and never drawn. Raises ValueError for an empty prompt.
    """
    if not ids:
        raise ValueError("ids: the prompt is empty; give at least one token, such as the end mark")
    tokens = list(ids)
    device = model.embedding.weight.device
    generator = torch.Generator(device=device).manual_seed(seed)
    cached = use_cache and model.config.attention == "nsa"
    step = _cached_step(model, len(tokens) + max_new_tokens) if cached else None
    for _ in range(max_new_tokens):
        logits_V = step(tokens) if step else model(torch.tensor([tokens], device=device))[0, -1]
        token = _sample(logits_V[:vocab_size].clone(), temperature=temperature, top_k=top_k, generator=generator)
        if token == eos_id:
            return
        tokens.append(token)
        yield token


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m nsa.generate", description="Continue a text with a trained model.")
    parser.add_argument("checkpoint", type=Path, help="a run's output folder, or one checkpoint file")
    parser.add_argument("--prompt", default="", help="text to continue; empty: a new document")
    parser.add_argument("--max-new-tokens", type=positive_int, default=200, help="at most; 200 if not given")
    parser.add_argument("--temperature", type=not_negative, default=0.8, help="0: always the likeliest token")
    parser.add_argument(
        "--top-k", type=not_negative_int, default=0, help="draw from the k likeliest tokens; 0: from all"
    )
    parser.add_argument("--seed", type=not_negative_int, default=0, help="the same seed draws the same text")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA where present")
    parser.add_argument("--no-cache", action="store_true", help="run the whole sequence for each token")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Load, continue, print; 0, 2 when there is nothing to load or no such device, 130 when interrupted."""
    args = _parser().parse_args(argv)
    try:
        model, tokenizer = load_model(args.checkpoint, device=str(pick_device(args.device)))
    except SetupError as error:
        print(f"nsa.generate: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        print("nsa.generate: interrupted while the model was loaded", file=sys.stderr)  # noqa: T201
        return 130
    ids = [tokenizer.eos_id, *tokenizer.encode(args.prompt).tolist()]
    new = generate(
        model,
        ids,
        max_new_tokens=args.max_new_tokens,
        vocab_size=tokenizer.vocab_size,
        eos_id=tokenizer.eos_id,
        temperature=args.temperature,
        top_k=args.top_k,
        seed=args.seed,
        use_cache=not args.no_cache,
    )
    drawn: list[int] = []
    interrupted = False
    try:
        drawn.extend(new)
    except KeyboardInterrupt:
        interrupted = True
    print(args.prompt + tokenizer.decode(drawn))  # noqa: T201
    return 130 if interrupted else 0


if __name__ == "__main__":
    answer_ctrl_c()
    sys.exit(main())
