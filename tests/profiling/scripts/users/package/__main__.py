"""`python -m package`, and `python package`."""

import sys

print(__name__, __package__, __spec__.name, __file__, sys.argv, sys.path[0])
