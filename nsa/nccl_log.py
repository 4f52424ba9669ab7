"""What NCCL, or RCCL, says of its connections: its log in a file of each rank, and what can be read there.

A file of its own holds whole lines of one rank. What the user has asked NCCL to print is still printed, at the end.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Connections", "NcclLog"]

_VERBOSE = ("INFO", "ABORT", "TRACE")
"""Values of NCCL_DEBUG that print what is read here."""

_BY_DEFAULT = ("INIT", "BOOTSTRAP", "ENV")
_READ = ("INIT", "ENV", "GRAPH", "P2P")
"""Subsystems that are printed where none is named, and those that are read here."""

_MAX_LINES = 8
_MAX_CHARS = 200

_SAID = re.compile(r"(.*?)NCCL INFO (.*)")
_VERSION = re.compile(r"(?:NCCL|RCCL) version:? ([\w.+-]+)")
_CONNECTION = re.compile(
    r"(?:Channel|Ring) \d+(?:/\d+)? : (\d+)\[[0-9a-f]+\] -> (\d+)\[[0-9a-f]+\](?: \[(?:send|receive)\])? via (.+?)"
    r"(?: comm 0x[0-9a-f]+ nRanks \d+)?\s*"
)
_SETTING = re.compile(r"((?:NCCL|RCCL)_\w+) set by environment to (.*?)\.?\s*")
_REFUSED = re.compile(r"P2P is disabled between .*|Could not enable P2P between .*")
_RANK = re.compile(r".*\bcomm 0x[0-9a-f]+ rank (\d+) nranks \d+ .*?\bbusId ([0-9a-f]+)\b.*")
_CARD = re.compile(r"(\s*(?:\+ .* - )?)(GPU|DEV)/(\S+) \(([0-9a-f]+)\).*")
_LINK = re.compile(r"(\s*)\+ (?:NVL|XGMI)\[[\d.]+\] - (\w+)/(\S+)\s*")
_OTHER = re.compile(r"\s*\+ PCI\[.*|CPU/.*|===.*")
"""Lines of NCCL's topology: a GPU with its rank, or from 2.30 on the device that holds it; a link; what comes next."""


@dataclass
class Connections:
    """What one log says.

    Attributes:
        version: of the library; None where it is not printed.
        via: sender, receiver and the transport as NCCL names it, each once.
        settings: variables that NCCL took notice of.
        refused: lines that say that two GPUs may not reach each other.
        links: by the id of a GPU in NCCL's topology what its NVLinks or XGMI links lead to.
        ids: by rank the id of its GPU.
    """

    version: str | None = None
    via: list[tuple[int, int, str]] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    links: dict[str, list[str]] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)

    @classmethod
    def read(cls, lines: Iterable[str]) -> Connections:
        """What is understood of a log; the rest is passed over."""
        found, seen, buses = cls(), set(), dict[int, str]()
        cards = dict[str, re.Match[str] | None]()  # by the process that prints: several may share a file
        for line in lines:
            if found.version is None and (version := _VERSION.search(line)):
                found.version = version[1]
            if (said := _SAID.fullmatch(line)) is None:
                continue
            who, text = said[1], said[2]
            if connection := _CONNECTION.fullmatch(text):
                one = int(connection[1]), int(connection[2]), connection[3][:_MAX_CHARS]
                found.via += [one] if one not in seen else []
                seen.add(one)
            elif setting := _SETTING.fullmatch(text):
                found.settings[setting[1]] = setting[2][:_MAX_CHARS]
            elif _REFUSED.fullmatch(text) and text not in found.refused and len(found.refused) < _MAX_LINES:
                found.refused.append(text.strip()[:_MAX_CHARS])
            elif rank := _RANK.fullmatch(text):
                buses[int(rank[1])] = rank[2]
            else:
                cards[who] = found._of_topology(text, cards.get(who))
        for number, bus in buses.items():
            ids = [one for one in found.links if one.rpartition("-")[2] == bus]
            if len(ids) == 1:  # the GPUs of several machines in one NVLink domain may have the same
                found.ids.setdefault(number, ids[0])
        return found

    def _of_topology(self, text: str, card: re.Match[str] | None) -> re.Match[str] | None:
        """Take notice of a GPU or of a link of the GPU in the lines above, `card`; returns the GPU of the next line."""
        if begun := _CARD.fullmatch(text):
            name = begun[3].lower()
            self.links.setdefault(name, [])
            if begun[2] == "GPU" and begun[4].isdecimal():
                self.ids[int(begun[4])] = name
            return begun
        link = _LINK.fullmatch(text)
        if link and card and len(link[1]) > len(card[1]) - len(card[1].lstrip()):  # else it is one of a CPU
            links = self.links[card[3].lower()]
            to = f"{'GPU' if link[2] == 'DEV' else link[2]}/{link[3].lower()}"
            links += [to] if to not in links else []
        return None if _OTHER.fullmatch(text) else card

    def of_ranks(self, near: range, rank: int) -> dict[str, Any]:
        """For the record: connections of `rank`, those with ranks that are not `near` by their transport alone."""
        mine = [one for one in self.via if rank in one[:2]]
        return {
            "version": self.version,
            "via": [one for one in mine if one[0] in near and one[1] in near],
            "far": sorted({by for sender, receiver, by in mine if sender not in near or receiver not in near})[:64],
            "settings": self.settings,
            "refused": self.refused,
            "gpus": {str(at): {"id": name, "links": self.links[name]} for at, name in self.ids.items()},
        }


