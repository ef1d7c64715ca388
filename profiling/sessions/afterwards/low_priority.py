"""Our analysis in a process that gives way to training: `python low_priority.py PARENT_PID NAME ARGUMENTS...`.

Run by path, as a script's own modules may have our names; not to be imported. The analysis gets a name that nobody
else has, and whatever the script put on PYTHONPATH comes after that. Ends with its parent. Users call it NAME.
"""

import ctypes
import importlib
import importlib.util
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

_NAME = "commtrace_analysis"
_LEAST_NICE = 19
# linux/ioprio.h; glibc has no function for it.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "ppc64le": 273}
_THIS_PROCESS, _IDLE = 1, 3 << 13
_FIRST_TO_GO = "1000"


def give_way() -> None:
    """The lowest priority for cores and disks, as far as the system knows such; the first to go if memory is short."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _LEAST_NICE)
    with suppress(AttributeError, OSError, KeyError):
        ctypes.CDLL(None).syscall(_IOPRIO_SET[platform.machine()], _THIS_PROCESS, 0, _IDLE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO, encoding="ascii")


def loaded(name: str, path: Path) -> ModuleType:
    """The module, or the package in a folder, under this name."""
    inside = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=inside)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    folder = Path(__file__).resolve().parent
    if sys.path[:1] == [str(Path(__file__).parent)]:
        del sys.path[0]  # our own folder, whose modules nobody means
    loaded("commtrace_tether", folder.parents[1] / "machine" / "tether.py").tie_to_parent(int(sys.argv[1]))
    give_way()
    loaded(_NAME, folder.parents[2] / "analysis" / "__init__.py")
    sys.exit(importlib.import_module(f"{_NAME}.__main__").main(sys.argv[3:], program=sys.argv[2]))
