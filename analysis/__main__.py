"""`python -m analysis RUN`, and the program `commtrace`."""

import gc
import signal
import sys

# Whoever interrupts imports wants an end, as of any program, and no traceback.
interrupt = signal.getsignal(signal.SIGINT)
if interrupt is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
gc.disable()  # what is imported stays: to look for garbage in it takes a tenth of the time until traces are read
from .cli.app import main  # noqa: E402

gc.freeze()
gc.enable()
if interrupt is signal.default_int_handler:
    signal.signal(signal.SIGINT, interrupt)

if __name__ == "__main__":
    sys.exit(main())
