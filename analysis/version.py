"""Which version of the distribution this is. pyproject.toml has it, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

_NAME = "commtrace"


def version() -> str:
    """The version: of the checkout this stands in, or else of what is installed."""
    project = Path(__file__).resolve().parents[1] / "pyproject.toml"
    if project.is_file():
        found = re.search(r'^name = "commtrace"\nversion = "(.+)"$', project.read_text("utf-8"), re.MULTILINE)
        if found:
            return found[1]
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed(_NAME)
    except PackageNotFoundError:  # copied from somewhere, not installed
        return "unknown"
