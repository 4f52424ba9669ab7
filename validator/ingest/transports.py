"""`connections` of `collectives.json`: by which transport the ranks reach each other, as NCCL's log of each says."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal

from validator.documents import number_at
from validator.model.network import Pair, Transports
from validator.text import one_line

_HOST = re.compile(r"SHM(/(direct|CE)){1,2}|direct shared memory")
_NETWORK = re.compile(r"NET/[^/]+/\d+(\(\d+\))?(/GDRDMA(\(PCI\))?)?(/Shared)?")
"""Whole names alone: where two lines were printed into each other, it is not known which transport they name."""

_MAX_RANKS = 4096


def read_transports(found: Any, source: str) -> Transports:
    """What a record of the file `source` says of its connections; anybody may have written it."""
    ranks = _mappings(found.get("ranks")) if isinstance(found, Mapping) else []
    via: dict[tuple[int, int], set[str]] = defaultdict(set)
    logs: dict[int, str] = {}
    for at, one in enumerate(ranks[:_MAX_RANKS]):
        logs[at] = str(PurePosixPath(source).parent / PurePosixPath(one_line(one.get("log") or "", limit=80)).name)
        for low, high, name in _connections(one.get("via")):
            via[low, high].add(name)
    copies = {(low, high): one for low, high, one in _copies(found)}
    links = _links(ranks)
    pairs = [
        _pair_of(ranks_of, via, links, copies, logs.get(ranks_of[0], source)) for ranks_of in sorted({*via, *copies})
    ]
    settings = [one.get("settings") for one in ranks]
    return Transports(
        pairs=tuple(pairs),
        between=tuple(sorted({name for one in ranks for name in _names_in(one.get("far"))})),
        settings={
            one_line(name, limit=60): one_line(value, limit=80)
            for one in settings
            if isinstance(one, Mapping)
            for name, value in one.items()
        },
        configured=tuple(sorted({name for one in ranks for name in _names_in(one.get("configured"))})),
        refused=tuple(dict.fromkeys(line for one in ranks for line in _names_in(one.get("refused"))))[:16],
        version=next((text for one in ranks if (text := one_line(one.get("version") or "", limit=30))), ""),
    )


def path_of(names: Sequence[str] | set[str]) -> Literal["direct", "host", "network", "unknown"]:
    """What the transports of two ranks of one machine are; one that is direct is enough, for then they can be."""
    if any(name.startswith("P2P/") for name in names):
        return "direct"
    if not names or not all(_HOST.fullmatch(name) or _NETWORK.fullmatch(name) for name in names):
        return "unknown"
    return "host" if any(_HOST.fullmatch(name) for name in names) else "network"


def _pair_of(
    ranks: tuple[int, int],
    via: Mapping[tuple[int, int], set[str]],
    links: Mapping[int, tuple[str, frozenset[str]]],
    copies: Mapping[tuple[int, int], Mapping[str, Any]],
    source: str,
) -> Pair:
    names, copied = via.get(ranks, set()), copies.get(ranks, {})
    linked = None
    if ranks[0] in links and ranks[1] in links:
        (first, of_first), (second, of_second) = links[ranks[0]], links[ranks[1]]
        switches = {one for one in of_first & of_second if one.startswith("NVS")}
        linked = bool(switches) or f"GPU/{second}" in of_first or f"GPU/{first}" in of_second
    copy_gb_s, host_gb_s = number_at(copied, "gb_s", least=0), number_at(copied, "host_gb_s", least=0)
    return Pair(ranks, tuple(sorted(names)), path_of(names), linked, copy_gb_s, host_gb_s, source)


def _connections(found: Any) -> Iterator[tuple[int, int, str]]:
    for one in found if isinstance(found, list) else ():
        if isinstance(one, list) and len(one) == 3 and all(type(rank) is int and rank >= 0 for rank in one[:2]):
            low, high = sorted(one[:2])
            yield low, high, one_line(one[2], limit=200)


def _copies(found: Any) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
    for one in _mappings(found.get("copies")) if isinstance(found, Mapping) else ():
        sender, receiver = number_at(one, "from", least=0), number_at(one, "to", least=0)
        if sender is not None and receiver is not None and sender != receiver:
            yield int(min(sender, receiver)), int(max(sender, receiver)), one


def _links(ranks: Sequence[Mapping[str, Any]]) -> dict[int, tuple[str, frozenset[str]]]:
    """By rank the id of its GPU, and what its links lead to."""
    known: dict[int, tuple[str, frozenset[str]]] = {}
    for one in ranks:
        gpus = one.get("gpus")
        for rank, gpu in gpus.items() if isinstance(gpus, Mapping) else ():
            if isinstance(gpu, Mapping) and str(rank).isdecimal() and len(str(rank)) < 9:
                before = known.get(int(rank), ("", frozenset()))[1]
                known[int(rank)] = (one_line(gpu.get("id") or "", limit=40), before | {*_names_in(gpu.get("links"))})
    return known


def _mappings(found: Any) -> list[Mapping[str, Any]]:
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _names_in(found: Any) -> list[str]:
    return [one_line(one, limit=200) for one in found if isinstance(one, str)] if isinstance(found, list) else []
