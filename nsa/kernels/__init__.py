"""Fused Triton kernels of Native Sparse Attention; importing this package needs Triton, running it a GPU of 8.0
or newer.

``nsa_attention_triton`` is what ``nsa.attention.nsa_attention(impl="triton")`` runs. With
``TRITON_INTERPRET=1`` set before the import, the kernels run on the CPU in float32, slowly: for tests.
"""

from __future__ import annotations

from nsa.kernels.api import nsa_attention_triton, why_unsupported
from nsa.kernels.keys import settle_cache_keys

__all__ = ["nsa_attention_triton", "why_unsupported"]

settle_cache_keys()
