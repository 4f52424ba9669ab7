"""Web servers of the tests' own, to which notifications and results are sent."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, NamedTuple

__all__ = ["Post", "listening", "served"]


class Post(NamedTuple):
    """A request as it arrived."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @property
    def json(self) -> dict[str, Any]:
        """What it says."""
        told: dict[str, Any] = json.loads(self.text)
        return told


@contextlib.contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server on the loopback; gives its address, `host:port`."""
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def listening(status: Callable[[str], int | None] = lambda path: 200) -> Iterator[tuple[str, list[Post]]]:
    """Its address, `host:port`, and what it was sent. A path whose status is None gets no answer, the others one that
    repeats the path."""
    posts: list[Post] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            packed = self.headers.get("Content-Encoding") == "gzip"
            posts.append(Post(self.path, dict(self.headers), gzip.decompress(body) if packed else body))
            code = status(self.path)
            if code is None:
                return
            self.send_response(code)
            self.end_headers()
            self.wfile.write(f"asked for {self.path}".encode())

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with served(Handler) as address:
        yield address, posts
