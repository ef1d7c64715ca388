"""The names of parallel modes: only their own modules know them, and the contract."""

import ast
from typing import get_args

import pytest
from source import modules

from commtrace.contract import modes as contract
from commtrace.profiling.modes import MODES

FOLDER = "modes"
# `dp` there is a dimension of layouts such as Megatron's, beside `tp` and `pp`, and `pipeline` a table: no mode of ours
OF_LAYOUTS = {
    *(
        "cli.commands.pipeline",
        "tables.pipeline",
        "metrics.pipelines.table",
        "render.plots.schedule",
        "report.run_report",
    ),
    *("metrics.rank_plan", "cli.scale.plan_ranks", "tables.roles", "catalog"),
    *("metrics.roles.names", "metrics.roles.behaviour", "metrics.roles.table", "metrics.roles.grid"),
}


@pytest.mark.parametrize("package", ["profiling", "analysis"])
def test_only_the_modes_know_their_names(package):
    known = {
        f"{module}: {node.value}"
        for module, tree in modules(package).items()
        if not f"{package}.{module}.".startswith(f"profiling.{FOLDER}.") and module not in OF_LAYOUTS
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


def test_the_contract_knows_every_mode():
    assert sorted(contract.MODES) == sorted(get_args(contract.Mode)) == sorted(MODES)
