"""FineWeb-Edu, or any text dataset laid out like it, streamed with the `datasets` package from the hub or a folder.

The hub is not contacted before the first batch is requested: opening happens in the loader's thread, where it does not
delay the start of a run and where `loader_timeout_s` bounds it. The lanes of a dataset (see nsa.data.stream) are whole
files where there are enough of them, otherwise every lane reads all files and takes every n-th document.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nsa.config import DataConfig, UnreachableError
from nsa.data.failures import is_transient
from nsa.data.source import DataError, Sources
from nsa.data.stream import Cut, HeldOutWindows, Lane, Patience, StreamWindows
from nsa.data.tokenizer import Tokenizer

__all__ = ["FINEWEB_EDU", "FINEWEB_EDU_SAMPLE", "HubDataset", "open_hub"]

FINEWEB_EDU, FINEWEB_EDU_SAMPLE = "HuggingFaceFW/fineweb-edu", "sample-10BT"

# `datasets` would try a failed read 20 times, 5 s apart, before anybody heard of it; trying again is Patience's part.
OWN_RETRIES = {"STREAMING_READ_MAX_RETRIES": 1, "STREAMING_READ_RETRY_INTERVAL": 0, "STREAMING_OPEN_MAX_RETRIES": 1}


class HubDataset:
    """One split of a dataset, opened once per process, whichever lane asks first. Safe to share between threads."""

    def __init__(self, config: DataConfig) -> None:
        self._config = config
        self._is_folder = Path(config.hub_dataset).is_dir()
        self._name = config.hub_name or (FINEWEB_EDU_SAMPLE if config.hub_dataset == FINEWEB_EDU else None)
        self._lock = threading.Lock()
        self._builder: Any = None
        revision = f" at {config.hub_revision}" if config.hub_revision else ""
        self.what = f"{config.hub_dataset}{f' ({self._name})' if self._name else ''}{revision}, {config.hub_split}"

    def open(self, lane: int, lanes: int) -> HubDocuments:
        """The documents of one lane. Raises what `datasets` raises for a failed connection, else DataError."""
        with self._lock:
            if self._builder is None:
                self._builder = self._load()
            stream = self._split(self._builder)
        if stream.column_names:
            if self._config.text_field not in stream.column_names:
                raise DataError(
                    f"{self.what}: no column `{self._config.text_field}` among {stream.column_names}: set text_field"
                )
            stream = stream.select_columns([self._config.text_field])
        return HubDocuments(stream, self._fingerprint(), field=self._config.text_field, lane=lane, lanes=lanes)

    def _load(self) -> Any:
        import datasets

        for option, value in OWN_RETRIES.items():
            setattr(datasets.config, option, value)
        datasets.disable_progress_bars()
        try:
            return datasets.load_dataset_builder(
                self._config.hub_dataset, name=self._name, revision=self._config.hub_revision
            )
        except Exception as error:
            raise self._explained(error) from error

    def _split(self, builder: Any) -> Any:
        try:
            return builder.as_streaming_dataset(split=self._config.hub_split)
        except Exception as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> Exception:
        """The error to raise instead: what is lasting names the setting, what may pass stays as it is."""
        import datasets

        if not is_transient(error):
            return DataError(
                f"hub_dataset={self._config.hub_dataset}: {error}; check it, hub_name={self._name}, "
                f"hub_split={self._config.hub_split} and hub_revision={self._config.hub_revision}, and HF_TOKEN if it "
                "is gated"
            )
        if datasets.config.HF_HUB_OFFLINE:
            return UnreachableError(
                f"{self.what} is not on this machine, and HF_HUB_OFFLINE forbids to fetch it: unset it, or name a "
                "local folder as hub_dataset"
            )
        return error

    def _fingerprint(self) -> str:
        """Changes with the files of the split: a position is valid in the same files only. The names of the hub's files
        contain the commit; those of a folder are identified by name and size."""
        files = []
        for file in (getattr(self._builder.config, "data_files", None) or {}).get(self._config.hub_split, []):
            local = Path(file)
            files.append([local.name, local.stat().st_size] if self._is_folder and local.is_file() else [str(file)])
        return hashlib.sha256(json.dumps([self._name, self._config.hub_split, files]).encode()).hexdigest()[:16]


class HubDocuments:
    """The texts of one lane of an `IterableDataset` (see nsa.data.stream.Documents)."""

    def __init__(self, stream: Any, fingerprint: str, *, field: str, lane: int, lanes: int) -> None:
        self._fingerprint, self._field = fingerprint, field
        by_file = stream.num_shards >= lanes
        self._stream = stream.shard(num_shards=lanes, index=lane) if by_file and lanes > 1 else stream
        self._every, self._phase = (1, 0) if by_file else (lanes, lane)
        self._number = 0

    def __iter__(self) -> Iterator[str]:
        """See Documents. Raises DataError for a record without text."""
        for record in self._stream:
            self._number += 1
            if (self._number - 1) % self._every == self._phase:
                text = record.get(self._field)
                if not isinstance(text, str):
                    raise DataError(f"record {self._number} has no text under `{self._field}`: set text_field")
                yield text

    def state_dict(self) -> dict[str, Any]:
        """See Documents."""
        return {"fingerprint": self._fingerprint, "number": self._number, "dataset": self._stream.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See Documents."""
        if state["fingerprint"] != self._fingerprint:
            raise DataError(
                "the streamed dataset has other files than when its position was saved: set hub_revision to the commit "
                "of then, or choose another out"
            )
        self._number = state["number"]
        self._stream.load_state_dict(state["dataset"])


def open_hub(config: DataConfig, tokenizer: Tokenizer) -> Sources:
    """Sources over `config.hub_dataset`; nothing is opened yet. Raises DataError where `datasets` is missing."""
    if importlib.util.find_spec("datasets") is None:
        raise DataError(
            "data=fineweb_edu needs the datasets package: pip install 'training-validator-nsa[data]', or use data=local"
        )
    if config.hub_dataset.count("/") != 1 and not Path(config.hub_dataset).is_dir():
        raise DataError(f"hub_dataset={config.hub_dataset} is no folder, and no owner/name of the hub: check the path")
    lanes = config.stream_lanes or 1
    dataset = HubDataset(config)
    cut = Cut(tokenizer, config.seq_len, config.val_fraction)

    def patience() -> Patience:
        return Patience(config.loader_timeout_s, is_transient=is_transient, what=dataset.what)

    waiting = patience()

    def open_lane(number: int) -> Lane:
        what = f"lane {number} of {lanes} of {dataset.what}"
        return Lane(lambda: dataset.open(number, lanes), waiting, cut, what=what)

    has_val = config.val_fraction > 0
    if config.val_every and not has_val:
        raise DataError(
            f"val_every={config.val_every} but val_fraction=0 holds nothing out: raise it, or set val_every=0"
        )
    return Sources(
        train=StreamWindows(open_lane, waiting, lanes=lanes, batch_size=config.batch_size),
        val=HeldOutWindows(lambda: dataset.open(0, 1), patience(), cut, what=dataset.what) if has_val else None,
        info={"dataset": dataset.what, "lanes": lanes, "val_split": "document" if has_val else "none"},
    )
