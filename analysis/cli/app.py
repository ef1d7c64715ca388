"""The command line: parse, call, print. No arithmetic here; every number it shows the library can return."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Annotated

import typer
from typer.core import TyperGroup

from ..catalog import CATALOG, InputKind, Topic
from ..core.places.redaction import hide_secrets
from ..core.process import start_no_blas_threads
from ..errors import AnalysisError
from .bugs import BUG, VERBOSE, report_of
from .column_help import HelpWithColumns
from .groups import CommandGroup, add_completion, listed_only, meant, print_version, words_to_complete
from .output import complain, take_any_text

# pandas takes half a second to import, so whatever needs it is imported where it is used: --help stays instant.

_INTERRUPTED = 130
_USAGE = 2
_WIDEST_HELP = 100
_DEFAULT = "summary"
_FOR_ALL = ("-h", "--help", "--version", "--install-completion", "--show-completion")
_OWN_MODULES = (
    "account",
    "attribution",
    "summary",
    "breakdown",
    "bandwidth",
    "critical-path",
    "explain",
    "kernels",
    "pack",
    "plan-ranks",
    "compare",
    "export",
    "gaps",
    "hang",
    "idle",
    "launches",
    "predict",
    "queue",
    "releases",
    "replay",
    "report",
    "scaling",
    "subtraction",
    "syncs",
    "tensorboard-copy",
    "tensorboard-scalars",
    "timeline",
    "training",
    "watch",
)
_ELSEWHERE = {
    "attribution": "commands.predict",
    "critical-path": "commands.predict",
    "gaps": "commands.idle",
    "hang": "hang",
    "launches": "commands.launches",
    "queue": "commands.launches",
    "syncs": "commands.idle",
    "pack": "scale.pack",
    "plan-ranks": "scale.plan_ranks",
    "releases": "commands.predict",
    "replay": "commands.predict",
    "tensorboard-copy": "commands.export",
    "tensorboard-scalars": "commands.export",
    "watch": "scale.watch",
}
_WITHOUT_TABLE = {
    "summary": (Topic.overview, "What limits the run, what it costs, what to try (default)."),
    "account": (Topic.time, "All the time of a step, the largest part first; by device, step, culprit."),
    "explain": (Topic.overview, "What a word of the tables means, such as exposed or busbw."),
    "report": (Topic.look, "One HTML page with pictures and tables; needs no network."),
    "hang": (Topic.waiting, "Which ranks are missing from which collective, from dumps."),
    "timeline": (Topic.look, "All ranks on one clock, as a file for Perfetto."),
    "tensorboard-copy": (Topic.look, "A copy of the traces for TensorBoard's Distributed view."),
    "tensorboard-scalars": (Topic.look, "Exposed time and bandwidth by step, for TensorBoard."),
    "export": (Topic.look, "Measured times, for torch's compiler."),
    "attribution": (Topic.foresight, "How much slower jitter in each part makes a step."),
    "critical-path": (Topic.foresight, "The chain of work over all ranks that sets the run's length."),
    "replay": (Topic.foresight, "Every step replayed, beside the measured one."),
    "predict": (Topic.foresight, "Step time without stragglers, with faster links, and more."),
    "pack": (Topic.scale, "Pack traces into recordings about 100 times smaller."),
    "plan-ranks": (Topic.scale, "Which ranks of a large job to trace to see whole groups."),
    "watch": (Topic.scale, "Follow a run while it is running, one line per cycle."),
    "compare": (Topic.across, "Where steps of B spend more time than steps of A."),
}
_HELP = """Measure communication in distributed PyTorch training from Kineto traces.

\b
RUN is a run directory, any folder of Kineto traces (one file per rank), or
trace files. Without a command, the summary of RUN is printed.

