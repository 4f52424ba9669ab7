"""Hopper's own kernels against Triton's, which compute the same, with freed memory poisoned by NaN."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor

from benchmarks.kernels_device import NAMES, SIZES, make, poison
from nsa.kernels import launch_backward, ops, problem
from nsa.kernels.hopper import why_no_wgmma, why_no_window
from nsa.kernels.precompile import Shape

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("on_hopper")]


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOPPER_KERNELS", raising=False)


CASES = {
    "16 heads a group": (1, 1100, 32, 2, 128, 128, torch.bfloat16),
    "8 heads, two sequences, float16": (2, 3001, 16, 2, 128, 128, torch.float16),
    "6 heads, idle rows, sums": (2, 2500, 12, 2, 64, 64, torch.bfloat16),
    "5 heads, narrow values, idle rows": (1, 1700, 10, 2, 128, 64, torch.bfloat16),
    "12 heads, idle rows": (1, 1500, 24, 2, 128, 64, torch.bfloat16),
    "4 heads": (1, 2100, 16, 4, 128, 128, torch.bfloat16),
    "4 heads, keys of 192": (1, 1300, 8, 2, 192, 128, torch.bfloat16),
    "4 heads, two sequences, sums": (2, 1500, 16, 4, 64, 64, torch.float16),
    "3 heads, Triton gathers": (1, 1500, 6, 2, 128, 128, torch.bfloat16),
    "keys of 192": (1, 1500, 32, 2, 192, 128, torch.bfloat16),
    "keys of 192, 10 heads, idle rows": (1, 1100, 20, 2, 192, 128, torch.float16),
    "one head": (1, 1300, 4, 4, 64, 64, torch.float16),
    "32 heads": (1, 900, 64, 2, 64, 64, torch.bfloat16),
    "one compressed token, nothing scored": (1, 40, 8, 2, 128, 128, torch.bfloat16),
}
PROBLEMS = [Shape(S, H, G, Dk, Dv, dtype, B=B) for B, S, H, G, Dk, Dv, dtype in CASES.values()]


def gradients(x: list[Tensor], do: Tensor) -> tuple[Tensor, ...]:
    o = ops.attention(*x, list(SIZES), x[0].shape[-1] ** -0.5, False, False)[0]
    return torch.autograd.grad(o, x, do)


@pytest.fixture(params=CASES.values(), ids=CASES)
def inputs(request: pytest.FixtureRequest) -> tuple[list[Tensor], Tensor]:
    B, S, H, G, Dk, Dv, dtype = request.param
    x = make(B, S, H, G, Dk, Dv, dtype, seed=1)
    with torch.no_grad():
        # Gates of either sign, and some that are zero: nothing in the interface bounds them.
        x[-1].copy_(x[-1] * 2 - 1)
        x[-1][:, ::7] = 0
    return x, torch.randn(B, S, H, Dv, device="cuda", dtype=dtype)


@pytest.mark.parametrize("window", [True, False], ids=["window", "window by Triton"])
@pytest.mark.parametrize(
    ("span", "scratch", "turn"), [(256, 4 << 30, 1 << 24), (10**6, 4 << 30, 1 << 30), (512, 1 << 22, 1)]
)
def test_gradients_equal_tritons(
    inputs: tuple[list[Tensor], Tensor], span: int, scratch: int, turn: int, window: bool
) -> None:
    x, do = inputs
    with mock.patch.object(launch_backward, "why_no_wgmma", return_value="off"):
        wanted = gradients(x, do)
    poison(0.25)
    asked: list[str | None] = []

    def ask(*arguments: object) -> str | None:
        asked.append(why_no_wgmma(*arguments))  # type: ignore[arg-type]
        return asked[-1]

    def ask_window(*arguments: object, **options: object) -> str | None:
        asked.append(why_no_window(*arguments, **options))  # type: ignore[arg-type]
        return asked[-1] if window else "off"

    with (
        mock.patch.object(problem, "choose_span", return_value=span),
        mock.patch.object(problem, "_SCRATCH_BYTES", scratch),
        mock.patch.object(problem, "_TURN_BYTES", turn),
        mock.patch.object(launch_backward, "why_no_wgmma", ask),
        mock.patch.object(launch_backward, "why_no_window", ask_window),
    ):
        found = gradients(x, do)
    assert asked == [None, None]
    for name, a, b in zip(NAMES, found, wanted, strict=True):
        error = (a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-12)
        assert error <= 5e-3, name


def test_scored_blocks_by_triton_beside_the_compressed_branch_by_wgmma() -> None:
    x = make(1, 1100, 32, 2, 128, 128, torch.bfloat16)
    do = torch.randn(1, 1100, 32, 128, device="cuda", dtype=torch.bfloat16)
    wanted = gradients(x, do)
    with mock.patch.object(launch_backward, "why_no_gather", return_value="off"):
        found = gradients(x, do)
    for name, a, b in zip(NAMES, found, wanted, strict=True):
        assert (a.double() - b.double()).norm() <= 5e-3 * b.double().norm(), name


def test_a_large_problem_gives_the_same_gradients_every_time() -> None:
    # Lists long enough that stages wrap around and warpgroups wait for each other; a race would show as an error that
    # moves by more than the order of sums does.
    x = make(1, 16384, 32, 2, 128, 128, torch.bfloat16)
    do = torch.randn(1, 16384, 32, 128, device="cuda", dtype=torch.bfloat16)
    first = gradients(x, do)
    for _ in range(10):
        for name, a, b in zip(NAMES, gradients(x, do), first, strict=True):
            assert (a.double() - b.double()).norm() <= 1e-3 * b.double().norm(), name


def test_gradients_from_a_graph_equal_launched_ones() -> None:
    x = make(1, 2048, 12, 2, 64, 64, torch.bfloat16)
    do = torch.randn(1, 2048, 12, 64, device="cuda", dtype=torch.bfloat16)
    wanted = gradients(x, do)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        gradients(x, do)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = gradients(x, do)
    for a in found:
        a.fill_(float("nan"))
    graph.replay()
    for name, a, b in zip(NAMES, found, wanted, strict=True):
        assert (a.double() - b.double()).norm() <= 1e-3 * b.double().norm(), name
