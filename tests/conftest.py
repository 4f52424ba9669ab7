"""What every test may rely on."""

from __future__ import annotations

import signal

# A shell that starts the tests in the background hands SIGINT on as ignored, and nohup SIGHUP; every process that a
# test starts would inherit that: Ctrl-C and a closed terminal could not be tested there.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
