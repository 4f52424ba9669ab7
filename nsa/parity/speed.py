"""`python -m nsa.parity.speed`: do the fast paths of the attention give the slow paths' results, and how much faster?

Two pairs are run in one process, on the same inputs: the selection's ranges row by row (v1) and vectorized (v2), and a
forward pass query by query (sequential) and as the trainer runs it here. The slow sides are run once, for they are the
cost of this command. Prints a line of `name value` pairs for each; exit code 1 when the results differ.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from nsa.argument_types import positive_int
from nsa.attention.dispatch import Impl
from nsa.attention.functional import AttentionSettings, attend
from nsa.attention.geometry import Geometry
from nsa.attention.ranges import ranges_v1, ranges_v2
from nsa.attention.select import select_blocks
from nsa.config import SetupError
from nsa.parallel import pick_device
from nsa.parity.cases import Case, inputs, relative_error

__all__ = ["main"]

_T = TypeVar("_T")
_REPEATS = 5
_TOLERANCE = {"cpu": 1e-4, "cuda": 2e-2}
"""Largest difference over the largest value: float32 on a CPU, bfloat16 on a GPU."""


def _timed(work: Callable[[], _T], device: str, *, repeats: int = 1) -> tuple[_T, float]:
    """The result and the shortest time of some calls, in milliseconds."""
    shortest = float("inf")
    for _ in range(repeats):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        result = work()
        if device == "cuda":
            torch.cuda.synchronize()
        shortest = min(shortest, time.perf_counter() - began)
    return result, shortest * 1e3


def _ranges(seq_len: int, device: str) -> bool:
    """Both ways to merge a selection of two sequences into ranges."""
    geometry = Geometry()
    position = torch.arange(seq_len, device=device)
    rng = torch.Generator().manual_seed(0)
    scores = torch.rand(2, 2, seq_len, geometry.n_blocks(seq_len), generator=rng).to(device)
    blocks = select_blocks(scores, position, geometry).transpose(1, 2).contiguous()
    ranges_v2(blocks, position, l_sel=geometry.l_sel, seq_len=seq_len)
    v1, slow_ms = _timed(lambda: ranges_v1(blocks, position, l_sel=geometry.l_sel, seq_len=seq_len), device)
    v2, fast_ms = _timed(
        lambda: ranges_v2(blocks, position, l_sel=geometry.l_sel, seq_len=seq_len), device, repeats=_REPEATS
    )
    equal = torch.equal(v1, v2)
    comparison = f"ranges_equal {int(equal)} ranges_speedup {slow_ms / fast_ms:.4g}"
    print(f"ranges v1_ms {slow_ms:.4g} v2_ms {fast_ms:.4g} {comparison}")  # noqa: T201 - the command's output
    return equal


def _prefill(seq_len: int, device: str) -> bool:
    """One sequence of the 125M shape, forward."""
    case = Case(B=1, S=seq_len, G=2, heads_per_group=6, Dk=64, Dv=64)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    *streams, gates = inputs(case, device=device, dtype=dtype)

    def forward(impl: Impl) -> Tensor:
        return attend(tuple(streams), gates, AttentionSettings(Geometry(**case.geometry), impl=impl))[0]

    with torch.no_grad():
        forward("auto")  # compiles, where there is something to compile
        fast, fast_ms = _timed(lambda: forward("auto"), device, repeats=_REPEATS)
        slow, slow_ms = _timed(lambda: forward("sequential"), device)
    error = relative_error(fast, slow.detach().to("cpu", torch.float64))
    equal = error <= _TOLERANCE[device]
    comparison = f"prefill_equal {int(equal)} prefill_error {error:.3g} prefill_speedup {slow_ms / fast_ms:.4g}"
    print(f"prefill sequential_ms {slow_ms:.4g} batched_ms {fast_ms:.4g} {comparison}")  # noqa: T201
    return equal


def main(argv: Sequence[str] | None = None) -> int:
    """Run both comparisons; 0, 1 when results differ, or 2 when there is no such device."""
    parser = argparse.ArgumentParser(prog="python -m nsa.parity.speed", description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA where present")
    parser.add_argument("--seq-len", type=positive_int, default=1024, help="tokens of a sequence; 1024 if not given")
    args = parser.parse_args(argv)
    try:
        device = pick_device(args.device).type
    except SetupError as error:
        print(f"nsa.parity.speed: {error}", file=sys.stderr)  # noqa: T201
        return 2
    torch.manual_seed(0)
    equal = [_ranges(args.seq_len, device), _prefill(args.seq_len, device)]
    return 0 if all(equal) else 1


if __name__ == "__main__":
    sys.exit(main())
