"""Find a runbook by a path, or by the name of a bundled one. No model is imported here: the list of them needs none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

from validator.runbook.document import parse, plain
from validator.runbook.problems import Mark, Problem, RunbookError
from validator.startup import shipped
from validator.text import nearest

_SUFFIXES = (".yaml", ".yml")


class RunbookInfo(NamedTuple):
    """A bundled runbook. `title` and `description` are empty where it gives none."""

    name: str
    path: Path
    title: str
    description: str
    gpus: int | Literal["all"]
    phases: tuple[str, ...]
    bundled_trainer: bool
    """Whether it trains and names no trainer of its own, so that the bundled one has to be installed."""


def _shipped() -> dict[str, Path]:
    return _inside(shipped("runbooks"))


def _inside(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.iterdir()) if path.suffix in _SUFFIXES and path.is_file()}


def find(name: str) -> Path:
    """The file that `name` means: the path itself, else a bundled runbook.

    `runbooks/smoke_cpu.yaml`, `smoke_cpu.yaml` and `smoke_cpu` all find the bundled one where no such file exists.

    Raises:
        RunbookError: when there is neither; it names the nearest bundled runbook.
    """
    literal = Path(name)
    if literal.is_file():
        return literal
    shipped = _shipped()
    parts = literal.parts
    bare = parts[-1] if parts and (len(parts) == 1 or parts[:-1] == ("runbooks",)) else ""
    stem = Path(bare).stem if Path(bare).suffix in _SUFFIXES else bare
    if stem in shipped:
        return shipped[stem]
    if literal.is_dir():
        inside = sorted(path.name for path in literal.iterdir() if path.suffix in _SUFFIXES)
        fix = f"name one of the files in it: {', '.join(inside)}" if inside else "name a file"
        raise RunbookError([Problem.at(Mark(name), "this is a folder, not a runbook", fix)])
    fix = nearest(Path(literal.name).stem, shipped, f"bundled runbooks: {', '.join(shipped)}")
    raise RunbookError([Problem.at(Mark(name), "there is no such file or runbook", fix)])


def available(folder: Path | None = None) -> tuple[RunbookInfo, ...]:
    """The bundled runbooks by name, with those of a folder, which come before bundled ones of the same name.

    A file that cannot be read is listed without phases.
    """
    found = {**_shipped(), **(_inside(folder) if folder is not None and folder.is_dir() else {})}
    return tuple(_info(name, path) for name, path in found.items())


def _info(name: str, path: Path) -> RunbookInfo:
    try:
        root, _ = parse(path.read_text(encoding="utf-8", errors="replace"), file=str(path))
    except OSError:
        root = None
    tree = _mapping(plain(root) if root is not None else None)
    hardware, listed = _mapping(tree.get("hardware")), tree.get("phases")
    phases = [phase for phase in listed if isinstance(phase, dict)] if isinstance(listed, list) else []
    trains = any("steps" in phase or phase.get("kind") == "pytest" for phase in phases)
    gpus = hardware.get("gpus") or 0
    return RunbookInfo(
        name=name,
        path=path,
        title=str(tree.get("title") or ""),
        description=" ".join(str(tree.get("description") or "").split()),
        gpus="all" if gpus == "all" else gpus if isinstance(gpus, int) else 0,
        phases=tuple(str(phase.get("id", "")) for phase in phases),
        bundled_trainer=trains and "command" not in _mapping(tree.get("trainer")),
    )


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
