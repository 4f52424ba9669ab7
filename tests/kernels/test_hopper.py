"""What can be known of Hopper's own kernels without a GPU: where they run, and that sources and launches agree."""

from __future__ import annotations

import contextlib
import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from nsa.kernels import launch as launch_forward
from nsa.kernels import nvrtc
from nsa.kernels.hopper import combine, forward, launch, program, window
from nsa.kernels.hopper.products import products
from nsa.kernels.precompile import Shape, record
from nsa.kernels.problem import Problem

SHARED_LIMIT = 227 * 1024
MOST_SPILLED = 64
"""Bytes of a thread: a few values of warps that copy."""
SERVED = [(16, 128, 128), (8, 128, 64), (6, 64, 64), (12, 64, 64), (32, 64, 64), (16, 192, 128)]
KERNELS = {
    "dense_backward": (launch._dense_constants, launch._DenseArguments),
    "gather_backward": (launch._gather_constants, launch._GatherArguments),
    "dense_forward": (forward._dense_constants, forward._DenseArguments),
    "dense_forward that leaves": (partial(forward._dense_constants, leaves=True), forward._DenseArguments),
    "choose": (forward._choose_constants, forward._ChooseArguments),
    "combine": (combine._constants, combine._Arguments),
    "gather_forward": (forward._gather_constants, forward._GatherArguments),
    "window_backward": (window._constants, window._Arguments),
}


def problem(hpg: int = 8, dk: int = 128, dv: int = 128, *, S: int = 4096, **changed: Any) -> Problem:
    q, k, v = (
        torch.empty(1, S, n, dim, dtype=changed.get("dtype", torch.bfloat16), device="meta")
        for n, dim in ((2 * hpg, dk), (2, dk), (2, dv))
    )
    sizes = (32, 16, changed.get("l_sel", 64), changed.get("n_sel", 16), 512)
    return Problem.of(q, k, v, sizes=sizes, scale=0.1, deterministic=changed.get("deterministic", False))


@pytest.mark.parametrize(
    ("changed", "dense", "gather"),
    [
        ({}, None, None),
        ({"dtype": torch.float32}, "dtype", "sizes"),
        ({"dk": 192}, None, None),
        ({"dk": 192, "hpg": 50}, None, "sizes"),
        ({"dk": 256}, "head_dim", "sizes"),
        ({"deterministic": True}, "deterministic", None),
        ({"S": 31}, "no_keys", "no_keys"),
        ({"S": 190}, None, "no_keys"),
        ({"n_sel": 3}, None, "no_keys"),
        ({"hpg": 4}, None, None),
        ({"hpg": 3}, None, "sizes"),
        ({"l_sel": 32}, None, "sizes"),
    ],
)
def test_what_a_problem_lacks_is_named(changed: dict[str, Any], dense: str | None, gather: str | None) -> None:
    p = problem(**changed)
    assert launch.dense_served(p) == dense
    assert launch.gather_served(p) == gather
    assert window.window_served(p) == ("head_dim" if p.dims.dk > 192 else "sizes" if p.l_sel == 32 else None)


@pytest.mark.parametrize(
    ("changed", "dense", "choose", "merge", "gather"),
    [
        ({}, None, None, None, None),
        ({"S": 8192}, None, None, None, None),
        ({"dtype": torch.float32}, "dtype", "dtype", "dtype", "dtype"),
        ({"dk": 192}, None, None, None, None),
        ({"dk": 256}, "head_dim", "head_dim", "head_dim", "head_dim"),
        ({"dv": 64}, None, None, None, None),
        ({"dk": 64, "dv": 64}, None, None, "narrow", "narrow"),
        ({"dk": 64, "dv": 64, "l_sel": 32}, None, "sizes", "sizes", "sizes"),
        ({"S": 31}, "no_keys", "no_keys", "no_keys", "no_keys"),
        ({"S": 190}, None, "sizes", "no_keys", "no_keys"),
        ({"hpg": 4}, None, None, None, "sizes"),
        ({"hpg": 1}, None, None, None, "sizes"),
        ({"hpg": 5}, None, None, None, "sizes"),
        ({"hpg": 24}, None, None, None, None),
        ({"hpg": 40}, None, "sizes", "sizes", None),
        ({"l_sel": 32}, None, "sizes", "sizes", "sizes"),
        ({"n_sel": 20}, None, None, "sizes", None),
        ({"hpg": 129}, "sizes", "sizes", "sizes", "sizes"),
    ],
)
def test_what_a_problem_lacks_for_the_forward_pass(
    changed: dict[str, Any],
    dense: str | None,
    choose: str | None,
    merge: str | None,
    gather: str | None,
) -> None:
    p = problem(**{"S": 32768} | changed)
    assert forward.forward_served(p) == dense
    assert forward.choose_served(p) == choose
    assert combine.combine_served(p) == merge
    assert forward.attend_served(p) == gather


