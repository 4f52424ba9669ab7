"""The hub's own way, over HTTP: a server here speaks as much of its protocol as reading a dataset takes."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.nsa.conftest import Beats, Rows, Train
from tests.nsa.ranks import Ranks, RankServer

REPO, COMMIT = "someone/educational", "c0ffee" + "0" * 34
DATA = ["--data", "fineweb_edu", "--val-fraction", "0", "--schedule", "constant"]


class Hub(ThreadingHTTPServer):
    """Serves the folder `root` as dataset REPO. `trouble` may answer a request for a file instead."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.trouble: Callable[[str], str | None] = lambda path: None
        self.fetched: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no matter."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, format: str, *args: Any) -> None:
        """Silence."""

    def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_GET(self) -> None:
        parts = urlsplit(self.path).path.strip("/").split("/")
        root = self.server.root
        if parts[:4] == ["api", "datasets", *REPO.split("/")]:
            folder = root / "/".join(parts[6:])
            if parts[4:5] != ["tree"]:
                self._answer(200, json.dumps({"id": REPO, "sha": COMMIT, "siblings": [], "tags": []}).encode())
            elif folder.is_dir():
                entries = [
                    {"type": "directory", "oid": "0" * 40, "size": 0, "path": str(path.relative_to(root))}
                    if path.is_dir()
                    else {
                        "type": "file",
                        "oid": "0" * 40,
                        "size": path.stat().st_size,
                        "path": str(path.relative_to(root)),
                    }
                    for path in sorted(folder.iterdir())
                ]
                self._answer(200, json.dumps(entries).encode())
            else:
                self._answer(404, X_Error_Code="EntryNotFound")
        elif parts[:4] == ["datasets", *REPO.split("/"), "resolve"] and (root / "/".join(parts[5:])).is_file():
            self._file(root / "/".join(parts[5:]))
        else:
            self._answer(404, X_Error_Code="EntryNotFound")

    do_HEAD = do_GET

    def _file(self, path: Path) -> None:
        trouble = self.server.trouble(path.name)
        self.server.fetched.append(path.name)
        if trouble == "drop":
            self.connection.shutdown(socket.SHUT_RDWR)  # close() would leave it open: the request's files hold it
            self.close_connection = True
            return
        if trouble == "503":
            self._answer(503)
            return
        content = path.read_bytes()
        headers = {"ETag": '"0"', "X_Repo_Commit": COMMIT, "Accept_Ranges": "bytes"}
        wanted = self.headers.get("Range")
        if wanted is None:
            self._answer(200, content, **headers)
            return
        first, last = wanted.removeprefix("bytes=").split("-")
        end = min(int(last or len(content) - 1), len(content) - 1)
        headers["Content_Range"] = f"bytes {first}-{end}/{len(content)}"
        self._answer(206, content[int(first) : end + 1], **headers)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    root = tmp_path / "dataset"
    (root / "data").mkdir(parents=True)
    for number in range(4):
        records = [{"text": f"<{number}.{i}> " + "some text " * (i % 7), "id": str(i)} for i in range(20)]
        pq.write_table(pa.Table.from_pylist(records), root / "data" / f"train-{number:05}-of-00004.parquet")
    server = Hub(root)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def start(tmp_path: Path, hub: Hub, tiny: list[str], rank_server: RankServer) -> Callable[..., Ranks]:
    """Train from the hub in a process of its own, for `datasets` reads its environment once."""

    def start(*args: str) -> Ranks:
        env = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
        args = (*tiny, *DATA, "--hub-dataset", REPO, *args)
        return rank_server.start_alone("nsa.train", args, **env, NO_PROXY="127.0.0.1")

    return start


def test_a_hub_that_stumbles_trains_like_a_folder(
    tmp_path: Path, hub: Hub, start: Callable[..., Ranks], train: Train, rows: Rows
) -> None:
    """One file comes at the second attempt, for another the connection breaks; no document is lost or repeated."""
    stumbles = {"train-00001-of-00004.parquet": ["503"], "train-00002-of-00004.parquet": ["drop"]}
    hub.trouble = lambda name: stumbles[name].pop() if stumbles.get(name) else None
    run = start("--steps", "70", "--out", str(tmp_path / "hub"))
    assert run.wait(150) == [0], run.said
    assert not any(stumbles.values())
    assert train(tmp_path / "folder", *DATA, "--hub-dataset", str(hub.root), "--steps", "70") == 0
    of_hub, of_folder = ([row["loss"] for row in rows(tmp_path / n / "training.csv")] for n in ("hub", "folder"))
    assert of_hub == of_folder
    assert {name for name in hub.fetched if name.endswith(".parquet")} == {p.name for p in hub.root.rglob("*.parquet")}


def test_a_hub_that_goes_away_ends_the_run_in_time(
    tmp_path: Path, hub: Hub, start: Callable[..., Ranks], rows: Rows, beats: Beats
) -> None:
    hub.trouble = lambda name: "drop" if name == "train-00002-of-00004.parquet" else None
    out = tmp_path / "out"
    run = start("--steps", "500", "--loader-timeout-s", "10", "--save-every", "1", "--out", str(out))
    assert run.wait(150) == [5], run.said
    assert REPO in run.err
    trained = rows(out / "training.csv")
    assert len(trained) > 10  # what had come was trained on
    assert len(list((out / "checkpoints").glob("*.pt"))) == 2
    (error,) = [r for r in beats(out) if r["msg"] == "loader_error"]
    assert error["reason"] == "unreachable"
    assert json.loads((out / "metrics.json").read_text())["status"] == "unreachable"
