"""Whether the nodes of a cluster are alike: where one differs, a figure of them all is one of two machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from validator.model.nodes import NodeRecord

CLOCK_S = 1.0
"""Clocks further apart than this invalidate what is ordered by time: logs, certificates, files that are built."""

_MEMORY = 0.02
"""Total memory differs a little between equal machines: what firmware keeps for itself."""


@dataclass(frozen=True)
class Difference:
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


def _gpus(facts: Mapping[str, Any]) -> str:
    found = facts.get("gpus")
    cards = [one for one in (found.values() if isinstance(found, Mapping) else ()) if isinstance(one, Mapping)]
    counted = Counter(str(one.get("name")) for one in cards)
    return ", ".join(f"{number} x {name}" for name, number in sorted(counted.items())) or "none"


_DECIDING: Mapping[str, _Value] = {
    "Python": _in("python", "version"),
    "torch": _in("packages", "torch"),
    "the driver": _in("driver"),
    "the GPUs": _gpus,
}
_NOTED: Mapping[str, _Value] = {
    "NCCL": _in("packages", "nvidia-nccl-cu12"),
    "the kernel": _in("system"),
    "the CPU": _in("cpu", "model"),
    "usable cores": _in("cpu", "cores_usable"),
}


def differences(nodes: Sequence[NodeRecord]) -> tuple[Difference, ...]:
    """In what the nodes differ, what decides first. A node that said nothing of itself is left out."""
    known = [node for node in nodes if node.facts]
    found = []
    for table, decides in ((_DECIDING, True), (_NOTED, False)):
        for what, value in table.items():
            values = {node.node: str(value(node.facts)) for node in known}
            if len(set(values.values())) > 1:
                found.append(Difference(what, values, _odd(values), decides))
    found += _clocks(nodes)
    found += _memory(known)
    return tuple(sorted(found, key=lambda one: not one.decides))


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
