"""The list of commands: grouped in --help, with a word for who mistypes one, and completed by shells."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ..core.places.redaction import hide_secrets

_ALIKE = 0.7


class CommandGroup(TyperGroup):
    """Commands listed under the heading that each names as its panel, every one on one line where that is wide enough.

    The order is that in which they were added, of headings that of their first command.
    """

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """As click does it; what is wrong with URLs is said without their secrets."""
        self._words = list(args)
        with _secrets_hidden(self._words):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """As click does it, in the same way."""
        with _secrets_hidden(self._words):
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as click has it
        """As click does, but for the headings."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            heading = getattr(command, "rich_help_panel", None) or "Commands"
            sections.setdefault(str(heading), []).append((name, (command.help or "").split("\n")[0]))
        longest = max(map(len, self.commands))
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<{longest}}", about) for name, about in rows])


@contextmanager
def _secrets_hidden(words: list[str]) -> Iterator[None]:
    """Take secrets of URLs among these words out of what click says about them meanwhile."""
    try:
        yield
    except Exception as err:
        if isinstance(message := getattr(err, "message", None), str):
            err.message = hide_secrets(message, words)  # type: ignore[attr-defined]  # it has one
        raise


def listed_only(name: str, heading: str, about: str) -> TyperCommand:
    """A command that help and completion know, and something else runs."""
    return TyperCommand(name, help=about, rich_help_panel=heading)


def words_to_complete() -> list[str]:
    """The words typed so far, when a shell asks for completions."""
    if "_COMMTRACE_COMPLETE" not in os.environ:
        return []
    asked = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return asked.split()[1:]


def add_completion(group: TyperGroup) -> None:
    """The options --install-completion and --show-completion, and what shells then ask."""
    from typer.main import get_install_completion_arguments

    group.params.extend(get_install_completion_arguments())


def meant(word: str, commands: Iterable[str]) -> str | None:
    """The command that a first argument, which is none, was meant to be; None where it may be a path."""
    if os.path.lexists(word) or not re.fullmatch("[A-Za-z_]+", word):
        return None
    from difflib import get_close_matches

    return next(iter(get_close_matches(word.lower(), list(commands), n=1, cutoff=_ALIKE)), None)


def print_version(ctx: typer.Context, value: bool) -> None:
    """What --version does."""
    if value and not ctx.resilient_parsing:
        from ...common.version import version
        from .output import write_out

        write_out(f"commtrace {version()}\n", None)
        raise typer.Exit
