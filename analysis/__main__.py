"""`python -m analysis RUN`, and the program `commtrace`."""

import sys

from .core.process import ended_by_interrupts, made_for_good

with ended_by_interrupts(), made_for_good():
    from .cli.app import main

if __name__ == "__main__":
    sys.exit(main())
