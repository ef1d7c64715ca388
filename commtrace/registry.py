"""Every command: name, heading in `--help`, one line, module. Imports almost nothing, so that `--help` is instant."""

from __future__ import annotations

from dataclasses import dataclass

_LOOK, _ASK = "Look at a run", "Ask one question"
_CHANGES, _LIVE = "What if, and what changed", "While a run is running, or hangs"
_FILES, _CAPTURE = "Files, and many ranks", "Capture"


@dataclass(frozen=True)
class Command:
    """A command of the command line, or a group of them."""

    name: str
    """Its words after `commtrace`: one, or two for a command of a group."""
    topic: str
    """The heading it stands under in `--help`."""
    about: str
    """One line."""
    module: str = ""
    """The module within `commtrace` whose function `NAME_command` runs it; empty for a group."""

    @property
    def captures(self) -> bool:
        """Whether it needs torch."""
        return self.module.startswith("profiling.")

    @property
    def function(self) -> str:
        """The function in its module that runs it."""
        return f"{self.name.split()[-1].replace('-', '_')}_command"


_ROWS = (
    Command(
        "summary",
        _LOOK,
        "What limits the run, what it costs, what to try (default).",
        "analysis.cli.commands.summary",
    ),
    Command(
        "report", _LOOK, "One HTML page with pictures and tables; needs no network.", "analysis.cli.commands.report"
    ),
    Command(
        "serve", _LOOK, "The same page from a server, with every step of many ranks.", "analysis.cli.commands.serve"
    ),
    Command("mcp", _LOOK, "Answers for agents, over standard input and output (MCP).", "analysis.cli.commands.mcp"),
    Command("timeline", _LOOK, "All ranks on one clock, as a file for Perfetto.", "analysis.cli.commands.timeline"),
    Command(
        "explain", _LOOK, "What a word of the tables means, such as exposed or busbw.", "analysis.cli.commands.explain"
    ),
    Command("table", _LOOK, "One table of a run, a sweep or trainings; alone, the list of all tables."),
    Command(
        "breakdown",
        _ASK,
        "Where each device's time went: compute, communication, idle.",
        "analysis.cli.commands.breakdown",
    ),
    Command("idle", _ASK, "Why every device was idle: what the host did meanwhile.", "analysis.cli.commands.idle"),
    Command(
        "compute", _ASK, "MFU: how much of its peak each device reached, and the rest.", "analysis.cli.commands.compute"
    ),
    Command(
        "regions",
        _ASK,
        "Where in the model time goes: record_function, nn.Module, NVTX.",
        "analysis.cli.commands.regions",
    ),
    Command(
        "memory",
        _ASK,
        "What fills memory at its peak, on every rank, and what grows.",
        "analysis.cli.commands.memory",
    ),
    Command(
        "serving",
        _ASK,
        "Steps by kind and size: time, tokens a second, what a token costs.",
        "analysis.cli.commands.serving",
    ),
    Command(
        "bandwidth",
        _ASK,
        "Bandwidth by collective and size, as nccl-tests defines it.",
        "analysis.cli.commands.bandwidth",
    ),
    Command("ranks", _ASK, "Who waits, for whom, and why: one row per rank.", "analysis.cli.commands.ranks"),
    Command(
        "predict",
        _CHANGES,
        "Step time without stragglers, with faster links, and more.",
        "analysis.cli.commands.predict",
    ),
    Command(
        "compare",
        _CHANGES,
        "What changed from A to B, or from run to run, and why.",
        "analysis.cli.commands.compare",
    ),
    Command("watch", _LIVE, "Follow a run while it is running, one line per cycle.", "analysis.cli.scale.watch"),
    Command("trigger", _LIVE, "Capture some steps of a running job, now.", "analysis.cli.scale.trigger"),
    Command("hang", _LIVE, "Which ranks are missing from which collective.", "analysis.cli.hang"),
    Command("pack", _FILES, "Pack traces into recordings about 100 times smaller.", "analysis.cli.scale.pack"),
    Command(
        "plan-ranks",
        _FILES,
        "Which ranks of a large job to trace to see whole groups.",
        "analysis.cli.scale.plan_ranks",
    ),
    Command("export", _FILES, "Files for DuckDB, Polars, TensorBoard, logs, torch's compiler, agents."),
    Command(
        "export tensorboard-copy",
        "For TensorBoard",
        "A copy of the traces for TensorBoard's Distributed view.",
        "analysis.cli.commands.export",
    ),
    Command(
        "export tensorboard-scalars",
        "For TensorBoard",
        "Exposed time and bandwidth by step, for TensorBoard.",
        "analysis.cli.commands.export",
    ),
    Command(
        "export parquet",
        "For DuckDB, Polars, Spark",
        "Every table and activity, as Parquet.",
        "analysis.cli.commands.export",
    ),
    Command(
        "export inductor", "For torch's compiler", "Measured times, for torch.compile.", "analysis.cli.commands.export"
    ),
    Command(
        "export scalars",
        "For logs of trainings",
        "Some numbers of a run under names that stay, as JSON.",
        "analysis.cli.commands.export",
    ),
    Command(
        "export skill", "For agents", "When to use which command, as a skill file.", "analysis.cli.commands.export"
    ),
    Command("train", _CAPTURE, "Train a model and trace a few steps on every rank.", "profiling.train.train_command"),
    Command(
        "run", _CAPTURE, "Run a script as it is and trace a few steps on every rank.", "profiling.script.run_command"
    ),
    Command(
        "sweep", _CAPTURE, "Time and trace a grid of modes, workers and batch sizes.", "profiling.sweep.sweep_command"
    ),
    Command("comms", _CAPTURE, "Measure collectives: the ceiling of this machine.", "profiling.comms.comms_command"),
    Command(
        "gemm", _CAPTURE, "Measure the peak: matrix products, and memory bandwidth.", "profiling.gemm.gemm_command"
    ),
    Command(
        "layers", _CAPTURE, "Measure every layer by itself: time, memory and power.", "profiling.layers.layers_command"
    ),
    Command("lab", _CAPTURE, "Measure this machine: eight experiments, one page.", "profiling.lab.lab_command"),
    Command("capacity", _CAPTURE, "Search how many layers a device can train.", "profiling.capacity.capacity_command"),
)

