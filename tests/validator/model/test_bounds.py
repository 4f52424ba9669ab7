"""The table of public bounds: each has its source, and follows card, links and number of GPUs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from validator.model.bounds import bounds_for, bounds_table, gpu_name, model_of, models
from validator.model.schemas import SCALARS

A100 = "NVIDIA A100 80GB PCIe"


def machine(name: str, count: int, *, nvlinks: int | None = None, **more: Any) -> dict[str, Any]:
    card = {"name": name, "nvlinks_active": nvlinks}
    return {"gpus": {f"gpu{index}": dict(card) for index in range(count)}, **more}


def least(name: str, count: int, **facts: Any) -> dict[str, float]:
    found = bounds_for(machine(name, count, **facts), gpus=count)
    names = [one.name for one in found if one.required]
    assert len(names) == len(set(names)), "two required bounds of one rate contradict each other"
    return {one.name.removeprefix("probe."): one.least for one in found if one.required}


def test_every_bound_has_its_source() -> None:
    for model, bound in ((one, bound) for one in models() for bound in one.bounds):
        where = f"{model.name} {bound.name}"
        assert re.match(
            r"https://(github\.com/[^/]+/[^/]+/blob/[0-9a-f]{40}/|[a-z.]+\.(com|org)/)\S+$", bound.source
        ), where
        assert len(bound.basis) > 20, f"{where} does not say what its source states"
        assert bound.name in SCALARS, where
        assert bound.least > 0, where


def test_the_page_lists_every_bound_with_its_link() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "machine.md").read_text(encoding="utf-8")
    assert bounds_table() in page, "run make reference"


def test_models_are_found_by_the_names_of_drivers() -> None:
    named = {
        "NVIDIA A100-PCIE-40GB": "A100 PCIe 40 GB",
        A100: "A100 PCIe 80 GB",
        "NVIDIA A100-SXM4-40GB": "A100 SXM 40 GB",
        "NVIDIA A100-SXM4-80GB": "A100 SXM 80 GB",
        "NVIDIA H100 PCIe": "H100 PCIe",
        "NVIDIA H100 NVL": "H100 NVL",
        "NVIDIA H100 80GB HBM3": "H100 SXM",
        "NVIDIA H200": "H200 SXM",
        "NVIDIA H200 NVL": "H200 NVL",
        "NVIDIA GH200 480GB": "GH200",
        "NVIDIA GH200 144G HBM3e": "GH200 144 GB",
        "NVIDIA B200": "B200",
        "NVIDIA B300 SXM6 AC": "B300",
        "NVIDIA GB200": "GB200",
        "NVIDIA GB300": "GB300",
        "NVIDIA L40S": "L40S",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX PRO 6000 Server",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "RTX PRO 6000 Max-Q",
        "AMD Instinct MI300X": "MI300X",
        "AMD Instinct MI325X": "MI325X",
        "AMD Instinct MI355X": "MI355X",
    }
    assert {name: model.name for name in named if (model := model_of(name)) is not None} == named
    assert set(named.values()) == {model.name for model in models()}
    for name in ("NVIDIA L40", "NVIDIA GeForce RTX 4090", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"):
        assert model_of(name) is None, f"nobody published anything of {name}"


def test_bounds_follow_card_links_and_number() -> None:
    alone = {
        **{"gemm_best_tflops": 227.6, "copy_gb_s": 1121.2},
        **{"host_to_device_gb_s": 21.0, "device_to_host_gb_s": 21.0},
    }
    assert least(A100, 1) == alone
    assert least(A100, 2, nvlinks=12) == {**alone, "peer_gb_s": 238.0, "all_reduce_gb_s": 193.0}
    assert least(A100, 2, nvlinks=0) == alone, "nobody published what two without a bridge reach"
    assert least(A100, 4, nvlinks=12) == {**alone, "all_reduce_gb_s": 25.0}
    assert least("NVIDIA A100-SXM4-80GB", 8, nvlinks=12)["all_reduce_gb_s"] == 228.0
    h100 = least("NVIDIA H100 80GB HBM3", 8, nvlinks=18)
    assert (h100["gemm_best_tflops"], h100["peer_gb_s"], h100["all_reduce_gb_s"]) == (715.1, 335.0, 460.0)
    assert "all_reduce_gb_s" not in least("NVIDIA H100 80GB HBM3", 2, nvlinks=18), "460 is what eight reach"


def test_an_h200_has_bounds_of_its_own() -> None:
    two = least("NVIDIA H200", 2, nvlinks=18)
    assert (two["host_to_device_gb_s"], two["peer_gb_s"]) == (48.0, 335.0)
    assert least("NVIDIA H200", 8, nvlinks=18)["all_reduce_gb_s"] == 431.0
    ring = least("NVIDIA H200", 8, nvlinks=18, env={"NCCL_NVLS_ENABLE": "0"})
    assert ring["all_reduce_gb_s"] == 330.8, "without reduction in the switches"


def test_values_of_another_product_are_shown_and_not_required() -> None:
    shown = {one.name for one in bounds_for(machine("NVIDIA H200", 1), gpus=1) if not one.required}
    assert shown == {"probe.copy_gb_s"}
    assert least("NVIDIA A100-PCIE-40GB", 1) == {"copy_gb_s": 969.7}


@pytest.mark.parametrize(("size_gib", "expected"), [(None, 193.0), (16.0, 193.0), (1.0, 173.7), (0.5, None)])
def test_an_all_reduce_of_a_smaller_payload_is_asked_for_less(size_gib: float | None, expected: float | None) -> None:
    (bound,) = (one for one in bounds_for(machine(A100, 2, nvlinks=12), gpus=2) if "all_reduce" in one.name)
    assert bound.at(size_gib) == expected


def test_no_bound_is_about_mixed_or_partitioned_cards() -> None:
    mixed = {"gpus": {"gpu0": {"name": A100}, "gpu1": {"name": "NVIDIA H200"}}}
    parts = {"gpus": {"gpu0": {"name": A100, "mig": True}}}
    for environment, gpus in ((mixed, 2), (parts, 1), ({}, 1), ({"gpus": {}}, 0)):
        assert gpu_name(environment, gpus=gpus) is None
        assert bounds_for(environment, gpus=gpus) == ()
