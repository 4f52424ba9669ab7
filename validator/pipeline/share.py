"""`validator report --share`: a sanitized copy of a run folder, which may be given to anybody.

What a decision rests on is kept and cleaned; what cannot be cleaned (binary files) or is too large (checkpoints,
traces) is left out and listed. The copy is a run folder: it is judged again here, and has to come to the same decision.
"""

from __future__ import annotations

import getpass
import gzip
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from validator.documents import parse_json, unpack
from validator.errors import FolderError, disk_errors
from validator.files import Tree
from validator.history.store import folder_bytes
from validator.ingest.readers.renditions import SUFFIX, rendition
from validator.model.runbook import Trainer
from validator.model.verdict import ValidationReport
from validator.pipeline.write import Finished, rerender
from validator.runs import replay
from validator.runs.folder import JOURNAL, RENDERINGS, RunFolder, utc_now
from validator.secrets.pseudonyms import Pseudonyms
from validator.text import format_size

MAX_BYTES = 4 * 2**20
"""Size that a shared folder is kept below: a repository and a mail take it."""

_RENDERED = frozenset(RENDERINGS)
_HEADERS = frozenset({"run.json", "journal.jsonl", "environment.json", "runbook.yaml"})
_NEVER_TEXT = (".pt", ".pth", ".safetensors", ".bin", ".ckpt", ".npz", ".npy", ".gz", ".zip", ".nsys-rep", ".sqlite")

_PACKED_FROM = 8 * 2**10
_PACKING_ORDER = ((".jsonl",), (".json", ".txt", ".xml", ".log"), (".csv",))
"""Endings of the files that are packed first, second and third; tables last, since people read them."""

_NOT_EVIDENCE = re.compile(
    r"(^|/)(mem_\w+\.(txt|json)|k_stats\.csv|collect_env\.txt|nvidia_smi\.xml|stackdump_\d+\.txt)$"
    r"|\.attempt\d+/|(^|/)trace/(?!summary\.json$)"
)
"""Files that no verdict is read from: the first to be left out when the copy would be too large."""


@dataclass(frozen=True)
class LeftOut:
    """A file of the run folder that the copy lacks."""

    path: str
    bytes: int
    why: str


@dataclass(frozen=True)
class Shared:
    """A sanitized copy, its size in bytes, what was left out, and how often each name was replaced."""

    copy: Finished
    bytes: int
    left_out: tuple[LeftOut, ...]
    replaced: Mapping[str, int]

    @property
    def summary(self) -> str:
        """What to know before it is sent."""
        lines = [f"Sanitized copy: {self.copy.folder} ({format_size(self.bytes)})"]
        if self.left_out:
            total = sum(one.bytes for one in self.left_out)
            count = f"{len(self.left_out)} files of {format_size(total)}"
            lines.append(f"Left out, as listed in {replay.SHARE_FILE}: {count}")
        lines.append("Names that cannot be recognized, such as those in a text of yours, stay: look before you send.")
        return "\n".join(lines)


def share(run_dir: Path, *, out: Path | None = None, max_bytes: int = MAX_BYTES) -> Shared:
    """Judge a finished validation again, and write a sanitized copy of it.

    Args:
        out: the folder to make; default is one next to the run folder, named like it without the host's name.

    Raises:
        FolderError: when `run_dir` is no run folder or still being run, `out` holds something, or the copy could not be
            made clean; then nothing of it is left.
        Unable: when the disk refuses.
    """
    folder = RunFolder.open(run_dir)
    command = f"validator report {run_dir} --share"
    _require_original(folder)
    with disk_errors(folder.root, command=command):
        report, _ = rerender(folder)
    names = _names(folder)
    target = (out or folder.root.parent / f"{names.new_run_id}-shared").resolve()
    if target.exists() and any(target.iterdir()):
        raise FolderError(f"{target} holds something already; remove it, or choose another folder with --out")
    if target == folder.root or folder.root in target.parents:
        raise FolderError(f"{target} is inside the run folder; choose another folder with --out")
    with disk_errors(target, command=command):
        try:
            return _sanitized(folder, target, names, report, max_bytes)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise


def _require_original(folder: RunFolder) -> None:
    """Raises FolderError when the folder is a sanitized copy itself, or its validation has not ended."""
    if replay.is_shared(folder):
        raise FolderError(f"{folder.root} is a sanitized copy already; share the run folder that it was made from")
    events = replay.events_of(folder)
    if replay.last_runner(folder, events).alive() and not replay.ending(events):
        raise FolderError(f"{folder.header.run_id} is still being run; share it when it has ended")


