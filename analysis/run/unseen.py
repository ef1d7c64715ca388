"""Notice communication that a trace should have, but lacks. Needs neither tables nor pandas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...common.wording import counted
from ..core import markers
from ..core.escaping import encodable
from ..core.kinds import COMM
from ..recording.arrays import integers
from ..recording.recording import RawTrace

_SEVERAL = 2
# Backends of devices whose kernels for communication have many names: with several ranks, some of them must run.
_OTHER_BACKENDS = ("xccl", "hccl", "mtia", "ccl:")


def unseen_communication(path: Path, raw: RawTrace) -> Iterator[str]:
    """Yield a note if a device of a multi-rank job has no kernel known to communicate."""
    world, backend = raw.header.world_size or 1, raw.header.backend or ""
    names = integers(raw.activities["name"])
    if not len(names) or world < _SEVERAL or any(raw.kinds[name] == COMM for name in np.unique(names)):
        return
    issued = sum(row["source"] == markers.RECORD for row in raw.comm_args)
    issued = issued or sum(one.name.startswith(markers.OF_BACKENDS) for one in raw.annotations)
    if issued or any(known in backend for known in _OTHER_BACKENDS):
        because = f"issued {counted(issued, 'collective')}" if issued else f"uses {backend}"
        yield (
            f"{encodable(path.name)}: {because} in a job of {world:,} ranks, but none of its kernels is known to "
            "communicate: some of the compute may be communication; name its kernels with --comm-kernel"
        )
