"""Whether a library is installed, without importing it: torch takes seconds."""

import importlib.util

from ...common.extras import not_installed
from ..errors import LibraryError


def installed(library: str) -> bool:
    """Whether `library` can be found."""
    try:
        return importlib.util.find_spec(library) is not None
    except (ImportError, ValueError):
        return False


def require(library: str, what: str = "capturing") -> None:
    """Raise LibraryError when `library`, which `what` needs, cannot be imported."""
    if not installed(library):
        raise LibraryError(not_installed(library, what, "profiling"))
