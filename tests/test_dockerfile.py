"""The Dockerfile copies what a wheel is made of, and nothing that is not there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COPIED = [name for line in re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE, re.MULTILINE) for name in line.split()]


def test_what_it_copies_exists_and_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert [name for name in COPIED if not (ROOT / name).exists() or name in ignored] == []


def test_it_copies_all_that_a_wheel_needs() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    links = [one for one in (ROOT / "commtrace").iterdir() if one.is_symlink()]
    folders = ["commtrace", *(link.resolve().name for link in links)]
    files = re.findall(r'^(?:readme = |license-files = \[)"([\w.]+)"', project, re.MULTILINE)
    assert links
    assert set(COPIED) == {"pyproject.toml", *folders, *files}


def test_it_needs_no_torch_and_no_root() -> None:
    (extras,) = re.findall(r"'\.\[(.*)\]'", DOCKERFILE)
    assert "profiling" not in extras
    assert DOCKERFILE.index("USER commtrace") < DOCKERFILE.index("ENTRYPOINT")
