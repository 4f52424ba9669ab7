"""The catalogue of driver events: whole, and decided by the log's own words where those decide."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.model.xids import XIDS, xid, xid_table


def test_the_catalogue_is_whole() -> None:
    assert sorted(XIDS) == list(range(1, 173))
    for code, one in XIDS.items():
        assert all((one.meaning, one.action)), code
        assert (one.severity == "information") == (one.action in ("nothing", "look at the event before it")), code


@pytest.mark.parametrize(
    ("codes", "severity", "action"),
    [
        ((79,), "fails", "reboot"),
        ((48, 64, 74, 95, 119, 120), "fails", "reset"),
        ((13, 31, 94), "warns", "restart the application"),
        ((63, 92), "information", "nothing"),
        ((54,), "fails", "power"),
        ((3, 61, 121), "warns", "call the provider"),
        ((999,), "warns", "look it up at https://docs.nvidia.com/"),
    ],
)
def test_severity_and_action_follow_the_catalogue(codes: tuple[int, ...], severity: str, action: str) -> None:
    for code in codes:
        assert xid(code).severity == severity, code
        assert action in xid(code).action, code


@pytest.mark.parametrize(
    ("code", "text", "severity", "action"),
    [
        (149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000)", "fails", "reset"),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000001)", "warns", "look whether"),
        (154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "fails", "reset"),
        (154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "fails", "reboot"),
        (154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "information", "nothing"),
        (154, "", "warns", "look up"),
    ],
)
def test_the_log_decides_where_one_code_has_several_meanings(code: int, text: str, severity: str, action: str) -> None:
    found = xid(code, text)
    assert found.severity == severity
    assert action in found.action


def test_the_page_lists_every_event() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "machine.md").read_text(encoding="utf-8")
    assert xid_table() in page, "run make reference"
