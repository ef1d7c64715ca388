"""Every worked example of docs/metrics.md, recomputed by the functions of the project.

An example is a fenced block `example`. `given <table>` starts a table that goes in, `then <table>` one that must come
out, row by row. Below it stand a header and rows, columns two or more blanks apart, and lines `name = value`, which
hold for every row; `-` is NA. In what comes out, `name = expression = value` also checks the arithmetic shown.
A float is compared to the decimals written.
"""

from __future__ import annotations

import ast
import operator
import re
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.ceilings.files import Ceiling
from analysis.comparison.analysis import Comparison
from analysis.core.kinds import collective_in_name, comm_pattern, kernel_kind, memory_kind
from analysis.core.nccl_tests import bus_factor, dtype_name
from analysis.core.schema import Row, records
from analysis.core.steps import with_steps
from analysis.core.tables import communication as schema
from analysis.recording.header import Header
from analysis.results.analysis import Analysis
from analysis.run.cpu_activities import cpu_activities
from analysis.run.file_tables import TraceFile
from analysis.run.run import Run
from analysis.sweeps.cells import RankEpoch, whole_epoch
from analysis.sweeps.scaling import scaling
from analysis.sweeps.subtraction import measured_epoch, measured_table, mistakes, subtraction
from analysis.training.trainings import training

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")

# Columns that repeat what the trace or another table says, or number the rows. Every other one is a formula.
COPIED = {
    *("rank", "cycle", "device", "stream", "name", "start_ns", "dur_ns", "issue_ns", "correlation", "external_id"),
    *("process_group", "pg_ranks", "group_size", "dtype", "in_elems", "out_elems", "seq", "comms_id", "root", "host"),
    *("in_split", "out_split"),
    *("call_id", "collective_id", "step", "collective", "blocks_per_sm", "occupancy_frac", "device_name"),
    *("cell", "run", "model", "parallel", "workers", "batch_size_per_worker", "status", "reason"),
    *("dataset_samples", "sample_bytes", "parameters_elems", "parameters_bytes"),
}
# And by table: what a training wrote down, and what it was.
COPIED_IN = {
    "training_epochs": set(schema.TRAINING_EPOCHS.columns),
    "training": {"training", "data", "optimizer", "lr_scaling", "global_batch_size", "planned_epochs"},
}
_WEIGHTED = {"blocks_per_sm", "occupancy_frac"}
NOT_COPIED = {
    "activities": {"step"},
    "calls": {"collective"},
    "collectives": {"collective"},
    "kernels": _WEIGHTED,
    "gpus": {"occupancy_frac"},
}
# What one is made by is what the other is made by: a step is broken down by the formulas of a device, and a ceiling
# stands beside the columns of bandwidth.
LIKE = {
    "breakdown_steps": "breakdown",
    "bandwidth_ceiling": "bandwidth",
    "kernels_devices": "kernels",
    "operators": "kernels",
    "operators_devices": "operators",
    "changed_kernels": "comparison",
    "changed_operators": "comparison",
}


