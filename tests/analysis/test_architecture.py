"""Who may import whom, and which module knows what: read from the source."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ANALYSIS, PROFILING = ROOT / "analysis", ROOT / "profiling"

LEAVES = {
    "errors", "kinds", "tables", "schema", "schema_columns", "schema_compare", "schema_kernels", "schema_late",
    "schema_sweeps", "schema_training",
    "intervals", "nccl_tests", "by_hand", "significance", "names", "disk",
}  # fmt: skip
READERS = {
    "repairs", "packed", "elements", "chunks", "kineto_events", "kineto_header", "kineto", "trace_file", "trace_paths",
    "read_worker", "reading", "cache", "cpu", "columns", "members", "run", "timings_csv", "sweep_files", "sweeps",
    "sidefiles", "ceiling", "spans", "raw_trace", "worker_process", "training_files", "small_files", "trace_checks",
    "picking", "kineto_args", "kineto_verified", "memory_limit",
}  # fmt: skip
METRICS = {
    "breakdown", "calls", "gloo_calls", "waiting", "bandwidth", "ranks", "headroom", "scaling",
    "subtraction", "training", "operators", "kernels", "gpus", "step_values", "comparing", "metrics",
    "metrics.issued", "metrics.phases", "metrics.gpu_calls", "metrics.needs", "metrics.clocks", "metrics.matching",
    "metrics.causes", "metrics.damaged", "metrics.hangs", "metrics.partial", "metrics.verdicts",
}  # fmt: skip
TOP = {
    "lone", "measure", "measure_compare", "measure_sweep", "measure_training", "summary", "report", "report_compare",
    "cli_common", "cli_inputs", "cli_reading", "cli_compare", "cli_kernels", "cli_sweeps", "cli_training", "cli",
    "__init__", "__main__",
}  # fmt: skip

# module -> what it may import. `render` is the folder; what `metrics` holds, modules and folders, has its own names.
ALLOWED = {
    # leaves: nothing, but for the errors they raise
    "errors": set(),
    "kinds": set(),
    "intervals": set(),
    "tables": {"errors"},
    "schema_sweeps": {"tables"},
    "schema_kernels": {"tables"},
    "schema_training": {"tables"},
    "schema_compare": {"schema_kernels", "tables"},
    "schema_columns": set(),
    "schema_late": {"schema_columns", "tables"},
    "schema": {
        "schema_columns",
        "schema_compare",
        "schema_kernels",
        "schema_late",
        "schema_sweeps",
        "schema_training",
        "tables",
    },
    "nccl_tests": {"errors"},
    "by_hand": set(),
    "significance": set(),
    "names": set(),
    "disk": set(),
    # readers: files -> tables
    "repairs": set(),
    "packed": {"errors"},
    "elements": {"repairs"},
    "memory_limit": {"errors"},
    "chunks": {"elements", "errors", "packed", "repairs"},
    "kineto_events": {"elements"},
    "kineto_header": {"chunks", "elements", "errors", "kineto_events", "repairs"},
    "spans": {"chunks", "errors", "packed"},
    "raw_trace": {"chunks", "kineto_events", "kineto_header", "memory_limit"},
    "picking": {"chunks", "elements", "kineto_events"},
    "kineto_args": {"elements", "kineto_events", "kineto_header", "raw_trace"},
    "kineto": {
        "chunks",
        "elements",
        "errors",
        "kinds",
        "kineto_args",
        "kineto_events",
        "kineto_header",
        "memory_limit",
        "names",
        "packed",
        "picking",
        "raw_trace",
        "spans",
    },
    "trace_checks": {"kineto_events", "kineto_header", "raw_trace"},
    "small_files": {"disk", "repairs"},
    "cache": {"disk", "kineto", "names", "raw_trace", "trace_checks"},
    "kineto_verified": {"chunks", "errors", "kineto_events", "packed", "raw_trace", "repairs"},
    "read_worker": {"cache", "errors", "kineto", "kineto_verified", "packed", "raw_trace"},
    "worker_process": {"read_worker"},
    "reading": {
        "cache",
        "errors",
        "kineto",
        "kineto_verified",
        "memory_limit",
        "packed",
        "raw_trace",
        "read_worker",
        "worker_process",
    },
    "trace_paths": {"errors", "names"},
    "members": {"errors", "kineto_header", "sidefiles", "small_files", "trace_paths"},
    "columns": {"raw_trace"},
    "trace_file": {"columns", "kineto_events", "members", "names", "raw_trace", "schema"},
    "steps": {"schema"},
    "cpu": {"kinds", "schema", "trace_file"},
    "sidefiles": {"schema"},
    "run": {
        "cache",
        "cpu",
        "errors",
        "kinds",
        "members",
        "memory_limit",
        "names",
        "reading",
        "schema",
        "sidefiles",
        "steps",
        "trace_file",
        "trace_paths",
    },
    "ceiling": {"errors", "nccl_tests", "schema", "small_files"},
    "timings_csv": {"errors", "schema", "small_files"},
    "sweep_files": {"errors", "small_files"},
    "sweeps": {"errors", "names", "schema", "sweep_files", "timings_csv"},
    "training_files": {"errors", "names", "schema", "small_files"},
    # metrics: tables -> tables; `steps` serves both sides
    "breakdown": {"intervals", "kinds", "schema", "steps"},
    "gloo_calls": {"nccl_tests", "schema"},
    "metrics": set(),
    "metrics.phases": {"kinds", "schema"},
    "metrics.issued": {"nccl_tests", "schema", "steps"},
    "metrics.gpu_calls": {"kinds", "metrics.issued", "metrics.phases", "nccl_tests", "schema"},
    "calls": {"gloo_calls", "kinds", "metrics.gpu_calls", "metrics.issued", "nccl_tests", "schema"},
    "metrics.clocks": {"nccl_tests", "schema"},
    "metrics.matching": {"kinds", "metrics.clocks", "nccl_tests", "schema"},
    "metrics.needs": {"metrics.clocks", "nccl_tests"},
    "metrics.damaged": set(),
    "metrics.partial": {"metrics.clocks", "nccl_tests"},
    "metrics.causes": {
        "errors",
        "intervals",
        "kinds",
        "metrics.clocks",
        "metrics.matching",
        "metrics.needs",
        "names",
        "nccl_tests",
        "schema",
        "tables",
    },
    "metrics.hangs": {"metrics.clocks", "schema"},
    "waiting": {"metrics.clocks", "metrics.needs", "metrics.partial", "nccl_tests", "schema"},
    "bandwidth": {"nccl_tests", "schema"},
    "ranks": {"intervals", "metrics.causes", "nccl_tests", "schema"},
    "metrics.verdicts": {"metrics.causes", "schema"},
    "headroom": {"schema"},
    "scaling": {"schema"},
    "subtraction": {"by_hand", "nccl_tests", "scaling", "schema"},
    "training": {"schema"},
    "operators": set(),
    "kernels": {"intervals", "kinds", "schema"},
    "gpus": {"intervals", "kinds", "schema"},
    "step_values": set(),
    "comparing": {"schema", "significance"},
    # tables -> text
    "render": {"errors", "names", "schema"},
    # where they meet
    "lone": {"breakdown", "columns", "kinds", "members", "raw_trace", "schema", "steps"},
    "measure": METRICS - {"comparing", "scaling", "step_values", "subtraction", "training"}
    | {"ceiling", "errors", "run", "schema"},
    "measure_compare": {"comparing", "errors", "kinds", "measure", "schema", "significance", "step_values"},
    "measure_sweep": {"errors", "measure", "scaling", "schema", "subtraction", "sweeps"},
    "measure_training": {"errors", "schema", "training", "training_files"},
    "summary": {"measure", "metrics.clocks", "metrics.matching", "nccl_tests", "schema"},
    "report": {"measure", "names", "render", "schema", "summary"},
    "report_compare": {"measure_compare", "names", "render", "schema"},
    "cli_common": {"disk", "errors", "names", "reading", "render"},
    "cli_inputs": {"errors", "trace_paths"},
    "cli_reading": {
        "cache",
        "calls",
        "ceiling",
        "cli_common",
        "errors",
        "kinds",
        "lone",
        "measure",
        "reading",
        "render",
        "run",
        "trace_paths",
        "memory_limit",
    },
    "cli_compare": {"cli_common", "cli_inputs", "cli_reading", "measure_compare", "report_compare"},
    "cli_kernels": {"cli_common", "cli_reading", "errors", "measure", "render"},
    "cli_sweeps": {"by_hand", "cli_common", "cli_reading", "errors", "measure_sweep"},
    "cli_training": {"cli_common", "measure_training", "render"},
    "cli": {
        "cli_common",
        "cli_compare",
        "cli_inputs",
        "cli_kernels",
        "cli_reading",
        "cli_sweeps",
        "cli_training",
        "errors",
        "measure",
        "render",
        "report",
        "summary",
    },
    "__init__": {"errors", "measure", "measure_compare", "measure_sweep", "measure_training", "run"},
    "__main__": {"cli"},
}

# Keys of a trace's arguments and events that only the reader may know.
RAW_KEYS = (
    "In msg nelems", "Out msg nelems", "In msg size", "External id", "Collective name", "Process Group Name",
    "Process Group Ranks", "Comms Id", "Input Dims", "Input type", "Concrete Inputs", "Group size", "Src Rank",
    "baseTimeNanoseconds", "distributedInfo", "deviceProperties", "pg_config", "gpu_memcpy", "cuda_runtime",
    "blocks per SM", "est. achieved occupancy %", "[memory]", "Total Allocated", "Device Type",
    "gpu_memset", "cpu_op", "user_annotation", "thread_name", "record_param_comms",
)  # fmt: skip


def modules(package: Path) -> dict[str, Path]:
    """Module or folder of every file, by path within the package."""
    return {str(path.relative_to(package)): path for path in sorted(package.rglob("*.py"))}


def imports(path: Path) -> list[tuple[int, str]]:
    """(level, dotted name) of every import, those inside functions and type-checking blocks included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            begin = f"{node.module}." if node.module else ""
            found += [(node.level, begin + alias.name) for alias in node.names]
    return found


