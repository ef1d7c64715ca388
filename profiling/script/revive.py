"""Run by path in a child, before anything of ours can be imported there; see children.py. Not to be imported."""

import importlib
import importlib.util
import sys
from pathlib import Path

PACKAGE: str = globals()["PACKAGE"]
FOLDER: str = globals()["FOLDER"]

if PACKAGE not in sys.modules and "." not in PACKAGE:  # a checkout, which is not on the path
    spec = importlib.util.spec_from_file_location(
        PACKAGE, Path(FOLDER, "__init__.py"), submodule_search_locations=[FOLDER]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[PACKAGE])

stand = importlib.import_module(f"{PACKAGE}.script.children").Stand(
    importlib.import_module(f"{PACKAGE}.script.config").RunConfig.from_json(globals()["CONFIG"]), globals()["COMMAND"]
)
