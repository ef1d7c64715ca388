"""`python -m profiling`."""

import signal
import sys

# An interrupt while modules are imported ends the program quietly, without a traceback.
interrupt = signal.getsignal(signal.SIGINT)
if interrupt is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
from .cli import main  # noqa: E402

if interrupt is signal.default_int_handler:
    signal.signal(signal.SIGINT, interrupt)

if __name__ == "__main__":
    sys.exit(main())