@pytest.mark.parametrize(
    ("hpg", "S", "turns"), [(16, 8192, 1), (6, 65536, 1), (16, 65536, 1), (16, 131072, 2 * 2), (32, 262144, 2 * 16)]
)
def test_what_is_left_to_choose_by_takes_limited_memory(hpg: int, S: int, turns: int) -> None:
    p = problem(hpg, S=S)
    runs, most = forward._strip_turns(p)
    assert len(runs) == turns
    assert most <= forward._STRIP_BYTES
    tokens = torch.zeros(p.bg, p.S, dtype=torch.int8)
    for (pair, count), (first, end) in runs:
        assert first % (forward._LEFT_KEYS * p.d) == 0, "where the number of records of a token changes"
        tokens[pair : pair + count, first:end] += 1
    assert bool((tokens == 1).all())


@pytest.mark.parametrize(("hpg", "dk", "dense"), [(16, 128, 3), (100, 128, 2), (6, 64, 3), (64, 64, 3), (16, 192, 2)])
def test_rows_of_a_tile_are_mostly_in_use(hpg: int, dk: int, dense: int) -> None:
    warpgroups = forward._dense_tile(problem(hpg, dk, min(dk, 128)))[0]
    assert warpgroups == dense
    rows = 64 * warpgroups
    assert rows // hpg * hpg >= 0.75 * rows


@pytest.mark.parametrize(
    ("shape", "S", "heads", "tokens"),
    [
        ((6, 64, 64), 2048, 3, 256),
        ((6, 64, 64), 4096, 6, 1024),
        ((6, 64, 64), 8192, 6, 2048),
        ((16, 128, 128), 65536, 4, 8192),
    ],
)
def test_short_sequences_leave_no_processor_idle(shape: tuple[int, int, int], S: int, heads: int, tokens: int) -> None:
    """Heads and tokens of a block that were the fastest on a card of 132 processors, docs/experiments.md."""
    p = replace(problem(*shape, S=S), n_processors=132)
    assert (window._heads(p), launch._chunk_tokens(p)) == (heads, tokens)


def test_tensors_on_the_cpu_stay_with_triton() -> None:
    p, x = problem(), torch.empty(1, 8, 2, 128, dtype=torch.bfloat16)
    assert launch.why_no_wgmma(x, x, x, x, p) == "device"
    assert forward.why_no_forward(x, x, x, p) == "device"


def test_what_is_not_launched_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step waited for a second form of the compressed branch's kernel that nothing launched."""
    built: list[tuple[str, Any]] = []
    monkeypatch.setattr(forward, "_why_not", lambda _q, _kc, _vc, in_problem: in_problem)
    monkeypatch.setattr(forward, "_not_built", lambda _, *kernels: built.extend(k[:2] for k in kernels))
    monkeypatch.setattr(forward, "compressed_and_chosen", mock.Mock(side_effect=InterruptedError))
    p, x = problem(), torch.empty(1, 8, 2, 128, dtype=torch.bfloat16)
    with pytest.raises(InterruptedError):
        launch_forward.forward(*[x] * 7, x, p)
    ahead = [(name, constants) for name, constants in forward.forward_sources(p) if name != "gather_forward"]
    assert built == ahead


def test_a_kernel_that_cannot_be_built_leaves_the_work_to_triton_and_says_why_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("CUresult: CUDA_ERROR_INVALID_IMAGE")

    monkeypatch.setattr(program, "function", refuse)
    asked = ("dense_backward", (("DK", 1),), 0, 0)
    with pytest.warns(UserWarning, match="Triton's kernels run.*CUDA_ERROR_INVALID_IMAGE"):
        assert program.why_not_built(*asked) == "build"
    assert program.why_not_built(*asked) == "build"  # a second warning would be an error


@pytest.mark.parametrize(
    ("strides", "ok"), [((512, 128, 64, 1), True), ((512, 132, 64, 1), False), ((512, 128, 64, 2), False)]
)
def test_a_tensor_map_needs_units_of_sixteen_bytes(strides: tuple[int, ...], ok: bool) -> None:
    x = torch.empty(4096, dtype=torch.bfloat16).as_strided((1, 2, 2, 8), strides)
    assert program.strided(x) is ok


