"""Run by path in a child, before anything of ours can be imported there; see children.py. Not to be imported."""

import importlib
import importlib.util
import sys
from pathlib import Path

_PACKAGE: str = globals()["PACKAGE"]
_FOLDER: str = globals()["FOLDER"]

if _PACKAGE not in sys.modules and "." not in _PACKAGE:  # a checkout, which is not on the path
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, Path(_FOLDER, "__init__.py"), submodule_search_locations=[_FOLDER]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[_PACKAGE])

wrapper = importlib.import_module(f"{_PACKAGE}.script.watch.children").SpawnWrapper(
    importlib.import_module(f"{_PACKAGE}.script.config").RunConfig.from_json(globals()["CONFIG"]), globals()["COMMAND"]
)
