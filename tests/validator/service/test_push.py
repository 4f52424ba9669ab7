"""Runs that other machines hand in: whole or not at all, whatever breaks, and what the sender says."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.processes import python
from tests.validator.history.folders import make_run
from tests.validator.service.pushing import (
    BreakingProxy,
    content_of,
    make_ended,
    manifest_json,
    put,
    quiet,
    send,
    served,
)
from tests.validator.service.serving import client, make_running
from validator.errors import FolderError, Unable, UserError
from validator.pipeline import push as sending
from validator.pipeline.push import Destination, Manifest, Receipt, manifest_of, push
from validator.service.index import RunFilter, RunIndex
from validator.service.tokens import Tokens


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "_PAUSE_S", 0.01)
    monkeypatch.setattr(sending, "_MAX_PAUSE_S", 0.05)


def files_of(seed: int, total: int) -> dict[str, bytes]:
    """Files of very different sizes, also empty ones, and one that has most of the bytes."""
    draw = random.Random(seed)
    sizes = {"empty": 0, "runs/first/r1/training.csv": 70_000, "runs/first/r1/dumps/empty": 0, "z/last": 0}
    sizes |= {f"runs/first/r1/small/{number}.txt": draw.randrange(3000) for number in range(9)}
    sizes |= {"runs/first/r1/checkpoint.bin": total - sum(sizes.values()), "runs/a b/\N{SNOWMAN}#?%.log": 10}
    return {path: draw.randbytes(size) for path, size in sizes.items()}


# Connections and servers that break.


def test_a_push_that_is_cut_at_twenty_random_places_arrives_whole(tmp_path: Path) -> None:
    run, reports = make_ended(tmp_path / "here", files=files_of(0, 3 << 20)), tmp_path / "reports"
    with served(reports) as address, BreakingProxy(address, breaks=20, most=250_000, seed=0) as proxy:
        done = send(run, proxy.address)
        assert proxy.cut == 20
    assert done.breaks >= 15, "one that is cut after the answer has not failed"
    assert content_of(reports / run.name) == content_of(run)
    assert list((reports / ".push").iterdir()) == []
    assert json.loads((reports / run.name / ".pushed").read_text())["by"] == "loopback"


def test_half_a_request_is_no_error_of_the_server(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with served(tmp_path / "reports") as address:
        where = urlsplit(address)
        for method, path in (("POST", "/api/v1/push"), ("POST", "/login"), ("PUT", f"/api/v1/push/{'0' * 64}")):
            with socket.create_connection((str(where.hostname), int(where.port or 0)), timeout=10) as cut:
                kind = "application/x-www-form-urlencoded"
                head = (
                    f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: 9\r\n\r\nx"
                )
                cut.sendall(head.encode())
        assert client(tmp_path / "reports").get("/").status_code == 200
    assert "Traceback" not in capfd.readouterr().err


def test_two_servers_share_a_folder_and_an_upload(tmp_path: Path) -> None:
    """Each gets a run of its own, both get one together, and what one began the other ends."""
    runs = [make_ended(tmp_path / f"{n}", files=files_of(n, 1 << 20)) for n in range(4)]
    reports = tmp_path / "reports"
    with served(reports) as one, served(reports) as two, ThreadPoolExecutor(5) as pool:
        asking = client(reports)
        begun = asking.post("/api/v1/push", json=manifest_json(runs[3])).json()
        first = next(file["path"] for file in manifest_json(runs[3])["files"] if file["bytes"] > 5)
        assert put(asking, begun, (runs[3] / first).read_bytes()[:5]).json()["offset"] == 5
        sent = ((runs[0], one), (runs[1], two), (runs[2], one), (runs[2], two), (runs[3], two))
        list(pool.map(lambda pair: send(*pair), sent))
    for run in runs:
        assert content_of(reports / run.name) == content_of(run)
    index = RunIndex(reports, tmp_path / "state-one" / "index.sqlite")
    index.refresh(full=True)
    assert index.find(RunFilter(), limit=9)[1] == 4
    assert list((reports / ".push").iterdir()) == []


@pytest.mark.parametrize("after", [1, 7])
def test_an_index_whose_writer_is_killed_is_built_from_the_folders(tmp_path: Path, after: int) -> None:
    for number in range(8):
        make_run(tmp_path / "reports", number)
    code = f"""
import os
from pathlib import Path
from validator.service.index import RunIndex
stored, store = [], RunIndex._store
def killed(self, *values):
    stored.append(store(self, *values))
    if len(stored) == {after}:
        os.kill(os.getpid(), 9)
    return stored[-1]