def _sanitized(folder: RunFolder, target: Path, names: Pseudonyms, report: ValidationReport, max_bytes: int) -> Shared:
    target.mkdir(parents=True, exist_ok=True)
    texts, left_out = _cleaned(folder, names)
    budget = max_bytes
    for attempt in range(6):  # the renderings' size is known only once they are written
        kept, packed, too_large = _fitting(texts, budget)
        missing = (*left_out, *too_large)
        _write_copy(folder, target, kept, packed, names, missing)
        copy = RunFolder.open(target)
        judged, paths = rerender(copy)
        total = folder_bytes(target)
        if total > max_bytes:
            replay.compact(copy)
            total = folder_bytes(target)
        if total <= max_bytes:
            break
        # Files are packed or left out whole, so that a budget lowered by little may change nothing.
        budget -= total - max_bytes + 4096 * 4**attempt
        shutil.rmtree(target)
        target.mkdir()
    else:
        raise FolderError(f"what the decision rests on does not fit into {format_size(max_bytes)}; share a shorter run")
    if (judged.decision, judged.exit_code) != (report.decision, report.exit_code):
        raise FolderError(
            f"the copy would be judged {judged.decision} and not {report.decision}, so it is not written; "
            "this is an internal error of --share: please report it"
        )
    _require_clean(target, names)
    return Shared(Finished(target, judged, paths), total, tuple(missing), dict(names.replaced))


def _node_names(fields: Mapping[str, Any]) -> Iterator[str]:
    """Names and addresses of the nodes that were allocated; those of this machine alone are nobody's."""
    allocation = fields.get("allocation")
    if isinstance(allocation, Mapping) and allocation.get("engine") != "local":
        for node in allocation.get("nodes", ()):
            yield from (str(node.get("name", "")), str(node.get("address", "")))


def _names(folder: RunFolder) -> Pseudonyms:
    """Everything that the folder itself says about whose it is."""
    header, environment = folder.header, folder.load_environment()
    hosts = [header.host, str(environment.get("host") or "")]
    events = replay.events_of(folder)
    resumed = (event for event in events if event.event == "resumed")
    hosts += [str(event.fields["runner"].get("host", "")) for event in resumed]
    hosts += [name for event in events if event.event == "nodes" for name in _node_names(event.fields)]
    interpreter = Path(header.python).parent.parent
    roots = {header.cwd: "WORK", str(interpreter): "PYTHON", str(folder.root): "RUN"}
    where = (environment.get("disk") or {}).get("path")
    if where:
        roots[str(where)] = "RUN"
    roots |= _trainer_places(header.runbook.trainer)
    roots = {root: name for root, name in roots.items() if root not in ("/usr", "/", "")}
    return Pseudonyms(run_id=header.run_id, hosts=filter(None, hosts), users=_users(folder), roots=roots)


def _trainer_places(trainer: Trainer) -> dict[str, str]:
    """Folders that the trainer is started from; its Python is named by itself or by its environment's folder."""
    found = {str(Path(name).parent): "ENV" for name in trainer.env_file}
    if trainer.workdir is not None:
        found[trainer.workdir] = "WORK"
    if trainer.metrics.log is not None and trainer.metrics.log.startswith("/"):
        found[str(Path(trainer.metrics.log).parent)] = "LOGS"
    if trainer.python is not None and "/" in trainer.python:
        path = Path(trainer.python)
        found[str(path.parents[1] if path.parent.name == "bin" else path)] = "PYTHON"
    return found


def _users(folder: RunFolder) -> set[str]:
    """Accounts, as homes in the recorded paths name them, and the present one."""
    header = folder.header
    recorded = " ".join((header.cwd, header.python, str(folder.root), header.runbook_path))
    found = set(re.findall(r"/(?:home|Users)/([\w.-]+)", recorded))
    with suppress(KeyError, OSError):
        found.add(getpass.getuser())
    return found


def _cleaned(folder: RunFolder, names: Pseudonyms) -> tuple[dict[str, str], list[LeftOut]]:
    """Every text of the folder, cleaned, by its cleaned path; and what is no text."""
    texts: dict[str, str] = {}
    left_out: list[LeftOut] = []
    with folder.tree() as tree:
        for entry in tree.walk():
            relative, size = entry.path, entry.bytes
            if entry.kind != "file" or relative in _RENDERED or relative == replay.SHARE_FILE:
                continue
            never = relative.endswith(_NEVER_TEXT) or size > replay.LARGEST_TEXT
            data = b"\0" if never else tree.read(relative, limit=replay.LARGEST_TEXT)
            name = names.text(relative, secrets=relative not in _HEADERS)
            if b"\0" in data and not never and (rows := rendition(relative, data)) is not None:
                relative, name, data = f"{relative}{SUFFIX}", f"{name}{SUFFIX}", rows.encode()
            if b"\0" in data:
                large = size > replay.LARGEST_TEXT
                why = "larger than what is cleaned" if large else "not a text, so it cannot be cleaned"
                left_out.append(LeftOut(name, size, why))
            else:
                texts[name] = _clean(relative, data.decode("utf-8", "replace"), names)
    return texts, left_out


def _clean(relative: str, text: str, names: Pseudonyms) -> str:
    secrets = relative not in _HEADERS  # these were written without; they hold patterns that must stay whole
    if relative.endswith((".json", ".jsonl")):
        return names.json_text(text, secrets=secrets)
    if relative.endswith(".log") and "\n{" in f"\n{text}":
        return names.log(text)
    return names.text(text, secrets=secrets)