\b
Examples:
  commtrace traces/my-run
  commtrace breakdown --by step traces/my-run
  commtrace bandwidth --format csv --output all.csv traces/my-run
  commtrace bandwidth --ceiling traces/comms-nccl-w8 traces/my-run
  commtrace collectives --format json traces/my-run | jq '.rows[0]'
  commtrace kernels --by operator --top 20 traces/my-run
  commtrace report traces/my-run
  commtrace timeline --step 3-4 traces/my-run
  commtrace predict --without-straggler 5 --links 2 traces/my-run
  commtrace hang /tmp/nccl_trace_rank_*
  commtrace compare traces/before-* --against traces/after-*
  commtrace scaling --format latex traces/my-sweep
  commtrace training traces/small-batch traces/large-batch
  commtrace breakdown --comm-kernel my_reduce rank*.json.gz

\b
Exit codes:
  0  done
  1  bad input, or `hang` found a hang
  2  bad command line
  3  `compare --fail-above` found B slower, or `watch` saw a limit passed
  4  `compare --fail-above` cannot tell from these captures
 70  commtrace itself is at fault: --verbose then shows where
"""


def commands() -> dict[str, tuple[Topic, str]]:
    """Every command: the heading it stands under, and what it prints, in one line. By heading, in its order."""
    of_tables = {entry.name: (entry.topic, entry.about) for entry in CATALOG.values() if entry.command == entry.name}
    found = _WITHOUT_TABLE | of_tables
    return {name: about for topic in Topic for name, about in found.items() if about[0] is topic}


def command_group(first: str | None, others: Mapping[str, str]) -> TyperGroup:
    """The command called `first`, ready to run, alone; where there is none, the list of all, and of `others`."""
    app = typer.Typer(
        cls=CommandGroup,
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _WIDEST_HELP},
    )
    app.callback(help=_HELP)(_root)
    known = commands()
    if first in known:
        function = _function(first)
        _, _, more = (inspect.getdoc(function) or "").partition("\n\n")
        text, examples, listed = more.partition("\b\nExamples:")
        about = f"{known[first][1]}\n\n{text}".strip()
        epilog = f"{examples}{listed}" or None
        app.command(first, help=about, epilog=epilog, cls=HelpWithColumns)(function)
    group = typer.main.get_group(app)
    if first not in known:
        for name, (topic, about) in known.items():
            group.add_command(listed_only(name, topic.value, about))
        for name, about in others.items():
            group.add_command(listed_only(name, "Capture", about))
    add_completion(group)
    return group


def _function(name: str) -> Callable[..., None]:
    """What a command does."""
    if name in _OWN_MODULES:
        module = import_module(f".{_ELSEWHERE.get(name, f'commands.{name}')}", __package__)
        found: Callable[..., None] = getattr(module, f"{name.replace('-', '_')}_command")
        return found
    from .tables import table_command

    assert CATALOG[name].of is InputKind.run
    return table_command(name)


def _root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=print_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options come before the command."""


def main(argv: Sequence[str] | None = None, others: Mapping[str, str] | None = None) -> int:
    """Run the command line; the exit code: 0 done, 1 the input is at fault, 2 the command line is, others: `_HELP`.

    `others` are commands that somebody else runs, but that are listed here.
    """
    start_no_blas_threads()
    given = list(sys.argv[1:] if argv is None else argv)
    verbose = VERBOSE in given
    given = [word for word in given if word != VERBOSE]
    try:
        return _run(given, others or {})
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except AnalysisError as err:
        complain(hide_secrets(str(err), given))  # a URL given where only paths are taken is in it as it is
        return 1
    except MemoryError:
        complain("out of memory; read fewer runs or files at once, or use fewer --workers")
        return 1
    except KeyboardInterrupt:  # before, or after, the command
        return _INTERRUPTED
    except Exception as err:  # noqa: BLE001 - whatever it is, it is ours, and the user is to report it
        complain(report_of(err, given, verbose=verbose))
        return BUG


def _run(given: list[str], others: Mapping[str, str]) -> int:
    take_any_text()
    known = commands()
    words = given or words_to_complete()
    if given and given[0] not in known and not given[0].startswith(_FOR_ALL):
        command = meant(given[0], [*known, *others])
        if command is not None:
            complain(f"no such command or folder: {given[0]}; did you mean {command}?")
            return _USAGE
        given = words = [_DEFAULT, *given]  # `RUN` alone means `summary RUN`
    command_group(words[0] if words else None, others).main(args=given, prog_name="commtrace")
    return 0
