"""Run a script or module as Python would: same `__main__`, `sys.argv` and `sys.path`. Knows no torch.

`runpy` does not do it: it hands out a `__main__` that pickle and multiprocessing do not find again.
"""

import builtins
import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import sys
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

from ..errors import TargetError
from .config import Target
from .returns import Returns

_OURS = str(Path(__file__).parents[1]) + os.sep  # the whole package: a signal comes through another part of it
_kept: list[ModuleType] = []  # what `python -m` had made `__main__`; its functions still run


def check(target: Target) -> None:
    """Raise TargetError if there is no such script; only Python can check modules."""
    if not target.is_module and not Path(target.name).exists():
        raise TargetError(f"{target.name}: no such script; for a module, put -m before its name")


def execute(target: Target, returns: Returns | None = None) -> None:
    """Run it to its end and let its exceptions through; raises TargetError if there is nothing to run.

    `returns` watches a function of the script; TargetError, too, if there is none of that name.
    """
    code, main = (_module if target.is_module else _script)(target, returns)
    main.__dict__["__builtins__"] = builtins
    _kept.append(sys.modules["__main__"])
    if "__annotations__" in vars(_kept[-1]):  # Python before 3.14 makes them
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    exec(code, main.__dict__)  # noqa: S102  (it is what this is for)


def hide_our_frames() -> None:
    """Show uncaught errors from now on as if the script had run without us."""
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        seen: set[int] = set()
        _clean(error, seen)
        show(kind, error, error.__traceback__ if id(error) in seen else trace)

    sys.excepthook = hook


def _script(target: Target, returns: Returns | None) -> tuple[CodeType, ModuleType]:
    """The code of a file, or of a folder or zip file with a `__main__.py`."""
    sys.argv = [target.name, *target.args]
    path = os.path.join(os.getcwd(), target.name)  # noqa: PTH109, PTH118  (neither links nor dots are resolved)
    if pkgutil.get_importer(path) is not None:
        _first_on_path(path)
        spec = importlib.machinery.PathFinder.find_spec("__main__", [path])
        if spec is None:
            raise TargetError(f"{target.name}: can't find '__main__' module in it")
        return _of_spec(spec, returns)
    _first_on_path(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    main = ModuleType("__main__")
    main.__file__ = path
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__["__cached__"] = None
    with io.open_code(path) as file:
        source = file.read()
    if returns is not None:
        return returns.compiled(source, path, main), main
    return compile(source, path, "exec", dont_inherit=True), main


def _module(target: Target, returns: Returns | None) -> tuple[CodeType, ModuleType]:
    sys.argv = ["-m", *target.args]  # until it is found, as with Python
    _first_on_path(os.getcwd())  # noqa: PTH109
    name = target.name
    spec = _spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = _spec(name)
    if spec is None or spec.loader is None:
        raise TargetError(f"-m {target.name}: no module named {name} that could be run")
    code, main = _of_spec(spec, returns)
    sys.argv[0] = main.__file__ or name
    return code, main


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as err:
        if err.name is None or not f"{name}.".startswith(f"{err.name}."):
            raise  # by a package around it
        return None


def _of_spec(spec: importlib.machinery.ModuleSpec, returns: Returns | None) -> tuple[CodeType, ModuleType]:
    code = getattr(spec.loader, "get_code", lambda name: None)(spec.name)  # noqa: ARG005
    if code is None:
        raise TargetError(f"{spec.name}: there is no Python code to run in {spec.origin}")
    main = ModuleType("__main__")
    main.__spec__ = spec
    main.__loader__ = spec.loader
    main.__package__ = spec.parent
    main.__file__ = spec.origin
    main.__dict__["__cached__"] = spec.cached
    if returns is not None:
        source = getattr(spec.loader, "get_source", lambda name: None)(spec.name)  # noqa: ARG005
        code = returns.compiled(source or "", spec.origin or spec.name, main)
    return code, main


def _first_on_path(folder: str) -> None:
    """Put `folder` first on `sys.path`, where Python put our own command's, unless it was told not to."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


def _clean(error: BaseException | None, seen: set[int]) -> None:
    """Remove our frames from the tracebacks of an error and its causes."""
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = _without_ours(error.__traceback__)
        _clean(error.__cause__, seen)
        error = error.__context__


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    entries = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    ran = [at for at, entry in enumerate(entries) if entry.tb_frame.f_code is execute.__code__]
    kept = [entry for entry in entries[ran[-1] + 1 if ran else 0 :] if not _is_ours(entry)]
    for entry, following in zip(kept, [*kept[1:], None], strict=False):
        entry.tb_next = following
    return kept[0] if kept else None


def _is_ours(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(_OURS)
