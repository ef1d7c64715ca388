"""What has to be the same wherever functions are called, because tables travel as these libraries pickle them."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version as installed

from ...common.version import version

_SHARED = ("pandas", "numpy", "msgspec")


def versions() -> dict[str, str]:
    """The versions that this process has, by name."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"commtrace": version(), "Python": python} | {name: installed(name) for name in _SHARED}


def differences(there: Mapping[str, str]) -> list[str]:
    """What is another version elsewhere than here: `pandas 2.2.0 instead of 3.0.1`."""
    here = versions()
    return [
        f"{name} {there.get(name, 'missing')} instead of {here[name]}" for name in here if there.get(name) != here[name]
    ]
