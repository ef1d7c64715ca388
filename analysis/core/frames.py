"""numpy and pandas, imported when they are first used: what only lists or explains tables needs neither.

Import `np` and `pd` from here in a module that declares tables, and in those that it imports.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

__all__ = ["np", "pd"]


class _Later:
    """A module that is imported when something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # Whatever is asked for next is found without this detour.
        found = vars(self)[name] = getattr(import_module(self._name), name)
        return found


if not TYPE_CHECKING:
    np, pd = _Later("numpy"), _Later("pandas")
