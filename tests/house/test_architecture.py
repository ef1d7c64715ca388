"""Who may import whom, and which module knows what: read from the source."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict

import pytest
from layers import FORWARDS, LAYERS, page_with_map, place
from source import (
    PACKAGES,
    ROOT,
    circles,
    exported,
    imported,
    imported_from_beside,
    imported_from_outside,
    modules,
    paths,
)  # fmt: skip

RAW_KEYS = (
    "In msg nelems", "Out msg nelems", "In msg size", "External id", "Collective name", "Process Group Name",
    "Process Group Ranks", "Comms Id", "Input Dims", "Input type", "Concrete Inputs", "Group size", "Src Rank",
    "baseTimeNanoseconds", "distributedInfo", "deviceProperties", "pg_config", "gpu_memcpy", "cuda_runtime",
    "blocks per SM", "est. achieved occupancy %", "[memory]", "Total Allocated", "Device Type",
    "gpu_memset", "cpu_op", "user_annotation", "thread_name", "record_param_comms",
)  # fmt: skip
EVERY_MODULE = [(package, module) for package in PACKAGES for module in paths(package)]


def test_every_folder_has_its_layer():
    for package, layers in LAYERS.items():
        assert {place(package, module) for module in modules(package)} == set(layers)


def test_imports_respect_the_layers():
    found = {}
    for package, module in EVERY_MODULE:
        own = place(package, module)
        allowed = {own, *LAYERS[package][own].split()}
        found[f"{package}.{module}"] = {place(package, other) for other in _below(package, module)} - allowed
    assert _offenders(found) == {}


@pytest.mark.parametrize("package", LAYERS)
def test_layers_have_an_order(package):
    above: set[str] = set()
    for folder, needs in LAYERS[package].items():  # from the bottom up
        assert set(needs.split()) <= above, folder
        above.add(folder)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_imports_in_circles(package):
    assert circles({module: _below(package, module) for module in modules(package)}) == []


def _below(package, module):
    """What a module imports, without what its methods forward to."""
    upwards = FORWARDS.get(f"{package}.{module}", set())
    return {other for other in imported(package, module) if place(package, other) not in upwards}


def test_methods_forward_from_inside():
    for name, rooms in FORWARDS.items():
        package, _, module = name.partition(".")
        first = [node.module or "" for node in modules(package)[module].body if isinstance(node, ast.ImportFrom)]
        assert not {imported.split(".")[0] for imported in first} & rooms, name
        assert {place(package, other) for other in imported(package, module)} >= rooms, name  # all are needed


def test_metrics_know_no_files():
    for module in modules("analysis"):
        if place("analysis", module) == "metrics":
            assert {place("analysis", other) for other in imported("analysis", module)} <= {"metrics", "core"}


def _offenders(found):
    return {name: sorted(what) for name, what in found.items() if what}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_is_exported_twice(package):
    owners = defaultdict(list)
    for module, tree in modules(package).items():
        for name in exported(tree):
            owners[name].append(module)
    assert {name: found for name, found in owners.items() if len(found) > 1} == {}


def test_imports_within_a_package_are_relative():
    packages = {"analysis", "profiling", "commtrace"}
    found = {
        f"{package}.{module}": imported_from_outside(package, module) & packages for package, module in EVERY_MODULE
    }
    assert _offenders(found) == {}


def test_analysis_needs_no_torch():
    for module in modules("analysis"):
        assert not imported_from_outside("analysis", module) & {"torch", "torchvision", "hta"}, module


def test_the_packages_share_what_is_common_and_nothing_else():
    shared = {"common", "contract"}
    found = {f"{package}.{module}": imported_from_beside(package, module) - shared for package, module in EVERY_MODULE}
    in_processes_of_their_own = ("profiling.sessions.afterwards.low_priority", "profiling.tied")
    assert _offenders(found) == {module: ["cli"] for module in in_processes_of_their_own}


@pytest.mark.parametrize(("folder", "libraries"), [("common", set()), ("contract", {"msgspec"})])
def test_what_is_common_needs_no_torch_or_pandas_and_neither_package(folder, libraries):
    for path in (ROOT / "commtrace" / folder).rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        names = {name for node in nodes for name in _absolute(node)}
        assert names <= {*sys.stdlib_module_names, "commtrace", *libraries}, path.name
        assert not [node for node in nodes if isinstance(node, ast.ImportFrom) and node.level > 1], path.name


def _absolute(node: ast.AST) -> set[str]:
    """The first names of what a statement imports absolutely."""
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    return {str(node.module).split(".")[0]} if isinstance(node, ast.ImportFrom) and not node.level else set()


def test_nobody_imports_the_command_line():
    assert [m for m in modules("analysis") if place("analysis", m) != "cli" and _knows_cli(m)] == []


def _knows_cli(module: str) -> bool:
    return "cli" in {place("analysis", other) for other in imported("analysis", module)}


def test_only_who_reads_or_writes_traces_knows_raw_keys():
    for module, tree in modules("analysis").items():
        if not module.startswith(("formats.kineto", "formats.flight_recorder", "core.tables.events", WRITER)):
            assert not _texts(tree) & ({"cat", "ph", "args", *RAW_KEYS} - {"record_param_comms"}), module
            assert not any('"traceEvents"' in text for text in _texts(tree)), module


WRITER = "tensorboard.distributed_view"
MARKERS = (
    "ProfilerStep", "c10d::", "gloo:", "nccl:", "ncclDev", "ncclKernel", "ncclSymk", "rcclDev", "record_param_comms",
    "enumerate(", "pt_gloo", "Memcpy", "Memset",
)  # fmt: skip
NAMES = ("nccl", "gloo", "rccl")
WITH_MARKERS = ("formats", "core.markers", "core.tables", WRITER)
DTYPES = {"int64", "Int64", "float64", "Float64", "string", "boolean", "object"}


def _markers_in(tree: ast.Module) -> list[str]:
    """Texts that the program compares with what stands in traces: no docstrings, types or meanings of columns."""
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    typed = [node.annotation for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]
    # A dtype and a meaning: tables tell people what their columns hold.
    columns = [node for node in ast.walk(tree) if isinstance(node, ast.Tuple) and _first(node) in DTYPES]
    said |= {id(part) for node in (*typed, *columns) for part in ast.walk(node)}
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said
    ]
    return [text for text in texts if text.strip("^$") in NAMES or any(marker in text for marker in MARKERS)]


def _first(node: ast.Tuple) -> object:
    first = node.elts[0] if node.elts else None
    return first.value if isinstance(first, ast.Constant) else None


def test_markers_of_traces_stand_in_one_place():
    found = {m: _markers_in(tree) for m, tree in modules("analysis").items() if not m.startswith(WITH_MARKERS)}
    assert _offenders(found) == {}


def test_markers_are_found_where_they_stand():
    tree = ast.parse("""'''c10d:: in a docstring.'''
