"""Be told when a module has been imported. Knows no torch.

What reads the environment when torch is imported, and what a script sets before it imports torch, stay in their order:
so nothing here imports torch before the script does.
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
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
        self._looking = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname != self._name or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            self._add_call(spec.loader)
        return spec

    def _add_call(self, loader: Loader) -> None:
        """To this one loader. It may never be used: many only ask whether there is such a module."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._tell()

        loader.exec_module = exec_module  # type: ignore[method-assign]
