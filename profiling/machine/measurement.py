"""A command that measures one thing after another on one machine: what its file begins with, and how that ends."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import torch

from ..base.interrupts import BLOCKED_GRACE_S, Interrupts
from ..base.run_directory import UNFINISHED
from . import environment


def measurement_head(
    tool: str, config: Mapping[str, Any], where: torch.device, command: Sequence[str]
) -> dict[str, Any]:
    """The fields of a `MeasurementFile`: what was asked for, and of what."""
    return {
        "tool": f"commtrace {tool}",
        "created_utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": list(command),
        "config": dict(config),
        "device": environment.device(where),
        "versions": environment.versions(),
        "machine": environment.machine(),
        "settings": environment.settings(),
    }


@contextmanager
def recorded(save: Callable[[str | None], None]) -> Iterator[None]:
    """Whatever ends the block, `save` is told: None when it is complete, else why it is not.

    A signal raises in the block, and not while something is saved at its end.
    """
    interrupts = Interrupts(lambda: None, lambda _: None, BLOCKED_GRACE_S)
    save(UNFINISHED)
    interrupts.start()
    reason: str | None = UNFINISHED
    try:
        yield
        reason = None
    except BaseException as err:
        reason = f"interrupted by {interrupts.received.name}" if interrupts.received else str(err)
        raise
    finally:
        with interrupts.held():
            save(reason)
            interrupts.stop()
