"""The version of commtrace, which only pyproject.toml has. As in `analysis.version`: the packages share no code."""

import re
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path

_NAME = "commtrace"


def version() -> str:
    """The version of the checkout that this file is in, or else of what is installed."""
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if project.is_file():
        found = re.search(r'^name = "commtrace"\nversion = "(.+)"$', project.read_text("utf-8"), re.MULTILINE)
        if found:
            return found[1]
    try:
        return installed(_NAME)
    except PackageNotFoundError:  # copied from somewhere, not installed
        return "unknown"
