"""The methods of frameworks that end a training step. None of them is imported here."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ...base.patches import Patches
from ..on_import import after_import
from .steps import Steps


@dataclass(frozen=True)
class _Method:
    """A method that ends a step; `counter` is the attribute that counts its object's steps, None without one."""

    module: str
    owner: str
    name: str
    counter: str | None = None


# DeepSpeed calls an optimizer once per group of parameters, and none after an overflow. Lightning's batch holds the
# steps of all optimizers that its `training_step` makes by hand. Trainer of transformers, accelerate, and torchtitan
# call an optimizer once per step, which counts without them.
_METHODS: Sequence[_Method] = (
    _Method("deepspeed.runtime.engine", "DeepSpeedEngine", "step", "global_steps"),
    _Method("deepspeed.runtime.pipe.engine", "PipelineEngine", "train_batch", "global_steps"),
    _Method("lightning.pytorch.loops.training_epoch_loop", "_TrainingEpochLoop", "advance"),
    _Method("pytorch_lightning.loops.training_epoch_loop", "_TrainingEpochLoop", "advance"),
)


def follow(steps: Steps, patches: Patches) -> None:
    """Have the frameworks that the script imports, now or later, end steps."""
    for method in _METHODS:
        patches.on_detach(after_import(method.module, _wrapper(method, steps, patches)))


def _wrapper(method: _Method, steps: Steps, patches: Patches) -> Callable[[], None]:
    def wrap() -> None:
        owner = getattr(sys.modules[method.module], method.owner, None)
        if owner is not None:
            patches.wrap(owner, method.name, partial(steps.framework_call, steps_of=method.counter))

    return wrap
