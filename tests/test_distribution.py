"""What the wheel holds; tests/installed looks at it where it is installed."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
VERSION = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]


def test_the_wheel_holds_every_module() -> None:
    find = pytest.importorskip("setuptools").find_namespace_packages
    toml = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    given = toml.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    found = {ROOT / name.replace(".", "/") for name in find(str(ROOT), given["exclude"], given["include"])}
    parts = [ROOT / "commtrace", *(path for path in (ROOT / "commtrace").iterdir() if path.is_dir())]
    folders = {path.parent for part in parts for path in part.rglob("*.py")}
    assert len(folders) > 50
    assert found == folders


def test_the_changelog_begins_with_this_version() -> None:
    headings = re.findall(r"^## (\S+) \(\d{4}-\d\d-\d\d\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == VERSION
