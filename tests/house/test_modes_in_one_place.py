"""The names of parallel modes: only their own modules know them."""

import ast

from source import modules

from profiling.modes import MODES

FOLDER = "modes"


def test_only_the_modes_know_their_names():
    known = {
        f"{module}: {node.value}"
        for module, tree in modules("profiling").items()
        if module.split(".")[0] != FOLDER
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in MODES
    }
    assert known == set()


def test_every_mode_has_a_module_of_its_own():
    owners = [
        module
        for module, tree in modules("profiling").items()
        if module.startswith(f"{FOLDER}.")
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if isinstance(node.value.func, ast.Name) and node.value.func.id == "ParallelMode"
    ]
    assert len(owners) == len(set(owners)) == len(MODES)
