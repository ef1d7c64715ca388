"""`python -m analysis RUN`, and the program `commtrace`."""

import gc
import sys

gc.disable()  # what is imported stays: to look for garbage in it takes a tenth of the time until traces are read
from .cli import main  # noqa: E402

gc.freeze()
gc.enable()

if __name__ == "__main__":
    sys.exit(main())
