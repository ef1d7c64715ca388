"""What timings have to know of parallel modes. Nothing else in the analysis knows their names, as of `--parallel`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Mode = Literal["single", "dp", "ddp", "fsdp", "pipeline"]
"""How a model was spread over ranks."""

ONE_WORKER: Mode = "single"
"""The mode of one worker; others with one worker do the same, and something besides."""


@dataclass(frozen=True)
class ModeFacts:
    """What an epoch's time means under a mode."""

    shares_batch: bool = False
    """All workers work on the same batch; else each takes its own, so that N of them share an epoch."""
    drives_workers: bool = False
    """Its workers are the devices of one process, not ranks."""
    reduces_whole: bool = False
    """Gradients are reduced whole in every step, which is what bandwidth by hand assumes."""


MODES: Mapping[str, ModeFacts] = {
    ONE_WORKER: ModeFacts(),
    "dp": ModeFacts(drives_workers=True, reduces_whole=True),
    "ddp": ModeFacts(reduces_whole=True),
    "fsdp": ModeFacts(),
    "pipeline": ModeFacts(shares_batch=True),
}
"""By name, in the order of tables."""
