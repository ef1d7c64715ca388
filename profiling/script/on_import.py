"""Call a function when a module has been imported. Knows no torch.

What reads the environment when torch is imported, and what a script sets before it imports torch, stay in their order:
so nothing here imports torch before the script does.
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, tell: Callable[[], None]) -> Callable[[], None]:
    """Call `tell` once, right after the module `name` is imported; return a function that calls this off."""
    finder = _Finder(name, tell)
    if name in sys.modules:
        tell()
    else:
        sys.meta_path.insert(0, finder)

    def call_off() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    return call_off


class _Finder(MetaPathFinder):
    """Find nothing, but add a call to the loaders that other finders return."""

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
        """Add the call to this loader, which may never be used: some only ask whether a module exists."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._tell()

        loader.exec_module = exec_module  # type: ignore[method-assign]
