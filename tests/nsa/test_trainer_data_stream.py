"""Streams: every document on exactly one rank, held-out ones on none, and a position that brings all of it back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nsa.config import UnreachableError
from nsa.data import BatchLoader, DataError, open_tokenizer
from nsa.data.local import is_held_out
from nsa.data.stream import Cut, HeldOutWindows, Lane, Patience, StreamWindows

BYTES = open_tokenizer("byte")
SEQ_LEN = 16


class Numbered:
    """Documents `lane`, `lane + lanes`, … of `n`, as text; `failures` is asked before each document is given."""

    def __init__(self, n: int, lane: int, lanes: int, failures: Callable[[int], None] = lambda number: None) -> None:
        self._numbers, self._next, self._failures = range(lane, n, lanes), 0, failures

    def __iter__(self) -> Iterator[str]:
        for number in self._numbers[self._next :]:
            self._failures(number)
            self._next += 1
            yield f"<{number}>" + "x" * (number % 40)

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._next = state["next"]


def patience(timeout_s: float = 5.0) -> Patience:
    return Patience(timeout_s, is_transient=lambda error: isinstance(error, ConnectionError), what="the test's stream")


def stream(
    *, n: int = 60, lanes: int = 1, batch_size: int = 2, val_fraction: float = 0.0, wait: Patience | None = None,
    failures: Callable[[int], None] = lambda number: None,
) -> StreamWindows:  # fmt: skip
    wait = wait or patience()

    def open_lane(lane: int) -> Lane:
        cut = Cut(BYTES, SEQ_LEN, val_fraction)
        return Lane(lambda: Numbered(n, lane, lanes, failures), wait, cut, what=f"lane {lane}")

    return StreamWindows(open_lane, wait, lanes=lanes, batch_size=batch_size)


def loader(source: StreamWindows, *, rank: int = 0, world: int = 1, accum: int = 1, **more: Any) -> BatchLoader:
    settings: dict[str, Any] = {"batch_size": 2, "prefetch": 2, "timeout_s": 5.0} | more
    return BatchLoader(source, rank=rank, world=world, accum=accum, **settings)


def take(source: BatchLoader, n: int) -> list[np.ndarray]:
    return [source.next().numpy() for _ in range(n)]


def text_of(windows: np.ndarray) -> str:
    """The text of consecutive windows, each of which begins with the last token of the one before."""
    ids = [*windows[0].tolist(), *(i for window in windows[1:] for i in window[1:].tolist())]
    return "".join("|" if i == BYTES.eos_id else chr(i) for i in ids)


def test_documents_follow_each_other_with_an_end_mark_and_no_token_lost() -> None:
    source = stream(n=30)
    windows = np.concatenate([source.batch([2 * i, 2 * i + 1]) for i in range(15)])
    whole = "".join(f"<{i}>{'x' * (i % 40)}|" for i in range(30))
    assert text_of(windows) == (whole * 2)[: 30 * SEQ_LEN + 1]  # read again from the start at the end


def test_lanes_give_one_process_the_steps_of_two() -> None:
    """Accumulation 2 on one process and two processes with 1 train on the same samples, in the same step."""
    one = loader(stream(lanes=2), accum=2)
    two = [loader(stream(lanes=2), rank=rank, world=2) for rank in (0, 1)]
    for _ in range(6):
        np.testing.assert_array_equal(np.concatenate(take(one, 2)), np.concatenate([take(x, 1)[0] for x in two]))
    for each in (one, *two):
        each.close()


def test_held_out_documents_are_validated_on_and_never_trained_on() -> None:
    held = {i for i in range(60) if is_held_out(f"<{i}>" + "x" * (i % 40), 0.3)}
    assert 5 < len(held) < 55
    source = stream(val_fraction=0.3)
    trained = text_of(np.concatenate([source.batch([0, 1]) for _ in range(40)]))
    assert {i for i in range(60) if f"<{i}>" in trained} == set(range(60)) - held
    val = HeldOutWindows(lambda: Numbered(60, 0, 1), patience(), Cut(BYTES, SEQ_LEN, 0.3), what="all")
    first = val.batch([0, 1])
    seen = text_of(val.batch(range(8)))
    assert all(i in held for i in range(60) if f"<{i}>" in seen)
    np.testing.assert_array_equal(val.batch([0, 1]), first)
    assert val.batch([10_000]).shape == (1, SEQ_LEN + 1)  # a short split gives its windows again


@pytest.mark.parametrize("at_step", [0, 1, 7, 23])
def test_a_position_brings_back_the_same_samples(at_step: int) -> None:
    """Also behind the end of the stream, on another number of processes, and whatever was prefetched."""
    whole = loader(stream(lanes=2), accum=2)
    expected = take(whole, 2 * (at_step + 6))[2 * at_step :]
    position: dict[int, Any] = {}
    for rank in (0, 1):
        part = loader(stream(lanes=2), rank=rank, world=2)
        take(part, at_step)
        position |= part.position
        part.close()
    source = stream(lanes=2)
    source.seek(position)
    resumed = loader(source, accum=2, start_step=at_step)
    np.testing.assert_array_equal(take(resumed, 12), expected)
    for each in (whole, resumed):
        each.close()


def test_a_lost_connection_is_taken_up_where_it_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsa.data.stream.FIRST_PAUSE_S", 0.01)
    fails = {3: 1, 17: 2, 40: 1}  # how often the stream breaks before these documents

    def fail(number: int) -> None:
        if fails.get(number):
            fails[number] -= 1
            raise ConnectionError(f"lost before {number}")

    broken, sound = loader(stream(failures=fail)), loader(stream())
    np.testing.assert_array_equal(take(broken, 40), take(sound, 40))
    assert not any(fails.values())
    broken.close()
    sound.close()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_stream_that_stays_away_ends_in_time_with_its_last_failure(prefetch: int) -> None:
    def fail(number: int) -> None:
        raise ConnectionError("refused")

    wait = patience(0.6)
    source = loader(stream(failures=fail, wait=wait), prefetch=prefetch, timeout_s=0.6)
    began = time.monotonic()
    with pytest.raises(UnreachableError, match=r"the test's stream.*ConnectionError: refused"):
        source.next()
    assert time.monotonic() - began < 5
    source.close()


def test_a_stream_that_hangs_is_unreachable_not_slow() -> None:
    never = threading.Event()
    source = loader(stream(failures=lambda number: never.wait(10) and None), timeout_s=0.3)
    with pytest.raises(UnreachableError, match=r"loader_timeout_s=0\.3: no answer from the test's stream"):
        source.next()
    began = time.monotonic()
    source.close()
    assert time.monotonic() - began < 5
    never.set()


def test_a_lasting_failure_is_not_tried_again() -> None:
    def fail(number: int) -> None:
        raise DataError("no such dataset")

    source = loader(stream(failures=fail))
    with pytest.raises(DataError, match="no such dataset"):
        source.next()
    source.close()


def test_a_lane_without_documents_says_so_instead_of_turning_in_circles() -> None:
    source = stream(n=2, lanes=3)
    source.batch([0, 1])
    with pytest.raises(DataError, match="lane 2 holds no document to train on"):
        source.batch([4, 5])
    with pytest.raises(DataError, match="lane 0 holds no document to train on"):
        stream(val_fraction=1.0).batch([0, 1])


def test_nothing_held_out_names_the_setting() -> None:
    val = HeldOutWindows(lambda: Numbered(5, 0, 1), patience(), Cut(BYTES, SEQ_LEN, 0.0), what="all")
    with pytest.raises(DataError, match="raise val_fraction=0"):
        val.batch([0])


def test_held_out_windows_say_whom_they_wait_for() -> None:
    over = threading.Event()

    def hang(number: int) -> None:
        over.wait(20)

    source = HeldOutWindows(
        lambda: Numbered(60, 0, 1, hang), patience(), Cut(BYTES, SEQ_LEN, 0.5), what="the test's stream"
    )
    batches = BatchLoader(source, rank=0, world=1, batch_size=2, accum=1, prefetch=1, batches=1, timeout_s=0.1)
    with pytest.raises(UnreachableError, match="no answer from the test's stream"):
        batches.next()
    over.set()
    batches.close()


def test_patience_grows_its_pauses_and_begins_anew_when_something_came(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, pauses_s = [1.0], list[float]()

    def pause(seconds: float) -> bool:
        pauses_s.append(seconds)
        now_s[0] += seconds
        return False

    wait = patience(10.0)
    monkeypatch.setattr("nsa.data.stream.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(wait, "_stopped", SimpleNamespace(wait=pause))
    for _ in range(3):
        wait.failed(ConnectionError("lost"))
    assert pauses_s == [0.5, 1.0, 2.0]
    with wait:
        assert wait.waiting_for == "the test's stream (last failure: ConnectionError: lost)"
    assert wait.waiting_for is None
    now_s[0] += 100
    pauses_s.clear()
    for _ in range(4):
        wait.failed(ConnectionError("lost"))
    with pytest.raises(UnreachableError, match=r"tried for 7\.5 s \(loader_timeout_s=10\)"):
        wait.failed(ConnectionError("lost"))
    assert pauses_s == [0.5, 1.0, 2.0, 4.0]
