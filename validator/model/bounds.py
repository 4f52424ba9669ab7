"""What a sound GPU reaches, by model: public values, each with the page or file that states it.

This is the one place for them. A value without a source has no place here, and a model without values is measured and
not judged. A value is required where its source is about that very product in that topology; elsewhere it is shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

GEMM = "probe.gemm_best_tflops"
COPY = "probe.copy_gb_s"
HOST = "probe.host_to_device_gb_s"
BACK = "probe.device_to_host_gb_s"
PEER = "probe.peer_gb_s"
ALL_REDUCE = "probe.all_reduce_gb_s"

NO_BOUND = "measured, no public bound"
"""What is said of a model, or of a rate of it, for which nobody has published a value."""

_MEASURED_SHARE = 0.9
"""Of a rate that somebody measured on a sound card, rather than demands of one."""

_SMALL_SHARE = 0.9
"""Of an all-reduce's rate, where the payload is smaller than the source's: 1 GiB reaches 96 % of the rate at 16 GiB on
eight H200 and 98 % on eight A100 (the tables of all-reduce by size in `_NETWORK`)."""

_SMALLEST_GIB = 1.0
"""A smaller payload says little of the links."""

_AZURE = "https://github.com/Azure/azurehpc-health-checks/blob/0e0a1ac26a64b32ac4dd7632a529638505d3314a/conf"
_DCGM = "https://github.com/NVIDIA/DCGM/blob/72fa3feaa67d716a75323a8f47c34ff3ee73f824/nvvs/diag-skus.yaml.in"
_BOOK = "https://github.com/stas00/ml-engineering/blob/744d01e18b79512572f64a6bbd8b5f4a725203a7"
_MAMF = f"{_BOOK}/compute/accelerator/README.md#maximum-achievable-matmul-flops-comparison-table"
_NETWORK = f"{_BOOK}/network/README.md"
_OCI = (
    "https://github.com/oracle-quickstart/oci-hpc/blob/b5285a68fa0a3b39ebf9e7ffdcb4987018bbf3cf/playbooks/roles/"
    "healthchecks/files/active_healthcheck.py"
)
_RVS = "https://github.com/ROCm/ROCmValidationSuite/blob/21584e1485df2895d2b8c1407b491bf1e0a074a7/rvs/conf"
_AMD = "https://github.com/ROCm/system-acceptance-docs/blob/23e73127964d71bde4dca3f8390c78eea2943851/docs/gpus"
_COREWEAVE = "https://github.com/coreweave/nccl-tests/blob/cb86553328f8c9ed6f9d682971f5f9b17a926ab4/README.md"
_AZURE_SKILL = (
    "https://github.com/Azure/ai-infrastructure-on-azure/blob/a01b07318f46edfcf2ff8889a867a15e45dc83b3/skills/slurm/"
    "sku_performance_baseline/SKILL.md"
)


class Bound(NamedTuple):
    """The least that a rate must reach.

    Attributes:
        name: the scalar, which has the unit.
        least: the value.
        source: address of what states it.
        basis: what the source states, and what was made of it.
        gpus: how many GPUs of one host measure it together; None: any number.
        linked: with NVLink between all GPUs, without it, or (None) either.
        nvls: with NCCL's reduction inside the switches, without it, or (None) either.
        size_gib: payload of the source's all-reduce.
        required: whether missing it fails the machine.
    """

    name: str
    least: float
    source: str
    basis: str
    gpus: int | None = None
    linked: bool | None = None
    nvls: bool | None = None
    size_gib: float | None = None
    required: bool = True

    def at(self, size_gib: float | None) -> float | None:
        """The least with a payload of that size (None: of the source's size); None where the payload is too small."""
        if self.size_gib is None or size_gib is None or size_gib >= self.size_gib:
            return self.least
        return round(_SMALL_SHARE * self.least, 1) if size_gib >= _SMALLEST_GIB else None

    def applies(self, *, gpus: int, linked: bool, nvls: bool) -> bool:
        """Whether it is about so many GPUs of one host, with or without NVLink and reduction in the switches."""
        between = self.name in (PEER, ALL_REDUCE)
        return (
            (gpus > 1 or not between)
            and self.gpus in (None, gpus)
            and self.linked in (None, linked)
            and self.nvls in (None, nvls)
        )


class GpuModel(NamedTuple):
    """A GPU of which something is published. `pattern` finds it in the name that driver and torch give it."""

    name: str
    pattern: str
    bounds: tuple[Bound, ...]


def _gemm(measured: float, *, note: str = "", required: bool = True) -> Bound:
    basis = f"nine tenths of {measured:g} TFLOP/s, the best that torch.matmul reached in bf16{note}"
    return Bound(GEMM, round(_MEASURED_SHARE * measured, 1), _MAMF, basis, required=required)


def _dcgm(least: float, line: int, device: str, *, note: str = "", required: bool = True) -> Bound:
    basis = f"the diagnostics' minimum for device {device}, three quarters of what a sound one measured{note}"
    return Bound(COPY, least, f"{_DCGM}#L{line}", basis, required=required)


def _azure(name: str, least: float, place: str, **topology: Any) -> Bound:
    """`place` is the file of a VM's checks and the line in it."""
    file, line = place.split(":")
    vm = file.removesuffix(".conf")
    payload = f" with {topology['size_gib']:g} GiB" if "size_gib" in topology else ""
    return Bound(name, least, f"{_AZURE}/{file}#L{line}", f"the health check of the VM {vm}{payload}", **topology)


def _host(least: float, place: str) -> tuple[Bound, ...]:
    """The checks of a VM ask the same in both directions."""
    return _azure(HOST, least, place), _azure(BACK, least, place)


def _rvs(least: float, place: str) -> Bound:
    return Bound(GEMM, least, f"{_RVS}/{place}", "the validation suite's target for bf16, the lower of its two inputs")


def _rccl(place: str) -> Bound:
    basis = "the vendor's acceptance criterion with 8 GiB"
    return Bound(ALL_REDUCE, 304.0, f"{_AMD}/{place}", basis, gpus=8, size_gib=8)


def _oci(least: float, line: int) -> Bound:
    basis = "the health check of the bare-metal shape, a mean over 1 to 16 GiB"
    return Bound(ALL_REDUCE, least, f"{_OCI}#L{line}", basis, gpus=8, size_gib=16)


def _shown(*bounds: Bound, why: str) -> tuple[Bound, ...]:
    return tuple(one._replace(basis=f"{one.basis}; {why}", required=False) for one in bounds)


@cache
def models() -> tuple[GpuModel, ...]:
    """The table; the first whose pattern is in a GPU's name is its model. Made when asked for: `check` does not."""
    a100_pcie = (
        *_host(21.0, "nc48ads_a100_v4.conf:38"),
        _azure(PEER, 238.0, "nc48ads_a100_v4.conf:38", gpus=2, linked=True),
        _azure(ALL_REDUCE, 193.0, "nc48ads_a100_v4.conf:42", gpus=2, linked=True, size_gib=16),
        _azure(ALL_REDUCE, 25.0, "nc96ads_a100_v4.conf:42", gpus=4, size_gib=8),
    )
    return (
        GpuModel(
            "A100 PCIe 40 GB",
            r"A100-PCIE-40GB",
            (
                *_shown(_gemm(252.9), *a100_pcie, why="stated for a card of 80 GB and a higher power limit"),
                _dcgm(969.7, 1581, "20F1"),
            ),
        ),
        GpuModel(
            "A100 PCIe 80 GB",
            r"A100.*PCIe|A100-PCIE",
            (
                _gemm(252.9),
                _dcgm(1121.2, 2196, "20B5"),
                *a100_pcie,
                *_shown(
                    _azure(ALL_REDUCE, 20.0, "nc96ads_a100_v4.conf:42", gpus=2, linked=False, size_gib=8),
                    why="four fifths of what four cards reach, two of which are always joined by PCIe alone",
                ),
            ),
        ),
        GpuModel(
            "A100 SXM 40 GB",
            r"A100-SXM.*40GB",
            (
                _gemm(271.2),
                *_host(21.0, "nd96asr_v4.conf:54"),
                _azure(PEER, 235.0, "nd96asr_v4.conf:54", linked=True),
                _azure(ALL_REDUCE, 228.0, "nd96asr_v4.conf:57", gpus=8, linked=True, size_gib=8),
            ),
        ),
        GpuModel(
            "A100 SXM 80 GB",
            r"A100-SXM",
            (
                _gemm(271.2),
                _dcgm(1173.0, 1617, "20B2"),
                *_host(21.0, "nd96amsr_a100_v4.conf:54"),
                _azure(PEER, 238.0, "nd96amsr_a100_v4.conf:54", linked=True),
                _azure(ALL_REDUCE, 228.0, "nd96amsr_a100_v4.conf:57", gpus=8, linked=True, size_gib=16),
            ),
        ),
        GpuModel("H100 PCIe", r"H100 PCIe", (_dcgm(1230.0, 2566, "2331"),)),
        # The same file asks 335 GB/s between two H100 NVL, more than their bridge can carry: left out.
        GpuModel(
            "H100 NVL",
            r"H100 NVL",
            (
                _dcgm(2043.0, 3066, "2321"),
                *_shown(
                    *_host(48.0, "nc80adis_h100_v5.conf:36"),
                    _azure(ALL_REDUCE, 208.0, "nc80adis_h100_v5.conf:40", gpus=2, linked=True, size_gib=16),
                    why="the file does not name the VM's card",
                ),
            ),
        ),
        GpuModel(
            "H100 SXM",
            r"H100.*(?:HBM3|SXM)",
            (
                _gemm(794.5),
                _dcgm(1905.0, 174, "2330"),
                *_host(48.0, "nd96isr_h100_v5.conf:49"),
                _azure(PEER, 335.0, "nd96isr_h100_v5.conf:49", linked=True),
                _azure(ALL_REDUCE, 460.0, "nd96isr_h100_v5.conf:52", gpus=8, linked=True, nvls=True, size_gib=16),
            ),
        ),
        # DCGM's minimum for an H200 (device 2335) is 2,333 MB/s, a slip of three digits: left out.
        GpuModel("H200 NVL", r"\bH200 NVL", (_dcgm(2212.5, 3625, "233B"),)),
        GpuModel(
            "H200 SXM",
            r"\bH200\b",
            (
                _gemm(794.5, note=" on an H100; an H200 is said to be the same"),
                *_shown(_dcgm(2212.5, 3625, "233B"), why="an H200 NVL, whose memory it has"),
                *_host(48.0, "nd96isr_h200_v5.conf:50"),
                _azure(PEER, 335.0, "nd96isr_h200_v5.conf:50", linked=True),
                _azure(ALL_REDUCE, 431.0, "nd96isr_h200_v5.conf:53", gpus=8, linked=True, nvls=True, size_gib=16),
                Bound(
                    ALL_REDUCE,
                    330.8,
                    f"{_NETWORK}#L972",
                    "nine tenths of 367.61 GB/s, measured with 16 GiB and NCCL_NVLS_ENABLE=0",
                    gpus=8,
                    linked=True,
                    nvls=False,
                    size_gib=16,
                ),
            ),
        ),
        GpuModel("GH200 144 GB", r"GH200 144G", (_gemm(828.6), _dcgm(2340.0, 3738, "2348"))),
        GpuModel(
            "GH200",
            r"GH200",
            (*_shown(_gemm(828.6), why="a GH200 of 144 GB with 900 W"), _dcgm(2130.0, 3250, "2342")),
        ),
        GpuModel(
            "B200",
            r"\bB200\b",
            (_gemm(1745.0), _dcgm(2558.1, 3909, "2901", note=", of the slowest of its variants"), _oci(440.0, 114)),
        ),
        GpuModel("B300", r"\bB300\b", (_gemm(1769.0), _dcgm(4623.3, 4240, "3182"), _oci(800.0, 119))),
        GpuModel(
            "GB200",
            r"\bGB200\b",
            (
                _gemm(1822.0),
                _dcgm(2602.5, 3955, "2941"),
                Bound(
                    PEER,
                    671.4,
                    f"{_NETWORK}#L1363",
                    "nine tenths of 746 GB/s, measured once between the four GPUs of a tray",
                    linked=True,
                    required=False,
                ),
                Bound(
                    ALL_REDUCE,
                    751.1,
                    f"{_COREWEAVE}#L272",
                    "nine tenths of 834.57 GB/s, measured once with 8 GiB on the 72 GPUs of a rack",
                    gpus=72,
                    linked=True,
                    size_gib=8,
                    required=False,
                ),
            ),
        ),
        GpuModel(
            "GB300",
            r"\bGB300\b",
            (
                _dcgm(4522.5, 4287, "31C2"),
                Bound(
                    ALL_REDUCE,
                    600.0,
                    f"{_AZURE_SKILL}#L18",
                    "below it the provider replaces the node; 16 GiB, within a rack",
                    gpus=72,
                    linked=True,
                    size_gib=16,
                    required=False,
                ),
            ),
        ),
        GpuModel("L40S", r"\bL40S\b", (_dcgm(525.0, 3209, "26B9"),)),
        GpuModel("RTX PRO 6000 Server", r"RTX PRO 6000 Blackwell Server", (_dcgm(1110.0, 4076, "2BB5"),)),
        GpuModel("RTX PRO 6000 Max-Q", r"RTX PRO 6000 Blackwell Max-Q", (_dcgm(1147.5, 4655, "2BB4"),)),
        GpuModel(
            "MI300X",
            r"MI300X\b(?!.HF)",
            (
                _rvs(552.0, "MI300X/gst_single.conf#L165"),
                Bound(
                    COPY, 4177.2, f"{_AMD}/mi300x.md?plain=1#L215", "the vendor's acceptance criterion (BabelStream)"
                ),
                *_host(48.0, "nd96isr_mi300x_v5.conf:50"),
                _azure(PEER, 44.0, "nd96isr_mi300x_v5.conf:50"),
                _rccl("mi300x.md?plain=1#L144"),
            ),
        ),
        GpuModel(
            "MI325X",
            r"MI325X",
            (_rvs(554.0, "MI325X/gst_single.conf#L165"), _rccl("mi325x.md?plain=1#L143")),
        ),
        GpuModel(
            "MI355X",
            r"MI355X",
            (_rvs(956.0, "MI355X/gst_single.conf#L254"), _rccl("mi355x.md?plain=1#L139")),
        ),
    )


def model_of(gpu: str) -> GpuModel | None:
    """The model of a GPU by its name; None where nothing is published of it."""
    return next((one for one in models() if re.search(one.pattern, gpu)), None)


def cards(environment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The GPUs of a snapshot, which anybody may have written."""
    found = environment.get("gpus")
    return [one for one in (found.values() if isinstance(found, Mapping) else ()) if isinstance(one, Mapping)]


def gemm_bound(card: Mapping[str, Any]) -> Bound | None:
    """The required bound of the matrix products of one GPU of a snapshot; None for a part of one (MIG), too."""
    model = None if card.get("mig") else model_of(str(card.get("name")))
    return next((one for one in model.bounds if one.name == GEMM and one.required), None) if model else None


def gpu_name(environment: Mapping[str, Any], *, gpus: int) -> str | None:
    """The name of the first `gpus` GPUs of a snapshot; None where there are none, or of several kinds, or parts."""
    used = cards(environment)[:gpus]
    names = {str(one.get("name")) for one in used}
    return names.pop() if len(names) == 1 and not any(one.get("mig") for one in used) else None


def bounds_for(environment: Mapping[str, Any], *, gpus: int) -> tuple[Bound, ...]:
    """The bounds of a machine by its snapshot (`environment.json`), for the first `gpus` of its GPUs.

    Empty for cards of several kinds, for parts of cards (MIG), and for a model of which nothing is published.
    """
    name = gpu_name(environment, gpus=gpus)
    model = None if name is None else model_of(name)
    if model is None:
        return ()
    used, env = cards(environment)[:gpus], environment.get("env")
    linked = all(one.get("nvlinks_active") for one in used)
    nvls = not isinstance(env, Mapping) or str(env.get("NCCL_NVLS_ENABLE", "")) != "0"
    return tuple(one for one in model.bounds if one.applies(gpus=len(used), linked=linked, nvls=nvls))


def bounds_table() -> str:
    """Every bound with its source, in Markdown: a part of `docs/machine.md`."""
    lines = ["| GPU | rate | at least | where | source |", "|---|---|---|---|---|"]
    for model in models():
        for one in model.bounds:
            cells = [model.name, f"`{one.name}`", f"{one.least:g}{'' if one.required else ' (shown)'}", _where(one)]
            lines.append(f"| {' | '.join(cells)} | [{one.basis}]({one.source}) |")
    return "\n".join(lines) + "\n"


def _where(bound: Bound) -> str:
    parts = [
        f"{bound.gpus} GPUs" if bound.gpus else "",
        {True: "NVLink", False: "no NVLink", None: ""}[bound.linked],
        {True: "NVLS", False: "no NVLS", None: ""}[bound.nvls],
        f"{bound.size_gib:g} GiB" if bound.size_gib else "",
    ]
    return ", ".join(part for part in parts if part)
