"""Which folder may import which, and the map of them in CONTRIBUTING.md: `python tests/house/layers.py` writes it."""

from __future__ import annotations

import ast
import sys

from source import PACKAGES, ROOT, folder_of, modules

LAYERS: dict[str, dict[str, str]] = {
    "analysis": {
        "errors": "",
        "core": "errors",
        "glossary": "",
        "ceilings": "core errors",
        "lab": "core errors",
        "recording": "core errors",
        "formats": "recording core errors",
        "reading": "formats recording core errors",
        "run": "reading formats recording core errors",
        "metrics": "core errors",
        "replay": "metrics core errors",
        "tables": "replay run metrics ceilings core errors",
        "streaming": "tables metrics formats recording core errors",
        "catalog": "tables core errors",
        "explanation": "glossary catalog core errors",
        "render": "catalog core errors",
        "training": "render catalog core errors",
        "results": "tables replay metrics run reading recording ceilings render catalog core errors",
        "sweeps": "results recording render catalog core errors",
        "comparison": "results tables replay metrics recording render catalog core errors",
        "show": "comparison results metrics ceilings render catalog core errors",
        "report": "show lab training sweeps comparison results tables metrics run ceilings render catalog core errors",
        "timeline": "results tables metrics run core errors",
        "prediction": "results replay metrics run ceilings core errors",
        "exports": "results metrics run formats catalog core errors",
        "tensorboard": "report show results render core errors",
        "watching": "results run reading recording formats catalog core errors",
        "hang": "reading formats render catalog core errors",
        "timed_dumps": "hang tables metrics reading formats catalog core errors",
        "snapshots": "run tables metrics reading formats recording core errors",
        "agents": "hang comparison show results replay explanation glossary catalog core errors",
        "cli": (
            "agents watching snapshots timed_dumps hang tensorboard exports prediction timeline report show sweeps "
            "comparison training lab results tables replay streaming metrics run reading formats recording ceilings "
            "render explanation glossary catalog core errors"
        ),
    },
    "profiling": {
        "errors": "",
        "base": "errors",
        "machine": "base errors",
        "ranks": "machine base errors",
        "workloads": "base errors",
        "modes": "workloads machine base errors",
        "sessions": "modes ranks machine base errors",
        "train": "sessions modes workloads ranks machine base errors",
        "script": "sessions ranks machine base errors",
        "sweep": "train modes workloads ranks machine base errors",
        "comms": "sessions ranks machine base errors",
        "layers": "sessions workloads ranks machine base errors",
        "gemm": "sessions ranks machine base errors",
        "capacity": "workloads ranks machine base errors",
        "lab": "sweep modes ranks machine base errors",
        "guard": "ranks errors",
        "capture": "sessions ranks base",
        "trainer": "sessions ranks base errors",
        "tied": "machine",
    },
}
"""A package -> its folders, and single modules beside them -> what they may import, besides themselves."""

FORWARDS = {
    "analysis.results.analysis": {"show", "report", "timeline", "prediction"},
    "analysis.comparison.analysis": {"show"},
    "analysis.comparison.trend": {"show"},
}
"""Modules whose methods call functions of rooms above, which they import inside the method."""

_PAGE = ROOT / "CONTRIBUTING.md"
_BEGIN, _END = "<!-- map: python tests/house/layers.py -->\n", "<!-- end of map -->\n"


def place(package: str, module: str) -> str:
    """The first folder of a module, or its own name if it stands in none."""
    return module.split(".")[0]


def map_of(package: str) -> str:
    """The folders of a package from the bottom up, what each is for, and what it may import."""
    lines = ["| folder | what | may import |", "|---|---|---|"]
    for folder, needs in LAYERS[package].items():
        what = (ast.get_docstring(modules(package)[folder]) or "").splitlines()[0].rstrip(".")
        name = f"{folder}/" if folder_of(package, folder) == folder else folder
        lines.append(
            f"| `{package}/{name}` | {what} | {', '.join(f'`{need}`' for need in needs.split()) or 'nothing'} |"
        )
    return "\n".join(lines) + "\n"


def page_with_map(page: str) -> str:
    """CONTRIBUTING.md with the maps as they are now."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    maps = "\n".join(map_of(package) for package in PACKAGES if package in LAYERS)
    return f"{before}{_BEGIN}\n{maps}\n{_END}{after}"


if __name__ == "__main__":
    _PAGE.write_text(page_with_map(_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{_PAGE.name}: map written\n")
