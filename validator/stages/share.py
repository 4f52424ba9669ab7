"""`validator report --share`: a copy of a run folder that may be given to anybody.

What a decision rests on is kept and cleaned, what nobody could clean (binary files) or carry (checkpoints, traces) is
left out and listed. The copy is a run folder: it is judged again here, and has to come to the same decision.
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
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from validator.files import Tree, parse_json, unpack
from validator.folder import RENDERINGS, FolderError, RunFolder, utc_now
from validator.model.units import format_size
from validator.stages.disk import declared_digest, ending, events_of, last_runner

if TYPE_CHECKING:
    from validator.model.verdict import ValidationReport
    from validator.observe.pseudonyms import Pseudonyms
    from validator.report.write import ReportPaths

__all__ = [
    "MAX_BYTES",
    "LeftOut",
    "Shared",
    "compact",
    "is_compact",
    "is_shared",
    "readable",
    "require_original",
    "share",
]

MAX_BYTES = 3 * 2**20
"""Size that a shared folder is kept below: a repository and a mail take it."""

_FORM = "share.json"
_RESULT, _JOURNAL = "result.json", "journal.jsonl"
_RENDERED = frozenset(RENDERINGS)
_HEADERS = frozenset({"run.json", "journal.jsonl", "environment.json", "runbook.yaml"})
_NEVER_TEXT = (".pt", ".pth", ".safetensors", ".bin", ".ckpt", ".npz", ".npy", ".gz", ".zip", ".nsys-rep", ".sqlite")
_LARGEST_TEXT = 16 * 2**20
_MOST_TEXT = 512 * 2**20
"""Bytes of all files of a copy together, unpacked: a hundred times what a copy has."""

_PACKED_FROM = 8 * 2**10
_PACKED_IN_TURN = ((".jsonl",), (".json", ".txt", ".xml", ".log"), (".csv",))
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
    """A copy fit for strangers: where it is, its report, what was left out, and how many names were replaced."""

    folder: Path
    report: ValidationReport
    paths: ReportPaths
    bytes: int
    left_out: tuple[LeftOut, ...]
    replaced: Mapping[str, int]

    @property
    def text(self) -> str:
        """result.json of the copy."""
        with Tree(self.folder) as tree:
            return tree.text(_RESULT)

    @property
    def exit_code(self) -> int:
        """As for the original: the decision."""
        return 3 if self.report.exit_code is None else self.report.exit_code

    @property
    def summary(self) -> str:
        """What to know before it is sent."""
        lines = [f"Fit to be shared: {self.folder} ({format_size(self.bytes)})"]
        if self.left_out:
            total = sum(one.bytes for one in self.left_out)
            lines.append(f"Left out, as listed in {_FORM}: {len(self.left_out)} files of {format_size(total)}")
        lines.append(
            "Names that nobody could know for names, such as those in a text of yours, stay: look before you send."
        )
        return "\n".join(lines)


def share(
    folder: RunFolder, report: ValidationReport, *, out: Path | None = None, max_bytes: int = MAX_BYTES
) -> Shared:
    """Write the copy of a validation that has ended.

    Args:
        report: the folder's own report; the copy's decision has to be the same.
        out: the folder to make; default is one beside the run folder, named like it without the host's name.

    Raises:
        FolderError: when the validation is still running, `out` holds something, or the copy could not be made clean;
            then nothing of it is left.
    """
    require_original(folder)
    events = events_of(folder)
    if last_runner(folder, events).alive() and not ending(events):
        raise FolderError(f"{folder.header.run_id} is still being run; share it when it has ended")
    names = _names(folder)
    target = (out or folder.root.parent / f"{names.new_run_id}-shared").resolve()
    if target.exists() and any(target.iterdir()):
        raise FolderError(f"{target} holds something already; remove it, or choose another folder with --out")
    if target == folder.root or folder.root in target.parents:
        raise FolderError(f"{target} lies in the run folder itself; choose another folder with --out")
    try:
        return _written(folder, target, names, report, max_bytes)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def require_original(folder: RunFolder) -> None:
    """Raises FolderError when the folder is a copy that was made for strangers."""
    if is_shared(folder):
        raise FolderError(f"{folder.root} is such a copy already; share the run folder that it was made from")


def _written(folder: RunFolder, target: Path, names: Pseudonyms, report: ValidationReport, max_bytes: int) -> Shared:
    target.mkdir(parents=True, exist_ok=True)
    texts, left_out = _cleaned(folder, names)
    budget = max_bytes
    for _ in range(4):  # the renderings' size is known only once they are written
        kept, packed, too_large = _fitting(texts, budget)
        missing = (*left_out, *too_large)
        _write(folder, target, kept, packed, names, missing)
        copy = RunFolder.open(target)
        judged, paths = _judged(copy)
        total = _total(target)
        if total > max_bytes:
            compact(copy)
            total = _total(target)
        if total <= max_bytes:
            break
        budget -= total - max_bytes + 4096
        shutil.rmtree(target)
        target.mkdir()
    else:
        raise FolderError(f"what the decision rests on does not fit into {format_size(max_bytes)}; share a shorter run")
    if (judged.decision, judged.exit_code) != (report.decision, report.exit_code):
        raise FolderError(
            f"the copy would be judged {judged.decision} and not {report.decision}, so it is not written; "
            "this is a fault of --share: please report it"
        )
    _require_clean(target, names)
    return Shared(target, judged, paths, total, tuple(missing), dict(names.replaced))


def _total(folder: Path) -> int:
    with Tree(folder) as tree:
        return sum(entry.bytes for entry in tree.walk())


def is_compact(folder: RunFolder) -> bool:
    """Whether the folder's result.json is on one line."""
    try:
        with folder.tree() as tree:
            return tree.read(_RESULT).strip().count(b"\n") == 0
    except OSError:
        return False