@dataclass(frozen=True)
class NcclLog:
    """The file that NCCL writes in this process.

    Attributes:
        path: the file; it need not exist, as with another backend.
        level: what the user has set NCCL_DEBUG to; empty where it was not set.
        printed: whether the user expects its lines on standard output.
        given: the variables of NCCL in the environment of this process.
        temporary: whether its folder goes with it.
    """

    path: Path
    level: str
    printed: bool
    given: frozenset[str]
    temporary: bool = False

    @classmethod
    def begin(cls, rank: str, folder: Path | None, env: MutableMapping[str, str] = os.environ) -> NcclLog:
        """Let NCCL write what it says into a file of this rank; before its first call, for it looks only once.

        In `folder`, where there is one, else in one of its own for temporary files. A file that the user has named is
        kept, and so is what else was asked to be printed.
        """
        given = frozenset(name for name in env if name.startswith(("NCCL_", "RCCL_")))
        level, named = env.get("NCCL_DEBUG", ""), env.get("NCCL_DEBUG_FILE", "")
        subsystems = env.get("NCCL_DEBUG_SUBSYS", "").upper()
        if level.upper() not in _VERBOSE:
            env["NCCL_DEBUG"], subsystems = "INFO", ",".join(_READ)
        elif not subsystems.startswith("^"):  # it names what is not printed
            asked = subsystems.split(",") if subsystems else _BY_DEFAULT
            subsystems = ",".join(dict.fromkeys([*asked, *_READ]))
        env["NCCL_DEBUG_SUBSYS"] = subsystems
        if named:
            host = os.uname().nodename.partition(".")[0]
            return cls(Path(named.replace("%h", host).replace("%p", str(os.getpid()))), level, False, given)
        usable = folder is not None and folder.is_dir() and os.access(folder, os.W_OK)
        place = folder if folder is not None and usable else Path(tempfile.mkdtemp(prefix="nccl_"))
        path = place / f"nccl_rank{rank}.txt"
        with suppress(OSError):
            path.unlink()  # of an earlier run
        env["NCCL_DEBUG_FILE"] = str(path)
        return cls(path, level, bool(level), given, not usable)

    def lines(self) -> list[str]:
        """What has been written up to now; nothing where the user has named a terminal or a pipe."""
        try:
            return self.path.read_text(encoding="utf-8", errors="replace").splitlines() if self.path.is_file() else []
        except OSError:
            return []

    def end(self, *, failed: bool = False) -> None:
        """Print what the user has asked NCCL to print, and of a run that failed the warnings."""
        lines = self.lines() if self.printed or failed else []
        if not self.printed or self.level.upper() not in _VERBOSE:
            lines = [line for line in lines if "NCCL WARN" in line or (self.printed and _VERSION.search(line))]
        for line in lines:
            print(line, file=sys.stderr if failed else sys.stdout)
        if self.temporary:
            shutil.rmtree(self.path.parent, ignore_errors=True)
