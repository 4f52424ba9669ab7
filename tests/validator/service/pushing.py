"""Servers, run folders and connections that break, for tests of `validator push`."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from tests.validator.report import samples
from tests.validator.service.serving import make_running
from validator.pipeline import push as sending
from validator.pipeline.push import Destination, manifest_of, push
from validator.pipeline.write import render_json
from validator.service import serve
from validator.service.index import RunIndex
from validator.service.serve import make_app
from validator.service.tokens import Tokens

__all__ = [
    "BreakingProxy",
    "content_of",
    "hand_in",
    "make_ended",
    "manifest_json",
    "put",
    "quiet",
    "send",
    "served",
]


@cache
def _go_result() -> str:
    return render_json(samples.go())


def make_ended(parent: Path, *, files: dict[str, bytes] | None = None, decision: str = "GO") -> Path:
    """A run folder of another machine that has ended, with more files."""
    folder, journal = make_running(parent)
    with journal:
        journal.append("finished", finished=folder.header.started, duration_s=1.0)
    header = json.loads((folder.root / "run.json").read_text(encoding="utf-8"))
    (folder.root / "run.json").write_text(json.dumps({**header, "host": "gpu7"}), encoding="utf-8")
    result = json.loads(_go_result())
    result |= {"run_id": folder.header.run_id, "started": folder.header.started, "decision": decision}
    (folder.root / "result.json").write_text(json.dumps(result), encoding="utf-8")
    for path, data in (files or {}).items():
        (folder.root / path).parent.mkdir(parents=True, exist_ok=True)
        (folder.root / path).write_bytes(data)
        os.utime(folder.root / path, ns=(1_700_000_000_000_000_000, 1_700_000_000_123_456_789))
    return folder.root


def content_of(root: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and time of every file of a run folder but the mark of a push."""
    return {
        path.relative_to(root).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file() and path.name != ".pushed"
    }


@contextmanager
def served(reports: Path, tokens: Tokens | None = None, *, name: str = "one") -> Iterator[str]:
    """The address of a server over `reports`, in a thread of this process, with an index of its own."""
    reports.mkdir(exist_ok=True)
    with (
        closing(RunIndex(reports, reports.parent / f"state-{name}" / "index.sqlite")) as index,
        serve.bound("127.0.0.1", 0) as made,
    ):
        server = serve.make_server(make_app(index, tokens))
        running = threading.Thread(target=server.run, kwargs={"sockets": [made]})
        running.start()
        try:
            yield f"http://127.0.0.1:{made.getsockname()[1]}"
        finally:
            server.should_exit = True
            running.join(timeout=20)


class BreakingProxy:
    """A TCP proxy that passes on a random number of bytes of each of the first `breaks` connections, and cuts it.

    Some of the cuts reset the connection, others end it; the server may have got all, some or none of a request. With a
    certificate and its key it speaks TLS to its clients.
    """

    def __init__(
        self, address: str, *, breaks: int, most: int, seed: int, certified: tuple[Path, Path] | None = None
    ) -> None:
        self._tls = None
        if certified:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(*certified)
        found = re.fullmatch(r"http://([\d.]+):(\d+)", address)
        assert found
        self._target = (found[1], int(found[2]))
        self._random = random.Random(seed)
        self._left, self._most = breaks, most
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.cut = 0

    def __enter__(self) -> BreakingProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                budget = self._random.randrange(1, self._most) if self._left > 0 else None
                self._left -= 1
                threading.Thread(target=self._pass_on, args=(client, budget), daemon=True).start()

    def _pass_on(self, client: socket.socket, budget: int | None) -> None:
        if self._tls is not None:
            try:
                client = self._tls.wrap_socket(client, server_side=True)
            except OSError:  # the client trusts it not
                return
        server = socket.create_connection(self._target)
        back = threading.Thread(target=self._copy, args=(server, client, None), daemon=True)
        back.start()
        self._copy(client, server, budget)
        if budget is not None:
            self.cut += 1
        for one in (server, client):
            with suppress(OSError):
                if self._random.random() < 0.5:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
                one.shutdown(socket.SHUT_RDWR)
        back.join(timeout=5)
        for one in (server, client):
            one.close()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket, budget: int | None) -> None:
        with suppress(OSError):
            while budget is None or budget > 0:
                data = source.recv(65536 if budget is None else min(65536, budget))
                if not data:
                    break
                target.sendall(data)
                budget = None if budget is None else budget - len(data)
        if budget is None:
            with suppress(OSError):
                target.shutdown(socket.SHUT_WR)


def quiet(text: str) -> None:
    """Failed attempts are no news here."""


def send(run: Path, address: str) -> sending.Pushed:
    return push(run, Destination.of(address), say=quiet)


def manifest_json(run: Path) -> dict[str, Any]:
    made, _ = manifest_of(run, run.name)
    return json.loads(made.model_dump_json())


def put(asking: TestClient, receipt: dict[str, Any], data: bytes) -> Any:
    """Send bytes to where an answer says."""
    path = f"/api/v1/push/{receipt['upload']}?file={receipt['file']}&at={receipt['offset']}"
    return asking.put(path, content=data)


def hand_in(asking: TestClient, run: Path) -> Any:
    """Send a whole run as `push` does; returns the last answer."""
    found = manifest_json(run)
    begun = asking.post("/api/v1/push", json=found)
    if begun.status_code != 200 or begun.json()["stored"]:
        return begun
    done = put(asking, begun.json(), b"".join((run / one["path"]).read_bytes() for one in found["files"]))
    assert done.json()["file"] == len(found["files"]), done.text
    return asking.post("/api/v1/push", json=found)
