"""Run by path in another process, before anything of ours can be imported there. Not to be imported.

`GIVEN` says what to call; as a program of its own, it is the argument, and the result is the exit code.
"""

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

_given: dict[str, Any] = json.loads(sys.argv[1]) if __name__ == "__main__" else globals()["GIVEN"]
_package: str = _given["package"]
_folder: str = _given["folder"]

if _package not in sys.modules and "." not in _package:  # a checkout, which is not on the path
    spec = importlib.util.spec_from_file_location(
        _package, Path(_folder, "__init__.py"), submodule_search_locations=[_folder]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules[_package] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[_package])

result = getattr(importlib.import_module(f"{_package}.{_given['module']}"), _given["function"])(*_given["arguments"])
if __name__ == "__main__":
    sys.exit(result)
