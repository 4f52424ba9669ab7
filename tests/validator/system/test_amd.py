"""AMD's GPUs, from a made-up tree of /sys."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from validator.model.bounds import bounds_for
from validator.model.runbook import Hardware
from validator.system.amd_gpus import read_amd_gpus
from validator.system.gpu_checks import gpu_checks


def card(
    sys: Path, address: str, *, kind: str = "0x120000", name: str | None = "AMD Instinct MI300X OAM", ue: int = 0
) -> None:
    folder = sys / "bus/pci/drivers/amdgpu" / address
    (folder / "ras").mkdir(parents=True)
    files = {
        **{"class": kind, "device": "0x74a1", "unique_id": f"abc{address[5:7]}", "mem_info_vram_total": str(192 << 30)},
        **{"mem_info_vram_used": str(285 << 20), "current_link_speed": "32.0 GT/s PCIe", "current_link_width": "16"},
        **{"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16", "ras/umc_err_count": f"ue: {ue}\nce: 3"},
    }
    if name is not None:
        files["product_name"] = name
    for file, text in files.items():
        (folder / file).write_text(f"{text}\n")


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    for address in ("0000:05:00.0", "0000:26:00.0"):
        card(tmp_path, address)
    card(tmp_path, "0000:c1:00.0", kind="0x030000", name="AMD Radeon Graphics")
    (tmp_path / "bus/pci/drivers/amdgpu/bind").write_text("")
    return tmp_path


def test_accelerators_are_read_and_screens_are_not(sys: Path) -> None:
    first, second = read_amd_gpus(sys=sys, environment={}).gpus
    assert (first.name, first.memory_total_mib, first.memory_used_mib) == ("AMD Instinct MI300X OAM", 196608, 285)
    assert (first.pcie_gen, first.pcie_width_max, second.uuid) == (5, 16, "GPU-abc26")
    assert first.ecc is not None
    assert (first.ecc.volatile_uncorrected, first.ecc.volatile_corrected) == (0, 3)


def test_hidden_ones_are_not_seen(sys: Path) -> None:
    report = read_amd_gpus(sys=sys, environment={"HIP_VISIBLE_DEVICES": "1"})
    assert ([gpu.index for gpu in report.gpus], report.hidden) == ([1], 1)
    assert "hides every AMD GPU" in str(read_amd_gpus(sys=sys, environment={"ROCR_VISIBLE_DEVICES": ""}).why_none)


def test_a_machine_without_the_driver_has_none(tmp_path: Path) -> None:
    report = read_amd_gpus(sys=tmp_path, environment={})
    assert (report.gpus, report.hidden, report.why_none) == ((), 0, None)


def test_preflight_checks_them_and_knows_their_bounds(sys: Path) -> None:
    report = read_amd_gpus(sys=sys, environment={})
    hardware = Hardware(gpus=2, name="MI300X")
    found = {check.id: check for check in gpu_checks(hardware, report, ())}
    assert not [check.id for check in found.values() if check.status == "FAIL"]
    assert found["gpu_ecc"].observed == "GPU 0: 0 (3 corrected), GPU 1: 0 (3 corrected)"
    environment = {"gpus": {f"gpu{gpu.index}": asdict(gpu) for gpu in report.gpus}}
    names = {one.name for one in bounds_for(environment, gpus=2)}
    assert names >= {"probe.gemm_best_tflops", "probe.copy_gb_s", "probe.peer_gb_s"}


def test_an_error_or_a_missing_name_is_reported(tmp_path: Path) -> None:
    card(tmp_path, "0000:05:00.0", name=None, ue=2)
    report = read_amd_gpus(sys=tmp_path, environment={})
    assert report.gpus[0].name == "AMD GPU 0x74a1"
    found = {check.id: check for check in gpu_checks(Hardware(gpus=1), report, ())}
    assert (found["gpu_ecc"].status, found["gpu_ecc"].required) == ("FAIL", True)
