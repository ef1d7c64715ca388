"""Import torchvision, even beside a build of torch that cannot load its compiled operators."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch.library

from ...common.extras import not_installed
from ..errors import LibraryError

_MISSING_OPERATOR = "does not exist"


def torchvision(submodule: str) -> ModuleType:
    """Import `torchvision.<submodule>`. Raises LibraryError if it is not installed or does not load.

    PyPI's torchvision is built for CUDA. Beside a CPU build of torch its operators are not registered, and importing it
    dies on "operator torchvision::nms does not exist" while it describes their shapes to the compiler. Models, data
    sets and transforms do not use those operators: then it is imported again, with such descriptions left out.
    """
    name = f"torchvision.{submodule}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as err:
        raise LibraryError(not_installed("torchvision", "this model", "profiling")) from err
    except (RuntimeError, AttributeError) as err:
        if "torchvision" not in str(err):
            raise
        for loaded in [key for key in sys.modules if key.partition(".")[0] == "torchvision"]:
            del sys.modules[loaded]
    with _tolerant_register_fake():
        try:
            return importlib.import_module(name)
        except (ImportError, RuntimeError, AttributeError) as err:
            raise LibraryError(f"torchvision does not load beside torch {torch.__version__}: {err}") from err


@contextmanager
def _tolerant_register_fake() -> Iterator[None]:
    """Let `torch.library.register_fake` ignore torchvision operators that do not exist."""
    original = torch.library.register_fake

    def register_fake(op: Any, *args: Any, **kwargs: Any) -> Any:
        if not (isinstance(op, str) and op.startswith("torchvision::")):
            return original(op, *args, **kwargs)

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            try:
                original(op, function, *args, **kwargs)
            except RuntimeError as err:
                if _MISSING_OPERATOR not in str(err):
                    raise
            return function

        return register

    torch.library.register_fake = register_fake
    try:
        yield
    finally:
        torch.library.register_fake = original
