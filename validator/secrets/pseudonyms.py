"""Names that lead to a machine or a person, replaced by others that lead nowhere: for run folders that are shared.

The same name gets the same pseudonym wherever it stands, so that a log line can still be laid beside a journal entry.
Replaced are names of hosts and accounts, absolute paths, UUIDs, PCI, MAC and IP addresses, serial numbers, mail
addresses and secrets. Processes' numbers, times, commits, versions and models of hardware stay.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from validator.documents import parse_json
from validator.model.schemas import SCHEMAS
from validator.secrets.redact import REDACTED, is_secret_name, redact

WITHHELD = "withheld"

_COMMON = frozenset(
    {"localhost", "host", "root", "user", "users", "ubuntu", "debian", "admin", "nobody", "runner", "train", "training"}
    | {"gpu", "cpu", "cuda", "nccl", "gloo", "python", "torch", "baseline", "rank", "run", "go"}
    | {"true", "false", "none", "null", *SCHEMAS}
)
"""Words of the reports themselves and accounts that every machine has: they name nobody, and are left alone."""

_EDGE = r"(?<![\w./~<>*)\]}$@%+-])"
_PATH = re.compile(rf"(?:{_EDGE}|(?<=\\[nrt]))/(?!/)[^\s\"'`<>|:;,(){{}}\[\]=&#$\\]+")
_ROOT = re.compile(rf"{_EDGE}/")
_NO_PATH = re.compile(r"[\s\"'`<>|:;,=]")
_LONGEST_PARENT = 402
"""Characters before a run folder's name in which its path begins, if it does."""

_TOP_FOLDERS = frozenset(
    {"bin", "boot", "data", "dev", "etc", "home", "lib", "lib64", "media", "mnt", "opt", "proc", "root", "run"}
    | {"scratch", "srv", "sys", "tmp", "usr", "var", "workspace"}
)
_SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/", "/etc/", "/proc/", "/sys/", "/dev/")
_PACKAGES = re.compile(r"^.*/(?:site|dist)-packages(?=/|$)")
_STDLIB = re.compile(r"^.*/lib/python3\.\d+(?=/|$)")

_UUID = re.compile(r"\b(?P<kind>GPU-|MIG-)?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_PCI = re.compile(r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?(?![\w:])")
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}[:-]){5,19}[0-9a-fA-F]{2}(?![\w:])")
_GUID = re.compile(r"(?<![\w:])(?:[0-9a-f]{4}:){3}[0-9a-f]{4}(?![\w:])")
_IPV4 = re.compile(r"(?<![\w.=+-])(?<!ersion )(?<!ersion: )(?:\d{1,3}\.){3}\d{1,3}(?![\w-])(?!\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:])")
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,24}\b")
_INNER_HOST = re.compile(
    r"(?<![\w.-])(?:ip-\d+-\d+-\d+-\d+(?:\.[\w-]{1,63}){0,6}"
    r"|[\w-]{1,63}(?:\.[\w-]{1,63}){0,6}\.(?:internal|localdomain|lan|corp|intra|amazonaws\.com|cloudapp\.azure\.com)"
    r"|[A-Za-z]\w{0,62}-[\w-]{1,63}\.local)\b"
)
_SERIAL = re.compile(
    r"(?i)\b(?P<name>(?:board |chassis )?serial(?:[ _](?:number|no\.?))?)(?P<gap>\s*[:=]\s*)(?P<value>\S+)"
)
_KERNEL = re.compile(r"\b(?P<number>Linux[ -]\d+\.\d+\.\d+)-[\w.+-]+?(?=[ -](?:x86_64|aarch64|#)|[\s\",]|$)")
"""The version of a kernel, without what whoever built it added."""

_ELEMENT = re.compile(
    r"<(?P<tag>(?:\w*_)?(?:serial|serial_number|uuid|guid)|pdi|pci_(?:bus|device|domain|device_id|sub_system_id)"
    r"|board_id|cluster_uuid|clique_id|chassis_\w+|tray_index|host_id|peer_type|module_id|inforom_\w*image_version)>"
    r"[^<]*</(?P=tag)>"
)
_PRINTED_KEY = re.compile(r"(?i)(?:^|_)(?:serial|serial_number|uuid|guid|pci_bus_id|mac|machine_id|boot_id)$")


