"""The version of commtrace."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version


def version() -> str:
    """The version of the installed distribution; `unknown` in a checkout that was never installed."""
    try:
        return installed_version("commtrace")
    except PackageNotFoundError:
        return "unknown"
