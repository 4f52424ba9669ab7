"""A double of the probes whose transfers end when they are due, so that nodes on two cores do not disturb each other.

It stands for `torchrun … nsa.probe` on one node: the nodes of a group meet, exchange a word in each transfer, and the
first one measures the time. The first argument is a JSON file as of `paced_trainer.py`: phase, then a node, or the two
nodes of a link (`n1 n3`), to `slow`, by which the time of a transfer is multiplied. A node's fault is that of its
network alone with `in: [all_reduce]`.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TRANSFER_S, TRANSFERS = 0.05, 4
ALONE = ("gemm_bf16", "copy")
LINK = "all_reduce"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("faults", type=Path)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--only", action="append", default=[])
    args, _ = parser.parse_known_args()
    node = os.environ.get("VALIDATOR_NODE") or os.environ["SLURMD_NODENAME"]
    faults = json.loads(args.faults.read_text()).get(args.out.parts[args.out.parts.index("runs") + 1], {})
    peers = met(node, args.nnodes, args.node_rank, (args.master_addr, args.master_port))
    names = sorted([node, *peers])
    rates = {}
    for measure in (*ALONE, *([LINK] if peers else [])):
        if not args.only or measure in args.only:
            rates[measure] = measured(measure, names, list(peers.values()), faults, args.repeats)
    if args.node_rank == 0:
        ranks = [rates] * args.nnodes
        args.out.write_text(json.dumps({"rates": rates, "ranks": ranks, "world_size": args.nnodes}))
    return 0


def met(node: str, count: int, rank: int, place: tuple[str, int]) -> dict[str, socket.socket]:
    """Connections by the other end's name: the first node has one to each, the others one to the first."""
    found: dict[str, socket.socket] = {}
    if count > 1 and rank == 0:
        with socket.create_server(place) as server:
            while len(found) < count - 1:
                peer = server.accept()[0]
                found[peer.recv(64).decode()] = peer
        for peer in found.values():
            peer.sendall(node.encode())
    elif count > 1:
        until = time.monotonic() + 30
        while not found:
            try:
                peer = socket.create_connection(place, timeout=30)
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)
                continue
            peer.sendall(node.encode())
            found[peer.recv(64).decode()] = peer
    return found


def measured(
    measure: str, names: Sequence[str], peers: Sequence[socket.socket], faults: Mapping[str, Any], repeats: int
) -> dict[str, Any]:
    """Rates of a measure: of each repeat by its fastest transfer, since a busy machine only delays."""
    values = []
    slow = [
        float(fault["slow"])
        for subject, fault in faults.items()
        if set(subject.split()) <= set(names) and measure in fault.get("in", [*ALONE, LINK])
    ]
    for _ in range(repeats):
        times = []
        for _ in range(TRANSFERS):
            began = time.perf_counter()
            time.sleep(TRANSFER_S * max(slow, default=1.0))
            for peer in peers if measure == LINK else ():
                peer.sendall(b"!")
                peer.recv(1)
            times.append(time.perf_counter() - began)
        values.append(1.0 / min(times))
    return {"value": statistics.median(values), "unit": "GB/s", "values": values}


if __name__ == "__main__":
    sys.exit(main())
