"""The decode step by clusters, run on a CPU: ``step.cu`` itself, with every thread of a cluster a fiber.

Where ``cluster/host.hpp`` stands for ``gpu.cuh``, a wrong wait, a read of memory that nobody wrote (it holds NaN), an
address out of bounds or a barrier that not all reach end the test.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import zlib
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from benchmarks.decode_phases import PHASES, with_clocks
from nsa.attention.cache import NSACache
from nsa.attention.compress import average_compress
from nsa.attention.decode import decode_branches
from nsa.attention.functional import combine
from nsa.attention.geometry import Geometry
from nsa.kernels.cluster import launch, program, why_no_cluster
from nsa.kernels.cluster.launch import Arguments, arguments
from nsa.kernels.cluster.plan import ClusterPlan, plans, served
from nsa.kernels.decode_plan import DecodeSizes

HERE = Path(__file__).parent / "cluster"
CACHES = ("k_raw", "v_raw", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win")
H200 = {"processors": 132, "shared_limit": 232_448}


class Case(NamedTuple):
    B: int
    H: int
    G: int
    Dk: int
    Dv: int
    max_len: int
    geometry: Geometry
    blocks: int
    tokens: int
    stages: int
    lengths: tuple[int, ...]

    @property
    def plan(self) -> ClusterPlan:
        geo = self.geometry
        sizes = DecodeSizes(
            self.B, self.H, self.G, self.Dk, self.Dv, 2, self.max_len, geo.n_compressed(self.max_len),
            min(geo.w, self.max_len), geo.l, geo.d, geo.l_sel, geo.n_sel,
        )  # fmt: skip
        assert served(sizes)
        return ClusterPlan(sizes, self.blocks, self.tokens, self.stages)


PAPER = Geometry()
CASES = {
    "125M": Case(2, 12, 2, 64, 64, 1500, PAPER, 2, 256, 8, (0, 30, 31, 64, 511, 1499, 1500)),
    "wide, in few stages": Case(1, 16, 1, 128, 128, 2200, PAPER, 4, 256, 3, (31, 1600, 2199)),
    "a cluster of six, room for all values": Case(1, 6, 1, 64, 64, 1500, PAPER, 6, 128, 8, (200, 1499)),
    "a cluster of three, more chunks than stages": Case(1, 9, 1, 64, 128, 4500, PAPER, 3, 384, 3, (1300, 4499)),
    "one head per group, a block alone": Case(1, 2, 2, 64, 64, 700, PAPER, 1, 256, 5, (0, 699)),
    "block that is no multiple of a tile, keys in three parts": Case(
        1, 9, 1, 192, 64, 420, Geometry(l=24, d=12, l_sel=24, n_sel=6, w=50), 2, 128, 4, (23, 200, 419)
    ),
    "no scored blocks, compressed tokens that do not overlap": Case(
        1, 3, 1, 64, 128, 300, Geometry(l=32, d=32, l_sel=32, n_sel=3, w=64), 2, 128, 5, (31, 299)
    ),
}


class Span(ctypes.Structure):
    """Memory that the kernel may copy from."""

    _fields_ = (("start", ctypes.c_void_p), ("n_bytes", ctypes.c_longlong))


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> functools._lru_cache_wrapper[ctypes.CDLL]:
    assert shutil.which("g++"), "these tests run the kernel on the CPU: apt-get install g++ (`.ci/run` does it)"
    own = tmp_path_factory.mktemp("cluster")
    # Workers have folders side by side, and use what another one has built.
    shared = own.parent.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    @functools.lru_cache
    def of(plan: ClusterPlan) -> ctypes.CDLL:
        kernel = resources.files("nsa.kernels.cluster").joinpath("step.cu").read_text(encoding="utf-8")
        source = own / "step.cpp"
        source.write_text("\n".join(((HERE / "host.hpp").read_text(), kernel, (HERE / "run.hpp").read_text())))
        constants = [f"-D{key}={value}" for key, value in {**plan.constants, "HALF": 0, "GATE_ELEMENTS": 0}.items()]
        built = shared / f"step_{zlib.crc32(' '.join(constants).encode()):08x}.so"
        if not built.exists():
            options = ["-O1", "-std=c++17", "-w", "-U_FORTIFY_SOURCE", "-shared", "-fPIC", *constants]
            subprocess.run(["g++", *options, "-o", own / "step.so", source], check=True)
            (own / "step.so").rename(built)
        library = ctypes.CDLL(str(built))
        library.run.argtypes = [
            ctypes.c_int, ctypes.POINTER(Arguments), ctypes.POINTER(Span), ctypes.c_int, ctypes.c_uint64, ctypes.c_int,
        ]  # fmt: skip
        return library

    return of


def filled(case: Case, length: int) -> NSACache:
    cache = NSACache(
        geometry=case.geometry, batch=case.B, max_len=case.max_len, n_kv_groups=case.G, d_k=case.Dk, d_v=case.Dv,
        device="cpu", dtype=torch.bfloat16,
    )  # fmt: skip
    for name in CACHES:
        getattr(cache, name).normal_()
    cache.length = length
    return cache


def run(
    library: ctypes.CDLL, case: Case, q: Tensor, gates: Tensor, new: list[Tensor], cache: NSACache, lengths: Tensor,
    *, late: bool, seed: int = 0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A step of the kernel: output and scored blocks."""
    caches = [getattr(cache, name) for name in CACHES]
    o = torch.full((case.B, 1, case.H, case.Dv), float("nan"), dtype=torch.bfloat16)
    top = torch.full((case.B, 1, case.G, case.geometry.n_sel - 3), -7, dtype=torch.int32)
    given = arguments(q, gates, new, caches, lengths, top, o, scale=case.Dk**-0.5)
    spans = [Span(x.data_ptr(), 2 * x.numel()) for x in (*caches, *new)]
    library.run(case.B * case.G, ctypes.byref(given), (Span * len(spans))(*spans), len(spans), seed, int(late))
    return o, top


