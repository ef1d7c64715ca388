"""The packages as their source has it: modules, what each imports, and the names it gives to others."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("analysis", "profiling")
"""The folders of the checkout that are packages within `commtrace`."""


@cache
def paths(package: str) -> dict[str, Path]:
    """The file of each module of a package by its dotted name within it, `core.tables` for a folder itself."""
    base = ROOT / package
    found = {}
    for path in sorted(base.rglob("*.py")):
        place = path.relative_to(base).with_suffix("")
        parts = place.parts[:-1] if place.name == "__init__" else place.parts
        found[".".join(parts) or "__init__"] = path
    return found


@cache
def modules(package: str) -> dict[str, ast.Module]:
    """Every module of a package, parsed: seconds, which no file takes before its tests begin."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in paths(package).items()}


def folder_of(package: str, module: str) -> str:
    """The folder of a module, itself if it is one; empty at the top."""
    if (ROOT / package / module.replace(".", "/") / "__init__.py").is_file():
        return module
    return module.rpartition(".")[0]


def imported(package: str, module: str) -> set[str]:
    """The modules of the package that one imports, also inside functions and for types only."""
    known = modules(package)
    found = set()
    parts = folder_of(package, module).split(".") if folder_of(package, module) else []
    for node in ast.walk(known[module]):
        if not isinstance(node, ast.ImportFrom) or not 0 < node.level <= len(parts) + 1:
            continue
        begin = [*parts[: len(parts) + 1 - node.level], *(node.module or "").split(".")]
        begin = [part for part in begin if part]
        for alias in node.names:
            whole, outer = ".".join([*begin, alias.name]), ".".join(begin) or "__init__"
            found.add(whole if whole in known else outer)
    return found - {module}


def imported_from_beside(package: str, module: str) -> set[str]:
    """What a module imports of `commtrace` outside of its package: first names, such as `common`."""
    level = folder_of(package, module).count(".") + 2 + bool(folder_of(package, module))
    nodes = [node for node in ast.walk(modules(package)[module]) if isinstance(node, ast.ImportFrom)]
    return {(node.module or "__init__").split(".")[0] for node in nodes if node.level == level}


def imported_from_outside(package: str, module: str) -> set[str]:
    """The first names of everything that a module imports absolutely."""
    found = set()
    for node in ast.walk(modules(package)[module]):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
    return found


def exported(tree: ast.Module) -> set[str]:
    """The public names that a module defines."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            names = (name for target in node.targets for name in ast.walk(target))
            found |= {name.id for name in names if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return {name for name in found if not name.startswith("_")}


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules each of which reaches every other one of its group by imports."""
    reach = {module: _reached(arrows, module) for module in arrows}
    groups = {frozenset(m for m in reach[one] if one in reach[m]) for one in arrows if one in reach[one]}
    return sorted(sorted(group) for group in groups)


def _reached(arrows: dict[str, set[str]], begin: str) -> set[str]:
    found: set[str] = set()
    waiting = list(arrows[begin])
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += arrows.get(module, ())
    return found
