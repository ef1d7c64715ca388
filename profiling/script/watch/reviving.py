"""How another process calls a function of ours, where nothing of ours is on `sys.path`: by the path of revive.py."""

from pathlib import Path
from typing import Any

from ..config import RunConfig

REVIVE = str(Path(__file__).resolve().with_name("revive.py"))
_PACKAGE = str(__package__).removesuffix(".script.watch")  # of `profiling`, wherever it is
_FOLDER = Path(__file__).resolve().parents[2]


def given(module: str, function: str, config: RunConfig, command: list[str]) -> dict[str, Any]:
    """What revive.py needs to call `function(config.as_json(), command)` of this `module` of ours; JSON can hold it."""
    return {
        "package": _PACKAGE,
        "folder": str(_FOLDER),
        "module": module,
        "function": function,
        "arguments": [config.as_json(), command],
    }
