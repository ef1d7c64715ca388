"""Other sizes for commands and functions that make the options of reading themselves, as no user chooses sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commtrace.analysis.recording.options import ReadOptions


def default_sizes(patch: pytest.MonkeyPatch, **sizes: int) -> None:
    """Make these the default of `ReadOptions.sizes`."""
    defaults = ReadOptions.__init__.__kwdefaults__
    assert defaults is not None
    patch.setitem(defaults, "sizes", replace(defaults["sizes"], **sizes))