x: Literal["gloo"] = name.startswith(("c10d::", "nccl")) or "ProfilerStep#" or f"gloo:{op}"
y = re.compile(r"^nccl"), r"ncclKernel_Reduce_|^ncclDevKernel_Reduce_"
""")
    found = ["ProfilerStep#", "^nccl", "c10d::", "gloo:", "nccl", "ncclKernel_Reduce_|^ncclDevKernel_Reduce_"]
    assert sorted(_markers_in(tree)) == found


def _texts(tree: ast.Module) -> set[str]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_only_readers_and_the_command_line_touch_files():
    openers = {"open", "read_text", "write_text", "read_bytes", "write_bytes"}
    readers = {"recording", "formats", "reading", "run"}
    single = {
        "cli.output",
        "core.budget",
        "core.loopback",
        "core.places.files",
        "core.places.filesystem",
        "core.places.remote",
        "core.small_files",
        "tensorboard.plugin",
        "sweeps.files",
        "sweeps.timings_csv",
        "training.files",
        "ceilings.files",
    }
    for module, tree in modules("analysis").items():
        called = {
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
        }
        if place("analysis", module) not in readers and module not in single:
            assert not called & openers, module


def test_no_module_is_named_like_one_of_the_standard_library():
    names = {f"{package}.{module}": module.rpartition(".")[2] for package, module in EVERY_MODULE}
    assert {m: name for m, name in names.items() if name in sys.stdlib_module_names and not name.startswith("__")} == {}


def test_the_map_in_contributing_is_this_one():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert page == page_with_map(page), "run: python tests/house/layers.py"


def test_what_the_rules_rest_on_finds_what_it_looks_for():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    tree = ast.parse("def f(): ...\nclass C: ...\nX = 1\nY: int = 2\n_z = 3\nA, B = D = 4, 5")
    assert exported(tree) == {"f", "C", "X", "Y", "A", "B", "D"}
    assert imported("analysis", "formats.kineto.header") >= {"recording.header", "formats.kineto.stream"}
