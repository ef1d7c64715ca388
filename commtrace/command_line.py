"""The parser: it loads one command from the registry and lists all; one style of help; shell completion."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from .analysis.core.places.redaction import hide_secrets
from .registry import Command, commands_of

_ALIKE = 0.7
_IS_HELP = "NoArgsIsHelpError"
"""What click raises where nothing is given: its message is the help."""
_WIDEST_HELP = 100
_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": _WIDEST_HELP}
_HELP = """Measure communication in distributed PyTorch training from Kineto traces.

\b
RUN is a run directory, any folder of Kineto traces (one file per rank), or
trace files. Without a command, the summary of RUN is printed.

\b
Examples:
  commtrace traces/my-run
  commtrace breakdown --by step traces/my-run
  commtrace bandwidth --output all.csv traces/my-run
  commtrace bandwidth --ceiling traces/comms-nccl-w8 traces/my-run
  commtrace report traces/my-run
  commtrace timeline --step 3-4 traces/my-run
  commtrace table
  commtrace table collectives --format json traces/my-run | jq '.rows[0]'
  commtrace table kernels --by operator --top 20 traces/my-run
  commtrace table scaling --output scaling.tex traces/my-sweep
  commtrace table training traces/small-batch traces/large-batch
  commtrace predict --without-straggler 5 --links 2 traces/my-run
  commtrace compare traces/before-* --against traces/after-*
  commtrace hang /tmp/nccl_trace_rank_*
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
_HELP_OF_GROUP = {
    "table": """Print one table. Without a name, list all tables.

Tables with a command of their own (breakdown, idle, bandwidth, ranks) are printed by that, too. `predict`, `compare`,
`hang` and `watch` print further tables. docs/tables.md explains the columns of all, as `--help` of a table does.

\b
Examples:
  commtrace table collectives traces/my-run
  commtrace table kernels --by operator --top 20 traces/my-run
  commtrace table scaling traces/my-sweep
""",
    "export": """Write what was measured for another program.

\b
Examples:
  commtrace export tensorboard-copy traces/my-run traces/my-run-tensorboard
  commtrace export parquet traces/my-run
  commtrace export inductor traces/my-run
""",
}


class CommandGroup(TyperGroup):
    """Commands listed by heading, one line each where the terminal is wide enough.

    The order is that in which they were added, of headings that of their first command.
    """

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse as click does, with errors of usage as all others are."""
        self._words = list(args)
        with _in_one_line(self._words):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Invoke as click does, with errors of usage as all others are."""
        with _in_one_line(self._words):
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as click has it
        """List the commands by heading."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            heading = getattr(command, "rich_help_panel", None) or "Commands"
            sections.setdefault(str(heading), []).append((name, (command.help or "").split("\n")[0]))
        longest = max(map(len, self.commands))
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<{longest}}", about) for name, about in rows])


class OptionsByHeading(TyperCommand):
    """A command whose help lists options by heading."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List the options by heading."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            heading = getattr(parameter, "rich_help_panel", None)
            if row is not None:
                own = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections.setdefault(str(heading or own), []).append(row)
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


@contextmanager
def _in_one_line(words: list[str]) -> Iterator[None]:
    """Have errors of usage that are raised in the block shown as all others, without secrets of URLs in these words."""
    try:
        yield
    except Exception as err:
        if isinstance(message := getattr(err, "message", None), str):
            said: Any = err  # typer has a click of its own, or takes the one that is installed
            said.message = hide_secrets(message, words)
            if type(err).__name__ != _IS_HELP:
                said.show = functools.partial(_show, said, words)
        raise


def _show(error: Any, words: list[str], file: object = None) -> None:  # noqa: ARG001 - as click has it
    from .analysis.cli.output import print_message

    named = [word for group, word in zip(("", *words), words[:2], strict=False) if word in commands_of(group)]
    asked = " ".join(["commtrace", *named])
    wrong = error.format_message().removeprefix("Invalid value: ").rstrip(".")  # said of no parameter
    print_message(f"{wrong}; see `{asked} -h`")


