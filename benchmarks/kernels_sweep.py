"""Time each kernel under several tile sizes: ``python -m benchmarks.kernels_sweep --shape wide64k --out DIR``.

One pass runs forward and backward with the i-th candidate of every kernel at once and times each launch by events, so
that a handful of passes covers all kernels. A candidate whose results differ from the first pass's is not timed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from triton.runtime.jit import JITFunction

from benchmarks.kernels_device import BATCH, LARGE, SIZES, make
from benchmarks.machine import need_gpu
from nsa.kernels import config, problem
from nsa.kernels.config import Tile, Tiles
from nsa.kernels.precompile import Shape, warm

CANDIDATES: dict[str, dict[str, list[tuple[int, ...]]]] = {
    "wide64k": {
        "compressed": [(128, 64, 8, 2), (64, 64, 4, 2), (64, 128, 4, 2), (128, 128, 8, 2)],
        "select": [(64, 64, 4, 3, 0, 3), (128, 32, 4, 3, 168, 3), (128, 64, 4, 2, 168, 3), (64, 128, 4, 2, 168, 3)],
        "combine": [(64, 64, 4, 2), (64, 32, 4, 4), (64, 32, 4, 2), (128, 32, 8, 3), (128, 64, 8, 2)],
        "gather": [(64, 0, 4, 1, 128), (64, 0, 4, 2), (128, 0, 8, 1)],
        "gather_backward": [(32, 0, 4, 2), (64, 0, 8, 2), (64, 0, 4, 2)],
        "dq": [(128, 64, 8, 2), (128, 32, 8, 4)],
    },
    "125M64k": {
        "select": [(64, 64, 4, 3, 0, 3), (128, 32, 4, 3, 168, 3), (128, 64, 4, 3, 168, 3), (64, 64, 4, 3, 128, 4)],
        "combine": [(64, 64, 4, 3), (64, 64, 4, 3, 168), (64, 32, 4, 3), (64, 64, 4, 2, 128), (64, 32, 4, 3, 128)],
    },
    "paper64k": {
        "select": [(64, 64, 4, 3, 0, 3), (64, 64, 4, 2, 168, 3), (128, 32, 4, 3, 168, 3)],
        "combine": [(64, 32, 4, 2), (64, 64, 4, 2), (128, 32, 8, 3)],
    },
}  # fmt: skip


def variants(base: Tiles, candidates: dict[str, list[tuple[int, ...]]]) -> list[Tiles]:
    """The table's own tiles, then one set per candidate position."""
    sets = [base]
    for i in range(max(map(len, candidates.values()))):
        changed = {name: Tile(*options[i]) for name, options in candidates.items() if i < len(options)}
        sets.append(replace(base, **changed))
    return sets


@contextmanager
def timed(into: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]]) -> Iterator[None]:
    """Put an event before and after every kernel launch."""
    original = JITFunction.run

    def run(self: JITFunction, *args: Any, **kwargs: Any) -> Any:
        events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        events[0].record()
        result = original(self, *args, **kwargs)
        events[1].record()
        mode = kwargs.get("MODE")
        into[self.__name__ + ("" if mode is None else f"[{mode}]")].append(events)
        return result

    with mock.patch.object(JITFunction, "run", run):
        yield


FIELD = {
    "compressed_kernel": "compressed", "select_kernel": "select", "gather_kernel": "gather",
    "combine_kernel": "combine", "gather_backward_kernel": "gather_backward", "dq_kernel": "dq",
    "dkv_kernel[0]": "dkv_cmp", "dkv_kernel[1]": "dkv_win", "dkv_kernel[3]": "dkv_sel", "dkv_kernel[4]": "dkv_sel",
}  # fmt: skip


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative error, on the GPU."""
    a, b = a.detach().float(), b.detach().float()
    return float(torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b))


def sweep(name: str, sets: list[Tiles]) -> list[dict[str, Any]]:
    from nsa.kernels import nsa_attention_triton

    S, H, G, Dk, Dv = LARGE[name]
    x = make(BATCH.get(name, 1), S, H, G, Dk, Dv, torch.bfloat16)
    do = torch.randn(*x[0].shape[:3], Dv, device="cuda", dtype=torch.bfloat16)
    l, d, l_sel, n_sel, w = SIZES  # noqa: E741
    reference: list[torch.Tensor] = []
    rows = []
    for tiles in sets:
        events: dict[str, list[Any]] = defaultdict(list)
        repeats = 3 if S > 16384 else 10

        def step() -> list[torch.Tensor]:
            o = nsa_attention_triton(*x, l=l, d=d, l_sel=l_sel, n_sel=n_sel, w=w)
            return [o, *torch.autograd.grad(o, x, do)]

        with mock.patch.object(problem, "choose_tiles", lambda *a, _t=tiles, **k: _t):
            try:
                result = step()
                with timed(events):
                    for _ in range(repeats):
                        step()
                torch.cuda.synchronize()
            except Exception as error:  # noqa: BLE001 - a candidate that does not fit is a row of the table
                print("does not run:", str(error)[:300], flush=True)
                continue
        if not reference:
            reference = result
        worst = max(difference(a, b) for a, b in zip(result, reference, strict=True))
        if not worst < 1e-2:
            print(f"wrong by {worst:.1e}: {tiles}", flush=True)
            continue
        for kernel, pairs in events.items():
            ms = sum(a.elapsed_time(b) for a, b in pairs) / repeats
            field = FIELD.get(kernel)
            tile = getattr(tiles, field) if field else None
            rows.append(
                {
                    "kernel": kernel,
                    "tile": ""
                    if tile is None
                    else f"{tile.bm},{tile.bn},{tile.warps},{tile.stages},{tile.regs},{tile.resident}",
                    "ms": ms,
                }
            )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="wide64k")
    parser.add_argument("--out", type=Path, default=Path())
    arguments = parser.parse_args()
    need_gpu("kernels_sweep")
    S, H, G, Dk, Dv = LARGE[arguments.shape]
    base = config.choose_tiles(config.split_head_dim(Dk, Dv), itemsize=2, hopper=True)
    sets = variants(base, CANDIDATES[arguments.shape])
    shape = Shape(S, H, G, Dk, Dv, B=BATCH.get(arguments.shape, 1))
    warm([shape], tile_sets=sets)
    rows = sweep(arguments.shape, sets)
    best: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        best[row["kernel"]][row["tile"]] = min(row["ms"], best[row["kernel"]].get(row["tile"], 1e9))
    print(arguments.shape)
    for kernel, table in best.items():
        if max(table.values()) > 0.02:
            ranked = sorted(table.items(), key=lambda kv: kv[1])
            print(f"{kernel:24s}", "  ".join(f"({tile}) {ms:.3f}" for tile, ms in ranked))
    (arguments.out / f"sweep-{arguments.shape}.json").write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
