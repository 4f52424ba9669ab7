"""The launches around Hopper's own kernels, with functions of torch in the place of these: the same arguments, the same
layouts, the same sums."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from nsa.kernels import launch_backward, nsa_attention_triton, problem
from nsa.kernels.hopper import launch, window

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
SIZES = {"l": 8, "d": 4, "l_sel": 8, "n_sel": 5, "w": 12}


class Tensors:
    """Tensors behind the addresses and tensor maps of a launch."""

    def __init__(self) -> None:
        self.mapped: list[Tensor] = []
        self.at: dict[int, Tensor] = {}

    def tensor_map(self, x: Tensor, **_: int) -> bytes:
        self.mapped.append(x)
        return (len(self.mapped) - 1).to_bytes(128, "little")

    def pointers(self, *groups: Iterable[Tensor]) -> list[tuple[int, ...]]:
        listed = [tuple(some) for some in groups]
        self.at |= {x.data_ptr(): x for some in listed for x in some}
        return [tuple(x.data_ptr() for x in some) for some in listed]

    def maps(self, given: Any) -> list[Tensor]:
        return [self.mapped[given.maps[16 * i]] for i in range(len(given.maps) // 16)]


def gradients(
    q: Tensor, do: Tensor, k: Tensor, v: Tensor, shift: Tensor, delta: Tensor, seen: Tensor | None, scale2: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of queries, keys and values from rows ``q [n, dk]`` and keys ``k [m, dk]``; none is scaled."""
    sign = 1 - 2 * (shift.contiguous().view(torch.int32) & 1)
    p = torch.exp2(q @ k.T * scale2 - shift[:, None]) * sign[:, None]
    p = p if seen is None else torch.where(seen, p, 0.0)
    ds = p * (do @ v.T - delta[:, None])
    return ds @ k, ds.T @ q, p.T @ do


def dense_backward(tensors: Tensors, given: Any, of: dict[str, int]) -> None:
    q, do, k, v, dq = tensors.maps(given)
    shift, delta = (tensors.at[p].view(q.shape[0] * q.shape[2], -1) for p in given.rows)
    dk, dv = (tensors.at[p] for p in given.sums)
    n_tiles, n_keys, H, G, first, heads, _, _ = given.sizes
    assert shift.shape[1] == n_tiles * of["BM"]
    S, per_group = q.shape[1], H // G
    seen = torch.arange(n_keys)[None, :] * of["D"] + of["L"] <= torch.arange(S)[:, None] + 1
    for here in range(heads):
        bg = first + here // per_group
        b, g, i = bg // G, bg % G, here % per_group
        h = g * per_group + i
        row = b * H + h
        some = (q[b, :, h], do[b, :, h], k[b, :, g], v[b, :, g], shift[row, :S], delta[row, :S])
        a, c, e = gradients(*some, seen, given.scales[1])
        dq[bg - first, :, i] += a
        dk[0, bg] += c * given.scales[0]
        dv[0, bg] += e


def gather_backward(tensors: Tensors, given: Any, of: dict[str, int]) -> None:
    q, do, k, v, dq = tensors.maps(given)
    shift, delta = (tensors.at[p].view(q.shape[:3]) for p in given.rows)
    pairs, offsets, tile_offsets, tile_block = (tensors.at[p] for p in given.index)
    dk, dv = (tensors.at[p] for p in given.sums)
    _, _, G, blocks, _, _, _, list_from, list_end, first, end, n_parts, pair_from = given.sizes
    for bg in range(first, end):
        b, heads = bg // G, slice(bg % G * of["HPG"], (bg % G + 1) * of["HPG"])
        for tile in range(int(tile_offsets[bg, list_from]), int(tile_offsets[bg, list_end])):
            at = int(tile_block[bg, tile])
            begin = int(offsets[bg, at]) + (tile - int(tile_offsets[bg, at])) * of["TT"]
            keys = slice(at % blocks * of["LS"], (at % blocks + 1) * of["LS"])
            for pair in pairs[bg, begin : min(begin + of["TT"], int(offsets[bg, at + 1]))].tolist():
                t = pair // of["NTOP"]
                rows = (q[b, t, heads], do[b, t, heads], k[b, keys, bg % G], v[b, keys, bg % G])
                a, c, e = gradients(*rows, shift[b, t, heads], delta[b, t, heads], None, given.scale2)
                if of["PARTS"]:
                    assert pair_from <= pair < pair_from + n_parts
                    dq[0, (bg - first) * n_parts + pair - pair_from] = a
                else:
                    dq[bg - first, t] += a
                dk[bg - first, keys] += c
                dv[bg - first, keys] += e