class Pseudonyms:
    """Replaces names consistently over any number of texts; `replaced` counts what was found by kind.

    Args:
        run_id: name of the run folder; `new_run_id` is the one without the host's name.
        hosts: names of machines that are known, `users` of accounts.
        roots: known folders and what to call each, such as `{"/home/me/work": "WORK"}`.
    """

    def __init__(
        self,
        *,
        run_id: str,
        hosts: Iterable[str] = (),
        users: Iterable[str] = (),
        roots: Mapping[str, str] | None = None,
    ) -> None:
        self.replaced: Counter[str] = Counter()
        self._known: dict[tuple[str, str], str] = {}
        self._numbers: Counter[str] = Counter()
        self._roots = sorted(
            ((root.rstrip("/"), name) for root, name in (roots or {}).items() if len(PurePosixPath(root).parts) > 1),
            key=lambda one: -len(one[0]),
        )
        self._run_id = run_id
        self._run = re.compile(rf"{re.escape(run_id)}(?![\w-])")
        self._words: dict[str, str] = {}
        self._name("host", hosts)
        self._name("user", users)
        self.new_run_id = self._new_run_id(run_id)

    def _name(self, kind: str, names: Iterable[str]) -> None:
        """Each name, and what stands before its first dot, by one pseudonym."""
        for name in names:
            for alias in dict.fromkeys((name, name.split(".")[0], _slug(name))):
                if len(alias) > 1 and alias.lower() not in _COMMON and alias not in self._words:
                    self._words[alias] = self._pseudonym(kind, name)

    def _new_run_id(self, run_id: str) -> str:
        """`<time>-<runbook>-<host>-<id>`, whatever host that is."""
        for alias, name in self._words.items():
            head, found, tail = run_id.rpartition(f"-{alias}-")
            if found and "-" not in tail:
                return f"{head}-{name}-{tail}"
        return run_id

    def _pseudonym(self, kind: str, value: str) -> str:
        key = (kind, value.lower())
        if key not in self._known:
            self._numbers[kind] += 1
            self._known[key] = f"{kind}{self._numbers[kind]}"
        return self._known[key]

    def value(self, found: Any, *, secrets: bool = True, key: str = "") -> Any:
        """A JSON value with every text in it cleaned, keys included. `secrets` as for `text`."""
        if isinstance(found, dict):
            return {
                self.text(str(k), secrets=False): self.value(v, secrets=secrets, key=str(k)) for k, v in found.items()
            }
        if isinstance(found, list):
            return [self.value(one, secrets=secrets, key=key) for one in found]
        if not isinstance(found, str) or not found:
            return found
        if secrets and is_secret_name(key.rpartition(".")[2]):
            return REDACTED
        if _PRINTED_KEY.search(key):
            return self._pseudonym(key.lower().rpartition("_")[2], found)
        return self.text(found, secrets=secrets)

    def json_text(self, text: str, *, secrets: bool = True) -> str:
        """A JSON document, or the lines of one JSON document each. Lines without a name stay as they are.

        What cannot be parsed is cleaned as text.
        """
        try:
            whole = parse_json(text, exact=True)
        except ValueError:
            return self._mixed(text, secrets=secrets)
        clean = self.value(whole, secrets=secrets)
        return text if clean == whole else json.dumps(clean, indent=2, ensure_ascii=False) + "\n"

    def _json_line(self, line: str, *, secrets: bool) -> str | None:
        """A line that is a JSON object, cleaned; None where it is none."""
        if not (line.startswith("{") and line.rstrip().endswith("}")):
            return None
        try:
            whole = parse_json(line, exact=True)
        except ValueError:
            return None
        clean = self.value(whole, secrets=secrets)
        return line if clean == whole else json.dumps(clean, ensure_ascii=False, separators=(",", ":")) + "\n"

    def log(self, text: str) -> str:
        """A log: what a program printed as JSON, in one piece or in a line, stays JSON."""
        return self.json_text(text) if text.lstrip().startswith("{") else self._mixed(text, secrets=True)

    def _mixed(self, text: str, *, secrets: bool) -> str:
        """Lines, of which some are JSON; those between two of them are cleaned as one text, which is much faster."""
        parts: list[str] = []
        between: list[str] = []
        for line in re.split(r"(?<=\n)", text):
            clean = self._json_line(line, secrets=secrets)
            if clean is None:
                between.append(line)
                continue
            parts += [self.text("".join(between), secrets=secrets), clean]
            between.clear()
        return "".join([*parts, self.text("".join(between), secrets=secrets)])

    def text(self, text: str, *, secrets: bool = True) -> str:
        """Any text. `secrets=False` for one that holds patterns and has no secrets any more."""
        if not text or text.isdigit():
            return text
        if secrets:
            text = redact(text)
        text = _ELEMENT.sub(self._element, text)
        text = _SERIAL.sub(self._serial, text) if "serial" in text.lower() else text
        text = _KERNEL.sub(lambda match: match["number"], text)
        text = self._without_run(text.replace("file:///", "/"))
        text = _PATH.sub(self._path, text)
        for kind, pattern in (("uuid", _UUID), ("pci", _PCI), ("mac", _MAC), ("guid", _GUID), ("mail", _MAIL)):
            text = pattern.sub(self._counted(kind), text)
        text = _IPV4.sub(self._address, text)
        text = _IPV6.sub(self._address, text)
        text = _INNER_HOST.sub(self._counted("host"), text)
        return self._plain_words(text)

    def leaks(self, text: str) -> Iterator[str]:
        """Names that are still in a text, for a last look at what has been written."""
        for word in self._words:
            if re.search(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", text):
                yield word
        for root, _ in self._roots:
            if re.search(rf"{re.escape(root)}(?![\w.-])", text):
                yield root
        for pattern in (_UUID, _PCI, _MAC, _MAIL):
            yield from (match[0] for match in pattern.finditer(text))
        for pattern in (_IPV4, _IPV6):
            yield from (match[0] for match in pattern.finditer(text) if _kind_of_address(match[0]))

    def _element(self, match: re.Match[str]) -> str:
        self.replaced["serial"] += 1
        return f"<{match['tag']}>{WITHHELD}</{match['tag']}>"

    def _serial(self, match: re.Match[str]) -> str:
        if match["value"].strip("\"',<>") in ("", "N/A", WITHHELD):
            return match[0]
        self.replaced["serial"] += 1
        return f"{match['name']}{match['gap']}{WITHHELD}"

    def _without_run(self, text: str) -> str:
        """Paths that lead to the run folder replaced, and its name where it stands alone."""
        if self._run_id not in text:
            return text
        pieces, done = [], 0
        for match in self._run.finditer(text):
            self.replaced["path"] += 1
            first = _path_start(text, max(done, match.start() - _LONGEST_PARENT), match.start())
            pieces += [text[done:first], self.new_run_id if first == match.start() else "RUN"]
            done = match.end()
        return "".join([*pieces, text[done:]])

    def _path(self, match: re.Match[str]) -> str:
        path = match[0].rstrip(".!?")
        rest = match[0][len(path) :]
        parts = path.strip("/").split("/")
        if len(parts) == 1 and parts[0] not in _TOP_FOLDERS and not any(path == root for root, _ in self._roots):
            return match[0]
        self.replaced["path"] += 1
        return self._named(path) + rest

    def _named(self, path: str) -> str:
        """A path without its beginning: the rest identifies the file, not its owner."""
        for pattern, name in ((_PACKAGES, "PACKAGES"), (_STDLIB, "PYTHON")):
            if pattern.match(path):
                return pattern.sub(name, path)
        for root, name in self._roots:
            if path == root or path.startswith(f"{root}/"):
                return name + path[len(root) :]
        if path.startswith(_SYSTEM):
            return f"SYSTEM-{path[1:]}"
        parent, _, name = path.rstrip("/").rpartition("/")
        return f"{self._pseudonym('DIR', parent or path)}/{name}"

    def _counted(self, kind: str) -> Callable[[re.Match[str]], str]:
        def replace(match: re.Match[str]) -> str:
            self.replaced[kind] += 1
            prefix = match.groupdict().get("kind") or ""
            return f"{prefix}{self._pseudonym(kind, match[0])}"

        return replace

    def _address(self, match: re.Match[str]) -> str:
        kind = _kind_of_address(match[0])
        if kind is None:
            return match[0]
        self.replaced["ip"] += 1
        return self._pseudonym("ip", match[0]) if kind == "ip" else kind

    def _plain_words(self, text: str) -> str:
        for word, name in self._words.items():
            if word not in text:
                continue
            text, found = re.subn(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", name, text)
            self.replaced[name.rstrip("0123456789")] += found
        return text


def _path_start(text: str, low: int, name: int) -> int:
    """Where a path begins that leads to the name at `name`, and begins at `low` at the earliest; else `name`.

    It is sought backwards from the name: forwards, a text of slashes would be read on from every one of them.
    """
    if name == low or text[name - 1] != "/":
        return name
    low = max((found.end() for found in _NO_PATH.finditer(text, low, name)), default=low)
    first = _ROOT.search(text, low, name - 1)
    return name if first is None else first.start()


@lru_cache(maxsize=4096)
def _kind_of_address(text: str) -> str | None:
    """`localhost`, `anywhere` or `ip`; None where it is a version, a time or a name in C++ rather than somebody's."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if address.is_loopback:
        return "localhost"
    if address.version == 6 and not (address.is_link_local or address.is_private or address.is_global):
        return None
    return "anywhere" if address.is_unspecified else "ip"


def _slug(host: str) -> str:
    """A host's name as in the name of a run folder."""
    return re.sub(r"[^a-z0-9-]+", "-", host.lower()).strip("-")[:24]
