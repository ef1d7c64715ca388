"""The name of our package while a script runs. In a checkout it is a plain one that the script may want for itself."""

import importlib.util
import sys
from pathlib import Path

from ..base.program import ALIAS, PACKAGE

_FOLDER = Path(__file__).resolve().parents[1]


def leave() -> str:
    """The name under which our package can be imported from now on; from a checkout nobody finds it under the old one.

    What was imported under the old name goes on working, but for imports: everything after this is of the new name.
    """
    if "." in PACKAGE:  # commtrace.profiling, which is installed
        return PACKAGE
    name = f"{ALIAS}{PACKAGE}"
    spec = importlib.util.spec_from_file_location(
        name, _FOLDER / "__init__.py", submodule_search_locations=[str(_FOLDER)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    for old in [one for one in sys.modules if one == PACKAGE or one.startswith(f"{PACKAGE}.")]:
        del sys.modules[old]
    return name
