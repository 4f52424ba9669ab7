"""Which implementation runs: the choice is made here once per call, and a fallback is always counted and logged.

The fused kernels are reached through two names of :mod:`nsa.kernels`, looked up when first needed, so that attention
works where Triton is absent:

``why_unsupported(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, *, geometry, compressed) -> str | None``
    a short reason in snake case (it becomes the counter ``fb_triton_<reason>``), or None if the kernels can run.
``nsa_attention_triton(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates, *, l, d, l_sel, n_sel, w, scale, compressed,
return_aux)``
    returns ``o``, or with ``return_aux`` the tuple ``(o, (blocks, o_cmp, o_sel, o_win))``. ``compressed`` says that
    ``k_cmp`` and ``v_cmp`` hold one entry per compression block already.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections import Counter
from types import ModuleType
from typing import Literal, get_args

from torch import Tensor

from nsa.attention.geometry import Geometry

__all__ = ["Impl", "choose_impl", "count_fallback", "fallback_counters", "load_kernels", "reset_fallback_counters"]

Impl = Literal["reference", "sequential", "batched", "triton", "auto"]
_IMPLS = get_args(Impl)  # at import: torch 2.6 cannot trace get_args and would break the graph

_log = logging.getLogger("nsa.attention")
_lock = threading.Lock()
_fallbacks: Counter[str] = Counter()


_kernels: ModuleType | None = None
_looked = False


def load_kernels() -> ModuleType | None:
    """The kernels' package, or None where it or Triton cannot be imported.

    Looked for once. A layer does so when it is built, since torch.compile cannot trace an import: the graph would
    break there in the first forward pass.
    """
    if not _looked:
        _look_for_kernels()
    return _kernels


def _look_for_kernels() -> None:
    global _kernels, _looked
    _looked = True
    try:
        found = importlib.import_module("nsa.kernels")
    except ImportError as error:
        _log.debug("fused kernels are not available: %s", error)
        return
    _kernels = found if hasattr(found, "nsa_attention_triton") else None


def choose_impl(impl: Impl, tensors: tuple[Tensor, ...], *, geometry: Geometry, compressed: bool) -> Impl:
    """Resolve ``auto`` and check that ``triton`` can run.

    ``auto`` means ``triton`` on CUDA and ``batched`` elsewhere. Where ``triton`` is wanted and cannot run,
    ``batched`` runs and the reason is counted.

    Args:
        tensors: q and the six key and value streams.

    Raises:
        ValueError: ``impl`` is not a known name.
    """
    if impl not in _IMPLS:
        raise ValueError(f"impl={impl!r}: must be one of {', '.join(_IMPLS)}")
    on_cuda = tensors[0].device.type == "cuda"
    if impl == "auto" and not on_cuda:
        return "batched"
    if impl not in ("auto", "triton"):
        return impl
    reason = _why_not_triton(tensors, geometry=geometry, compressed=compressed)
    if reason is None:
        return "triton"
    count_fallback(f"fb_triton_{reason}")
    return "batched"


def _why_not_triton(tensors: tuple[Tensor, ...], *, geometry: Geometry, compressed: bool) -> str | None:
    kernels = load_kernels()
    if kernels is None:
        return "missing"
    reason: str | None = kernels.why_unsupported(*tensors, geometry=geometry, compressed=compressed)
    return reason


def count_fallback(name: str) -> None:
    """Count, and log the first time, that torch runs where the kernels were wanted."""
    with _lock:
        _fallbacks[name] += 1
        first = _fallbacks[name] == 1
    if first:
        _log.warning("fused attention cannot run here (%s); the batched path runs instead", name)


def fallback_counters() -> dict[str, int]:
    """How often torch ran where the kernels were wanted, in this process: ``{"fb_triton_<reason>": calls}`` in prefill
    and training, ``{"fb_decode_<reason>": steps}`` in decoding."""
    with _lock:
        return dict(_fallbacks)


def reset_fallback_counters() -> None:
    """Set all counts to zero; the next fallback of each reason is logged again."""
    with _lock:
        _fallbacks.clear()
