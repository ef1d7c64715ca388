"""Notice the returns of one function of a script, for `--step-on`. Knows no torch.

A function of an imported module is wrapped right after its module has been imported, before anybody can take it from
there. The script itself runs in one go, and calls what it has just defined: there the function gets a decorator before
the script is compiled.
"""

import ast
import functools
import inspect
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ..base.console.notices import say
from ..errors import TargetError
from .config import StepOn, Target
from .on_import import after_import

_DECORATOR = "__commtrace_step_on__"


@dataclass(frozen=True)
class Returns:
    """Call `returned` after each return of the function."""

    of: StepOn
    returned: Callable[[], None]

    def watch(self, target: Target) -> None:
        """Watch a function of a module that is imported later; one of the script itself needs `compiled`."""
        module = self.of.module
        if not self.of.is_of(target) and module is not None:
            after_import(module, lambda: self.wrap_in(sys.modules[module]))  # whose import must not fail by it

    def watch_in_child(self, target: Target) -> None:
        """Watch in a process that multiprocessing has started: there the script itself has been imported."""
        if self.of.is_of(target):
            self.wrap_in(sys.modules["__main__"])
        self.watch(target)

    def compiled(self, source: str | bytes, path: str, into: ModuleType) -> Any:
        """The code of the script, with its function decorated. Raises TargetError if it has none of that name."""
        tree = ast.parse(source, path)
        function = _found(tree, self.of.name.split("."))
        if function is None:
            raise TargetError(f"--step-on {self.of.name}: {path} defines no function of that name")
        name = ast.Name(_DECORATOR, ast.Load())
        function.decorator_list.insert(0, ast.copy_location(name, function))
        vars(into)[_DECORATOR] = self._wrapped
        return compile(tree, path, "exec", dont_inherit=True)

    def wrap_in(self, module: ModuleType) -> None:
        """Replace the function in its module, which has been imported; say so if it has none."""
        *path, name = self.of.name.split(".")
        owner: Any = module
        for part in path:
            owner = getattr(owner, part, None)
        function = vars(owner).get(name) if owner is not None else None
        if isinstance(function, staticmethod | classmethod) or callable(function):
            wrapped = self._wrapped(function)
            setattr(owner, name, wrapped)
            used = getattr(function, "__globals__", {})  # which a child of multiprocessing has copied to its __main__
            if used.get(name) is function:
                used[name] = wrapped
        else:
            say(f"error: --step-on: {module.__name__} has no function {self.of.name}; the script goes on")

    def _wrapped(self, function: Any) -> Any:
        """Wrap a function to notice when it returns; a coroutine or a generator, when it has run."""
        if isinstance(function, staticmethod | classmethod):
            return type(function)(self._wrapped(function.__func__))

        @functools.wraps(function)
        def calling(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self.returned()
            return result

        @functools.wraps(function)
        async def awaiting(*args: Any, **kwargs: Any) -> Any:
            result = await function(*args, **kwargs)
            self.returned()
            return result

        @functools.wraps(function)
        def generating(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            result = yield from function(*args, **kwargs)
            self.returned()
            return result

        if inspect.iscoroutinefunction(function):
            return awaiting
        return generating if inspect.isgeneratorfunction(function) else calling


def _found(tree: ast.AST, path: list[str]) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The first function of this qualified name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == path[0]:
            if len(path) > 1:
                inner = _found(ast.Module(node.body, []), path[1:])
                if inner is not None:
                    return inner
            elif not isinstance(node, ast.ClassDef):
                return node
    return None
