"""``python -m nsa.attention.show --position T``: what the query at one position attends to, for a person to read.

The selection comes from a trained model reading a text (``--checkpoint RUN --text FILE``), from a list (``--blocks
0,3,10``), or from random queries and keys. Ranges are merged by ``v2``, and compared with ``v1``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nsa.attention.functional import AttentionSettings, attend
from nsa.attention.geometry import Geometry
from nsa.attention.ranges import ranges_v2, row_ranges

__all__ = ["describe_selection", "main"]


@dataclass(frozen=True)
class _Selection:
    """One group's selection at the position, and where it comes from."""

    label: str
    blocks: list[int]


def describe_selection(
    blocks: Sequence[int], t: int, *, geometry: Geometry, label: str = "selection", text: Sequence[str] | None = None
) -> str:
    """A few lines on one row: map of blocks, chosen blocks, merged ranges.

    Args:
        blocks: chosen blocks, any order, -1 for empty.
        t: position of the query.
        label: heading, such as layer and group.
        text: one string per token, to quote the start of each range.

    Raises:
        ValueError: the two implementations of ranges disagree, which is a defect worth reporting.
    """
    own = t // geometry.l_sel
    forced = geometry.forced_blocks(t)
    marks = ["." for _ in range(own + 1)]
    for block in blocks:
        if 0 <= block <= own:
            marks[block] = "F" if block in forced else "#"
    ranges = _agreed_ranges(blocks, t, geometry)
    covered = sum(end - start for start, end in ranges)
    lines = [
        f"{label}: {sum(m != '.' for m in marks)} of {own + 1} blocks, {covered} of {t + 1} tokens",
        f"  blocks  {''.join(marks)}",
        f"  chosen  {' '.join(str(b) for b in blocks if b >= 0)}",
    ]
    for start, end in ranges:
        quote = f"  {''.join(text[start : min(end, start + 48)])!r}" if text else ""
        lines.append(f"  [{start}, {end})  {end - start} tokens{quote}")
    return "\n".join(lines)


def _agreed_ranges(blocks: Sequence[int], t: int, geometry: Geometry) -> list[tuple[int, int]]:
    meaning = row_ranges(blocks, t, l_sel=geometry.l_sel, seq_len=t + 1)
    row = torch.tensor(list(blocks), dtype=torch.int64).view(1, 1, -1)
    table = ranges_v2(row, torch.tensor([t]), l_sel=geometry.l_sel, seq_len=t + 1)[0, 0].tolist()
    vectorized = [(start, end) for start, end in table if end > start]
    if vectorized != meaning:
        raise ValueError(f"ranges: v2 gives {vectorized}, v1 gives {meaning} for blocks {list(blocks)} at t={t}")
    return meaning


def _from_random(t: int, geometry: Geometry, seed: int) -> Iterator[_Selection]:
    torch.manual_seed(seed)
    G, D = 2, 16
    streams = [torch.randn(1, t + 1, heads, D) for heads in (2 * G, *[G] * 6)]
    gates = torch.ones(1, t + 1, 2 * G, 3)
    _, aux = attend(tuple(streams), gates, AttentionSettings(geometry), return_aux=True)
    assert aux is not None, "return_aux=True returns the selection"
    for g in range(G):
        yield _Selection(f"random keys, group {g}", aux.blocks[0, t, g].tolist())


def _from_checkpoint(run: Path, text: Path, t: int) -> tuple[Geometry, list[_Selection], list[str]]:
    """Selections of every layer and group at the position, and the text of every token."""
    from nsa.attention.module import NSAAttention  # the trainer is above this package: only this command reaches up
    from nsa.generate import load_model

    model, tokenizer = load_model(run)
    ids = tokenizer.encode(text.read_text(encoding="utf-8", errors="replace"))[: t + 1]
    if len(ids) <= t:
        raise ValueError(f"--position {t}: {text} has only {len(ids)} tokens")
    layers = [(name, m) for name, m in model.named_modules() if isinstance(m, NSAAttention)]
    if not layers:
        raise ValueError(f"--checkpoint {run}: its model has no sparse attention")
    found: list[_Selection] = []
    for name, layer in layers:

        def keep(_: Tensor, blocks_BSGn: Tensor, name: str = name) -> None:
            rows = blocks_BSGn[0, t].tolist()
            found.extend(_Selection(f"{name}, group {g}", row) for g, row in enumerate(rows))

        layer.recorder = keep
    with torch.inference_mode():
        model(torch.as_tensor(ids, dtype=torch.int64)[None])
    return layers[0][1].geometry, found, [tokenizer.decode([int(i)]) for i in ids]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nsa.attention.show", description="What the query at one position attends to."
    )
    parser.add_argument("--position", type=int, required=True, metavar="T", help="position of the query, from 0")
    parser.add_argument("--checkpoint", type=Path, metavar="RUN", help="a run's folder or a checkpoint file")
    parser.add_argument("--text", type=Path, metavar="FILE", help="what the checkpoint's model reads")
    parser.add_argument("--blocks", metavar="I,J,…", help="show this selection instead of computing one")
    parser.add_argument("--seed", type=int, default=0, help="of the random queries and keys")
    for name, default in (("l", 32), ("d", 16), ("l-sel", 64), ("n-sel", 16), ("w", 512)):
        parser.add_argument(f"--{name}", type=int, default=default, help="a checkpoint's own sizes take precedence")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print the selection; 0, or 2 when the arguments do not fit."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        if args.position < 0:
            raise ValueError(f"--position {args.position}: must be 0 or more")
        if (args.checkpoint is None) != (args.text is None):
            raise ValueError("--checkpoint and --text: give both or neither")
        geometry = Geometry(l=args.l, d=args.d, l_sel=args.l_sel, n_sel=args.n_sel, w=args.w)
        text: list[str] | None = None
        if args.checkpoint is not None:
            geometry, selections, text = _from_checkpoint(args.checkpoint, args.text, args.position)
        elif args.blocks is not None:
            selections = [_Selection("given blocks", [int(b) for b in args.blocks.split(",")])]
        else:
            selections = list(_from_random(args.position, geometry, args.seed))
    except (ValueError, OSError, RuntimeError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    t = args.position
    print(f"position {t}, in block {t // geometry.l_sel} of {geometry.l_sel} tokens")  # noqa: T201
    print(f"compressed: {geometry.n_visible(t)} blocks of {geometry.l}, one every {geometry.d}")  # noqa: T201
    print(f"window: [{max(t - geometry.w + 1, 0)}, {t + 1})")  # noqa: T201
    print("selected (F forced, # by score, . not selected):")  # noqa: T201
    for s in selections:
        print(describe_selection(s.blocks, t, geometry=geometry, label=s.label, text=text))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