def compact(folder: RunFolder) -> None:
    """Write the folder's result.json without white space, which is nearly half of it."""
    with folder.tree() as tree:
        tree.write(_RESULT, _on_one_line(tree.json(_RESULT)))


def _on_one_line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def _judged(copy: RunFolder) -> tuple[ValidationReport, ReportPaths]:
    from validator.stages.reporting import rerender

    return rerender(copy)


def _names(folder: RunFolder) -> Pseudonyms:
    """Everything that the folder itself says about whose it is."""
    from validator.observe.pseudonyms import Pseudonyms

    header, environment = folder.header, folder.load_environment()
    hosts = [header.host, str(environment.get("host") or "")]
    hosts += [str(event.fields["runner"].get("host", "")) for event in events_of(folder) if event.event == "resumed"]
    interpreter = Path(header.python).parent.parent
    roots = {header.cwd: "WORK", str(interpreter): "PYTHON", str(folder.root): "RUN"}
    where = (environment.get("disk") or {}).get("path")
    if where:
        roots[str(where)] = "RUN"
    roots = {root: name for root, name in roots.items() if root not in ("/usr", "/", "")}
    return Pseudonyms(run_id=header.run_id, hosts=filter(None, hosts), users=_users(folder), roots=roots)


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
            if entry.kind != "file" or relative in _RENDERED or relative == _FORM:
                continue
            never = relative.endswith(_NEVER_TEXT) or size > _LARGEST_TEXT
            text = None if never else _text(tree.read(relative, limit=_LARGEST_TEXT))
            name = names.text(relative, secrets=relative not in _HEADERS)
            if text is None:
                why = "larger than what is cleaned" if size > _LARGEST_TEXT else "not a text, so it cannot be cleaned"
                left_out.append(LeftOut(name, size, why))
            else:
                texts[name] = _clean(relative, text, names)
    return texts, left_out


def _text(data: bytes) -> str | None:
    return None if b"\0" in data else data.decode("utf-8", "replace")


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
    for endings in _PACKED_IN_TURN:
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


