"""`python -m analysis RUN`."""

import sys

from .cli import main

sys.exit(main())