@pytest.mark.parametrize(
    ("strides", "in_rows"), [((2048, 1024, 64, 1), True), ((4096, 2048, 64, 1), False), ((2048, 1024, 128, 1), False)]
)
def test_boxes_of_whole_rows_need_tokens_one_after_the_other(strides: tuple[int, ...], in_rows: bool) -> None:
    """The first head of all tokens' is counted through, which gaps between tokens or an order of heads would break."""
    x = torch.empty(8192, dtype=torch.bfloat16).as_strided((1, 2, 16, 64), strides)
    assert program.in_rows(x) is in_rows


def test_a_box_of_a_whole_row_has_eight_heads_columns_together(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[tuple[int, int, int], ...]] = []
    monkeypatch.setattr(program, "_tensor_map", lambda _pointer, _dtype, dimensions: found.append(dimensions))
    x = torch.arange(2 * 3 * 16 * 128, dtype=torch.int16).view(2, 3, 16, 128)
    program.tensor_map(x, heads=8, whole=True)
    (dimensions,) = found
    sizes, strides, box = zip(*dimensions, strict=True)
    assert box == (64, 8, 2, 1, 1)
    all_of_it = x.view(-1).as_strided(sizes[::-1], strides[::-1])
    assert all_of_it.numel() == x.numel()
    # The second eight heads of batch 1's token 2: box (0, 0, 0, 5, 1).
    heads = x[1, 2, 8:].view(8, 2, 64).transpose(0, 1)
    assert torch.equal(all_of_it[1, 5], heads)