COMMANDS = {row.name: row for row in _ROWS}
"""All but the tables, in the order of `--help`."""

_TABLES_WITH_OPTIONS = {
    "account": "account",
    "allocations": "memory",
    "attribution": "predict",
    "bandwidth": "bandwidth",
    "breakdown": "breakdown",
    "capacity": "machine",
    "compute": "compute",
    "contention": "contention",
    "critical-path": "predict",
    "experts": "experts",
    "gaps": "idle",
    "idle": "idle",
    "kernels": "kernels",
    "launches": "launches",
    "layers": "machine",
    "memory": "memory",
    "pipeline": "pipeline",
    "queue": "launches",
    "ranks": "ranks",
    "regions": "regions",
    "releases": "predict",
    "replay": "predict",
    "scaling": "scaling",
    "serving": "serving",
    "subtraction": "subtraction",
    "syncs": "idle",
    "training": "training",
}
"""The tables whose command does more than to print them, and its module in `analysis/cli/commands`."""

_NO_TABLES = ("compare", "hang", "predict", "watch")
"""Commands that print tables of the catalog, but are verbs of their own."""

FORMER = {
    "capture": "run",
    "hangs": "hang",
    "tensorboard-copy": "export tensorboard-copy",
    "tensorboard-scalars": "export tensorboard-scalars",
}
"""Commands that were renamed -> their names now. Tables that stood at the top level: see `former_command`."""

FORMER_OPTIONS = {
    ("timeline", "--only-ranks"): "--ranks",
    ("predict", "--only-ranks"): "--ranks",
}
"""A command and an option of it that was renamed -> its name now."""


def table_commands() -> dict[str, Command]:
    """The commands of `commtrace table`, by the name of the table in hyphens. Imports the catalog of tables."""
    from .analysis.catalog import CATALOG
    from .analysis.core.declaring import Topic

    firsts = {entry.verb: entry for entry in [*CATALOG.values()][::-1] if entry.verb}
    return {
        name: Command(f"table {name}", topic.value, firsts[name].about, _module_of_table(name))
        for topic in Topic
        for name in dict.fromkeys(entry.verb for entry in CATALOG.values())
        if name and firsts[name].topic is topic and name not in _NO_TABLES
    }


def _module_of_table(name: str) -> str:
    return f"analysis.cli.commands.{_TABLES_WITH_OPTIONS[name]}" if name in _TABLES_WITH_OPTIONS else _PLAIN_TABLE


_PLAIN_TABLE = "analysis.cli.tables"


def commands_of(group: str) -> dict[str, Command]:
    """Commands of a group by their last word; of the command line itself if `group` is empty."""
    if group == "table":
        return table_commands()
    if group:
        return {name.split()[1]: row for name, row in COMMANDS.items() if name.startswith(f"{group} ")}
    return {name: row for name, row in COMMANDS.items() if " " not in name}


def former_command(word: str) -> str | None:
    """The present name of a renamed command; None if no command had this name."""
    name = word.replace("_", "-")
    if name in table_commands() and word not in COMMANDS:
        return f"table {name}"
    return FORMER.get(word)
