"""The parallel modes of `--parallel`, one module each: how a model is spread over ranks, and its facts.

Importable without torch, which a mode imports when it is used. A new mode is a module, and a name in `MODES`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ...contract.modes import Mode
from .data_parallel import DATA_PARALLEL
from .ddp import DDP
from .fsdp import FSDP
from .mode import ParallelMode
from .pipeline import PIPELINE
from .single import SINGLE

MODES: Mapping[Mode, ParallelMode] = {mode.name: mode for mode in (SINGLE, DATA_PARALLEL, DDP, FSDP, PIPELINE)}
DEFAULT_MODE = DDP.name

# What meta.json says about a model, by mode; each function returns None for models of other modes.
FACTS: Mapping[str, Callable[[Any], object]] = {
    mode.name: mode.facts for mode in MODES.values() if mode.facts is not None
}
