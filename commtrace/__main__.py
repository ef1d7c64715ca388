"""`python -m commtrace`, and the command `commtrace`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
