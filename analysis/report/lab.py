"""The page of a lab: for each experiment its question, this machine's answer, pictures, tables and commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...common.nccl_tests import bus_factor
from ...common.wording import bytes_text, counted, listed
from ..ceilings.files import read_ceiling
from ..core.escaping import printable
from ..core.schema import PlainTable, Row, plain
from ..core.tables.lab import ALL_REDUCE, LAYERS, TIME_RATIOS
from ..errors import AnalysisError
from ..lab.files import Capacity, Layers, read_capacity, read_lab, read_layers
from ..render.plots import layers as layer_plots
from ..render.plots import lines, paired
from ..render.plots.capacity import layers_by_devices
from ..render.plots.points import bandwidth_by_size
from ..sweeps.analysis import analyse_sweep
from ..training.analysis import analyse_training
from .page import Head, ReportPage, page
from .parts import Section, TableBlock, block, block_of

if TYPE_CHECKING:
    from ...contract.lab import LabExperiment, LabTask
    from ..render.plots.figure import Figure


@dataclass(frozen=True)
class Answered:
    """What an experiment says on this machine: a sentence, and what it rests on."""

    said: str
    figures: Sequence[Figure] = ()
    tables: Sequence[TableBlock] = ()
    words: Sequence[str] = ()
    """What is missing, and why."""


@dataclass(frozen=True)
class _Experiment:
    """What the page says about an experiment, and how it reads the folders of its commands."""

    title: str
    question: str
    answered: Callable[[list[Path]], Answered]
    prints: str
    """The command that prints the table of such a folder; empty if the command that measures prints it."""


def lab_page(folder: Path) -> ReportPage:
    """The page of the lab in this folder. Raises UnreadableFile, DamagedMeasurement, NothingMeasured."""
    lab = read_lab(folder)
    sections = [_section(number, experiment, folder) for number, experiment in enumerate(lab.experiments, 1)]
    measured = [each for each in lab.experiments if each.tasks and all(task.status == "done" for task in each.tasks)]
    said = f"{len(measured)} of {counted(len(lab.experiments), 'experiment')} measured on {printable(lab.machine)}"
    took = {task.folder: task.dur_s for each in lab.experiments for task in each.tasks if task.dur_s is not None}
    facts = [
        ("machine", printable(lab.machine)),
        ("began", printable(lab.created_utc)),
        ("time of all commands", f"{sum(took.values()):,.0f} s"),
    ]
    return page(Head(folder.resolve().name, "lab", said, facts), sections)


def layers_page(name: str, layers: Layers) -> ReportPage:
    """The page on a folder of `commtrace layers`."""
    found = _ratio(layers) if len(layers.ratios) else _layers_of([(name, layers)])
    section = Section("layers", "Time, memory and power", "", found.figures, found.tables, words=found.words)
    return page(Head(name, "report on layers", found.said, []), [section])


def capacity_page(name: str, capacity: Capacity) -> ReportPage:
    """The page on a folder of `commtrace capacity`."""
    found = _capacity_of(capacity)
    section = Section("capacity", "Capacity", "", found.figures, found.tables, words=found.words)
    return page(Head(name, "report on capacity", found.said.removesuffix("."), []), [section])


def _section(number: int, experiment: LabExperiment, folder: Path) -> Section:
    """The section of an experiment, measured or not."""
    known = _EXPERIMENTS[experiment.name]
    folders = [folder / task.folder for task in experiment.tasks]
    lacking = [f"{printable(task.folder)}: {_why(task)}" for task in experiment.tasks if task.status != "done"]
    there = [each for each in folders if each.is_dir()]
    if experiment.impossible:
        found = Answered(f"NA: {printable(experiment.impossible)}.")
    elif not there:
        found = Answered("NA: it was not measured.")
    else:
        try:
            found = known.answered(there)
        except AnalysisError as err:
            found = Answered("NA: it cannot be read.", words=[str(err)])
    return Section(
        experiment.name,
        f"{number}. {known.title}",
        known.question,
        found.figures,
        found.tables,
        words=[*found.words, *lacking],
        short=known.title,
        answer=found.said,
        commands=[
            *(shlex.join(["commtrace", *task.arguments]) for task in experiment.tasks),
            *([shlex.join(["commtrace", *known.prints.split(), *map(str, there)])] if known.prints and there else []),
        ],
    )


def _why(task: LabTask) -> str:
    return f"failed: {printable(task.reason or 'NA')}" if task.status == "failed" else "not measured yet"


def _batch_size(folders: list[Path]) -> Answered:
    timings = analyse_sweep(*folders).timings
    rows = [row for row in plain(timings).rows if row["epoch_ns"]]
    ended = [row for row in plain(timings).rows if row["status"] in _ENDS]
    answer = "NA: no batch size was timed."
    if rows:
        fast, first = min(rows, key=lambda row: int(row["epoch_ns"])), rows[0]
        answer = f"An epoch is fastest with a batch of {fast['batch_size_per_worker']:,}: {_s(fast['epoch_ns'])}"
        if fast is not first:
            times = first["epoch_ns"] / fast["epoch_ns"]
            answer += f", {times:.2f} times as fast as with {first['batch_size_per_worker']:,}"
        answer += "".join(f"; {row['batch_size_per_worker']:,} is {_ENDS[row['status']]}" for row in ended[:1]) + "."
    figures = [lines.epoch_time_by_batch_size(timings)]
    return Answered(_if_trusted(answer, timings), figures, [block("timings", timings, shown=True)])


_DISTURBED_FRAC = 0.5
_ENDS = {"out_of_memory": "out of memory", "out_of_data": "out of data, not of memory: it is more than an epoch"}


def _speedup(folders: list[Path]) -> Answered:
    sweep = analyse_sweep(*folders)
    timed = sweep.scaling["speedup_fixed_work"].notna().any()
    figures = [lines.speedup_by_workers(sweep.scaling)] if timed else []
    tables = [block("scaling", sweep.scaling, shown=True)]
    return Answered(_if_trusted(f"{sweep.verdict}.", sweep.timings), figures, tables)


def _if_trusted(answer: str, timings: Any) -> str:
    """The answer; NA if steps of cells took so different times that something else must have run."""
    rows = [row for row in plain(timings).rows if (row["step_spread_frac"] or 0) > _DISTURBED_FRAC]
    if not rows:
        return answer
    cells, worst = listed([row["run"] for row in rows]), max(row["step_spread_frac"] for row in rows)
    return (
        f"NA: these times are not to be trusted: in {cells} steps differ by up to {worst:.0%} of their median, as when "
        "other programs use the machine; measure again when it is idle."
    )


def _communication(folders: list[Path]) -> Answered:
    sweep = analyse_sweep(*folders)
    subtraction = sweep.subtraction
    if not len(subtraction):
        return Answered("NA: no cell has more than one worker.")
    known = [row for row in plain(subtraction).rows if row["exposed_comm_ns"] is not None]
    answer = "NA: no cell with several workers was traced."
    if known:
        row = max(known, key=lambda row: (row["workers"], row["batch_size_per_worker"]))
        answer = (
            f"Of an epoch with {row['workers']} workers and a batch of {row['batch_size_per_worker']} each, "
            f"{_s(row['compute_ns'])} are compute and {_s(row['exposed_comm_ns'])} exposed communication, measured "
            f"in traces; subtraction takes {_s(row['subtracted_comm_ns'])} for communication."
        )
    figures = [paired.subtraction_and_measured(subtraction)]
    tables = [block("subtraction", subtraction, shown=True)]
    used = (
        sweep.timings[sweep.timings["batch_size_per_worker"] == row["batch_size_per_worker"]]
        if known
        else sweep.timings
    )
    return Answered(_if_trusted(answer, used), figures, tables)


def _all_reduce(folders: list[Path]) -> Answered:
    rows = [row for row in plain(read_ceiling(folders[0]).table).rows if row["collective"] == "all_reduce"]
    if not rows:
        return Answered("NA: no all_reduce was measured.")
    for row in rows:
        row["algbw_gb_per_s"] = row["busbw_gb_per_s"] / bus_factor("all_reduce", row["group_size"])
        row["mean_us"] = row["size_bytes"] / row["algbw_gb_per_s"] / 1e3
    table, large, small = ALL_REDUCE.plain(rows), rows[-1], rows[0]
    answer = (
        f"Between {large['group_size']} ranks an all_reduce of {bytes_text(large['size_bytes'])} takes "
        f"{large['mean_us'] / 1e3:,.1f} ms, a bus bandwidth of {large['busbw_gb_per_s']:.3g} GB/s; one of "
        f"{bytes_text(small['size_bytes'])} takes {small['mean_us']:,.0f} us."
    )
    about = "Size / mean time x bus factor, as nccl-tests defines it: the mean of calls back to back."
    figure = replace(bandwidth_by_size(_alone(rows)), about=about)
    return Answered(answer, [figure], [block_of(ALL_REDUCE, table, "Table: all_reduce")])


def _alone(rows: list[Row]) -> PlainTable:
    """The rows as `bandwidth_by_size` takes them, of the only group."""
    more = {"process_group": "of all ranks", "pg_ranks": None, "busbw_low_gb_per_s": None, "busbw_high_gb_per_s": None}
    columns = {name: [(row | more)[name] for row in rows] for name in rows[0] | more}
    return PlainTable(columns, dict.fromkeys(columns, "object"))


def _large_batch(folders: list[Path]) -> Answered:
    training = analyse_training(*folders)
    rows = plain(training.training).rows
    base = next(row for row in rows if row["run"] == row["baseline"])
    said = [f"{row['run']} ({_steps_of(row)}) on {_percent(row)}" for row in rows if row is not base]
    answer = (
        f"After {counted(base['after_epochs'], 'epoch')} {base['run']} ({_steps_of(base)}) is right on "
        f"{_percent(base)} of the test images{', ' if said else ''}{listed(said)}."
    )
    epochs = training.training_epochs
    figures = [lines.accuracy_by_epoch(epochs), lines.loss_by_epoch(epochs)]
    return Answered(answer, figures, [block("training", training.training, shown=True)], [_chance(plain(epochs).rows)])


def _chance(epochs: list[Row]) -> str:
    """How much two accuracies may differ by the choice of the test images alone: the interval of 95 % at its widest."""
    images = min(row["test_samples"] for row in epochs)
    points = 100 * 1.96 * (2 * 0.25 / images) ** 0.5
    return f"with {images:,} test images, accuracies that differ by less than {points:.1f} points may differ by chance"


def _steps_of(row: Row) -> str:
    rate = "NA" if row["lr"] is None else f"{row['lr']:.3g}"
    return f"{row['global_batch_size']} a step, rate {rate}"


def _percent(row: Row) -> str:
    value = row["test_accuracy_frac"]
    return "NA" if value is None else f"{value:.1%}"


def _layers(folders: list[Path]) -> Answered:
    return _layers_of([(folder.name, read_layers(folder)) for folder in folders])


def _layers_of(named: list[tuple[str, Layers]]) -> Answered:
    last = plain(named[-1][1].layers).rows
    known = [row for row in last if row["activation_bytes"] is not None and row["layer"] != "(model)"]
    answer = "NA: no layer was measured."
    if known:
        most, heaviest = (max(known, key=lambda row: int(row[c])) for c in ("activation_bytes", "parameters_bytes"))
        answer = (
            f"Of {named[-1][0]}, {_layer(most)} keeps most for the backward pass "
            f"({most['activation_bytes'] / 1e6:,.1f} MB) "
            f"and {_layer(heaviest)} has most parameters ({heaviest['parameters_bytes'] / 1e6:,.1f} MB)"
        )
        hungry = [row for row in known if row["power_w"] is not None]
        if hungry:
            top = max(hungry, key=lambda row: float(row["power_w"]))
            answer += f"; {_layer(top)} draws most power ({top['power_w']:,.0f} W)."
        else:
            answer += f". Power is NA ({(known[0]['note'] or 'it was not measured').removeprefix('power: ')})."
    figures = [
        layer_plots.memory_and_power(layers.layers, "layers" if len(named) == 1 else f"layers-{number}", name)
        for number, (name, layers) in enumerate(named, 1)
    ]
    tables = [block_of(LAYERS, layers.layers, f"Table: layers of {name}") for name, layers in named]
    words = [f"{name} is not complete: {layers.incomplete}" for name, layers in named if layers.incomplete]
    return Answered(answer, figures, tables, words)


def _layer(row: Row) -> str:
    return f"{printable(row['layer'])} ({printable(row['kind']).partition('(')[0]})"


def _swap(folders: list[Path]) -> Answered:
    """A folder for each device that it was measured on."""
    found = [_ratio(read_layers(folder), f"time-ratio-{number}") for number, folder in enumerate(folders)]
    return Answered(
        " ".join(each.said for each in found),
        [figure for each in found for figure in each.figures],
        [table for each in found for table in each.tables],
        [words for each in found for words in each.words],
    )


def _ratio(layers: Layers, name: str = "time-ratio") -> Answered:
    models = [row["layer"].strip("()") for row in layers.layers.rows]
    words = [f"not complete: {layers.incomplete}"] if layers.incomplete else []
    tables = [block_of(LAYERS, layers.layers, "Table: both models")]
    if not len(layers.ratios):
        return Answered("NA: no pair of passes was timed.", (), tables, words)
    both = layers.ratios.rows[-1]
    low, high = both["low_ratio"], both["high_ratio"]
    answer = f"Both passes of {models[1]} together take {both['ratio']:.3f} times as long as those of {models[0]}"
    if low is None or high is None:
        answer += f"; the interval is NA: {counted(both['pairs'], 'pair')} are too few."
    else:
        answer += f" (95 % interval {low:.3f} to {high:.3f}): "
        faster = models[1] if high < 1 else models[0] if low > 1 else None
        answer += f"{faster} is faster." if faster else "these measurements do not tell which is faster."
    figures = [layer_plots.time_ratio(layers.ratios, models[0], models[1], name)]
    return Answered(answer, figures, [block_of(TIME_RATIOS, layers.ratios, "Table: ratio of times"), *tables], words)


def _capacity(folders: list[Path]) -> Answered:
    return _capacity_of(read_capacity(folders[0]))


def _capacity_of(capacity: Capacity) -> Answered:
    largest = max((row for row in capacity.capacity.rows if row["fits"]), key=lambda row: row["devices"], default=None)
    said = "No stack fits."
    if largest is not None:
        conv, linear = counted(largest["conv_layers"], "convolution"), counted(largest["linear_layers"], "linear layer")
        said = f"{conv} and {linear} fit on {counted(largest['devices'], 'device')}."
    words = [] if capacity.incomplete is None else [f"not all was tried: {printable(capacity.incomplete)}"]
    tables = [block("capacity", capacity.capacity, shown=True)]
    return Answered(said, [layers_by_devices(capacity.capacity)], tables, words)


def _s(time_ns: int | None) -> str:
    return "NA" if time_ns is None else f"{time_ns / 1e9:.3g} s"


_EXPERIMENTS: Mapping[str, _Experiment] = {
    "batch-size": _Experiment(
        "Batch size on one device",
        "How long does an epoch take by batch size, and what ends the growth: memory, or the data set?",
        _batch_size,
        "table scaling",
    ),
    "speedup": _Experiment(
        "Speedup",
        "How much faster is an epoch with more workers, at the same batch per worker?",
        _speedup,
        "table scaling",
    ),
    "communication": _Experiment(
        "Compute and communication",
        "Which part of an epoch is compute and which is communication, measured in traces and beside what the "
        "subtraction TN - T1 / N takes for it?",
        _communication,
        "table subtraction",
    ),
    "all-reduce": _Experiment(
        "all_reduce",
        "How long does an all_reduce take by size, and at which bandwidth?",
        _all_reduce,
        "",
    ),
    "large-batch": _Experiment(
        "Large batch",
        "What does a large batch cost in accuracy after the same number of epochs on the same images? The baseline is "
        "the small batch. A large batch is compared with it twice: at the rate of the small batch, which is unfair "
        "because it makes fewer steps, and at that rate times the ratio of the batches (linear scaling, with a "
        "warm-up); then with a batch that grows.",
        _large_batch,
        "table training",
    ),
    "layers": _Experiment(
        "Memory and power of layers",
        "How much memory does each layer take, and how much power does it draw?",
        _layers,
        "",
    ),
    "swap": _Experiment(
        "ReLU after the max pool", "Is VGG-16 faster if every max pool comes before its ReLU?", _swap, ""
    ),
    "capacity": _Experiment(
        "Capacity", "How many layers can a device train before its memory ends?", _capacity, "table capacity"
    ),
}
