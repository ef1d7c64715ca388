"""Head and end of the file of a command that measures on one machine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import torch

from ...contract.rank import STILL_RUNNING
from ..base.interrupts import BLOCKED_GRACE_S, Interrupts
from . import environment


def measurement_head(
    tool: str, config: Mapping[str, Any], where: torch.device, command: Sequence[str]
) -> dict[str, Any]:
    """The fields of a `MeasurementFile`: the options, and the machine."""
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
    """Call `save` at the end of the block: with None if it is complete, else with the reason.

    A signal raises in the block, but not while `save` runs at its end.
    """
    interrupts = Interrupts(lambda: None, lambda _: None, BLOCKED_GRACE_S)
    save(STILL_RUNNING)
    interrupts.start()
    reason: str | None = STILL_RUNNING
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
