"""Whether a library is there, without importing it: torch takes seconds."""

import importlib.util

from .errors import LibraryError


def require(library: str) -> None:
    """Raise LibraryError when `library` cannot be imported."""
    try:
        found = importlib.util.find_spec(library) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise LibraryError(f'{library} is not installed, and capturing needs it: pip install "commtrace[profiling]"')
