"""What comms.json begins with: where, with what and how it was measured."""

import os
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import torch

from ..machine import environment
from ..ranks import process_group as parallel
from ..ranks.process_group import Identity
from .config import CommsConfig
from .results import SCHEMA_VERSION


def head(
    config: CommsConfig, who: Identity, devices: list[dict[str, Any]] | None, command: Sequence[str]
) -> dict[str, Any]:
    """The head of comms.json."""
    return {
        "tool": "commtrace comms",
        "schema_version": SCHEMA_VERSION,
        "start_time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "args": list(command),
        "backend": parallel.backend(),
        "world_size": who.world_size,
        "versions": environment.versions(),
        "settings": environment.settings(),
        "config": {
            "minimum_bytes": config.min_bytes,
            "maximum_bytes": config.max_bytes,
            "step_factor": config.factor,
            "warmup_iters": config.warmup,
            "iterations": config.iters,
            "traced_iterations": config.trace_iters,
            "validation": 1,
            "devices": devices,
        },
    }


def device_facts(who: Identity, where: torch.device) -> dict[str, Any]:
    """One of the `devices`: that of this rank."""
    facts = environment.device(where)
    return {
        "rank": who.rank,
        "pid": os.getpid(),
        "hostname": who.host,
        "device": facts["index"],
        "device_info": facts["name"],
    }