def edges(name: str, path: Path) -> set[str]:
    """Modules of the package that this file imports; imports within a folder are its own business."""
    folders = name.split("/")[:-1]
    found = {
        named([*folders[: len(folders) + 1 - level], *target.split(".")]) for level, target in imports(path) if level
    }
    return found - {module_of(name)}


def named(parts: list[str]) -> str:
    """The name in ALLOWED of what has this path within the package."""
    return ".".join(parts[:2] if parts[0] == "metrics" and parts[1] != "__init__" else parts[:1])


def module_of(name: str) -> str:
    return named(name.removesuffix(".py").split("/"))


@pytest.mark.parametrize("name", modules(ANALYSIS))
def test_imports_go_one_way(name):
    surplus = edges(name, ANALYSIS / name) - ALLOWED[module_of(name)]
    assert not surplus, f"analysis/{name} may not import {sorted(surplus)}"


def test_the_table_of_imports_has_no_cycle_and_no_stale_entry():
    assert set(ALLOWED) == {module_of(name) for name in modules(ANALYSIS)}
    placed: set[str] = set()
    while placed != set(ALLOWED):
        free = {m for m, needs in ALLOWED.items() if m not in placed and needs <= placed}
        assert free, f"a cycle among {sorted(set(ALLOWED) - placed)}"
        placed |= free