RunIndex._store = killed
RunIndex(Path("reports"), Path("state/index.sqlite"), rebuild=True).refresh(full=True)
"""
    assert python("-c", code, cwd=tmp_path).returncode == -signal.SIGKILL
    index = RunIndex(tmp_path / "reports", tmp_path / "state" / "index.sqlite")
    assert index.find(RunFilter(), limit=9)[1] == 8


_FULL_DISK = """
import sys
from pathlib import Path
from tests.validator.service.pushing import content_of, make_ended, served
from validator.errors import Unable
from validator.pipeline.push import Destination, push
from validator.service import inbox
work = Path(sys.argv[1])
run = make_ended(work / "here", files={"a": bytes(2 << 20), "b": b"x" * (4 << 20), "c": b"c"})
reports, room = work / "small" / "reports", inbox._require_room
def fails(word):
    try:
        push(run, Destination.of(address), say=print)
    except Unable as error:
        assert word in str(error), error
    else:
        raise AssertionError("it is stored")
with served(reports) as address:
    filler = work / "small" / "filler"
    filler.write_bytes(bytes(5 << 20))
    fails("has no room")
    assert not any((reports / ".push").glob("*/part-*")), "refused before anything was written"
    inbox._require_room = lambda reports, need: None
    fails("disk is full")
    assert sum(path.stat().st_size for path in reports.rglob("part-*")) > 0
    inbox._require_room = room
    filler.unlink()
    assert push(run, Destination.of(address), say=print).breaks == 0
