"""The kernels on a GPU against the float64 oracle: fixed shapes and 100 random ones, freed memory poisoned by NaN."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from benchmarks.kernels_device import SMALL, check_small
from nsa.kernels.precompile import Shape

pytestmark = pytest.mark.gpu

N_RANDOM = 100


def random_case(seed: int) -> tuple[Any, ...]:
    """Batch, length, heads, groups, head dimensions, type and block sizes, all drawn."""
    draw = random.Random(seed)
    d = draw.choice([4, 8, 16, 16])
    l = d * draw.choice([1, 2, 2, 4])  # noqa: E741 - the paper's symbol
    l_sel = d * draw.randint(l // d, min(128 // d, 8))
    n_sel, w = draw.randint(3, 16), draw.choice([1, 17, 64, 200, 512])
    per_group, G = draw.choice([1, 2, 3, 4, 6, 8, 16]), draw.choice([1, 2, 3])
    Dk, Dv = draw.choice([32, 64, 64, 80, 128, 128, 192, 256]), draw.choice([32, 64, 64, 96, 128, 128, 256])
    S = draw.choice([draw.randint(1, l), draw.randint(l, 200), draw.randint(200, 500), draw.randint(500, 900)])
    dtype = draw.choice([torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.float16])
    return draw.choice([1, 1, 2]), S, per_group * G, G, Dk, Dv, dtype, (l, d, l_sel, n_sel, w)


CASES = {f"fixed-{i}": case for i, case in enumerate(SMALL)} | {f"random-{i}": random_case(i) for i in range(N_RANDOM)}


PROBLEMS = [Shape(S, H, G, Dk, Dv, dtype, B=B, sizes=sizes) for B, S, H, G, Dk, Dv, dtype, sizes in CASES.values()]


@pytest.mark.parametrize("name", CASES)
def test_output_selection_and_every_gradient_equal_the_oracle(name: str) -> None:
    result = check_small(CASES[name], seed=len(name))
    assert not result["bad"], result["case"]
    assert not result["defects"], result["case"]