def _fitting(texts: Mapping[str, str], budget: int) -> tuple[dict[str, bytes], set[str], list[LeftOut]]:
    """What fits: as it is if all does, else the large files packed, else without what is no evidence, largest first."""
    kept = {name: text.encode("utf-8", "replace") for name, text in texts.items()}
    packed: set[str] = set()
    for endings in _PACKING_ORDER:
        if _size(kept) <= budget:
            break
        for name, data in list(kept.items()):
            if name.endswith(endings) and name not in _HEADERS and len(data) >= _PACKED_FROM:
                kept[f"{name}.gz"] = gzip.compress(data, mtime=0)
                packed.add(name)
                del kept[name]
    left_out: list[LeftOut] = []
    spare = sorted(
        (name for name in kept if _NOT_EVIDENCE.search(name.removesuffix(".gz"))), key=lambda name: -len(kept[name])
    )
    while _size(kept) > budget and spare:
        name = spare.pop(0)
        size = len(kept.pop(name))
        packed.discard(name.removesuffix(".gz"))
        left_out.append(LeftOut(name, size, "no verdict is read from it, and the copy must stay small"))
    return kept, packed, left_out


def _size(files: Mapping[str, bytes]) -> int:
    return sum(map(len, files.values()))


def _write_copy(
    folder: RunFolder,
    target: Path,
    kept: Mapping[str, bytes],
    packed: set[str],
    names: Pseudonyms,
    left_out: Sequence[LeftOut],
) -> None:
    with Tree(target) as tree:
        for name, data in _with_checksums(kept, packed).items():
            tree.write(name, data, sync=False)
    for name in kept:
        path = target / name
        original = folder.root / name.removesuffix(".gz").removesuffix(SUFFIX)
        with suppress(OSError):  # a verdict asks whether a file is older than its process
            stat = original.lstat()
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    form: dict[str, Any] = {
        "schema_version": 1,
        "shared": utc_now(),
        "replaced": dict(sorted(names.replaced.items())),
        "packed": sorted(packed),
        "left_out": [asdict(one) for one in left_out],
    }
    copy = RunFolder.open(target)
    with copy.tree() as tree:
        tree.write(replay.SHARE_FILE, json.dumps(form, indent=2) + "\n")
    environment = copy.load_environment()
    copy.save_environment({**environment, "shared_copy": _account(form)})


def _account(form: Mapping[str, Any]) -> dict[str, str]:
    """The lines about the copy in the report's environment."""
    total = sum(one["bytes"] for one in form["left_out"])
    count = len(form["left_out"])
    return {
        "names": "hosts, accounts, paths, addresses and serial numbers are replaced, the same one always by the same",
        "left_out": f"{count} files of {format_size(total)}, listed in {replay.SHARE_FILE}" if count else "nothing",
        "packed": f"{len(form['packed'])} files by gzip; `validator report` reads them as they are"
        if form["packed"]
        else "nothing",
    }


def _require_clean(target: Path, names: Pseudonyms) -> None:
    with Tree(target) as tree:
        for entry in tree.walk():
            data = tree.read(entry.path) if entry.kind == "file" else b""
            data = unpack(data) if entry.path.endswith(".gz") else data
            leak = next(names.leaks(f"{entry.path}\n{data.decode('utf-8', 'replace')}"), None)
            if leak is not None:
                raise FolderError(
                    f"{entry.path} would still hold a name of {len(leak)} characters that starts with "
                    f"{leak[:2]!r}, so the copy is not written; this is an internal error of --share: please report it"
                )


def _with_checksums(kept: Mapping[str, bytes], packed: set[str]) -> dict[str, bytes]:
    """The files of the copy, whose journal holds the checksums of these cleaned files instead of the original ones.

    A checksum of a file that was left out is dropped: no verdict is read from it.
    """
    content = {name.removesuffix(".gz"): unpack(data) if name.endswith(".gz") else data for name, data in kept.items()}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    lines = []
    for line in content[JOURNAL].decode("utf-8", "replace").splitlines():
        with suppress(ValueError):
            event = parse_json(line, exact=True)
            line = _rechecked(event, content, digests) if isinstance(event, dict) else line
        lines.append(line)
    data = ("\n".join(lines) + "\n").encode("utf-8", "replace")
    name = f"{JOURNAL}.gz" if JOURNAL in packed else JOURNAL
    return {**kept, name: gzip.compress(data, mtime=0) if JOURNAL in packed else data}


def _rechecked(event: dict[str, Any], content: Mapping[str, bytes], digests: Mapping[str, str]) -> str:
    if isinstance(event.get("sources"), dict):
        event["sources"] = {name: digests[name] for name in event["sources"] if name in digests}
    if "header" in event:
        event["header"] = replay.declared_digest(content["run.json"])
    if "last_go" in event:
        event["last_go"] = digests.get("last_go.json")
    return replay.on_one_line(event).rstrip("\n")
