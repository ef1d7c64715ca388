"""Be told when a module has been imported. Knows no torch.

What reads the environment when torch is imported, and what a script sets before it imports torch, stay in their order:
so nothing here imports torch before the script does.
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, tell: Callable[[], None]) -> None:
    """Call `tell` once, as soon as the module `name` has been imported."""
    if name in sys.modules:
        tell()
    else:
        sys.meta_path.insert(0, _Finder(name, tell))


class _Finder(MetaPathFinder):
    """Finds nothing itself: it adds a call to what the other finders find."""

    def __init__(self, name: str, tell: Callable[[], None]) -> None:
        self._name = name
        self._tell = tell

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            sys.meta_path.insert(0, self)  # another try may follow, with another sys.path
            return spec
        loader, tell = spec.loader, self._tell
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            tell()

        loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one object
        return spec
