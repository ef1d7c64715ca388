"""Watch training processes that a script starts with torch.multiprocessing: each is a rank.

See docs/design/0011-scripts-unmodified.md. The children of `mp.spawn`, and of the launchers that are built on it, run
`torch.multiprocessing.spawn._wrap`. While a script is watched, an object of ours stands there, which is pickled to the
child, watches it, and calls the original. Other processes, DataLoader's workers among them, get nothing of ours.
"""

import importlib
import mmap
import sys
from collections.abc import Sequence
from typing import Any

from ...base.patches import Patches
from ...base.torch_private import SPAWN_MODULE, SPAWN_WRAPPER
from ..config import RunConfig, StepOn
from ..returns import Returns
from .observer import Observer


def wrap_spawned(config: RunConfig, command: Sequence[str], patches: Patches) -> "SpawnWrapper | None":
    """Watch processes that torch.multiprocessing starts; None if torch has no place to hook in."""
    module = sys.modules.get(SPAWN_MODULE)
    if module is None or SPAWN_WRAPPER not in vars(module):
        return None
    wrapper = SpawnWrapper(config, command)
    patches.replace(module, SPAWN_WRAPPER, wrapper)
    return wrapper


class SpawnWrapper:
    """Runs in the child in place of `_wrap(function, index, args, error_file)`."""

    def __init__(self, config: RunConfig, command: Sequence[str]) -> None:
        # In a spawned child this is the original as well: there nothing has been replaced.
        self._original = vars(importlib.import_module(SPAWN_MODULE))[SPAWN_WRAPPER]
        self._given = (config, list(command))
        self._taken = mmap.mmap(-1, 1)  # shared with children that are forked

    @property
    def taken(self) -> bool:
        """Whether a child was started."""
        return self._taken[0] != 0

    def __call__(self, function: Any, index: int, args: Any, error_file: str) -> None:
        """Run the child to its end."""
        self._taken[0] = 1
        observer = Observer(*self._given, child=index)
        observer.attach()
        step_on = self._given[0].step_on
        if step_on is not None:
            Returns(StepOn.parsed(step_on), observer.end_step).watch_in_child(self._given[0].target)
        error: BaseException | None = None
        try:
            self._original(function, index, args, error_file)
        except BaseException as err:
            # `_wrap` ends the process by SystemExit where the script's function raised something.
            error = err.__context__ if isinstance(err, SystemExit) and err.__context__ else err
            raise
        finally:
            observer.finish(error)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle its arguments: in the child it watches another process."""
        self._taken[0] = 1
        config, command = self._given
        return revived, (config.as_json(), command)


def revived(config: dict[str, Any], command: list[str]) -> SpawnWrapper:
    """The wrapper unpickled in the child."""
    return SpawnWrapper(RunConfig.from_json(config), command)
