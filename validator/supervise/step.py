"""The step: the local program of a run across nodes. It starts an agent on each and writes what they say.

The supervisor starts it in place of the run's command and watches the run's folder as ever. Its exit code only sums up
`nodes.json`, in which every node of the run has its record.
"""

from __future__ import annotations

import base64
import json
import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validator.documents import parse_json
from validator.engine import engine_of
from validator.engine.base import Channel
from validator.engine.lines import Lines
from validator.errors import Unable
from validator.files import Tree, open_file, replace_file
from validator.model.nodes import Ended, NodeRecord, NodeRecords, Step
from validator.startup import call_argv
from validator.supervise.launch import STEP_FILE
from validator.supervise.nodes import EVIDENCE_FILE, LIVE_FILE, NODES_FILE, STALL_FILE
from validator.supervise.wait import CancelToken, cancel_on_signals
from validator.system.processes import TOKEN_VARIABLE

LOST = 70
"""Exit code of a run that lost a node, or that never began on one."""

_TICK_S = 0.25
_PING_S = 1.0
_FOLLOW_S = 5.0
"""How long the other nodes of a group may take to notice that one of them has failed, before they are stopped."""

_CLOSE_S = 5.0
_MOST_BYTES = 64 << 20


def main() -> int:
    """Carry out the run that `step.json` in the folder given describes."""
    out = Path(sys.argv[1])
    with open_file(out / STEP_FILE) as file:
        step = Step.model_validate_json(file.read())
    stalled = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: stalled.set())
    with closing(CancelToken()) as cancel, cancel_on_signals(cancel):
        return Run(step, out, cancel, stalled).carry_out()


@dataclass
class _Node:
    """What is known of a node of the run so far. `heard` is the moment of its last line."""

    name: str
    group: int
    rank: int
    hello: Mapping[str, Any] | None = None
    heard: float = 0.0
    record: NodeRecord | None = None
    offset_s: float | None = None
    evidence: tuple[str, ...] | None = None

    @property
    def known(self) -> dict[str, Any]:
        """What its record has from its place in the run, and from its first line."""
        hello = self.hello or {}
        seen = {"host": hello.get("host"), "facts": hello.get("facts", {}), "clock_offset_s": self.offset_s}
        return {"node": self.name, "group": self.group, "rank": self.rank, **seen}


@dataclass
class _Client:
    """A channel, and what it has not taken yet."""

    channel: Channel
    lines: Lines = field(default_factory=Lines)
    unsent: bytearray = field(default_factory=bytearray)
    ended: bool = False


