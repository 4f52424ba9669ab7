"""Several machines: which of them are slow, alone or together.

The modules that kinds of phases use are attributes, imported when they are used: `check` loads kinds, and judges
nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from validator.cluster import alike as alike
    from validator.cluster import fleet as fleet
else:

    def __getattr__(name: str) -> Any:
        if name not in ("alike", "fleet"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.{name}")
