"""Peak arithmetic rates by device name, the denominator of MFU."""

from __future__ import annotations

import torch

__all__ = ["peak_bf16_flops"]

# Dense bf16 tensor-core FLOP/s from the vendors' data sheets; the first name found in the device's name counts.
PEAKS = (
    ("B200", 2.25e15),
    ("H200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("H800", 989e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("L40S", 362e12),
    ("A10G", 70e12),
    ("RTX 4090", 165e12),
)


def peak_bf16_flops(device: torch.device) -> float | None:
    """The data sheet's dense bf16 rate of `device`, FLOP/s; None where it is not known, as for any CPU."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for known, peak in PEAKS if known in name), None)
