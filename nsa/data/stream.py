"""Documents that can only be read in order, cut into samples and shared among the ranks.

A stream is cut into lanes, and each lane into windows of tokens. Sample numbers keep their meaning (see nsa.data):
micro-batch number c of the run, counted over all ranks, is read from lane c mod `lanes`. With a multiple of the number
of processes as `lanes`, a rank reads its own lanes alone, and the same lanes give the same steps to one process with
accumulation 2 and to two processes. A stream cannot seek to a sample directly: it has a position instead, one per
lane, which a checkpoint stores.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from nsa.config import UnreachableError
from nsa.data.local import is_held_out
from nsa.data.source import DataError
from nsa.data.tokenizer import Tokenizer

__all__ = ["Cut", "Documents", "HeldOutWindows", "Lane", "OpenDocuments", "Patience", "StreamWindows"]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0


class Documents(Protocol):
    """Documents in a fixed order; reading can resume at a saved position."""

    def __iter__(self) -> Iterator[str]:
        """The documents from the loaded position on, by default from the first."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The position after the document that was read last: plain values only."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position. Raises DataError when it belongs to other documents."""
        ...


OpenDocuments = Callable[[int, int], Documents]
"""Opens lane `lane` of `lanes`; may reach over the network."""


class Patience:
    """How long a failing source is tried again: with growing pauses, for `timeout_s` from the first failure on.

    `waiting_for` says what the reading thread is waiting for, for the error of a loader whose time is up.
    """

    def __init__(self, timeout_s: float, *, is_transient: Callable[[Exception], bool], what: str) -> None:
        self._timeout_s, self._is_transient, self._what = timeout_s, is_transient, what
        self._failing_since_s: float | None = None
        self._pause_s = FIRST_PAUSE_S
        self._last_error = ""
        self._stopped = threading.Event()
        self._busy = False

    @property
    def waiting_for(self) -> str | None:
        """What is being waited for, with the last failure if there was one; None while nothing is."""
        if not self._busy:
            return None
        return f"{self._what}{f' (last failure: {self._last_error})' if self._last_error else ''}"

    def __enter__(self) -> Patience:
        """A call that may take long begins."""
        self._busy = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """The wait ended. After a failure it continues until a document arrives."""
        if kind is None or issubclass(kind, StopIteration):
            self._busy, self._failing_since_s, self._pause_s, self._last_error = False, None, FIRST_PAUSE_S, ""

    def failed(self, error: Exception) -> None:
        """Pause before the next attempt. Raises `error` if it is lasting, UnreachableError if time is up."""
        if not self._is_transient(error):
            raise error
        now_s = time.monotonic()
        since_s = self._failing_since_s = self._failing_since_s or now_s
        self._last_error = f"{type(error).__name__}: {error}"
        if now_s - since_s + self._pause_s > self._timeout_s or self._stopped.wait(self._pause_s):
            raise UnreachableError(
                f"{self._what} cannot be reached: tried for {now_s - since_s:.1f} s "
                f"(loader_timeout_s={self._timeout_s:g}), last failure {self._last_error}. Check the connection, "
                "HF_ENDPOINT and HF_HUB_OFFLINE, or train on a local copy (data=local)"
            ) from error
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def stop(self) -> None:
        """End a pause, and with it the attempts."""
        self._stopped.set()


class _Reader:
    """Documents of one lane, read again from the start at the end, whatever fails in between.

    A failed stream is opened again at the last saved position, and what had been read since is skipped.
    """

    def __init__(self, open_documents: Callable[[], Documents], patience: Patience) -> None:
        self._open, self._patience = open_documents, patience
        self._documents: Documents | None = None
        self._iterator: Iterator[str] | None = None
        self._noted: dict[str, Any] | None = None
        self._read_since_note = 0
        self.epoch = 0

    def next(self) -> str | None:
        """The next document, or None once at each end of the stream."""
        while True:
            try:
                with self._patience:
                    text = next(self._reopened() if self._iterator is None else self._iterator)
                self._read_since_note += 1
                return text
            except StopIteration:
                self._documents = self._iterator = self._noted = None
                self._read_since_note = 0
                self.epoch += 1
                return None
            except Exception as error:  # noqa: BLE001 - of another package; `failed` raises what is lasting
                self._documents = self._iterator = None
                self._patience.failed(error)

    def _reopened(self) -> Iterator[str]:
        self._documents = self._open()
        if self._noted is not None:
            self._documents.load_state_dict(self._noted)
        iterator = iter(self._documents)
        for _ in range(self._read_since_note):
            next(iterator)
        self._iterator = iterator
        return iterator

    def note(self) -> dict[str, Any] | None:
        """The place reached: plain values, or None at the very beginning of the stream."""
        if self._documents is not None and self._read_since_note:
            self._noted, self._read_since_note = self._documents.state_dict(), 0
        return self._noted

    def seek(self, noted: dict[str, Any] | None, epoch: int) -> None:
        """Go to a noted place."""
        self._documents = self._iterator = None
        self._noted, self._read_since_note, self.epoch = noted, 0, epoch

    def close(self) -> None:
        """Drop the stream; its files and connections are closed by the code that opened them."""
        self._documents = self._iterator = None


@dataclass(frozen=True)
class Cut:
    """How documents become windows of `seq_len` + 1 tokens, and which share of them is held out of training.

    Windows start `seq_len` tokens apart: each token but the first is a target once.
    """

    tokenizer: Tokenizer
    seq_len: int
    val_fraction: float

    def holds_out(self, text: str) -> bool:
        """Whether a document belongs to the validation split."""
        return is_held_out(text, self.val_fraction)

    def ended(self, text: str) -> np.ndarray:
        """A document's tokens and the end mark, uint16."""
        tokens = self.tokenizer.encode(text)
        row = np.empty(len(tokens) + 1, np.uint16)
        row[:-1], row[-1] = tokens, self.tokenizer.eos_id
        return row