def window_backward(tensors: Tensors, given: Any, of: dict[str, int]) -> None:
    q, do, *streams, dq = tensors.maps(given)
    rows = [tensors.at[p].view(q.shape[0] * q.shape[2], -1) for p in given.rows]
    dk, dv = (tensors.at[p] for p in given.keys[:2]), (tensors.at[p] for p in given.keys[2:])
    S, H, G, first, n_tiles, _ = given.sizes
    assert rows[0].shape[1] == n_tiles * of["BM"]
    t, n = torch.arange(S)[:, None], torch.arange(S)[None, :]
    forced = (n // of["LS"] >= t // of["LS"] - 1) | (n < of["LS"])
    for i, (seen, to_k, to_v) in enumerate(zip((n > t - of["W"], forced), dk, dv, strict=True)):
        k, v = streams[2 * i : 2 * i + 2]
        for row in range(len(dq) * of["HPG"]):
            pair, head = row // of["HPG"], row % of["HPG"]
            if first + pair >= q.shape[0] * G:
                break
            b, g = (first + pair) // G, (first + pair) % G
            h = g * of["HPG"] + head
            some = (q[b, :, h], do[b, :, h], k[b, :, g], v[b, :, g], rows[i][b * H + h, :S], rows[2 + i][b * H + h, :S])
            a, c, e = gradients(*some, seen & (n <= t), given.scale2)
            dq[pair, :, head] += a
            to_k[pair] += c
            to_v[pair] += e


KERNELS: dict[str, Callable[[Tensors, Any, dict[str, int]], None]] = {
    "dense_backward": dense_backward, "gather_backward": gather_backward, "window_backward": window_backward,
}  # fmt: skip


SHAPE = (2, 40, 4, 2, 16)
"""B, S, H, G and channels of values."""


def inputs(dk: int) -> list[Tensor]:
    B, S, H, G, dim = SHAPE
    gen = torch.Generator().manual_seed(0)
    shapes = [(B, S, H, dk), *[(B, S, G, dk), (B, S, G, dim)] * 3, (B, S, H, 3)]
    return [torch.randn(shape, generator=gen).requires_grad_() for shape in shapes]


def found(x: list[Tensor]) -> tuple[Tensor, ...]:
    o = nsa_attention_triton(*x, **SIZES)
    assert isinstance(o, Tensor)
    return torch.autograd.grad(o, x, torch.randn(o.shape, generator=torch.Generator().manual_seed(1)))


@functools.cache
def by_triton(dk: int) -> tuple[Tensor, ...]:
    """Asked for before doubles are put in."""
    return found(inputs(dk))


def backward_by_doubles(
    monkeypatch: pytest.MonkeyPatch, *, dk: int, turns: int, parts: bool = True, gathers: bool = True,
    windows: bool = True, scratch: int = 4 << 30, submit: Callable[[Callable[[], None]], None] | None = None,
) -> list[str]:  # fmt: skip
    """Put doubles in the place of the kernels, hold what they find against Triton's kernels, and return which ran.

    ``submit`` takes what is launched; without it a launch runs at once.
    """
    B, _, H, G, _ = SHAPE
    wanted = by_triton(dk)
    tensors, ran = Tensors(), []

    def run(name: str, constants: Any, shared: int, blocks: int, given: Any, device: torch.device) -> None:
        def kernel() -> None:
            ran.append(name)
            KERNELS[name](tensors, given, dict(constants) | {"LS": SIZES["l_sel"]})

        (submit or (lambda x: x()))(kernel)

    monkeypatch.setattr(launch_backward, "why_no_wgmma", lambda *_: None)
    monkeypatch.setattr(launch_backward, "why_no_gather", lambda *_: None if gathers else "off")
    monkeypatch.setattr(launch_backward, "why_no_window", lambda *_, **__: None if windows else "off")
    for where in (launch, launch_backward):
        monkeypatch.setattr(where, "sums_queries", lambda _: not parts)
    for module in (launch, window):
        monkeypatch.setattr(module, "tensor_map", tensors.tensor_map)
        monkeypatch.setattr(module, "pointers", tensors.pointers)
        monkeypatch.setattr(module, "launch", run)
    monkeypatch.setattr(problem, "_SCRATCH_BYTES", scratch)
    # Spans of 16 of the 40 tokens, and room for the partial results of all three or of two, one beside the other.
    monkeypatch.setattr(problem, "gathers_by_wgmma", lambda *_: gathers)
    monkeypatch.setattr(problem, "choose_span", lambda *_: 16)
    pairs = 1 if scratch == 1 else B * G
    monkeypatch.setattr(problem, "_TURN_BYTES", {1: 3, 3: 2}[turns] * pairs * 16 * 2 * (H // G) * dk * 4)
    for a, b in zip(found(inputs(dk)), wanted, strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm()
    return ran


@pytest.mark.parametrize(
    ("windows", "dk"),
    [(True, 16), (False, 16), (True, 48), (False, 48)],
    ids=["window", "window by Triton", "window, keys in two parts", "keys in two parts"],
)
@pytest.mark.parametrize(
    ("parts", "gathers", "scratch", "turns"),
    [
        (True, True, 4 << 30, 1),
        (True, True, 4 << 30, 3),
        (True, True, 1, 3),
        (False, True, 1, 3),
        (True, False, 1, 3),
    ],
    ids=["partial results", "span by span", "pair by pair", "sums", "Triton gathers pair by pair"],
)
def test_gradients_equal_those_of_tritons_kernels(
    parts: bool, gathers: bool, scratch: int, turns: int, windows: bool, dk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = backward_by_doubles(
        monkeypatch, dk=dk, turns=turns, parts=parts, gathers=gathers, windows=windows, scratch=scratch
    )
    B, _, _, G, _ = SHAPE
    runs = B * G if scratch == 1 and (parts or not gathers) else 1
    gathered = ["gather_backward"] * (turns if parts and windows else 1) * gathers
    assert ran == ["dense_backward", *["window_backward"] * windows, *gathered] * runs


class Stream:
    """Work in order, none of which has run yet: functions, events to tell, and events to wait for."""

    def __init__(self) -> None:
        self.work: deque[Callable[[], None] | tuple[str, list[bool]]] = deque()

    def record_event(self) -> list[bool]:
        self.work.append(("tell", event := [False]))
        return event

    def wait_event(self, event: list[bool]) -> None:
        self.work.append(("wait", event))

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def step(self) -> bool:
        """Run the next piece of work, unless there is none or it waits for an event."""
        if not self.work or (isinstance(self.work[0], tuple) and self.work[0][0] == "wait" and not self.work[0][1][0]):
            return False
        item = self.work.popleft()
        if isinstance(item, tuple):
            item[1][0] = True
        else:
            item()
        return True


@pytest.mark.parametrize("eager", ["main", "second"])
@pytest.mark.parametrize(("turns", "scratch"), [(1, 4 << 30), (3, 4 << 30), (3, 1)])
def test_gradients_do_not_depend_on_the_stream_that_is_ahead(
    eager: str, turns: int, scratch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stream runs as far as its events let it before the other one takes its next step."""
    by_triton(16)
    streams = {"main": Stream(), "second": Stream()}
    current = [streams["main"]]
    order = [streams[eager], *(x for name, x in streams.items() if name != eager)]

    class Cuda:
        @staticmethod
        def current_stream(device: torch.device) -> Stream:
            return current[-1]

        @staticmethod
        @contextmanager
        def stream(x: Stream) -> Iterator[None]:
            current.append(x)
            yield
            current.pop()

    def later(function: Callable[..., Any]) -> Callable[..., None]:
        def call(*arguments: Any, **options: Any) -> None:
            current[-1].work.append(lambda: function(*arguments, **options))

        return call

    def run_all(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            while any(x.step() for x in order):
                pass
            assert not any(x.work for x in order)
            return function(*arguments, **options)

        return call

    faked = SimpleNamespace(**{name: getattr(torch, name) for name in ("empty", "float32")}, cuda=Cuda)
    monkeypatch.setattr(launch_backward, "torch", faked)
    monkeypatch.setattr(launch_backward, "second_stream", lambda _: streams["second"])
    monkeypatch.setattr(launch_backward, "_finish", later(launch_backward._finish))
    monkeypatch.setattr(launch.HopperBackward, "begin", later(launch.HopperBackward.begin))
    monkeypatch.setattr(launch_backward._Parts, "compressed_keys", run_all(launch_backward._Parts.compressed_keys))
    ran = backward_by_doubles(
        monkeypatch, dk=16, turns=turns, scratch=scratch, submit=lambda kernel: current[-1].work.append(kernel)
    )
    assert sorted(set(ran)) == sorted(KERNELS)