assert content_of(reports / run.name) == content_of(run)
"""


def test_a_disk_that_is_full_costs_nothing_that_has_come(tmp_path: Path) -> None:
    """A real one: a tmpfs of 9 MiB, mounted for this test alone in a namespace of its own."""
    namespace = ["unshare", *(["--mount"] if os.geteuid() == 0 else ["--map-root-user", "--mount"])]
    try:
        granted = subprocess.run([*namespace, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode
    except FileNotFoundError:
        granted = 1
    if granted != 0:
        pytest.skip("this kernel lets nobody mount a tmpfs here")
    (tmp_path / "small").mkdir()
    script = 'mount -t tmpfs -o size=9m tmpfs "$1/small" && exec "$2" -c "$3" "$1"'
    command = [*namespace, "sh", "-c", script, "sh", str(tmp_path), sys.executable, _FULL_DISK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_ended(tmp_path / "here", files={"runs/first/r1/out.log": b"step 1\n"})


# The sender.


def test_what_cannot_be_pushed_is_not_begun(tmp_path: Path, run: Path) -> None:
    folder, journal = make_running(tmp_path / "live")
    with journal, pytest.raises(FolderError, match="still being run"):
        send(folder.root, "http://127.0.0.1:9")
    (run / "link").symlink_to("/etc")
    os.mkfifo(run / "pipe")
    assert manifest_of(run, run.name)[1] == 2
    (run / "a\nb").touch()
    with pytest.raises(FolderError, match="rename the file"):
        send(run, "http://127.0.0.1:9")
    (run / "a\nb").unlink()
    (run / os.fsdecode(b"\xff")).touch()
    with pytest.raises(FolderError, match="udcff"):
        send(run, "http://127.0.0.1:9")
    (run / os.fsdecode(b"\xff")).unlink()
    journal_text = (run / "journal.jsonl").read_text()
    (run / "journal.jsonl").write_text(journal_text.rpartition("\n")[0].rpartition("\n")[0] + "\n")
    with pytest.raises(FolderError, match="--resume"):
        send(run, "http://127.0.0.1:9")


def test_a_file_that_changes_while_it_is_sent_is_named(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(root: Path, name: str) -> tuple[Manifest, int]:
        made = manifest_of(root, name)
        (root / "runs/first/r1/out.log").write_bytes(b"step 1\nstep 2\n")
        return made

    monkeypatch.setattr(sending, "manifest_of", changed)
    with served(tmp_path / "reports") as address, pytest.raises(FolderError, match="is being written"):
        send(run, address)
    assert not (tmp_path / "reports" / run.name).exists()


@pytest.mark.parametrize("damaged", [3, 1000])
def test_bytes_that_are_damaged_on_the_way_are_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: int
) -> None:
    run, chunk, sent = make_ended(tmp_path / "here", files=files_of(1, 3 << 20)), sending._chunk, list[int]()

    def damage(root: Path, manifest: Manifest, at: Receipt) -> bytes:
        sent.append(at.file)
        data = chunk(root, manifest, at)
        return data if len(sent) > damaged else bytes([data[0] ^ 1]) + data[1:]

    monkeypatch.setattr(sending, "_chunk", damage)
    with served(tmp_path / "reports") as address:
        if damaged > 100:
            with pytest.raises(Unable, match="has another checksum than in the manifest"):
                send(run, address)
            assert not (tmp_path / "reports" / run.name).exists()
        else:
            assert send(run, address).breaks > 0
            assert content_of(tmp_path / "reports" / run.name) == content_of(run)


@pytest.mark.parametrize(
    "url",
    [
        "gpu7:8700",
        "ftp://gpu7",
        "http://",
        "http://me:secret@gpu7",
        "http://gpu7/?t=1",
        "http://gpu7:99999",
        "http://g\n",
    ],
)
def test_an_address_is_http_and_holds_no_secret(url: str) -> None:
    with pytest.raises(UserError, match="http://HOST:PORT") as caught:
        Destination.of(url)
    assert "secret" not in str(caught.value)


def test_a_token_is_read_from_a_file_of_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("vt_abc\n")
    path.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        Destination.of("http://127.0.0.1:1", token_file=path)
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    made = Destination.of("http://gpu7:8700/", token_file=tmp_path / "link")
    assert (made.url, made.token, "vt_abc" in repr(made)) == ("http://gpu7:8700", "vt_abc", False)
    with pytest.raises(UserError, match="cannot be read"):
        Destination.of("http://127.0.0.1:1", token_file=tmp_path / "none")
    with pytest.raises(UserError, match="copy it again"):
        Destination.of("http://127.0.0.1:1", token="vt_a\r\nx: y")
    clear = [Destination.of(f"{url}", token="t").in_the_clear for url in ("http://a", "https://a", "http://[::1]:1")]
    assert clear == [True, False, False]
    assert not Destination.of("http://a").in_the_clear


def test_a_service_that_refuses_or_is_none_is_named(tmp_path: Path, run: Path) -> None:
    tokens = Tokens(tmp_path / "config" / "tokens.json")
    token = tokens.add("one", "push")
    with served(tmp_path / "reports", tokens) as address:
        with pytest.raises(Unable, match="refuses the token: A token is needed; give one"):
            send(run, address)
        with pytest.raises(Unable, match="refuses the token: it is revoked"):
            push(run, Destination.of(address, token="vt_of_another_service"), say=quiet)
        with pytest.raises(Unable, match="HTTP 403 Forbidden"):
            push(run, Destination.of(f"{address}/foo", token=token), say=quiet)
        with pytest.raises(Unable, match="look at the address"):
            push(run, Destination.of(f"{address}/login"), say=quiet)
    said: list[str] = []
    with pytest.raises(Unable, match="Connection refused; the next push continues"):
        push(run, Destination.of("http://127.0.0.1:9"), say=said.append)
    assert len(said) == sending._ATTEMPTS
    with pytest.raises(Unable, match="has not got all"):
        push(run, Destination.of("http://127.0.0.1:9"), say=said.append, limit_s=-1)


def test_a_run_that_the_service_has_otherwise_is_refused_at_once(tmp_path: Path, run: Path) -> None:
    with served(tmp_path / "reports") as address:
        send(run, address)
        (run / "more").touch()
        with pytest.raises(UserError, match="remove or rename"):
            send(run, address)


@pytest.fixture
def certified(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of this machine that nobody has signed, and its key."""
    paths = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=gpu7"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(paths[0]), "-keyout", str(paths[1])]
    try:
        subprocess.run([*command.split(), *names], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no openssl to make a certificate with")
    return paths


def test_a_certificate_is_verified(tmp_path: Path, run: Path, certified: tuple[Path, Path]) -> None:
    with (
        served(tmp_path / "reports") as address,
        BreakingProxy(address, breaks=0, most=1, seed=0, certified=certified) as proxy,
    ):
        url = proxy.address.replace("http://", "https://")
        with pytest.raises(Unable, match="--ca-file names"):
            push(run, Destination.of(url, token="t"), say=quiet)
        with pytest.raises(Unable, match="is not valid for"):
            push(run, Destination.of(url.replace("127.0.0.1", "localhost"), ca_file=certified[0]), say=quiet)
        assert push(run, Destination.of(url, ca_file=certified[0]), say=quiet).run == run.name
    with pytest.raises(UserError, match="holds no certificates"):
        Destination.of(url, ca_file=certified[1])


def test_the_api_describes_pushes(tmp_path: Path) -> None:
    found = client(tmp_path / "reports").get("/api/v1/openapi.json").json()
    begin, more = found["paths"]["/push"]["post"], found["paths"]["/push/{upload}"]["put"]
    assert begin["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/Manifest")
    assert list(more["requestBody"]["content"]) == ["application/octet-stream"]
    assert [one["name"] for one in more["parameters"]] == ["upload", "file", "at"]
    assert {"Manifest", "ManifestFile", "Receipt"} <= found["components"]["schemas"].keys()
