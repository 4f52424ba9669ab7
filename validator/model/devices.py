"""Which GPUs a process may see: one reading of CUDA_VISIBLE_DEVICES for supervision and observation alike."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["visible_gpus"]


def visible_gpus(setting: str | None, *, uuids: Mapping[int, str]) -> tuple[int, ...]:
    """Indices of the GPUs that CUDA_VISIBLE_DEVICES leaves visible; all when it is unset.

    Entries are indices or (abbreviated) UUIDs; the first that is neither hides the rest, as CUDA does it.
    """
    if setting is None:
        return tuple(uuids)
    found: list[int] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.isdecimal() and int(entry) in uuids:
            found.append(int(entry))
            continue
        match = [index for index, uuid in uuids.items() if entry and uuid.startswith(entry)]
        if len(match) != 1:
            break
        found.append(match[0])
    return tuple(found)