# The document


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it, up to the next heading."""

    title: str
    body: str

    def blocks(self, language: str) -> list[str]:
        return re.findall(rf"^```{language}\n(.*?)^```$", self.body, re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Part:
    """One table of an example, cells as text; `derived` holds the expressions between a name and its value."""

    role: str
    table: str
    rows: list[dict[str, str]]
    derived: dict[str, list[str]]


def sections(document: str) -> list[Section]:
    pieces = re.split(r"^#{1,4} (.+)$", document, flags=re.MULTILINE)
    return [Section(title, body) for title, body in zip(pieces[1::2], pieces[2::2], strict=True)]


def parts(example: str) -> list[Part]:
    texts = re.split(r"^(given|then) (.+)$", example, flags=re.MULTILINE)
    assert not texts[0].strip(), f"an example starts with given or then, not with {texts[0]!r}"
    return [part(*three) for three in zip(texts[1::3], texts[2::3], texts[3::3], strict=True)]


def part(role: str, table: str, text: str) -> Part:
    header: list[str] = []
    rows: list[dict[str, str]] = []
    shared: dict[str, str] = {}
    derived: dict[str, list[str]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        cells = re.split(r" {2,}", line)
        if assigned := re.fullmatch(r"(\w+) = (.+)", line):
            *derived[assigned[1]], shared[assigned[1]] = assigned[2].split(" = ")
        elif not header:
            header = cells
        else:
            assert len(cells) == len(header), f"{len(header)} columns, but {len(cells)} cells in: {line}"
            rows.append(dict(zip(header, cells, strict=True)))
    rows = [shared | row for row in rows] if header else [shared]
    return Part(role, table.strip().replace(" ", "_"), rows, derived)


SECTIONS = sections(DOCUMENT)
EXAMPLES = [
    pytest.param(text, id=f"{section.title} {number}")
    for section in SECTIONS
    for number, text in enumerate(section.blocks("example"))
]


# What goes in


def analysis_of(example: list[Part]) -> Analysis | Comparison | Across | Epochs | Trained:
    """The tables of the run, the runs A and B, or the sweep, that the `given` parts describe."""
    given = {p.table: [_parsed(row) for row in p.rows] for p in example if p.role == "given"}
    if "epochs" in given:
        return Epochs(schema.TIMINGS.frame([_cell(0, whole_epoch([RankEpoch(**row) for row in given["epochs"]]))]))
    if "timings" in given:
        return _across(given)
    if "training_epochs" in given:
        return Trained(schema.TRAINING_EPOCHS.frame(map(_trained, given["training_epochs"])))
    sides = [{n[: -len(end)]: rows for n, rows in given.items() if n.endswith(end)} for end in ("_of_A", "_of_B")]
    return Comparison(*((_analysis(side),) for side in sides)) if any(sides) else _analysis(given)


def _analysis(given: dict[str, list[Row]]) -> Analysis:
    ceiling = schema.CEILING.frame(given.pop("ceiling", []))
    unknown = set(given) - {
        "traces", "activities", "calls", "cpu_operators", "annotations", "repetition", "clock_probes", "operators",
        "step_times", "memory", "records", "process_groups",
    }  # fmt: skip
    assert not unknown, f"no such table to give: {unknown}"
    given["calls"] = _repeated(given.get("calls", []), given.get("repetition", []))
    activities = _activities(given)
    ranks = sorted({row["rank"] for row in activities}) or [0]
    traces = given.get("traces") or [{"rank": rank, "host": "node0"} for rank in ranks]
    calls = [row for row in activities if row.get("collective") is not None]
    launched = [row for row in activities if row.get("issue_ns") is not None]
    annotations = schema.ANNOTATIONS.frame({"rank": 0, "cycle": 0, "thread": 1, **row}
                                           for row in given.get("annotations", []))  # fmt: skip
    launches = schema.LAUNCHES.frame({**row, "thread": 1, "start_ns": row["issue_ns"]} for row in launched)
    return Analysis(
        Run(
            name="example",
            traces=schema.TRACES.frame({"cycle": 0, "world_size": len(traces), **row} for row in traces),
            process_groups=schema.PROCESS_GROUPS.frame(given.get("process_groups", [])),
            activities=_with_steps(schema.ACTIVITIES.frame(map(_known, activities)), launches, annotations),
            launches=launches,
            annotations=annotations,
            comm_args=schema.COMM_ARGS.frame([*map(_arguments, calls), *map(_record, given.get("records", []))]),
            config={},
            notes=(),
            clock_probes=schema.CLOCK_PROBES.frame(given.get("clock_probes", [])),
            details=True,
            step_times=schema.STEP_TIMES.frame(map(_of_rank_0, given.get("step_times", []))),
            memory=schema.MEMORY.frame(map(_of_rank_0, given.get("memory", []))),
            cpu_operators=schema.CPU_OPERATORS.frame(map(_of_rank_0, given.get("operators", []))),
        ),
        Ceiling("ceiling", ceiling) if len(ceiling) else None,
    )


@dataclass(frozen=True)
class Epochs:
    """What the timed epochs of one cell's ranks come to."""

    timings: pd.DataFrame


@dataclass(frozen=True)
class Across:
    """The tables across runs, of cells that are given instead of read."""

    timings: pd.DataFrame
    measured: pd.DataFrame

    @property
    def scaling(self) -> pd.DataFrame:
        return scaling(self.timings)

    @property
    def subtraction(self) -> pd.DataFrame:
        return subtraction(self.timings, self.measured)

    def mistakes(self, names: list[str]) -> pd.DataFrame:
        return mistakes(self.timings, names)


@dataclass(frozen=True)
class Trained:
    """The table of trainings, of epochs that are given instead of read."""

    epochs: pd.DataFrame

    @property
    def training(self) -> pd.DataFrame:
        return training(self.epochs)


