"""`--help` of a command explains every column of its tables, in the words of their schemas."""

import pytest

from commtrace.analysis.catalog import CATALOG
from commtrace.analysis.cli.column_help import column_sections
from commtrace.cli import main

COMMANDS = sorted({entry.command.partition(" --")[0] for entry in CATALOG.values() if entry.command})


@pytest.mark.parametrize("command", COMMANDS)
def test_every_column_is_explained(capsys, command) -> None:
    assert main([*command.split(), "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split()).replace("- ", "-")  # lines break at hyphens, too
    for entry in CATALOG.values():
        if entry.command and entry.command.partition(" --")[0] == command:
            for column, (_, meaning) in entry.schema.columns.items():
                assert f" {column} {' '.join(meaning.split())}".replace("- ", "-") in text, (column, meaning)


def test_a_column_that_people_do_not_see_says_where_it_is() -> None:
    [(heading, rows), *_] = column_sections("breakdown")
    assert heading == "Columns"
    assert dict(rows)["n_memory"].endswith("(in CSV and JSON)")
    assert not dict(rows)["idle_ns"].endswith("(in CSV and JSON)")


def test_commands_without_a_table_have_no_columns(capsys) -> None:
    assert list(column_sections("report")) == []
    assert main(["report", "--help"]) == 0
    assert "Columns" not in capsys.readouterr().out