class Lane:
    """Windows over the documents of one lane that are not held out, each document ended by EOS."""

    def __init__(self, open_documents: Callable[[], Documents], patience: Patience, cut: Cut, *, what: str) -> None:
        self._reader = _Reader(open_documents, patience)
        self._cut, self._what = cut, what
        self._carry = np.empty(0, np.uint16)
        self._kept_in_epoch = 0

    def _document(self) -> str:
        while True:
            text = self._reader.next()
            if text is None:
                if not self._kept_in_epoch:
                    raise DataError(f"{self._what} holds no document to train on: use fewer lanes or another split")
                self._kept_in_epoch = 0
            elif text and not self._cut.holds_out(text):
                self._kept_in_epoch += 1
                return text

    def window(self) -> np.ndarray:
        """The next S+1 tokens, uint16."""
        seq_len = self._cut.seq_len
        parts, have = [self._carry], len(self._carry)
        while have <= seq_len:
            parts.append(self._cut.ended(self._document()))
            have += len(parts[-1])
        row = np.concatenate(parts) if len(parts) > 1 else self._carry
        self._carry = row[seq_len:]
        return row[: seq_len + 1]

    def position(self) -> dict[str, Any]:
        """Where this lane is: tensors and plain values, so that a checkpoint can be read without unpickling code."""
        return {
            "documents": self._reader.note(),
            "epoch": self._reader.epoch,
            "kept_in_epoch": self._kept_in_epoch,
            "carry": torch.from_numpy(self._carry.astype(np.int32)),
        }

    def seek(self, position: Mapping[str, Any]) -> None:
        """Go on from a `position`."""
        self._reader.seek(position["documents"], position["epoch"])
        self._kept_in_epoch = position["kept_in_epoch"]
        self._carry = position["carry"].numpy().astype(np.uint16)

    def close(self) -> None:
        """Let go of the stream."""
        self._reader.close()


class StreamWindows:
    """Training samples of a stream. Numbers have to be asked for in order, beginning where `seek` left off."""

    def __init__(self, open_lane: Callable[[int], Lane], patience: Patience, *, lanes: int, batch_size: int) -> None:
        self._open_lane, self._patience = open_lane, patience
        self._n_lanes, self._batch_size = lanes, batch_size
        self._lanes: dict[int, Lane] = {}
        self._sought: dict[int, dict[str, Any]] = {}

    @property
    def waiting_for(self) -> str | None:
        """See Patience.waiting_for."""
        return self._patience.waiting_for

    def batch(self, indices: Sequence[int]) -> np.ndarray:
        """See SampleSource.batch. Raises UnreachableError when the documents stay out of reach, DataError when there
        are none."""
        lane = self._lane(indices[0] // self._batch_size % self._n_lanes)
        return np.stack([lane.window() for _ in indices]).astype(np.int64)

    def _lane(self, number: int) -> Lane:
        if number not in self._lanes:
            self._lanes[number] = self._open_lane(number)
            if number in self._sought:
                self._lanes[number].seek(self._sought[number])
        return self._lanes[number]

    def position(self) -> dict[int, dict[str, Any]]:
        """The position of each lane that this process reads."""
        return {number: lane.position() for number, lane in sorted(self._lanes.items())}

    def seek(self, position: Mapping[int, Mapping[str, Any]]) -> None:
        """Go on from the positions of all lanes, to be called before the first batch."""
        assert not self._lanes, "samples were read already"
        self._sought = {number: dict(state) for number, state in position.items()}

    def close(self) -> None:
        """Stop waiting, and let go of the streams."""
        self._patience.stop()
        for lane in list(self._lanes.values()):
            lane.close()


class HeldOutWindows:
    """Held-out samples by number: the documents that training skips, in the order of the whole stream.

    As many are read as the numbers asked for need, once. A stream that ends before gives its windows again.
    """

    def __init__(self, open_documents: Callable[[], Documents], patience: Patience, cut: Cut, *, what: str) -> None:
        self._reader, self._patience = _Reader(open_documents, patience), patience
        self._cut, self._what = cut, what
        self._tokens = np.empty(0, np.uint16)
        self._ended = False

    @property
    def waiting_for(self) -> str | None:
        """See Patience.waiting_for."""
        return self._patience.waiting_for

    def batch(self, indices: Sequence[int]) -> np.ndarray:
        """See SampleSource.batch. Raises DataError when less than one window is held out."""
        seq_len = self._cut.seq_len
        self._read((max(indices) + 1) * seq_len + 1)
        n_windows = (len(self._tokens) - 1) // seq_len
        if n_windows < 1:
            raise DataError(
                f"{self._what} holds out {len(self._tokens)} tokens, fewer than seq_len + 1: raise "
                f"val_fraction={self._cut.val_fraction}, or set val_every=0"
            )
        starts = [index % n_windows * seq_len for index in indices]
        return np.stack([self._tokens[s : s + seq_len + 1] for s in starts]).astype(np.int64)

    def _read(self, n_tokens: int) -> None:
        parts, have = [self._tokens], len(self._tokens)
        while have < n_tokens and not self._ended:
            text = self._reader.next()
            self._ended = text is None
            if text and self._cut.holds_out(text):
                parts.append(self._cut.ended(text))
                have += len(parts[-1])
        self._tokens = np.concatenate(parts) if len(parts) > 1 else self._tokens

    def close(self) -> None:
        """Stop waiting, and let go of the stream."""
        self._patience.stop()
        self._reader.close()