def _trained(row: Row) -> Row:
    plain = {"model": "resnet18", "data": "cifar10", "parallel": "ddp", "optimizer": "sgd", "lr_scaling": "none",
             "planned_epochs": 5, "phase": "timed", "batch_size_per_worker": 32, "train_samples": 6400,
             "test_samples": 100, "dataset_samples": 6400, "lr": 0.1, "train_loss": 1.0, "test_loss": 1.0,
             "train_accuracy_frac": 0.5, "test_accuracy_frac": 0.5, "steps": 10, "epoch_steps": 10, "step_ns": 1,
             "data_ns": 0}  # fmt: skip
    found = plain | {name: float(v) if isinstance(v, str) else v for name, v in row.items()}
    workers, batch = found["workers"], found["batch_size_per_worker"]
    return {"run": f"w{workers}-b{batch}", "global_batch_size": workers * batch, **found}


def _across(given: dict[str, list[Row]]) -> Across:
    """The tables of these cells; steps and collectives are those of the first with several workers."""
    timings = schema.TIMINGS.frame(_cell(number, row) for number, row in enumerate(given["timings"]))
    if "breakdown_steps" not in given:
        return Across(timings, measured_table([]))
    steps = pd.DataFrame(given["breakdown_steps"])
    collectives = pd.DataFrame(given["collectives"]).astype({"busbw_gb_per_s": "Float64"})
    cell = next(row for row in records(timings) if row["workers"] > 1)
    return Across(timings, measured_table([measured_epoch(cell, steps, collectives)]))