class Run:
    """One run across nodes."""

    def __init__(self, step: Step, out: Path, cancel: CancelToken, stalled: threading.Event | None = None) -> None:
        self._step, self._out, self._cancel = step, out, cancel
        self._stalled = stalled or threading.Event()
        self._saving: bool | None = None
        """Whether evidence of a stall is being saved; None where it was not asked for."""
        self._nodes = {
            name: _Node(name, group, rank) for group, names in enumerate(step.groups) for rank, name in enumerate(names)
        }
        self._clients: list[_Client] = []
        self._senders: dict[str, str] = {}
        self._began = time.monotonic()
        self._started = False
        self._stopping: dict[str, float] = {}
        """Node to the time at which it is killed, of those that were asked to stop."""
        self._follow: dict[int, float] = {}
        """Group to the time at which it is stopped, of those in which a node has failed."""
        self._killed = False
        self._live: dict[str, Any] = {name: {} for name in self._nodes}
        """Node to what its trainer does (`Live`)."""
        self._trouble: str | None = None

    def carry_out(self) -> int:
        """Until every node has its record. Returns 0 where all ended well."""
        try:
            self._start()
            self._talk()
        except Unable as error:
            self._trouble = str(error)
        finally:
            self._close()
            (self._out / LIVE_FILE).unlink(missing_ok=True)
            records = tuple(self._final(node) for node in self._nodes.values())
            left = NodeRecords(schema=1, nodes=records, trouble=self._trouble)
            replace_file(self._out / NODES_FILE, left.model_dump_json(by_alias=True, indent=1) + "\n")
        return _exit_code(records)

    def _start(self) -> None:
        step = self._step
        environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
        python = getattr(step.allocation.options, "python", None) or sys.executable
        argv = call_argv("validator.supervise.agent", "main", python=python)
        engine = engine_of(step.allocation.engine)
        channels = engine.start(step.allocation, tuple(self._nodes), argv, environment=environment)
        self._clients = [_Client(channel) for channel in channels]
        for channel in channels:
            for stream in (channel.stdin, channel.stdout):
                os.set_blocking(stream.fileno(), False)
        self._send("step", **step.model_dump(mode="json", by_alias=True))

    def _talk(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._cancel.fileno(), selectors.EVENT_READ)
            for client in self._clients:
                selector.register(client.channel.stdout, selectors.EVENT_READ, client)
            next_ping = 0.0
            while any(node.record is None for node in self._nodes.values()):
                for key, _ in selector.select(_TICK_S):
                    if key.data is None:
                        self._cancel.drain()
                    elif not self._read(key.data):
                        selector.unregister(key.fileobj)
                now = time.monotonic()
                if now >= next_ping:
                    next_ping = now + _PING_S
                    self._send("ping")
                    with suppress(OSError), Tree(self._out) as tree:
                        tree.write(LIVE_FILE, json.dumps({"nodes": self._live}), sync=False)
                self._look(now)
                self._push()

    def _look(self, now: float) -> None:
        """What has changed with time: all are there, one is silent, one must be stopped or killed."""
        waiting = [node for node in self._nodes.values() if node.record is None]
        if self._cancel.requested:
            self._stop([node.name for node in waiting], f"stopped by validator ({self._cancel.why})", now)
        if self._cancel.urgent:
            self._kill()
        silent = [node for node in waiting if node.hello is not None and now - node.heard > self._step.lost_s]
        for node in silent:
            self._lose(node, f"it answered no more for {self._step.lost_s:.0f} s", now)
        if not self._started:
            self._gather(waiting, now)
        if self._stalled.is_set():
            self._save_evidence(waiting)
        for group, due in self._follow.items():
            if now >= due:
                names = [node.name for node in waiting if node.group == group]
                self._stop(names, "stopped since another node of the run had failed", now)
        late = [name for name, due in self._stopping.items() if now >= due and self._nodes[name].record is None]
        if late and not self._killed:
            self._kill()
        elif any(now >= self._stopping[name] + _CLOSE_S * 2 for name in late):
            for name in late:
                self._lose(self._nodes[name], "it was asked to stop and has not said that it did", now)

    def _gather(self, waiting: Sequence[_Node], now: float) -> None:
        absent = [node for node in waiting if node.hello is None]
        failed = [node for node in self._nodes.values() if node.record is not None]
        if failed:
            self._stop([node.name for node in waiting], f"node {failed[0].name} could not begin", now)
        elif not absent:
            self._started = True
            endpoints = {str(node.group): self._endpoint(node) for node in waiting if not node.rank}
            self._send("start", endpoints=endpoints, elapsed=round(now - self._step.began, 3))
        if now - self._began > self._step.start_s:
            for node in absent:
                self._ended(node, "not_started", f"it did not answer within {self._step.start_s:.0f} s")

    def _save_evidence(self, waiting: Sequence[_Node]) -> None:
        """Ask the nodes for it, once, and list what they saved when all have answered."""
        if self._saving is None:
            self._saving = True
            if self._started:
                with Tree(self._out) as tree:
                    self._send("stacks", about=tree.json(STALL_FILE))
        if self._saving and (not self._started or all(node.evidence is not None for node in waiting)):
            self._saving = False
            found = list(dict.fromkeys(path for node in self._nodes.values() for path in node.evidence or ()))
            replace_file(self._out / EVIDENCE_FILE, json.dumps(found) + "\n")

    def _endpoint(self, first: _Node) -> str:
        address = next(node.address for node in self._step.allocation.nodes if node.name == first.name)
        return f"{address}:{(first.hello or {})['port']}"

    # Lines of agents.

    def _read(self, client: _Client) -> bool:
        """Take in what a client has; whether it may have more."""
        while True:
            try:
                data = os.read(client.channel.stdout.fileno(), 1 << 20)
            except BlockingIOError:
                return True
            except OSError:
                data = b""
            if not data:
                self._gone(client)
                return False
            for line in client.lines.take(data):
                self._hear(client, line)

    def _hear(self, client: _Client, line: bytes) -> None:
        try:
            said = parse_json(line)
        except ValueError:
            return  # a banner, or a word of the engine's
        if not isinstance(said, dict) or said.get("node") not in client.channel.nodes:
            return
        node = self._nodes[str(said.pop("node"))]
        node.heard = time.monotonic()
        match said.pop("is", None):
            case "hello":
                node.hello = said
                node.offset_s = round(float(said["time"]) - time.time(), 3)
            case "beat" if said:
                self._live[node.name] = said
            case "file":
                self._keep(node, said)
            case "stacks":
                node.evidence = tuple(map(str, said.get("files", ())))
            case "record" if node.record is None:
                node.record = NodeRecord.model_validate({**said, **node.known})
                if node.record.ended != "exited" or node.record.rc != 0:
                    self._follow.setdefault(node.group, node.heard + _FOLLOW_S)

    def _keep(self, node: _Node, said: Mapping[str, Any]) -> None:
        """Write a piece of a file of a node that does not share the folder; the first to send a file has it."""
        path, at = str(said.get("path")), int(said.get("at", 0))
        data = base64.b64decode(str(said.get("data", "")))
        if at < 0 or at + len(data) > _MOST_BYTES or self._senders.setdefault(path, node.name) != node.name:
            return
        with suppress(OSError), Tree(self._out) as tree:
            tree.write_at(path, data, at)

    def _gone(self, client: _Client) -> None:
        """A client has ended, and with it what could still be said of its nodes."""
        client.ended = True
        said = client.channel.trouble()
        for name in client.channel.nodes:
            node = self._nodes[name]
            if node.record is None:
                self._lose(node, said or "its agent ended without a word", time.monotonic())

    # Ends.

    def _lose(self, node: _Node, why: str, now: float) -> None:
        self._ended(node, "not_started" if node.hello is None else "lost", why)
        self._follow[node.group] = min(now, self._follow.get(node.group, now))

    def _ended(self, node: _Node, ended: Ended, why: str) -> None:
        shared = (node.hello or {}).get("shared")
        node.record = NodeRecord(**node.known, ended=ended, detail=why, shared=shared)

    def _final(self, node: _Node) -> NodeRecord:
        if node.record is None:
            self._ended(node, "lost" if self._started else "not_started", self._trouble or "the step was ended")
        assert node.record is not None
        return node.record

    def _stop(self, names: Sequence[str], why: str, now: float) -> None:
        fresh = [name for name in names if name not in self._stopping]
        if fresh:
            self._stopping.update(dict.fromkeys(fresh, now + self._step.grace_s + _CLOSE_S * 2))
            self._send("stop", why=why, nodes=fresh)

    def _kill(self) -> None:
        if not self._killed:
            self._killed = True
            self._send("kill")

    def _close(self) -> None:
        """Leave nothing of the engine's behind: agents end with their standard input."""
        for client in self._clients:
            with suppress(OSError):
                client.channel.stdin.close()
        until = time.monotonic() + _CLOSE_S
        for client in self._clients:
            client.channel.close(within_s=max(0.0, until - time.monotonic()))

    # Lines to agents.

    def _send(self, do: str, **said: Any) -> None:
        line = json.dumps({"do": do, **said}, separators=(",", ":")).encode() + b"\n"
        for client in self._clients:
            if not client.ended:
                client.unsent += line
        self._push()

    def _push(self) -> None:
        for client in self._clients:
            while client.unsent and not client.ended:
                try:
                    del client.unsent[: os.write(client.channel.stdin.fileno(), client.unsent)]
                except BlockingIOError:
                    break
                except OSError:
                    client.unsent.clear()


def _exit_code(records: Sequence[NodeRecord]) -> int:
    """As a shell says it, of the first node that failed; one that was stopped as asked has no code of its own."""
    if any(record.ended in ("lost", "not_started") for record in records):
        return LOST
    codes = [record.rc for record in records if record.rc and record.ended != "stopped"]
    return next((128 - rc if rc < 0 else rc for rc in codes), 0)
