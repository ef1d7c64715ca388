"""Reports of Nsight Systems, which only its own tools read, and how to export them."""

from __future__ import annotations

from pathlib import Path

REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")
"""How the names of reports end."""
EXPORT = "nsys export --type sqlite --include-blobs=true"
"""The command; blobs are what NCCL says about its calls."""


def is_report(path: Path) -> bool:
    """Whether the name is that of a report before its export."""
    return path.name.lower().endswith(REPORTS)
