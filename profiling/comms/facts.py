"""The head of comms.json: where, with what and how it was measured."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

import torch
import torch.distributed as dist

from ...contract.comms import COMMS_TOOL, CommsDevice, CommsFile, CommsOptions
from ..machine import environment
from ..ranks import process_group as parallel
from ..ranks.process_group import Identity
from .config import CommsConfig

_STREAM = {
    "cpu": None,
    "cuda": "calls that wait for their result, from the current stream; where the kernels run, see docs/comms.md",
}


def comms_head(
    config: CommsConfig, where: torch.device, devices: Sequence[Mapping[str, Any]] | None, command: Sequence[str]
) -> CommsFile:
    """The content of comms.json before the first row."""
    return CommsFile(
        tool=COMMS_TOOL,
        start_time=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        args=list(command),
        backend=parallel.backend(),
        world_size=dist.get_world_size(),
        versions=environment.versions(),
        settings=environment.settings(),
        config=CommsOptions(
            minimum_bytes=config.min_bytes,
            maximum_bytes=config.largest_bytes(where.type),
            step_factor=config.factor,
            warmup_iters=config.warmup,
            iterations=config.iters,
            traced_iterations=config.trace_iters,
            validation=1,
            stream=_STREAM[where.type],
            devices=None if devices is None else [CommsDevice(**facts) for facts in devices],
        ),
    )


def device_facts(who: Identity, where: torch.device) -> dict[str, Any]:
    """The fields of this rank's `CommsDevice`, for the other ranks."""
    facts = environment.device(where)
    return asdict(CommsDevice(who.rank, os.getpid(), who.host, facts.index, facts.name))
