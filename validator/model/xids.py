"""Xid events: errors that the NVIDIA driver reports of a GPU, what they mean and what to do.

After NVIDIA's catalogue for Ampere and later GPUs, in other words: `SOURCE`. An event fails where the catalogue asks
for a reset, a restart of the machine or somebody at it; it warns where a program died or something wears out; what the
catalogue ignores is information. Events for which the catalogue names no action warn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

SOURCE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"

Severity = Literal["fails", "warns", "information"]

REBOOT = "reboot the machine"
RESTART_VM = "restart the virtual machine"
RESET = "reset the GPU, and have it replaced if the event comes back"
CHECK = "have the card's power and seat checked"
CALL = "call the provider"
RESTART = "restart the application"
UPDATE = "update driver and firmware"
NOTHING = "nothing"


class Xid(NamedTuple):
    """What one code means; `action` is the first thing to do."""

    meaning: str
    severity: Severity
    action: str


def _all(codes: Iterable[int], meaning: str, severity: Severity, action: str) -> dict[int, Xid]:
    return dict.fromkeys(codes, Xid(meaning, severity, action))


_NVLINK5 = range(144, 151)
_RECOVERY = 154

XIDS: dict[int, Xid] = {
    # Fatal to the GPU, the link or the machine.
    46: Xid("the GPU stopped processing", "fails", RESET),
    48: Xid("an uncorrectable memory error", "fails", RESET),
    54: Xid("the card's auxiliary power is not connected", "fails", CHECK),
    62: Xid("the GPU's microcontroller halted", "fails", RESET),
    64: Xid("a row could not be remapped", "fails", RESET),
    74: Xid("an NVLink error", "fails", RESET),
    79: Xid("the GPU has fallen off the bus", "fails", REBOOT),
    95: Xid("an uncontained memory error", "fails", RESET),
    109: Xid("a context switch timed out", "fails", RESET),
    110: Xid("a security fault", "fails", RESET),
    119: Xid("the GPU's system controller does not answer", "fails", RESET),
    120: Xid("an error of the GPU's system controller", "fails", RESET),
    136: Xid("training of an NVLink failed", "fails", RESET),
    140: Xid("an ECC error without recovery", "fails", RESET),
    143: Xid("the GPU could not be initialized", "fails", RESET),
    151: Xid("rotation of a key failed", "fails", RESTART_VM),
    155: Xid("an NVLink error found by the driver", "fails", RESET),
    156: Xid("a part of the GPU was retired", "fails", RESET),
    158: Xid("a fatal timeout of the GPU", "fails", RESET),
    **_all((171, 172), "an uncorrectable memory error (171: DRAM, 172: SRAM)", "fails", RESET),
    # A program died, or something wears out.
    8: Xid("the GPU stopped processing a channel", "warns", RESTART),
    **_all((11, 32), "a corrupted command stream of a program", "warns", RESTART),
    13: Xid("an exception in a program's kernel", "warns", RESTART),
    25: Xid("an illegal command stream of a program", "warns", RESTART),
    31: Xid("a program's access to memory that is not mapped", "warns", RESTART),
    **_all((39, 40, 41, *range(70, 73), *range(75, 78), 85), "an error of a copy engine", "warns", RESTART),
    **_all(range(126, 136), "an error of a copy engine", "warns", RESTART),
    60: Xid("an exception of the security engine", "warns", RESTART),
    **_all((68, 83, 84, 88, 89, 96, 97, 98), "an error of a video decoder", "warns", RESTART),
    69: Xid("a program used a class that the GPU does not know", "warns", RESTART),
    78: Xid("a virtual GPU did not start", "warns", UPDATE),
    80: Xid("commands arrived corrupted at the GPU", "warns", RESTART),
    **_all((82, *range(99, 106)), "an error of a JPEG decoder", "warns", RESTART),
    **_all((86, 139), "an error of the optical flow engine", "warns", RESTART),
    94: Xid("a contained memory error", "warns", RESTART),
    121: Xid("an error of the link between CPU and GPU", "warns", CALL),
    142: Xid("an error of a video encoder", "warns", CALL),
    **_all(_NVLINK5, "an NVLink error", "warns", "look whether the log calls it fatal; reset the GPU if it does"),
    _RECOVERY: Xid("the recovery that the GPU needs has changed", "warns", "look up the recovery in the log"),
    157: Xid("a part of the GPU could not be retired", "warns", CALL),
    159: Xid("an error of the coherent link to the CPU", "warns", CALL),
    161: Xid("a memory channel could not be retired", "warns", CALL),
    **_all((164, 165), "the power smoothing circuit is worn (165: used up)", "warns", CALL),
    **_all((166, 170), "an error of the encrypted NVLink", "warns", CALL),
    167: Xid("a fatal timeout of PCIe", "warns", CALL),
    168: Xid("the GPU has less memory, for errors in its protected region", "warns", CALL),
    169: Xid("the GPU's security controller halted", "warns", CALL),
    # What the catalogue ignores.
    14: Xid("a test event", "information", NOTHING),
    **_all((37, 38), "an error of the driver's firmware", "information", NOTHING),
    43: Xid("a program's channel was reset after an error of its own", "information", NOTHING),
    44: Xid("a fault during a context switch", "information", NOTHING),
    45: Xid("a channel was ended because of an error before", "information", "look at the event before it"),
    63: Xid("a row was remapped", "information", NOTHING),
    **_all((66, 67), "an illegal access by the driver", "information", NOTHING),
    92: Xid("many corrected memory errors", "information", NOTHING),
    93: Xid("the card's information memory was written often", "information", NOTHING),
    **_all((106, 107), "a test message of the management bus", "information", NOTHING),
    **_all((108, 137), "a peer's access over NVLink was refused", "information", NOTHING),
    141: Xid("an error of CUDA's fast path", "information", NOTHING),
    **_all((152, 153), "an error of the deep learning accelerator", "information", NOTHING),
    160: Xid("a memory channel was retired", "information", NOTHING),
    **_all((162, 163), "the power smoothing circuit was switched (162: on, 163: off)", "information", NOTHING),
    # Known to the catalogue, and not used by GPUs since Ampere.
    **_all((*range(1, 8), 9, 10, 12, *range(15, 25), *range(26, 31)), "an event of older GPUs", "warns", CALL),
    **_all((*range(33, 37), 42, 47, *range(49, 54), *range(55, 60), 61, 65), "an event of older GPUs", "warns", CALL),
    **_all((73, 81, 87, 90, 91, *range(111, 119), *range(122, 126), 138), "an event of older GPUs", "warns", CALL),
}
"""Code to meaning, severity and action, the whole of the catalogue."""

_NO_RECOVERY = re.compile(r"\bto 0x0\b|\(None\)\s*$")
_REBOOT = re.compile(r"reboot", re.I)


def xid(code: int, text: str = "") -> Xid:
    """What an event means; `text` is what the log says behind the code, which decides for some."""
    found = XIDS.get(code)
    if found is None:
        return Xid("an event that the catalogue does not hold", "warns", f"look it up at {SOURCE}")
    if code in _NVLINK5 and re.search(r"\bFatal\b", text):
        return found._replace(meaning="a fatal NVLink error", severity="fails", action=RESET)
    if code == _RECOVERY and text:
        if _NO_RECOVERY.search(text):
            return found._replace(meaning="the GPU needs no recovery any more", severity="information", action=NOTHING)
        return found._replace(severity="fails", action=REBOOT if _REBOOT.search(text) else RESET)
    return found


def xid_table() -> str:
    """The catalogue in Markdown, codes of one meaning in one row: a part of `docs/machine.md`."""
    rows: dict[Xid, list[int]] = {}
    for code in sorted(XIDS):
        rows.setdefault(XIDS[code], []).append(code)
    lines = ["| Xid | meaning | severity | action |", "|---|---|---|---|"]
    for one, codes in rows.items():
        lines.append(f"| {_ranges(codes)} | {one.meaning} | {one.severity} | {one.action} |")
    return "\n".join(lines) + "\n"


def _ranges(codes: list[int]) -> str:
    """`39–41, 70` for 39, 40, 41, 70."""
    parts: list[list[int]] = []
    for code in codes:
        if parts and code == parts[-1][-1] + 1:
            parts[-1].append(code)
        else:
            parts.append([code])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts)