def _write(
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
        original = folder.root / name.removesuffix(".gz")
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
        tree.write(_FORM, json.dumps(form, indent=2) + "\n")
    environment = copy.load_environment()
    copy.save_environment({**environment, "shared_copy": _account(form)})


def _account(form: Mapping[str, Any]) -> dict[str, str]:
    """The lines about the copy in the report's environment."""
    total = sum(one["bytes"] for one in form["left_out"])
    count = len(form["left_out"])
    return {
        "names": "hosts, accounts, paths, addresses and serial numbers are replaced, the same one always by the same",
        "left_out": f"{count} files of {format_size(total)}, listed in {_FORM}" if count else "nothing",
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
                    f"{leak[:2]!r}, so the copy is not written; this is a fault of --share: please report it"
                )


@contextmanager
def readable(folder: RunFolder) -> Iterator[RunFolder]:
    """The folder with its packed files unpacked, for reading; the folder itself where nothing is packed."""
    with folder.tree() as source:
        packed = _packed(source)
        if not packed:
            yield folder
            return
        with TemporaryDirectory(prefix="validator-") as name, Tree(Path(name)) as target:
            room = _MOST_TEXT
            for entry in source.walk():
                relative = entry.path.removesuffix(".gz")
                unpacked = relative in packed and entry.path != relative
                if entry.kind != "file" or entry.bytes > _LARGEST_TEXT or (entry.path in packed and not unpacked):
                    continue  # no copy that `share` made holds a larger file, or one both packed and not
                data = source.read(entry.path, limit=_LARGEST_TEXT)
                try:
                    data = unpack(data) if unpacked else data
                except ValueError as error:
                    raise FolderError(f"{entry.path} in {folder.root} cannot be unpacked: {error}") from error
                room -= len(data)
                if room < 0:
                    raise FolderError(f"{folder.root} holds more than a copy for strangers does, so it is not unpacked")
                kept = relative if unpacked else entry.path
                target.write(kept, data, sync=False)
                # A verdict asks whether a file is older than its process.
                os.utime(target.path / kept, ns=(entry.mtime_ns, entry.mtime_ns))
            yield replace(folder, root=target.path)


def is_shared(folder: RunFolder) -> bool:
    """Whether the folder is a copy that `share` made."""
    with folder.tree() as tree:
        return tree.has_file(_FORM)


def _packed(tree: Tree) -> frozenset[str]:
    """Files that the folder's form names as packed, as far as they are there."""
    try:
        names = tree.json(_FORM)["packed"]
        return frozenset(str(name) for name in names if tree.has_file(f"{name}.gz"))
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset()


def _with_checksums(kept: Mapping[str, bytes], packed: set[str]) -> dict[str, bytes]:
    """The files of the copy, whose journal holds the checksums of these cleaned files instead of the original ones.

    A checksum of a file that was left out is dropped: no verdict is read from it.
    """
    content = {name.removesuffix(".gz"): unpack(data) if name.endswith(".gz") else data for name, data in kept.items()}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    lines = []
    for line in content[_JOURNAL].decode("utf-8", "replace").splitlines():
        with suppress(ValueError):
            event = parse_json(line, exact=True)
            line = _rechecked(event, content, digests) if isinstance(event, dict) else line
        lines.append(line)
    data = ("\n".join(lines) + "\n").encode("utf-8", "replace")
    name = f"{_JOURNAL}.gz" if _JOURNAL in packed else _JOURNAL
    return {**kept, name: gzip.compress(data, mtime=0) if _JOURNAL in packed else data}


def _rechecked(event: dict[str, Any], content: Mapping[str, bytes], digests: Mapping[str, str]) -> str:
    if isinstance(event.get("sources"), dict):
        event["sources"] = {name: digests[name] for name in event["sources"] if name in digests}
    if "header" in event:
        event["header"] = declared_digest(content["run.json"])
    if "last_go" in event:
        event["last_go"] = digests.get("last_go.json")
    return _on_one_line(event).rstrip("\n")
