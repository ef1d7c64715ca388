"""Options that belong together as one argument of a command."""

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from commtrace.common.option_groups import takes


@dataclass
class Size:
    width: Annotated[int, typer.Option(help="columns")] = 3
    height: Annotated[int, typer.Option(help="rows")] = 4


def _words(first: str = "a", last: str = "z") -> list[str]:
    if first > last:
        raise typer.BadParameter("is behind --last", param_hint="--first")
    return [first, last]


def run(*words: str) -> str:
    app = typer.Typer(add_completion=False)

    @app.command()
    @takes(size=Size, words=_words)
    def show(name: str, size: Size, words: list[str], loud: bool = False) -> None:
        """Show all of it."""
        print(name, size, words, loud)

    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200"}).output


def test_a_group_is_one_argument() -> None:
    assert run("x", "--width", "7", "--last", "q") == "x Size(width=7, height=4) ['a', 'q'] False\n"


def test_options_stand_where_their_group_does() -> None:
    text = run("--help")
    assert "Show all of it." in text
    names = ["--width", "--height", "--first", "--last", "--loud"]
    assert sorted(names, key=text.index) == names


def test_a_group_may_refuse() -> None:
    assert "is behind --last" in run("x", "--first", "r", "--last", "q")
