"""How a decode step is cut: programs per batch row and group, tile sizes, and the constants its kernels share."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from nsa.kernels.config import interpreting, next_power_of_2
from nsa.kernels.problem import ceil_div

__all__ = [
    "Constants",
    "DecodeSizes",
    "Plan",
    "choose_plan",
    "constants",
    "key_parts",
    "n_tiles",
    "resident_shares",
    "shares",
]

_MAX_SHARES = 16
_RUNS = 8
_MERGED_VALUES = 8192

Constants = dict[str, "int | str"]


@dataclass(frozen=True)
class Plan:
    """Keys per tile, warps, software-pipeline depth, and programs that a processor holds at once."""

    keys: int
    warps: int
    stages: int
    resident: int


@dataclass(frozen=True)
class DecodeSizes:
    """A decode step's tensors: batch, heads, groups, head dimensions, bytes of an element, positions of the cache,
    compressed tokens, slots of the window's ring, and the paper's ``l, d, l_sel, n_sel``."""

    B: int
    H: int
    G: int
    Dk: int
    Dv: int
    itemsize: int
    n_positions: int
    n_compressed: int
    ring: int
    l: int  # noqa: E741 - the paper's symbol
    d: int
    l_sel: int
    n_sel: int

    @property
    def bg(self) -> int:
        return self.B * self.G


def choose_plan(sizes: DecodeSizes) -> Plan:
    """By the bytes of a key or value, the larger of the two."""
    row_bytes = max(sizes.Dk, sizes.Dv) * sizes.itemsize
    if interpreting():
        return Plan(keys=16, warps=1, stages=1, resident=1)
    if row_bytes <= 128:
        return Plan(keys=64, warps=4, stages=4, resident=2)
    if row_bytes <= 256:
        return Plan(keys=64, warps=4, stages=3, resident=2)
    return Plan(keys=64 if row_bytes <= 512 else 32, warps=4, stages=2, resident=1)


def key_parts(Dk: int) -> tuple[int, int] | None:
    """``Dk`` as one power of two or the sum of two, each at least 16; None if it is neither."""
    low = 1 << (Dk.bit_length() - 1)
    rest = Dk - low
    served = low >= 16 and Dk <= 256 and (rest == 0 or (rest >= 16 and rest == next_power_of_2(rest)))
    return (low, rest) if served else None


def shares(programs: int, bg: int) -> int:
    """Programs per (batch row, group): a power of two, at least 1, so that all fit into ``programs`` if they can."""
    fitting = min(max(programs // bg, 1), _MAX_SHARES)
    return 1 << (fitting.bit_length() - 1)


@functools.lru_cache(maxsize=1)
def _cooperative() -> bool:
    """Whether this Triton can launch a grid whose programs are all on the GPU at the same time."""
    from triton.backends.nvidia.compiler import CUDAOptions

    return "launch_cooperative_grid" in CUDAOptions.__dataclass_fields__


def resident_shares(sizes: DecodeSizes, plan: Plan, *, processors: int) -> int:
    """Programs per (batch row, group) for a step in one launch; 0 where a GPU of ``processors`` cannot hold them."""
    if interpreting():
        return 1  # programs run one after another: none may wait for another
    programs = plan.resident * processors
    return shares(programs, sizes.bg) if _cooperative() and sizes.bg <= programs else 0


def constants(sizes: DecodeSizes, plan: Plan, P: int) -> Constants:
    """Compile-time constants of all decode kernels, by name; each kernel takes those that it declares."""
    parts = key_parts(sizes.Dk)
    assert parts is not None, "asked of why_no_decode before"
    hpg, n_top, per_block = sizes.H // sizes.G, sizes.n_sel - 3, sizes.l_sel // sizes.d
    folded = next_power_of_2(per_block)
    bn = max(plan.keys, folded)
    rows = max(next_power_of_2(sizes.l_sel), 16)
    n_blocks = next_power_of_2(ceil_div(sizes.n_positions, sizes.l_sel))
    n_top_padded = next_power_of_2(n_top)
    # Few runs, for the best of all runs are compared with each other by every share.
    run = max(min(n_blocks, max(n_blocks // _RUNS, 16)), n_top_padded)
    heads_each = next_power_of_2(ceil_div(hpg, P))
    slots = next_power_of_2(ceil_div(n_top, P))
    ring_share = ceil_div(sizes.ring, P)
    return {
        "G": sizes.G, "HPG": hpg, "HP": max(next_power_of_2(hpg), 16), "HR": next_power_of_2(hpg), "P": P,
        "MERGED": min(heads_each, max(_MERGED_VALUES // (4 * P * sizes.Dv), 1)),
        "L": sizes.l, "D": sizes.d, "LP": next_power_of_2(sizes.l), "LS": sizes.l_sel, "LSP": rows,
        "MP": folded, "BN": bn, "BJ": bn // folded, "TILES": max(ceil_div(n_tiles(sizes, plan), P), 1),
        "WN": ring_share, "BW": min(max(next_power_of_2(ring_share), 16), bn),
        "SB": run, "RUNS": max(n_blocks // run, 1), "NTOP": n_top, "NTOPP": n_top_padded,
        "SLOTS": slots, "AT_ONCE": min(slots, max(bn // rows, 1)),
        "DK": sizes.Dk, "DKP": next_power_of_2(sizes.Dk), "DK0": parts[0], "DK1": parts[1],
        "DV": sizes.Dv, "DVP": next_power_of_2(sizes.Dv), "PREC": "ieee" if sizes.itemsize == 4 else "tf32",
    }  # fmt: skip


def n_tiles(sizes: DecodeSizes, plan: Plan) -> int:
    """Tiles of compressed tokens; a tile holds whole selection blocks."""
    per_block = sizes.l_sel // sizes.d
    folded = next_power_of_2(per_block)
    return ceil_div(sizes.n_compressed, max(plan.keys, folded) // folded * per_block)
