"""Shades: texts from which Perfetto's viewer takes the colours of slices.

The viewer has no way to name a colour. It hashes a text to a hue and a lightness: that of the slice's name, or the
correlation id of its event if there is one. So each shade is a word with a number, chosen so that its hash gives the
colour that the report has for it. Source: Perfetto's UI, v52, `getColorForSlice` and `hash`; a test computes the hues.
Grey, as which the report shows idle time, is not among the viewer's colours: idle time is green here.
"""

from __future__ import annotations

import zlib

import numpy as np

from .slices import Texts

OF_WAITS, OF_BLOCKING, OF_LATENESS, OF_STEPS, OF_FACTS = "wait 609", "blocked 698", "late 515", "step 173", "fact 15"
OF_TRANSFERS, OF_CALLS = "transfer 1884", "call 498"
OF_COMPUTE = ("compute 186", "compute 381", "compute 184", "compute 188", "compute 420", "compute 343", "compute 955")
OF_COPYING = ("copy 169", "copy 171", "copy 188", "copy 32")
OF_IDLE = {
    "sync": "idle 44",
    "alloc": "idle 61",
    "data": "idle 785",
    "operator": "idle 53",
    "outside": "idle 11",
    "starved": "idle 15",
    "launching": "idle 123",
    "queued": "idle 7",
    "unknown": "idle 445",
    "idle": "idle 445",
}
OF_LINKS = {
    "compute": OF_COMPUTE[2],
    "copy": OF_COPYING[1],
    "transfer": OF_TRANSFERS,
    "unsplit": OF_CALLS,
    "cpu": OF_IDLE["operator"],
    "launch": OF_IDLE["launching"],
}
"""Of pieces of the critical path, by kind."""


def varied(names: Texts, shades: tuple[str, ...]) -> Texts:
    """A shade for each name, always the same one for a name."""
    of_name = np.array([zlib.crc32(name.encode("utf-8", "replace")) % len(shades) for name in names.values] + [-1])
    return Texts(of_name[names.codes], shades)
