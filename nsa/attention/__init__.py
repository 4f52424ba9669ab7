"""Native Sparse Attention: the functional interface, the module, and what surrounds them."""

from __future__ import annotations

from nsa.attention.cache import NSACache
from nsa.attention.dispatch import fallback_counters, reset_fallback_counters
from nsa.attention.functional import NSAAux, nsa_attention
from nsa.attention.geometry import Geometry, TokenReads
from nsa.attention.module import NSAAttention

__all__ = [
    "Geometry",
    "NSAAttention",
    "NSAAux",
    "NSACache",
    "TokenReads",
    "fallback_counters",
    "nsa_attention",
    "reset_fallback_counters",
]
