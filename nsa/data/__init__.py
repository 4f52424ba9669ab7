"""Training data: where samples come from, and the loader that gives each rank its share of every step.

A source answers one question, "what is sample number i", so that the order of samples depends only on the
seed: not on the number of processes, nor on how a step is cut into micro-batches, nor on where a run was resumed.

Names are imported when they are first asked for: `python -m nsa.data` imports this package before its own first line,
and torch behind these names takes seconds in which Ctrl-C has to be answered.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsa.config import DataConfig
    from nsa.data.loader import BatchLoader, FetchStats, LoaderError, share_of_step
    from nsa.data.source import DataError, SampleSource, Sources, StreamSource
    from nsa.data.tokenizer import Tokenizer, open_tokenizer

__all__ = [
    "BatchLoader",
    "DataError",
    "FetchStats",
    "LoaderError",
    "SampleSource",
    "Sources",
    "StreamSource",
    "Tokenizer",
    "open_sources",
    "open_tokenizer",
    "share_of_step",
]

_HOMES = {
    **dict.fromkeys(("BatchLoader", "FetchStats", "LoaderError", "share_of_step"), "nsa.data.loader"),
    **dict.fromkeys(("DataError", "SampleSource", "Sources", "StreamSource"), "nsa.data.source"),
    **dict.fromkeys(("Tokenizer", "open_tokenizer"), "nsa.data.tokenizer"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def open_sources(config: DataConfig, tokenizer: Tokenizer, *, seed: int) -> Sources:
    """The training source and the held-out one for `config.data`. A stream is not opened yet.

    Raises DataError when files are missing, unreadable or too small.
    """
    if config.data == "local":
        from nsa.data.local import open_local
        from nsa.data.shards import is_shard_folder, open_shards

        assert config.data_path is not None, "checked with the configuration"
        if is_shard_folder(config.data_path):
            return open_shards(config, tokenizer, seed=seed)
        return open_local(config, tokenizer, seed=seed)
    if config.data == "fineweb_edu":
        from nsa.data.hub import open_hub

        return open_hub(config, tokenizer)
    from nsa.data.synthetic import open_synthetic

    return open_synthetic(config, seed=seed)