def parser_for(words: Sequence[str]) -> TyperGroup:
    """The whole command line, with only the command that these words name loaded; all others are listed.

    Others are not loaded: importing all of them takes seconds.
    """
    root = _group("", _HELP, words)
    _add_completion(root)
    return root


def _group(name: str, about: str, words: Sequence[str]) -> TyperGroup:
    """A group of commands, or the command line itself, with one command loaded or all listed."""
    app = typer.Typer(
        cls=CommandGroup,
        add_completion=False,
        no_args_is_help=name != "table",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=_SETTINGS,
    )
    app.callback(help=about, invoke_without_command=name == "table")(_list_tables if name else _root)
    known = commands_of(name)
    asked = known.get(words[0]) if words else None
    if asked is not None and asked.module:
        _add(app, asked)
    group = typer.main.get_group(app)
    if asked is None:
        for word, command in known.items():
            group.add_command(_listed(word, command))
    elif not asked.module:
        inner = _group(asked.name, _HELP_OF_GROUP[asked.name], words[1:])
        inner.name = asked.name
        group.add_command(inner)
    return group


def _add(app: typer.Typer, command: Command) -> None:
    """Import a command and add it; its docstring after the first line is the rest of its help."""
    function = getattr(import_module(f".{command.module}", __package__), command.function, None)
    if function is not None and command.captures:
        function = _with_torch(function)
    name = command.name.split()[-1]
    if function is None:
        from .analysis.cli.tables import table_command

        function = table_command(name.replace("-", "_"))
    _, _, more = (inspect.getdoc(function) or "").partition("\n\n")
    text, examples, listed = more.partition("\b\nExamples:")
    app.command(
        name,
        help=f"{command.about}\n\n{text}".strip(),
        epilog=f"{examples}{listed}" or None,
        cls=_class_of(command),
        # The words behind the script are its own.
        context_settings={"allow_interspersed_args": command.name != "run"},
    )(function)


def _with_torch(function: Callable[..., None]) -> Callable[..., None]:
    """The same command, which first sees that torch is there: its help needs none."""

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> None:
        from .profiling.base.libraries import require

        require("torch")
        function(*args, **options)

    return checked


def _class_of(command: Command) -> type[TyperCommand]:
    if command.captures:
        return OptionsByHeading
    from .analysis.cli.column_help import HelpWithColumns
    from .analysis.cli.verbose import verbose_option

    verbose = verbose_option()

    class AnalysisCommand(HelpWithColumns, OptionsByHeading):
        """A command that checks its inputs and explains the columns of its tables."""

        def get_params(self, ctx: Any) -> Any:
            """The parameters of the function, and before --help the option that `cli` takes out."""
            *own, about_help = super().get_params(ctx)
            return [*own, verbose, about_help]

    return AnalysisCommand


def _listed(name: str, command: Command) -> TyperCommand:
    """A command for help and completion only, without loading it."""
    return TyperCommand(name, help=command.about, rich_help_panel=command.topic)


def _print_version(ctx: typer.Context, value: bool) -> None:
    """Print the version and exit."""
    if value and not ctx.resilient_parsing:
        from .common.version import version

        typer.echo(f"commtrace {version()}")
        raise typer.Exit


def _root(
    show_version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version and exit.")
    ] = False,
    local_rank: Annotated[
        int | None, typer.Option("--local_rank", "--local-rank", hidden=True, help="What some launchers put here.")
    ] = None,
) -> None:
    """Options come before the command. `run` finds `local_rank` in the arguments, as it was written."""


def _list_tables(ctx: typer.Context) -> None:
    """Print the help of a group that is given without a command."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def _add_completion(group: TyperGroup) -> None:
    """Add the options --install-completion and --show-completion, and answer shells."""
    from typer.main import get_install_completion_arguments

    group.params.extend(get_install_completion_arguments())


def closest(word: str, commands: Iterable[str]) -> str | None:
    """The command closest to a mistyped word; None if the word may be a path, as paths often have hyphens."""
    if os.path.lexists(word) or not re.fullmatch("[A-Za-z_-]+", word):
        return None
    from difflib import get_close_matches

    like_it = [name for name in commands if ("-" in name) >= ("-" in word)]
    return next(iter(get_close_matches(word.lower(), like_it, n=1, cutoff=_ALIKE)), None)
