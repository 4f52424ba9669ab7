"""Whether the nodes of a cluster are alike: where one differs, a figure of them all is one of two machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from validator.model.bounds import cards
from validator.text import format_value, one_line

if TYPE_CHECKING:
    from validator.model.nodes import NodeRecord

CLOCK_S = 1.0
"""Clocks further apart than this invalidate what is ordered by time: logs, certificates, files that are built."""

_MEMORY = 0.02
"""Total memory differs a little between equal machines: what firmware keeps for itself."""


class Difference(NamedTuple):
    """Something in which nodes differ: node to value, and the odd nodes, those without the value that most have.

    `odd` is empty where no value has a majority.
    """

    what: str
    values: Mapping[str, str]
    odd: tuple[str, ...]
    decides: bool

    @property
    def text(self) -> str:
        """As a clause."""
        most = next((value for node, value in self.values.items() if node not in self.odd), "")
        if not self.odd:
            pairs = ", ".join(f"{node} {value}" for node, value in self.values.items())
            return f"{self.what} differs: {pairs}"
        named = ", ".join(f"{node} has {self.values[node]}" for node in self.odd)
        return f"{self.what}: {named}, the others {most}"


_Value = Callable[[Mapping[str, Any]], Any]


def _in(*keys: str) -> _Value:
    def value(facts: Mapping[str, Any]) -> Any:
        found: Any = facts
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    return value


def _each_gpu(key: str) -> _Value:
    """The value that all GPUs of a node have; of several each with its number: `7 x 700, 1 x 500`."""

    def value(facts: Mapping[str, Any]) -> Any:
        counted = Counter(_text(one.get(key)) for one in cards(facts))
        if len(counted) < 2:
            return next(iter(counted), None)
        return ", ".join(f"{number} x {name}" for name, number in sorted(counted.items(), key=lambda one: -one[1]))

    return value


def _gpus(facts: Mapping[str, Any]) -> str:
    counted = Counter(str(one.get("name")) for one in cards(facts))
    return ", ".join(f"{number} x {name}" for name, number in sorted(counted.items())) or "none"


_DECIDING: Mapping[str, _Value] = {
    "Python": _in("python", "version"),
    "torch": _in("packages", "torch"),
    "the driver": _in("gpu_driver", "driver"),
    "the GPUs": _gpus,
}
_NOTED: Mapping[str, _Value] = {
    "the path of Python": _in("python", "executable"),
    "the kernel": _in("system"),
    "a container": _in("container"),
    "the CPU": _in("cpu", "model"),
    "cores": _in("cpu", "cores_logical"),
    "usable cores": _in("cpu", "cores_usable"),
    "CUDA of the driver": _in("gpu_driver", "cuda_of_driver"),
    "the GPUs' firmware": _each_gpu("vbios"),
    "the GPUs' memory in MiB": _each_gpu("memory_total_mib"),
    "the highest SM clock in MHz": _each_gpu("sm_clock_max_mhz"),
    "the application SM clock in MHz": _each_gpu("sm_clock_application_mhz"),
    "the power limit in W": _each_gpu("power_limit_w"),
    "the PCIe generation": _each_gpu("pcie_gen_max"),
    "the PCIe width": _each_gpu("pcie_width_max"),
    "active NVLinks": _each_gpu("nvlinks_active"),
    "ECC": _each_gpu("ecc_enabled"),
    "persistence mode": _each_gpu("persistence"),
    "MIG": _each_gpu("mig"),
}
_GROUPS = {"packages": "package {}", "mounts": "mount {}"}
"""Parts of the facts of which every entry is compared."""


def differences(nodes: Sequence[NodeRecord]) -> tuple[Difference, ...]:
    """In what the nodes differ, what decides first. A node that said nothing of itself is left out."""
    known = [node for node in nodes if node.facts]
    found = []
    for table, decides in ((_DECIDING, True), ({**_NOTED, **_entries(known)}, False)):
        for what, value in table.items():
            values = {node.node: _text(value(node.facts)) for node in known}
            if len(set(values.values())) > 1:
                found.append(Difference(what, values, _odd(values), decides))
    found += _clocks(nodes)
    found += _memory(known)
    return tuple(sorted(found, key=lambda one: not one.decides))


def _entries(nodes: Sequence[NodeRecord]) -> dict[str, _Value]:
    """Packages and mounts, of which nodes may have different ones; those that decide are compared already."""
    found: dict[str, _Value] = {}
    for part, what in _GROUPS.items():
        names = {str(name) for node in nodes if isinstance(of := node.facts.get(part), Mapping) for name in of}
        found |= {what.format(one_line(name, limit=120)): _in(part, name) for name in sorted(names - _DECIDING.keys())}
    return found


def _text(value: object) -> str:
    return "none" if value is None else one_line(format_value(value), limit=200)


def _odd(values: Mapping[str, str]) -> tuple[str, ...]:
    value, number = Counter(values.values()).most_common(1)[0]
    return tuple(node for node in values if values[node] != value) if number > len(values) / 2 else ()


def _clocks(nodes: Sequence[NodeRecord]) -> list[Difference]:
    offsets = {node.node: node.clock_offset_s for node in nodes if node.clock_offset_s is not None}
    if not offsets or max(offsets.values()) - min(offsets.values()) <= CLOCK_S:
        return []
    ordered = sorted(offsets.values())
    middle = ordered[len(ordered) // 2]
    odd = tuple(node for node, offset in offsets.items() if abs(offset - middle) > CLOCK_S)
    values = {node: f"{offset:+.1f} s" for node, offset in offsets.items()}
    return [Difference("the clock, beside the head's", values, odd if len(odd) < len(offsets) / 2 else (), True)]


def _memory(nodes: Sequence[NodeRecord]) -> list[Difference]:
    read = _in("memory", "total_gib")
    sizes = {node.node: float(size) for node in nodes if isinstance(size := read(node.facts), (int, float))}
    if not sizes or min(sizes.values()) >= (1 - _MEMORY) * max(sizes.values()):
        return []
    values = {node: f"{size:.0f} GiB" for node, size in sizes.items()}
    return [Difference("memory", values, _odd(values), False)]
