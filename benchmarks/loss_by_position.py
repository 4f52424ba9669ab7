"""Where in the sequence two trained models differ: held-out loss by position.

    python -m benchmarks.loss_by_position build/loss_parity/seed_1337/nsa build/loss_parity/seed_1337/dense

Early positions see everything with NSA as well: the selected blocks hold the whole past up to n_sel · l_sel tokens. If
NSA is behind there too, the choice of blocks is not what holds it back; if it is behind later only, it is. Both runs
must have been trained with `save_final=true` on the same data.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nsa.argument_types import positive_int
from nsa.checkpoint import find_newest, load_checkpoint
from nsa.config import Config, replace_flat
from nsa.data import BatchLoader, open_sources, open_tokenizer
from nsa.generate import model_of
from nsa.model import LanguageModel

FIRST_EDGE = 256


def trained(run: Path) -> tuple[Config, LanguageModel]:
    """The configuration that a run was trained with, and its model on the CPU, from its newest checkpoint."""
    found = find_newest(run, say=lambda text: print(text, file=sys.stderr))
    if found is None:
        raise SystemExit(f"{run}: no checkpoint; train with --save-final true")
    state = load_checkpoint(found)
    known = {name: value for name, value in state["config"].items() if value is not None}
    return replace_flat(Config(), **known), model_of(state)[0]


def held_out(config: Config, batches: int) -> list[Tensor]:
    """The first held-out batches `[B, S + 1]`, which validation reads as well."""
    data = config.data
    sources = open_sources(data, open_tokenizer(data.tokenizer, file=data.tokenizer_file), seed=config.train.seed)
    if sources.val is None:
        raise SystemExit("val_fraction=0: nothing is held out; train with a share for validation")
    loader = BatchLoader(sources.val, rank=0, world=1, batch_size=data.batch_size, accum=1, prefetch=0)
    return [loader.next() for _ in range(batches)]


@torch.no_grad()
def loss_by_position(model: LanguageModel, batches: Sequence[Tensor], *, device: str, dtype: str) -> Tensor:
    """Mean loss at each of the S positions, nats, float64. The model is on `device` only meanwhile."""
    model = model.to(device)
    total = torch.zeros(batches[0].shape[1] - 1, dtype=torch.float64)
    for tokens_BT in batches:
        for row_1T in tokens_BT.to(device).split(1):
            with torch.autocast(device, torch.bfloat16, enabled=dtype == "bf16"):
                logits_SV = model(row_1T[:, :-1])[0]
            total += F.cross_entropy(logits_SV.float(), row_1T[0, 1:], reduction="none").double().cpu()
    model.to("cpu")
    return total / sum(len(tokens_BT) for tokens_BT in batches)


def edges(seq_len: int) -> list[int]:
    """Borders of the buckets: 0, 256, and then doubling up to the length."""
    found = [0, min(FIRST_EDGE, seq_len)]
    while found[-1] < seq_len:
        found.append(min(2 * found[-1], seq_len))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate both, compare by bucket."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("runs", type=Path, nargs=2, help="folders of two runs; the second is the yardstick")
    parser.add_argument("--batches", type=positive_int, default=16, help="held-out batches to read; 16 if not given")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    args = parser.parse_args(argv)
    configs, models = zip(*map(trained, args.runs), strict=True)
    if configs[0].data != configs[1].data or configs[0].train.seed != configs[1].train.seed:
        raise SystemExit("the two runs were trained on different data or with different seeds: nothing to compare")
    batches = held_out(configs[0], args.batches)
    losses = [
        loss_by_position(model, batches, device=args.device, dtype=config.train.dtype)
        for model, config in zip(models, configs, strict=True)
    ]
    rows = []
    print("| positions | first | second | ratio |\n|---|---|---|---|")
    borders = edges(configs[0].data.seq_len)
    for start, end in itertools.pairwise(borders):
        first, second = (float(loss[start:end].mean()) for loss in losses)
        rows.append({"start": start, "end": end, "first": first, "second": second, "ratio": first / second})
        print(f"| {start} to {end - 1} | {first:.4f} | {second:.4f} | {first / second:.4f} |")
    if args.out:
        result = {"schema_version": 1, "runs": [str(run) for run in args.runs], "batches": args.batches, "rows": rows}
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