def step_of(case: Case, seed: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Query, gates, and the new position's six rows."""
    torch.manual_seed(seed)
    q, gates = torch.randn(case.B, 1, case.H, case.Dk).bfloat16(), torch.rand(case.B, 1, case.H, 3)
    return q, gates, [torch.randn(case.B, 1, case.G, n).bfloat16() for n in (case.Dk, case.Dv) * 3]


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("name", CASES)
def test_a_step_stores_the_position_and_equals_the_decode_of_torch(build, name: str, *, late: bool) -> None:
    case = CASES[name]
    geo = case.geometry
    for held in case.lengths:
        q, gates, new = step_of(case, held)
        plain = filled(case, held)
        cache = filled(case, held)
        for kept in CACHES:
            getattr(cache, kept).copy_(getattr(plain, kept))
        lengths = torch.full((case.B, case.G), held, dtype=torch.int32)
        o, top = run(build(case.plan), case, q, gates, new, cache, lengths, late=late, seed=held)
        if held < case.max_len:
            plain.append(tuple(new), lambda k, v: tuple(average_compress(x, l=geo.l, d=geo.d) for x in (k, v)))
        for kept in CACHES:
            torch.testing.assert_close(getattr(cache, kept), getattr(plain, kept), atol=0, rtol=1e-2)
        assert lengths.unique().tolist() == [plain.length]
        branches = decode_branches(q, plain, scale=case.Dk**-0.5)
        wanted = combine(branches, gates).float()
        assert ((o.float() - wanted).norm() / wanted.norm()).item() <= 5e-3
        own = (plain.length - 1) // geo.l_sel
        for chosen, blocks in zip(top.flatten(0, 2).tolist(), branches.blocks.flatten(0, 2).tolist(), strict=True):
            scored = sorted(set(blocks) - {-1, 0, own, own - 1})
            assert sorted(j for j in chosen if j >= 0) == scored


def test_rows_of_different_length_are_as_if_alone(build) -> None:
    case = CASES["125M"]
    q, gates, new = step_of(case, 3)
    caches = [filled(case, 0) for _ in range(2)]
    for kept in CACHES:
        getattr(caches[1], kept).copy_(getattr(caches[0], kept))
    library = build(case.plan)
    mixed = torch.tensor([[1400] * 2, [77] * 2], dtype=torch.int32)
    o, top = run(library, case, q, gates, new, caches[0], mixed, late=True)
    alone_o, alone_top = run(
        library, case, q, gates, new, caches[1], torch.full((2, 2), 77, dtype=torch.int32), late=True
    )
    assert mixed.tolist() == [[1401] * 2, [78] * 2]
    assert torch.equal(o[1], alone_o[1])
    assert torch.equal(top[1], alone_top[1])


def test_the_order_of_threads_does_not_matter(build) -> None:
    case = CASES["wide, in few stages"]
    q, gates, new = step_of(case, 4)
    outputs = []
    for seed in range(3):
        torch.manual_seed(9)
        cache = filled(case, 0)
        lengths = torch.full((1, 1), 2100, dtype=torch.int32)
        outputs.append(run(build(case.plan), case, q, gates, new, cache, lengths, late=seed == 1, seed=seed)[0])
    assert all(torch.equal(o, outputs[0]) for o in outputs)


def test_equal_scores_go_to_the_lower_block_across_blocks_of_the_cluster(build) -> None:
    case = CASES["wide, in few stages"]
    q, gates, new = step_of(case, 5)
    cache = filled(case, 0)
    q.random_(-2, 3)
    same = [2, 9, 15, 19, 27, 32]  # the last one is of the next share
    keys = q[0, 0].float().sum(0) / 8 + torch.zeros(5, case.Dk).random_(-1, 2)
    for j in same:
        cache.k_cmp[0, 4 * j - 1 : 4 * j + 4, 0] = keys.bfloat16()
    lengths = torch.full((1, 1), 2199, dtype=torch.int32)
    _, top = run(build(case.plan), case, q, gates, new, cache, lengths, late=False)
    found = [j for j in top.flatten().tolist() if j in same]
    assert found == sorted(found)


@pytest.mark.parametrize("name", CASES)
def test_the_plan_knows_the_shared_memory_of_the_source(build, name: str) -> None:
    plan = CASES[name].plan
    assert build(plan).shared_bytes() == plan.shared_bytes


def sizes(B: int, H: int, G: int, D: int, *, length: int = 65_536) -> DecodeSizes:
    return DecodeSizes(B, H, G, D, D, 2, length, PAPER.n_compressed(length), 512, 32, 16, 64, 16)


def test_plans_fit_and_the_first_fills_the_gpu() -> None:
    for of, blocks in ((sizes(8, 12, 2, 64), 8), (sizes(8, 64, 4, 128), 4), (sizes(1, 12, 2, 64), 8)):
        found = list(plans(of, **H200))
        assert found[0].blocks == blocks
        assert of.bg * blocks <= H200["processors"]
        assert all(plan.shared_bytes <= H200["shared_limit"] for plan in found)
        assert all(plan.tokens * plan.blocks >= of.n_compressed for plan in found)


def test_more_groups_than_processors_still_have_a_plan() -> None:
    assert next(iter(plans(sizes(100, 12, 2, 64, length=8192), **H200))).blocks == 1


@pytest.mark.parametrize(
    "of",
    [
        sizes(1, 34, 2, 64),
        sizes(1, 4, 2, 96),
        sizes(1, 4, 2, 320),
        DecodeSizes(1, 4, 2, 64, 64, 4, 99, 5, 9, 32, 16, 64, 16),
    ],
)
def test_other_sizes_are_not_served(of: DecodeSizes) -> None:
    assert not served(of)


def test_a_kernel_that_cannot_be_built_leaves_the_step_to_triton_and_says_why_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("CUresult: CUDA_ERROR_INVALID_IMAGE")

    monkeypatch.setattr(program, "load", refuse)
    monkeypatch.setattr(launch, "_plans", lambda of, _: tuple(plans(of, **H200)))
    asked = (sizes(3, 12, 2, 64), torch.bfloat16, torch.float32, 0)
    with pytest.warns(UserWarning, match="Triton's kernels decode.*CUDA_ERROR_INVALID_IMAGE"):
        assert launch._why_not_built(*asked) == "build"
    assert launch._why_not_built(*asked) == "build"  # a second warning would be an error


def test_a_step_on_the_cpu_is_not_for_clusters() -> None:
    q = torch.empty(1, 1, 12, 64, dtype=torch.bfloat16)
    assert why_no_cluster(q, torch.empty(1, 1, 12, 3), sizes(1, 12, 2, 64)) == "device"


def test_the_phases_that_are_timed_stand_in_the_source() -> None:
    source = with_clocks(program.source())
    for i, text in enumerate(PHASES.values()):
        assert f"    note({i});\n{text}" in source
    assert source.count("note(") == len(PHASES) + 2
    with pytest.raises(ValueError, match="window"):
        with_clocks(program.source().replace("    Part win;", ""))