@pytest.mark.parametrize("rows", [64, 128])
def test_a_box_by_lane_has_four_neighbours_in_a_lanes_columns(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[tuple[int, int, int], ...]] = []
    monkeypatch.setattr(program, "_tensor_map", lambda _pointer, _dtype, dimensions: found.append(dimensions))
    B, N, H, dim = 2, 3 * rows - 1, 2, 64
    x = torch.arange(B * N * H * dim + forward.ROWS_BEYOND * H * dim)[: B * N * H * dim].view(B, N, H, dim)
    program.tensor_map(x, rows=rows, by_lane=True)
    sizes, strides, box = zip(*found[0], strict=True)
    assert box == (128 // 8, 2, 4, rows // 8, 1)
    # The second tile of head 1 in batch 0: box (dim, 0, 4, 0, 0). Rows are the other dimensions, the first one fastest.
    tile = x.as_strided(sizes[::-1], strides[::-1])[0, :, 4:8, :, dim : dim + 16].reshape(rows, 16)
    for row in range(rows):
        p, h, t, i = row // 16, row // 8 % 2, row // 2 % 4, row % 2
        assert torch.equal(tile[row], x[0, rows + rows // 4 * t + 4 * p + 2 * h + i, 1, :16])


@pytest.mark.parametrize("w", [1, 30, 57, 64, 65, 100, 512, 577])
@pytest.mark.parametrize("hpg", [1, 5, 12, 16])
def test_a_windows_tiles_hold_all_its_keys_and_no_tile_more(hpg: int, w: int) -> None:
    p = replace(problem(hpg), w=w)
    tokens, rest = 2 * (64 // hpg), dict(combine._constants(p)[0])["REST"]
    keys, whole = w + tokens - 1, (w + tokens - 2) // 64
    assert rest % 16 == 0
    assert keys - 16 < 64 * whole + rest <= 64 * (whole + 1) or (whole == 0 and rest == 64)
    assert 64 * whole + rest >= keys


def test_compressed_keys_have_room_behind_them_or_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem(S=100)
    monkeypatch.setattr(launch_forward, "compress_kernel", mock.MagicMock())
    kc = launch_forward.compress(torch.empty(1, 100, 2, 128, dtype=torch.bfloat16, device="meta"), p)
    assert forward._with_rows_beyond(kc) is kc
    other = torch.randn(1, 5, 2, 128)
    roomy = forward._with_rows_beyond(other)
    assert roomy.untyped_storage().nbytes() >= (5 + forward.ROWS_BEYOND) * 2 * 128 * 4
    assert torch.equal(roomy, other)
    assert torch.equal(forward._with_rows_beyond(roomy[:, :, :1]), other[:, :, :1])


def test_a_dimension_of_one_may_have_any_stride() -> None:
    assert program.strided(torch.empty(4096, dtype=torch.bfloat16).as_strided((1, 2, 2, 8), (3, 128, 64, 1)))


@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("n", [64, 80, 128])
def test_a_product_names_each_of_its_operands_once(n: int, registers: bool) -> None:
    text = products([n], half=False)
    one = text.split("template")[2 if registers else 1]
    assert f"m64n{n}k16.f32.bf16.bf16" in one
    assert f"float (&d)[{n // 2}]" in one
    named = sorted(int(i) for i in re.findall(r"%(\d+)", one))
    # Accumulators, a (four registers or a descriptor), b, whether to accumulate, and how a and b, or b, lie.
    assert named == list(range(n // 2 + (4 + 3 if registers else 1 + 4)))
    assert len(re.findall(r'"\+f"\(d\[\d+\]\)', one)) == n // 2


def laid_out(name: str, constants: program.Constants, tmp_path: Path) -> tuple[int, int]:
    """Where the barriers of a kernel begin, or its shared memory ends, and how large its arguments are, by a host
    compiler."""
    text = (Path(program.__file__).parent / f"{name}.cu").read_text(encoding="utf-8")
    layout = "\n".join(re.findall(r"^(?:constexpr|static_assert)[^;]*;", text, re.MULTILINE))
    arguments = re.search(r"struct Arguments \{.*?\n\};", text, re.DOTALL)
    assert arguments
    end = "AT_BARRIERS" if "AT_BARRIERS" in text else "WARPS * ROW * 4"
    source = tmp_path / "layout.cpp"
    source.write_text(
        "#include <cstdio>\ntypedef unsigned short u16;\n"
        "struct alignas(64) TensorMap { unsigned long long words[16]; };\n"
        + "".join(f"#define {key} {value}\n" for key, value in constants)
        + f'{layout}\n{arguments[0]}\nint main() {{ std::printf("%d %zu", {end}, sizeof(Arguments)); }}\n'
    )
    subprocess.run(["g++", "-std=c++17", "-w", "-o", tmp_path / "layout", source], check=True)
    found = subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True).stdout.split()
    return int(found[0]), int(found[1])


@pytest.mark.parametrize("hpg", [1, 5, 16])
def test_records_are_as_large_as_the_source_has_them(hpg: int, tmp_path: Path) -> None:
    p = problem(hpg)
    text = (Path(program.__file__).parent / "strips.cuh").read_text(encoding="utf-8")
    constants = "\n".join(re.findall(r"^constexpr int [^;]*;", text, re.MULTILINE))
    source = tmp_path / "records.cpp"
    shown = 'int main() { std::printf("%d %d", SPAN, RECORD); }'
    source.write_text(f"#include <cstdio>\n#define HPG {hpg}\n#define D {p.d}\n{constants}\n{shown}\n")
    subprocess.run(["g++", "-std=c++17", "-o", tmp_path / "records", source], check=True)
    found = subprocess.run([tmp_path / "records"], check=True, capture_output=True, text=True).stdout.split()
    assert tuple(map(int, found)) == forward._records(p)


def test_a_profile_has_the_choice_of_blocks_apart_from_the_compressed_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    p, opened, launched = problem(16), [], []

    @contextlib.contextmanager
    def span(name: str) -> Iterator[None]:
        opened.append(name)
        yield
        opened.pop()

    monkeypatch.setattr(forward, "span", span)
    monkeypatch.setattr(forward, "launch", lambda name, *_, **__: launched.append((name, *opened)))
    monkeypatch.setattr(forward, "tensor_map", lambda *_, **__: bytes(128))
    q, *keys = (torch.empty(1, n, h, 128, dtype=p.dtype, device="meta") for n, h in ((4096, 32), (255, 2), (255, 2)))
    forward.compressed_and_chosen(q, *keys, p)
    assert launched == [("dense_forward", "nsa.cmp"), ("choose", "nsa.sel.ranges_v2")]


@pytest.mark.parametrize("of", SERVED)
@pytest.mark.parametrize("name", KERNELS)
def test_launches_agree_with_the_sources_layout(name: str, of: tuple[int, int, int], tmp_path: Path) -> None:
    assert shutil.which("g++"), "this test asks a host compiler: apt-get install g++ (`.ci/run` does it)"
    p = problem(*of)
    asked, given = KERNELS[name]
    constants, shared = asked(p)
    barriers, arguments = laid_out(name.split()[0], constants, tmp_path)
    stages, ring = dict(constants).get("STAGES", 0), dict(constants).get("RING", 0)
    n_barriers = {
        "dense_backward": 1 + 4 * stages,
        "gather_backward": 2 + 3 * stages,
        "dense_forward": 2 * dict(constants).get("QUERIES", 0) + 4 * stages,
        "choose": 0,
        "combine": 6 + 4 * stages + 2 * ring + 4 * dict(constants).get("KEPT", 0),
        "gather_forward": 4 + 2 * stages,
        "window_backward": 1 + 4 * stages,
    }[name.split()[0]]
    assert shared == barriers + 8 * n_barriers
    assert shared <= SHARED_LIMIT
    assert ctypes.sizeof(given) == arguments


@pytest.mark.parametrize("name", KERNELS)
def test_a_source_holds_all_that_is_compiled(name: str) -> None:
    text = program.source(name.split()[0], KERNELS[name][0](problem(16))[0])
    assert "#include" not in text, "what a kernel is kept by on disk is its source"
    assert ("a.tile_offsets" in text) == name.startswith("gather")


def assembled(text: str) -> str:
    """What the assembler says of a source, which must compile."""
    from cuda.bindings import nvrtc as compiler

    made = nvrtc.check(compiler.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], []))
    options = [b"--gpu-architecture=sm_90a", b"--std=c++17", b"--ptxas-options=-v"]
    status = compiler.nvrtcCompileProgram(made, len(options), options)
    said = b" " * nvrtc.check(compiler.nvrtcGetProgramLogSize(made))
    nvrtc.check(compiler.nvrtcGetProgramLog(made, said))
    compiler.nvrtcDestroyProgram(made)
    assert not int(status[0]), said.decode()
    return said.decode()


@pytest.mark.skipif(nvrtc.missing() is not None, reason="without NVRTC nothing can be compiled")
@pytest.mark.parametrize("of", SERVED)
def test_sources_compile_for_hopper_to_products_that_run_side_by_side(of: tuple[int, int, int]) -> None:
    """Where the assembler cannot keep products in flight it waits for each, and says so; a spill is a round trip."""
    p = problem(*of)
    for name, (asked, _) in KERNELS.items():
        said = assembled(program.source(name.split()[0], asked(p)[0]))
        assert "Performance Loss" not in said, (name, said)
        spilled = re.search(r"(\d+) bytes spill stores", said)
        assert spilled, said
        assert int(spilled[1]) <= MOST_SPILLED, (name, said)


def test_tritons_kernels_beside_them_are_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = {one.name: one for one in record(Shape(8192, 64, 4, 128, 128))}
    assert {"rows_kernel", "finish_kernel"} < wide.keys()
    assert wide["rows_kernel"].arguments["ALL"]
    assert wide["dq_kernel"].arguments["SUMS"] is False
    # Blocks of other sizes leave the window to Triton's, which goes on from the sums.
    other = record(Shape(8192, 64, 4, 128, 128, sizes=(32, 16, 32, 16, 512)))
    assert {bool(one.arguments["SUMS"]) for one in other if one.name == "dq_kernel"} == {False, True}
    older = record(Shape(8192, 64, 4, 128, 128, capability=80))
    assert not any(one.arguments.get("SUMS") for one in older)
    small = Shape(2048, 12, 2, 64, 64)
    beside = {one.name for one in record(small, fallback=False)}
    assert {"gather_kernel", "combine_kernel", "finish_kernel"} < beside, "where Triton's are faster"
    assert not beside & {"compressed_kernel", "select_kernel", "gather_backward_kernel", "dq_kernel", "dkv_kernel[0]"}
    assert beside < {one.name for one in record(small)}
    other = replace(small, capability=80)
    assert len(record(other, fallback=False)) == len(record(other)), "nothing else runs there"
    monkeypatch.setenv("HOPPER_KERNELS", "0")
    plain = {one.name: one for one in record(Shape(8192, 64, 4, 128, 128))}
    assert plain["dq_kernel"].arguments["SUMS"] is False
    assert "rows_kernel" not in plain


def test_a_span_of_tokens_fits_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problem(16, S=65536).span == 4096
    assert problem(16, dk=192, S=65536).span == 4096
    assert problem(4, S=65536).span == 16384
    assert problem(6, 64, 64, S=65536).span == 8192
    assert problem(16, S=100).span == 100
    # Triton's kernels keep partial sums for each list: theirs are as few as can be.
    assert problem(16, S=65536, deterministic=True).span == problem(3, S=65536).span == 65536
    assert problem(16, S=8192).n_lists == 2 * problem(16, S=8192).n_blocks
    monkeypatch.setenv("HOPPER_KERNELS", "0")
    assert problem(16, S=65536).span == 65536
