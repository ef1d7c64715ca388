"""The command line: find the command, and whether it captures or analyses."""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module
from itertools import pairwise

from .analysis.core.process import gc_frozen, interrupts_end_quietly
from .registry import COMMANDS, FORMER_OPTIONS, commands_of, former_command

_USAGE = 2
_DEFAULT = "summary"
_FOR_ALL = ("-h", "--help", "--version", "--install-completion", "--show-completion")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code: 0 done, 1 the input is at fault, or a library is missing, 2 usage."""
    arguments = _with_options(list(sys.argv[1:] if argv is None else argv))
    words = arguments or _words_to_complete()
    if words and words[0].startswith(("--local_rank=", "--local-rank=")):  # of a launcher
        words = words[1:]
    command = COMMANDS.get(words[0]) if words else None
    if command is not None and command.captures:
        return _capture(arguments, words)
    return _analyse(arguments, words)


def _with_options(arguments: list[str]) -> list[str]:
    """`help`, `help table` and `version`, as many programs have them, as options; a folder of that name is a run."""
    first, *others = arguments or [""]
    if first not in ("help", "version") or os.path.lexists(first):
        return arguments
    return [*others, f"--{first}"]


def _words_to_complete() -> list[str]:
    """The words typed so far, when a shell asks for completions."""
    if "_COMMTRACE_COMPLETE" not in os.environ:
        return []
    asked = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return asked.split()[1:]


def _capture(arguments: list[str], words: list[str]) -> int:
    """Run a command of `profiling`."""
    if not arguments:
        import_module("typer.completion").get_completion_inspect_parameters()  # has the shells known
    with interrupts_end_quietly():
        from .command_line import parser_for
        from .profiling.guard import guarded

    return guarded(lambda: parser_for(words).main(args=arguments, prog_name="commtrace", obj=arguments))


def _analyse(arguments: list[str], words: list[str]) -> int:
    """Run a command of `analysis`, or suggest the nearest one."""
    with interrupts_end_quietly(), gc_frozen():
        from .analysis.cli.guard import guarded
        from .analysis.cli.verbose import VERBOSE, log_on_stderr
        from .command_line import parser_for

    given = [word for word in arguments if word != VERBOSE]

    def run() -> int:
        of_command = given
        if given and given[0] not in commands_of("") and not given[0].startswith(_FOR_ALL):
            mistyped = None if given[0].startswith("-") else _suggestion(given[0])
            if sentence := mistyped or _later_command(given):
                return _refused(sentence)
            of_command = [_DEFAULT, *given]  # `RUN` alone means `summary RUN`
        if sentence := _table_suggestion(of_command) or _renamed_option(of_command):
            return _refused(sentence)
        parser_for(of_command or words).main(args=of_command, prog_name="commtrace")
        return 0

    verbose = len(given) < len(arguments)
    with log_on_stderr(given) if verbose else nullcontext():
        return guarded(run, given, verbose=verbose)


def _refused(sentence: str) -> int:
    """Print what is wrong with the command line; return the exit code."""
    from .analysis.cli.output import print_message

    print_message(sentence)
    return _USAGE


def _later_command(given: list[str]) -> str | None:
    """A sentence on a command that stands behind options or paths, with the line as it should be; else None."""
    from .command_line import parser_for

    named = [at for at, word in enumerate(given) if word in commands_of("") and not os.path.lexists(word)]
    if not named:
        return None
    options = {name: one for one in parser_for([_DEFAULT]).commands[_DEFAULT].params for name in one.opts}
    # The word behind an option may be its value, which may be called as a command is.
    at = next((at for at in named if not _takes_value(options.get(given[at - 1]))), None)
    if at is None:
        return None
    end = at + 2 if given[at + 1 : at + 2] and given[at + 1] in commands_of(given[at]) else at + 1
    line = shlex.join(["commtrace", *given[at:end], *given[:at], *given[end:]])
    return f"options and runs stand behind the command: `{line}`"


def _takes_value(option: object) -> bool:
    return option is not None and not getattr(option, "is_flag", False)


def _suggestion(word: str) -> str | None:
    """A sentence on a first word that is no command, with the nearest one; None if it may be a path."""
    from .command_line import closest

    now = former_command(word)
    if now is not None:
        return f"`commtrace {word}` is now `commtrace {now}`"
    tables = {name: row.name for name, row in commands_of("table").items()}
    names = {**tables, **{name: name for name in commands_of("")}}
    command = closest(word, names)
    return command and f"no such command or folder: {word}; did you mean {names[command]}?"


def _table_suggestion(given: list[str]) -> str | None:
    """A sentence on `table NAME` if there is no such table; else None."""
    tables = commands_of("table") if given[:1] == ["table"] else {}
    if len(given) < 2 or not tables or given[1] in tables or given[1].startswith("-"):
        return None
    from .analysis.catalog import CATALOG
    from .command_line import closest

    word = given[1]
    if word.replace("_", "-") in tables:
        return f"no such table: {word}; it is `commtrace table {word.replace('_', '-')}`"
    entry = CATALOG.get(word.replace("-", "_"))
    if entry is not None and entry.command is not None:
        return f"no such table: {word}; it is `commtrace {entry.command}`"
    name = closest(word, tables)
    return f"no such table: {word}; " + (f"did you mean {name}?" if name else "`commtrace table` lists all")


def _renamed_option(given: list[str]) -> str | None:
    """A sentence on an option that has been renamed; else None."""
    for word, after in pairwise([*given, ""]):
        option, _, value = word.partition("=")
        now = FORMER_OPTIONS.get((given[0], option))
        if now is not None:
            return f"`{option}` of `commtrace {given[0]}` is now `{now}`"
        # A single number was the size of the world, and read as a rank it would be another prediction without a word.
        size = re.fullmatch("(.+=)?([0-9]+)", value or after) if (given[0], option) == ("predict", "--ranks") else None
        if size is not None:
            alone = f"; to read only rank {size[2]}: `--ranks {size[2]}-{size[2]}`" if size[1] is None else ""
            return f"`--ranks {size[0]}` of `commtrace predict` is now `--world-size {size[0]}`{alone}"
    return None