def test_readers_and_metrics_do_not_know_each_other():
    for name, path in modules(ANALYSIS).items():
        module = module_of(name)
        if module in READERS:
            assert not edges(name, path) & (METRICS | TOP | {"render"})
        if module in METRICS | {"steps"}:
            assert not edges(name, path) & (READERS | TOP | {"render"})
        if module in LEAVES:
            schemas = {name for name in ALLOWED if name.startswith("schema_")}
            assert edges(name, path) <= {"errors", "tables"} | schemas


def test_nobody_imports_the_command_line_but_main():
    importers = {name for name, path in modules(ANALYSIS).items() if "cli" in edges(name, path)}
    assert importers == {"__main__.py"}


@pytest.mark.parametrize("package", [ANALYSIS, PROFILING], ids=lambda p: p.name)
def test_imports_within_a_package_are_relative(package):
    for name, path in modules(package).items():
        absolute = {target.split(".")[0] for level, target in imports(path) if level == 0}
        assert not absolute & {"analysis", "profiling", "commtrace"}, name


def test_relative_imports_stay_within_the_package():
    for package in (ANALYSIS, PROFILING):
        for name, path in modules(package).items():
            assert all(level <= name.count("/") + 1 for level, _ in imports(path)), name


def test_analysis_needs_no_torch():
    for name, path in modules(ANALYSIS).items():
        outside = {target.split(".")[0] for level, target in imports(path) if level == 0}
        assert not outside & {"torch", "torchvision", "hta", "profiling"}, name


def test_only_the_reader_knows_raw_keys():
    for name, path in modules(ANALYSIS).items():
        if module_of(name).startswith("kineto"):
            continue
        texts = {
            node.value for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }  # fmt: skip
        exact = {"cat", "ph", "args", *RAW_KEYS} - {"record_param_comms"}
        assert not texts & exact, name
        assert name == "chunks.py" or not any('"traceEvents"' in text for text in texts), name


def test_only_readers_and_the_command_line_touch_files():
    openers = {"open", "read_text", "write_text", "read_bytes", "write_bytes"}
    for name, path in modules(ANALYSIS).items():
        called = {
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)
        }
        if module_of(name) not in READERS | {"cli_common", "disk"}:
            assert not called & openers, name


@pytest.mark.parametrize("package", [ANALYSIS, PROFILING], ids=lambda p: p.name)
def test_no_module_is_named_like_one_of_the_standard_library(package):
    for name, path in modules(package).items():
        if not path.name.startswith("__"):
            assert path.stem not in sys.stdlib_module_names, name


def test_modules_stay_small():
    long = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules(ANALYSIS).items()}
    assert {name: lines for name, lines in long.items() if lines > 450} == {}
