"""`single`: one process, with the whole model on its one device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .mode import ModeOptions, ParallelMode

if TYPE_CHECKING:
    import torch
    from torch import nn


def _on_device(model: nn.Module, where: torch.device, options: ModeOptions) -> nn.Module:  # noqa: ARG001
    return model.to(where)


SINGLE = ParallelMode("single", "one process", _on_device, distributed=False)
