"""The tables at the end of `docs/machine.md`, which `make reference` writes."""

from __future__ import annotations

from validator.model.bounds import bounds_table
from validator.model.xids import SOURCE, xid_table


def tables() -> str:
    """Public bounds, then the events of the driver."""
    events = (
        f"After [NVIDIA's catalogue]({SOURCE}), in other words. Where a code has several meanings the text behind it "
        "in the log decides: 144–150 fail if it says `Fatal`, 154 if it names a recovery."
    )
    return f"\n{bounds_table()}\n## Xid events\n\n{events}\n\n{xid_table()}"