def _cell(number: int, row: Row) -> Row:
    plain = {"model": "resnet18", "parallel": "ddp", "workers": 1, "batch_size_per_worker": 32, "status": "done"}
    cell = plain | row
    steps = None
    if cell.get("dataset_samples"):
        steps = -(-cell["dataset_samples"] // (cell["workers"] * cell["batch_size_per_worker"]))
    timed = cell.get("timed_steps") or steps
    name = f"w{cell['workers']}-b{cell['batch_size_per_worker']}"
    return {"cell": number, "run": name, "epoch_steps": steps, **cell, "timed_steps": timed}


def _of_rank_0(row: Row) -> Row:
    return {"rank": 0, "cycle": 0, **row}


def _parsed(row: dict[str, str]) -> Row:
    return {name: _value(name, text) for name, text in row.items()}


def _value(name: str, text: str) -> Any:
    if text in ("-", "yes", "no"):
        return {"-": None, "yes": True, "no": False}[text]
    number = text.replace(",", "")
    if re.fullmatch(r"\d+\.\d+", number):
        return float(number)
    return int(number) if re.fullmatch(r"-?\d+", number) and name not in ("device", "pg_ranks", "comms_id") else text


def _activities(given: dict[str, list[Row]]) -> list[Row]:
    """Rows of activities with the columns of a call where they are one."""
    rows = given.get("activities", []) + [{"kind": "comm", **row} for row in given.get("calls", [])]
    result = []
    for correlation, row in enumerate(rows):
        start_ns = row["start_ns"]
        dur_ns = row["dur_ns"] if "dur_ns" in row else row["end_ns"] - start_ns
        standard = {"rank": 0, "cycle": 0, "device": "0", "stream": 7, "name": "ncclDevKernel_Generic",
                    "issue_ns": start_ns, "correlation": correlation, "external_id": 1000 + correlation}  # fmt: skip
        result.append({**standard, **row, "dur_ns": dur_ns})
    if "cpu_operators" in given:
        result += records(_on_cpu(given))
    return result


def _repeated(calls: list[Row], repetition: list[Row]) -> list[Row]:
    """The calls of each rank, again and again: `times` in all, each `every_ns` after the one before."""
    every = {row["rank"]: row for row in repetition}
    return [
        call | {"seq": call["seq"] + turn, "start_ns": call["start_ns"] + turn * every[call["rank"]]["every_ns"]}
        for call in calls
        for turn in range(every[call["rank"]]["times"])
    ] if every else calls  # fmt: skip


def _on_cpu(given: dict[str, list[Row]]) -> pd.DataFrame:
    annotations = schema.ANNOTATIONS.frame({"rank": 0, "cycle": 0, **row} for row in given["annotations"])
    gloo = annotations["name"].str.startswith("gloo:")
    return cpu_activities(
        TraceFile(
            path=Path("example"),
            header=Header(0, 1, "gloo", "node0", (), (), None, None),
            pid=1,
            activities=schema.ACTIVITIES.empty(),
            launches=schema.LAUNCHES.empty(),
            annotations=annotations,
            comm_args=schema.COMM_ARGS.empty(),
            cpu_ops=pd.DataFrame(given["cpu_operators"]),
            gloo_threads=frozenset(annotations["thread"][gloo]),
        )
    )


def _known(row: Row) -> Row:
    return {name: value for name, value in row.items() if name in schema.ACTIVITIES.columns}


def _with_steps(activities: pd.DataFrame, launches: pd.DataFrame, annotations: pd.DataFrame) -> pd.DataFrame:
    """As the reader does it, file by file."""
    files = []
    for rank, own in activities.groupby("rank"):
        launched = launches[launches["rank"] == rank]
        files.append(with_steps(own.reset_index(drop=True), launched, annotations[annotations["rank"] == rank]))
    return schema.ACTIVITIES.concat(files)


def _arguments(call: Row) -> Row:
    """The call as arguments on its kernel, as a trace has them."""
    ranks = (call.get("pg_ranks") or "").split()
    recorded = ("Byte", "Char", "Half", "BFloat16", "Float", "Double", "Int", "Long")
    spelled = {dtype_name(name): name for name in recorded}
    root = call.get("root")
    return {
        **{name: value for name, value in call.items() if name in schema.COMM_ARGS.columns},
        "source": "kernel",
        "op": call["collective"],
        "dtype": spelled[call["dtype"]] if call.get("dtype") else None,
        "group_size": len(ranks) or call.get("group_size"),
        "root": ranks.index(str(root)) if root is not None else None,
    }


def _record(row: Row) -> Row:
    """What a CPU issued, as a record_param_comms; `root` is the peer of a send or receive."""
    peer = row.get("root") if row["collective"] in ("send", "recv") else None
    told = _arguments({"cycle": 0, "thread": 1, **row, "root": None if peer is not None else row.get("root")})
    return told | {"source": "record_param_comms", "correlation": None, "peer": peer}


# What comes out


def computed(then: Part, analysis: Any) -> list[Row]:
    """The rows that the project computes for a `then` part."""
    if then.table == "mistakes":
        return records(analysis.mistakes([row["mistake"] for row in then.rows]))
    if then.table == "bus_factors":
        return [{**row, "bus_factor": bus_factor(row["collective"], row["group_size"])}
                for row in map(_parsed, then.rows)]  # fmt: skip
    if then.table == "kinds":
        return [{**row, "kind": _kind(row["name"]), "collective": collective_in_name(row["name"])} for row in then.rows]
    if then.table == "verdict_of_the_run":
        return records(analysis.verdicts.head(1))
    if then.table == "verdicts":
        return records(analysis.verdicts.iloc[1:])
    if then.table.startswith("comparison_of_"):
        of = then.table.removeprefix("comparison_of_")
        return [row for row in records(analysis.comparison) if row["measure"] == of]
    return records(getattr(analysis.run if then.table == "activities" else analysis, then.table))


def _kind(name: str) -> str:
    is_memory = name.startswith(("Memcpy", "Memset"))
    return memory_kind(name) if is_memory else kernel_kind(name, comm_pattern())


def differences(then: Part, rows: list[Row]) -> list[str]:
    """What the document says otherwise than the project, one sentence each."""
    if len(rows) != len(then.rows):
        return [f"{then.table}: {len(then.rows)} rows written, {len(rows)} computed: {rows}"]
    found = [
        f"{then.table}, row {number}: {name} is written as {text}, but is {row[name]}"
        for number, (written, row) in enumerate(zip(then.rows, rows, strict=True))
        for name, text in written.items()
        if not _same(text, row[name])
    ]
    for name, expressions in then.derived.items():
        value = float(then.rows[0][name].replace(",", "")) if expressions else 0.0
        found += [f"{then.table}: {name} is {value}, not {e} = {arithmetic(e)}"
                  for e in expressions if not _same(then.rows[0][name], float(arithmetic(e)))]  # fmt: skip
    return found


def _same(text: str, value: Any) -> bool:
    if value is None or text == "-":
        return value is None and text == "-"
    if isinstance(value, bool):
        return text == ("yes" if value else "no")
    if isinstance(value, int):
        return text.replace(",", "") == str(value)
    if isinstance(value, float):
        decimals = len(text.partition(".")[2])
        return abs(float(text.replace(",", "")) - value) <= 0.5000001 * 10**-decimals * (decimals > 0) + 1e-9
    return text == str(value)


_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_FUNCTIONS = {"min": min, "max": max, "median": lambda *values: statistics.median(values)}


def arithmetic(expression: str) -> float:
    """The value of + - * / ( ) min max median over numbers."""

    def value(node: ast.expr) -> float:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.BinOp(left=left, op=op, right=right):
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return _FUNCTIONS[name](*map(value, arguments))
        raise AssertionError(f"not arithmetic: {expression}")

    return value(ast.parse(expression, mode="eval").body)


# Tests


@pytest.mark.parametrize("text", EXAMPLES)
def test_example(text: str) -> None:
    example = parts(text)
    analysis = analysis_of(example)
    wrong = [d for p in example if p.role == "then" for d in differences(p, computed(p, analysis))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("text", EXAMPLES)
def test_a_changed_number_is_noticed(text: str) -> None:
    example = parts(text)
    analysis = analysis_of(example)
    for then in (p for p in example if p.role == "then"):
        rows = computed(then, analysis)
        for number, row in enumerate(then.rows):
            for name in row:
                changed = [dict(r) for r in then.rows]
                changed[number][name] = re.sub(r"\d$", lambda m: str((int(m[0]) + 1) % 10), row[name])
                if changed[number][name] == row[name]:
                    changed[number][name] = "other"
                known = then.table in ("bus_factors", "kinds") and name in ("collective", "group_size", "name")
                assert known or differences(replace(then, rows=changed, derived={}), rows), f"{then.table} {name}"


def _recomputed(found: list[Section]) -> set[tuple[str, str]]:
    """Table and column of everything the examples of these sections make come out."""
    thens = [p for s in found for e in s.blocks("example") for p in parts(e) if p.role == "then"]
    named = {"verdict_of_the_run": "verdicts"}
    named |= {p.table: "comparison" for p in thens if p.table.startswith("comparison_of_")}
    return {(named.get(p.table, p.table), name) for p in thens for row in p.rows for name in row}


@pytest.mark.parametrize("section", [pytest.param(s, id=s.title) for s in SECTIONS if s.blocks("formula")])
def test_every_formula_has_an_example_in_its_section(section: Section) -> None:
    defined = {line.partition(" = ")[0].strip() for block in section.blocks("formula")
               for line in block.splitlines() if re.match(r"\w+ +=", line)}  # fmt: skip
    assert defined, f"{section.title}: a formula reads `name = ...`"
    missing = defined - {name for _, name in _recomputed([section])}
    assert not missing, f"{section.title}: no example in this section computes {sorted(missing)}"


@pytest.mark.parametrize("table", [pytest.param(t, id=t.name) for t in schema.PUBLISHED])
def test_every_measured_column_has_a_formula_and_an_example(table: schema.Schema) -> None:
    copied = COPIED - NOT_COPIED.get(table.name, set()) | COPIED_IN.get(table.name, set())
    measured = set(table.columns) - copied
    undefined = {n for n in measured if f"`{n}`" not in DOCUMENT and not re.search(rf"^{n} +=", DOCUMENT, re.MULTILINE)}
    assert not undefined, f"docs/metrics.md does not define {sorted(undefined)} of table {table.name}"
    shown_as = {table.name, LIKE.get(table.name, "kinds"), LIKE.get(LIKE.get(table.name, ""), "kinds")}
    missing = measured - {name for of, name in _recomputed(SECTIONS) if of in shown_as}
    assert not missing, f"no example of docs/metrics.md computes {sorted(missing)} of table {table.name}"


def test_every_column_it_names_exists() -> None:
    columns = {name for table in schema.PUBLISHED for name in table.columns}
    units = r"ns|us|bytes|elems|frac|gb_per_s"
    named = set(re.findall(rf"`(\w+_(?:{units})|\w+_us_\w+)`", DOCUMENT))
    assert not named - columns


def test_the_drawing_shows_its_example() -> None:
    """One character of a drawing is 10,000 ns: `w` waits, `t` transfers, `=` is a bound."""
    [section] = [s for s in SECTIONS if s.blocks("drawing")]
    [drawing] = section.blocks("drawing")
    example = parts(section.blocks("example")[0])
    analysis = analysis_of(example)
    for row in records(analysis.participation):
        [bar] = re.findall(rf"^rank {row['rank']} +\|(.*?)\|", drawing, re.MULTILINE)
        times = [10_000 * count for count in (len(re.match(r"[ .]*", bar)[0]), bar.count("w"), bar.count("t"))]
        assert times == [row["start_ns"], row["wait_ns"], row["transfer_ns"]], f"rank {row['rank']}"
    [collective] = records(analysis.collectives)
    widths = [10_000 * bar.count("=") for bar in re.findall(r"^\w+ +\|([ =]*)\|", drawing, re.MULTILINE)]
    assert widths == [collective["transfer_low_ns"], collective["transfer_high_ns"]]
    assert re.search(r"^last arrival +\|( *)v", drawing, re.MULTILINE)[1] == " " * (
        collective["last_start_ns"] // 10_000
    )
