"""The commands that capture. Importable without torch."""

import re
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from ..common.version import version
from .base.libraries import require
from .capacity.command import CAPACITY_EXAMPLES, capacity
from .comms.command import COMMS_EXAMPLES, comms
from .errors import ProfilingError
from .layers.command import LAYERS_EXAMPLES, layers
from .ranks.exits import Afterwards
from .script.command import RUN_EXAMPLES, run
from .sweep.command import SWEEP_EXAMPLES, sweep
from .train.command import TRAIN_EXAMPLES, train

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Capture distributed training: one Kineto trace per rank, and side files that describe the run.",
)


# Typer would break lines where the docstring does; paragraphs stay apart.
_LINE_END = re.compile(r"(?<!\n)\n(?!\n)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code: 0 done, 1 the input is at fault, 2 usage, 128 + N stopped by signal N."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        require("torch")
        commands = typer.main.get_command(app)
        for command in getattr(commands, "commands", {}).values():
            command.help = command.help and _LINE_END.sub(" ", command.help)
        commands(args, obj=args, prog_name="commtrace")
    except Afterwards as then:
        start = then.start
    except ProfilingError as err:
        return _failed(err)
    except SystemExit as err:
        return err.code if isinstance(err.code, int) else int(err.code is not None)
    else:
        return 0
    return start(_failed)


def _print_version(ctx: typer.Context, value: bool) -> None:
    """What --version does."""
    if value and not ctx.resilient_parsing:
        typer.echo(f"commtrace {version()}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version and exit.")
    ] = False,
    local_rank: Annotated[
        int | None, typer.Option("--local_rank", "--local-rank", hidden=True, help="What some launchers put here.")
    ] = None,
) -> None:
    """Options come before the command. `run` finds `local_rank` in the arguments, as it was written."""


app.command(epilog=TRAIN_EXAMPLES)(train)
app.command(epilog=COMMS_EXAMPLES)(comms)
app.command(epilog=CAPACITY_EXAMPLES)(capacity)
app.command(epilog=LAYERS_EXAMPLES)(layers)
app.command(epilog=SWEEP_EXAMPLES)(sweep)
app.command(epilog=RUN_EXAMPLES, context_settings={"allow_interspersed_args": False})(run)
app.command("capture", help="The same as run.", context_settings={"allow_interspersed_args": False})(run)


def _failed(error: ProfilingError) -> int:
    print(f"error: {error}", file=sys.stderr)
    return error.exit_code
