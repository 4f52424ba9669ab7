"""The loader alone, as training would use it: how soon the first batch comes, how fast the next, and what is in it.

`python -m nsa.data` takes the settings of `nsa.train` and runs this, so that a data source can be judged before any
GPU waits for it. What it prints and its exit codes are described in docs/trainer-contract.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from nsa.config import ConfigError, DataConfig, SetupError, UnreachableError, replace_flat
from nsa.data import BatchLoader, LoaderError, Tokenizer, open_sources, open_tokenizer
from nsa.resolve import UsageExit, resolve

__all__ = ["EXIT_CODES", "main", "measure"]

SCHEMA_VERSION = 1
EXIT_CODES = {None: 0, "failed": 1, "timeout": 1, "usage": 2, "data": 2, "unreachable": 5}
SAMPLE_CHARACTERS = 400


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nsa.data",
        description=__doc__.split("\n\n")[0],
        epilog="All other settings are those of nsa.train, from the same layers: --config NAME, --data, --seq-len, …",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, and nothing else, on stdout")
    parser.add_argument("--batches", type=int, default=50, help="micro-batches to fetch, the first included")
    parser.add_argument("--rank", type=int, default=0, help="whose share to fetch")
    parser.add_argument("--world", type=int, default=1, help="among how many processes")
    return parser


def _fetch(loader: BatchLoader, batches: int) -> tuple[np.ndarray, list[float], int]:
    """The first batch's tokens, the wait for each batch in seconds, and the largest token id of all."""
    waits_s: list[float] = []
    first: np.ndarray | None = None
    largest = 0
    for _ in range(batches):
        began = time.perf_counter()
        tokens_BT = loader.next()
        waits_s.append(time.perf_counter() - began)
        largest = max(largest, int(tokens_BT.max()))
        if first is None:
            first = tokens_BT.numpy().copy()
    assert first is not None, "at least one batch is fetched"
    return first, waits_s, largest


def measure(config: DataConfig, *, seed: int, batches: int, rank: int = 0, world: int = 1) -> dict[str, Any]:
    """Fetch `batches` micro-batches of rank `rank` of `world` and say how that went.

    Times are in seconds, `fetch_*` in milliseconds over all batches but the first; `toks_per_s` is of this one rank
    with nothing else to do. Raises DataError, UnreachableError or LoaderError, as training would.
    """
    began = time.perf_counter()
    tokenizer = open_tokenizer(config.tokenizer, file=config.tokenizer_file)
    sources = open_sources(config, tokenizer, seed=seed)
    opened_s = time.perf_counter() - began
    loader = BatchLoader(
        sources.train,
        rank=rank,
        world=world,
        batch_size=config.batch_size,
        accum=config.accum,
        prefetch=config.prefetch_batches,
        timeout_s=config.loader_timeout_s,
    )
    try:
        first, waits_s, largest = _fetch(loader, batches)
    finally:
        loader.close()
    tokens = (batches - 1) * config.batch_size * config.seq_len
    later_s = sum(waits_s[1:])
    p50, p95, worst = np.percentile(np.array(waits_s[1:] or waits_s), (50, 95, 100)) * 1e3
    return {
        "open_s": opened_s,
        "first_batch_s": opened_s + waits_s[0],
        "batches": batches,
        "tokens": batches * config.batch_size * config.seq_len,
        "toks_per_s": tokens / later_s if later_s > 0 else None,
        "fetch_p50_ms": float(p50),
        "fetch_p95_ms": float(p95),
        "fetch_max_ms": float(worst),
        "largest_id": largest,
        "vocab_size": tokenizer.vocab_size,
        "sample": _sample(first, config, tokenizer),
        "has_val": sources.val is not None,
        "source": dict(sources.info),
    }


def _sample(tokens_BT: np.ndarray, config: DataConfig, tokenizer: Tokenizer) -> str:
    """The beginning of the first sequence as text; made-up symbols are no text and are given as numbers."""
    if config.data in ("synthetic", "uniform"):
        return " ".join(map(str, tokens_BT[0, :32].tolist()))
    return tokenizer.decode(tokens_BT[0].tolist())[:SAMPLE_CHARACTERS]


def _asked(config: DataConfig, args: argparse.Namespace) -> dict[str, Any]:
    names = ("data", "data_path", "tokenizer", "seq_len", "batch_size", "prefetch_batches", "loader_timeout_s")
    return {**{name: getattr(config, name) for name in names}, "rank": args.rank, "world_size": args.world}


def _outcome(config: DataConfig, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """What was measured, or what went wrong: `error` is None or a word of EXIT_CODES, `message` the sentence to it."""
    began = time.perf_counter()
    error: str | None = None
    message, found = "", {}
    try:
        found = measure(config, seed=seed, batches=args.batches, rank=args.rank, world=args.world)
    except UnreachableError as problem:
        error, message = "unreachable", str(problem)
    except SetupError as problem:
        error, message = "data", str(problem)
    except LoaderError as problem:
        error, message = problem.reason, str(problem)
    elapsed_s = time.perf_counter() - began
    record = {"schema_version": SCHEMA_VERSION, "ok": error is None, "error": error, "message": message}
    return {**record, **_asked(config, args), **found, "elapsed_s": elapsed_s}


def _say(record: dict[str, Any]) -> None:
    if not record["ok"]:
        print(f"nsa.data: {record['error']}: {record['message']}", file=sys.stderr)  # noqa: T201
        return
    speed = f"{record['toks_per_s']:,.0f} tokens/s" if record["toks_per_s"] else "too few batches for a rate"
    waits = "/".join(f"{record[f'fetch_{name}_ms']:.2f}" for name in ("p50", "p95", "max"))
    facts = ", ".join(f"{name} {value}" for name, value in record["source"].items())
    print(f"source        {record['data']}: {facts}")  # noqa: T201
    print(f"first batch   after {record['first_batch_s']:.2f} s")  # noqa: T201
    print(f"then          {speed} on this rank; waits p50/p95/max {waits} ms")  # noqa: T201
    print(f"ids           up to {record['largest_id']} of {record['vocab_size']}")  # noqa: T201
    print(f"sample        {record['sample']!r}")  # noqa: T201


def _usage_problem(args: argparse.Namespace) -> str | None:
    if args.batches < 1:
        return f"--batches={args.batches}: fetch at least 1"
    if not 0 <= args.rank < args.world:
        return f"--rank={args.rank}: must lie between 0 and --world={args.world} less 1"
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Try the loader; returns the exit code. With --json the object is printed also when the settings are wrong, and
    only not after Ctrl-C, which is 130."""
    args, settings = _parser().parse_known_args(argv)
    try:
        problem = _usage_problem(args)
        if problem:
            raise ConfigError([problem])
        config = resolve(settings).config
        if config.data.stream_lanes is None:
            config = replace_flat(config, stream_lanes=args.world)
        record = _outcome(config.data, config.train.seed, args)
    except UsageExit as text:
        print(text)  # noqa: T201
        return 0
    except ConfigError as error:
        record = {"schema_version": SCHEMA_VERSION, "ok": False, "error": "usage", "message": str(error)}
    except KeyboardInterrupt:
        print("nsa.data: interrupted", file=sys.stderr)  # noqa: T201
        return 130
    if args.json:
        print(json.dumps(record, indent=2))  # noqa: T201
    else:
        _say(record)
    return EXIT_CODES[record["error"]]
