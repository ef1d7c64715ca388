"""Reports of Nsight Systems, which only its own tools can read, and how exports are made of them."""

from __future__ import annotations

from pathlib import Path

REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")
"""How the names of reports end."""
EXPORT = "nsys export --type sqlite --include-blobs=true"
"""The command; blobs are what NCCL says about its calls."""


def is_report(path: Path) -> bool:
    """Whether this is a report before it is exported, by its name."""
    return path.name.lower().endswith(REPORTS)
