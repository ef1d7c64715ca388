"""The commit of the code that trains, read from its repository's own files: no program has to be installed for that."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_MOST_REFS = 1 << 22


def commit() -> str | None:
    """The commit that is checked out where the script lies, else in the working directory; None if that is unknown."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    with suppress(OSError, ValueError):
        return commit_of(Path(script).resolve().parent if script else Path.cwd())
    return None


def commit_of(folder: Path) -> str | None:
    """The commit that is checked out in this folder, or in the nearest one above. Raises OSError, ValueError.

    Source: gitrepository-layout(5): HEAD, packed-refs, commondir; a worktree's `.git` is a file.
    """
    found = next((above / ".git" for above in (folder, *folder.parents) if (above / ".git").exists()), None)
    if found is None:
        return None
    if found.is_file():
        found = found.parent / found.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
    common = found / "commondir"
    shared = found / common.read_text(encoding="utf-8").strip() if common.is_file() else found
    said = (found / "HEAD").read_text(encoding="utf-8").strip()
    if said.startswith("ref:"):
        name = said.removeprefix("ref:").strip()
        places = [place / name for place in (found, shared) if (place / name).is_file()]
        said = places[0].read_text(encoding="utf-8").strip() if places else _packed(shared / "packed-refs", name)
    return said if _COMMIT.fullmatch(said) else None


def _packed(path: Path, name: str) -> str:
    """The commit of a reference that has no file of its own; empty if there is none."""
    if not path.is_file() or path.stat().st_size > _MOST_REFS:
        return ""
    for line in path.read_text(encoding="utf-8").splitlines():
        value, _, of = line.partition(" ")
        if of == name:
            return value
    return ""
