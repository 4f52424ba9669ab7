"""`python -m nsa.data`: try the loader alone (see nsa.data.smoke)."""

from __future__ import annotations

from nsa.data.ending import leave
from nsa.data.smoke import main

if __name__ == "__main__":
    leave(main())
