"""torch's private names stand in one module: what a new torch may move is looked for there."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from source import modules, paths

SHIM = "base.torch_private"
PRIVATE = re.compile(r"_[A-Za-z]\w*")  # not __dunder__
# Names of others that begin like this, with where they are.
NOT_OF_TORCH = {
    ("script.watch.forks", "_exit"),  # libc's
    ("script.watch.frameworks", "_TrainingEpochLoop"),  # Lightning's
    ("script.watch.processes", "_target"),  # multiprocessing's
}


def private_names(tree: ast.Module, own: set[str]) -> set[str]:
    """Names of torch that begin with an underscore: imported, looked up in an object, or given as a text.

    `own` are the private names that this package defines itself.
    """
    others = {alias.asname or alias.name.split(".")[0] for alias in _imports(tree) if not _is_torch(alias.name)}
    found = set()
    parts_of_texts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id in others):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts_of_texts:
            found.add(node.value)
        elif isinstance(node, ast.ImportFrom) and not node.level and _is_torch(node.module or ""):
            found |= {alias.name for alias in node.names} | set((node.module or "").split("."))
        elif isinstance(node, ast.Import):
            found |= {part for alias in node.names if _is_torch(alias.name) for part in alias.name.split(".")}
    return {name for name in found if PRIVATE.fullmatch(name)} - own


def _imports(tree: ast.Module) -> list[ast.alias]:
    return [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]


def _is_torch(name: str) -> bool:
    return name.split(".")[0] == "torch"


def defined(tree: ast.Module) -> set[str]:
    """Every name that a module, or one of its classes, defines or assigns."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


@cache
def own_names() -> set[str]:
    """What the package defines itself."""
    return {name for module, tree in modules("profiling").items() if module != SHIM for name in defined(tree)}


@pytest.mark.parametrize("module", [module for module in paths("profiling") if module != SHIM])
def test_private_names_of_torch_are_in_one_module(module):
    found = {
        name for name in private_names(modules("profiling")[module], own_names()) if (module, name) not in NOT_OF_TORCH
    }
    assert not found, f"move what uses {sorted(found)} into profiling/{SHIM.replace('.', '/')}.py"


def test_the_shim_has_some():
    assert private_names(modules("profiling")[SHIM], own_names()) >= {
        "_C",
        "_profiler_enabled",
        "_get_ddp_logging_data",
    }


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("from torch._C import x", {"_C"}),
        ("from torch.optim import _functional", {"_functional"}),
        ("import torch._dynamo", {"_dynamo"}),
        ("import torch\ntorch._C.x()", {"_C"}),
        ("model._get_ddp_logging_data()", {"_get_ddp_logging_data"}),
        ("getattr(model, '_modules')", {"_modules"}),
        ("import os\nos._exit(0)", set()),
        ("self._mine", set()),
        ("a.__dict__", set()),
    ],
)
def test_every_way_to_a_private_name_is_seen(code, names):
    assert private_names(ast.parse(code), {"_mine"}) == names
