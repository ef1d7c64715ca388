"""Run with -m, for it imports from its own package."""

import sys

from . import sibling

print(__name__, __package__, __spec__.name, sys.argv, sys.path[0], sibling.NAME)
