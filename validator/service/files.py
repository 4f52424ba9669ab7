"""Files of a run folder as the service hands them out: the report as a page, all others as text or as a download.

A run folder may come from somebody else. So the address of a file leads over no link and out of no folder, and what is
handed out can run nothing but the script of our own reports.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from validator.errors import FolderError
from validator.files import Tree, TreeEntry
from validator.report.html import report_script
from validator.report.templates import environment, policy_hash
from validator.runs.folder import HAND_OVER, JOURNAL, RENDERINGS, RunFolder
from validator.runs.journal import read
from validator.runs.replay import ending, events_of, started_runs
from validator.service.context import service_of

_MAX_REPORT = 8 << 20
_CHUNK = 64 << 10
_TEXTS = frozenset({".log", ".txt", ".csv", ".json", ".jsonl", ".md", ".yaml", ".yml", ".xml", ".env", ".err", ".out"})
_LOGS = frozenset({".log", ".txt", ".err", ".out"})
_BODY = re.compile(r"<body[^<>]{0,200}>")

_EQUIV = re.compile("http-equiv", re.IGNORECASE)
"""By which a page leads to another one unasked, which no policy forbids. What ours says by it, the header says too."""

MAX_LISTED = 200
_MAX_WALKED = 20_000
"""Files and folders that are looked at for the list of a page."""


def listed_logs(folder: Path) -> tuple[list[TreeEntry], int]:
    """The renderings of a run and its logs, as many as a page lists, and how many there are among the first files."""
    first = {name: place for place, name in enumerate((*RENDERINGS, *HAND_OVER))}
    closed, found = _being_written(folder), list[TreeEntry]()
    with suppress(OSError), Tree(folder, follow=False) as tree:
        found = [
            entry
            for entry in islice(tree.walk(), _MAX_WALKED)
            if entry.kind == "file"
            and entry.path.isprintable()  # others have no address, or one that shows as another
            and (entry.path in first or (PurePosixPath(entry.path).suffix in _LOGS and not entry.path.startswith(".")))
            and not entry.path.startswith(closed)
        ]
    found.sort(key=lambda one: (first.get(one.path, len(first)), one.path))
    return found[:MAX_LISTED], len(found)


def run_file(request: Request) -> Response:
    """A file of a run folder by its path below it.

    Raises:
        HTTPException: 404 for one that is not there, 409 for one of a run that has not ended.
    """
    folder, wanted = service_of(request).folder(request.path_params["run"]), request.path_params["path"]
    if wanted == "report.html":
        return _report(folder)
    if wanted.startswith(_being_written(folder)):
        raise HTTPException(409, "The run has not ended: its files may hold secrets that are still to be removed.")
    plain = PurePosixPath(wanted).suffix in _TEXTS
    headers = {"content-security-policy": "sandbox; default-src 'none'"}
    if not plain:
        headers["content-disposition"] = f"attachment; filename*=UTF-8''{quote(PurePosixPath(wanted).name, safe='')}"
    kind = "text/plain; charset=utf-8" if plain else "application/octet-stream"
    return streamed(request, folder, wanted, headers=headers, media_type=kind)


def streamed(request: Request, folder: Path, path: str, **response: Any) -> Response:
    """A file below a folder, read as its reader takes it; raises HTTPException 404 where there is none."""
    chunks = _chunks(folder, path)
    try:
        if str(PurePosixPath(path)) != path:  # a second address of one file, such as `a//b`
            raise FileNotFoundError(path)
        first = next(chunks, b"")
    except OSError as error:
        raise HTTPException(404, "No such file is in this run folder.") from error
    return StreamingResponse(() if request.method == "HEAD" else chain((first,), chunks), **response)


def _chunks(folder: Path, path: str) -> Iterator[bytes]:
    with Tree(folder, follow=False) as tree, tree.open(path) as file:
        while data := file.read(_CHUNK):
            yield data


def _being_written(folder: Path) -> tuple[str, ...]:
    """Folders of runs that were started and have not ended: secrets are removed from their files when they have."""
    try:
        events = events_of(RunFolder.open(folder))
    except (FolderError, OSError):  # as of a kind that is not known here
        unread = read(folder / JOURNAL)
        return () if not unread or ending(unread) else ("runs/",)
    return tuple(f"{spec.out}/" for spec, outcome in started_runs(events) if outcome is None)


def _report(folder: Path) -> Response:
    """report.html as it is, below a line that leads back; of its scripts those of our reports alone run."""
    try:
        with Tree(folder, follow=False) as tree:
            html = _EQUIV.sub("data-equiv", tree.text("report.html", limit=_MAX_REPORT))
    except OSError as error:
        raise HTTPException(404, "There is no report of this run yet.") from error
    bar = environment().get_template("service/bar.html.j2").render(run=folder.name)
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src '{policy_hash(report_script())}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    html = _BODY.sub(lambda found: found[0] + bar, html, count=1)
    return HTMLResponse(html, headers={"content-security-policy": policy})
