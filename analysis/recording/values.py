"""Range of numbers in a recording, and the values for missing ones."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ..core.tables.events import PLAUSIBLE_RANKS as PLAUSIBLE_RANKS

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
# Times until the year 2116, durations of at most 104 days: in ns, their sums and differences fit 64 bits. NaN fits
# neither.
Time = Annotated[float, msgspec.Meta(ge=-(2.0**53) / 1000, le=2.0**62 / 1000)]
Duration = Annotated[float, msgspec.Meta(ge=-(2.0**53) / 1000, le=2.0**53 / 1000)]
MISSING = -(2**63)
"""A missing integer. No id or count comes near it."""
NOT_KNOWN = float("nan")
"""The same for numbers that are not integers."""
