"""`python -m nsa.data`: try the loader alone (see nsa.data.smoke)."""

from __future__ import annotations

from nsa.interrupt import answer_ctrl_c, leave_at_ctrl_c

if __name__ == "__main__":
    leave_at_ctrl_c()

from nsa.data.ending import leave
from nsa.data.smoke import main

if __name__ == "__main__":
    answer_ctrl_c()
    leave(main())
