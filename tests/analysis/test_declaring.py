"""Tables that are declared beside their functions: what they need is known, and made once."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from pandas.testing import assert_frame_equal

from commtrace import Analysis, Run, analyse
from commtrace.analysis.catalog import CATALOG, in_reading_order
from commtrace.analysis.core.declaring import (
    AT_RANK,
    DECLARED,
    EACH_RANK,
    VALUES,
    Later,
    TableEntry,
    Topic,
    played,
    value,
)
from commtrace.analysis.core.schema import Schema
from commtrace.analysis.run.event_tables import AT_RANKS

RUN = Path(__file__).parents[1] / "data" / "nccl-straggler"
OF_RUN = {*dir(Analysis), *Analysis.__dataclass_fields__, *dir(Run), *Run.__dataclass_fields__}


def named(name: str, after: str | None) -> TableEntry:
    return TableEntry(Schema(name, "row", {}), Topic.time, "About.", "steps.md#steps", after=after)


@pytest.mark.parametrize("make", [*(one.make for one in DECLARED), *VALUES.values()], ids=lambda make: make.__name__)
def test_what_it_needs_is_known(make) -> None:
    needs = inspect.signature(make).parameters
    assert {*needs} <= {*VALUES, *OF_RUN, *AT_RANKS}
    assert all(isinstance(one.annotation, str) for one in needs.values())  # `Later` is known by its name


@pytest.mark.parametrize("entry", DECLARED, ids=lambda entry: entry.name)
def test_its_function_is_named_like_it(entry) -> None:
    assert entry.make.__name__ == entry.name
    assert getattr(Analysis, entry.name).__doc__ == entry.make.__doc__


@pytest.mark.parametrize(
    "make", sorted(EACH_RANK | AT_RANK, key=lambda make: make.__name__), ids=lambda make: make.__name__
)
def test_what_looks_at_each_rank_can_be_made_where_its_events_are(make) -> None:
    needs = {*inspect.signature(make).parameters}
    assert needs & ({*AT_RANKS} | {made.__name__ for made in AT_RANK})
    assert not needs & {"run", "early", "kernel_times", "detailed"}  # these hold the events of all ranks
    assert getattr(sys.modules[make.__module__], make.__name__) is make  # other processes find it by its name


def test_what_several_need_is_made_once(monkeypatch) -> None:
    made = []

    @value
    def base(run: Run) -> int:
        made.append(run.name)
        return len(run.ranks)

    monkeypatch.setitem(VALUES, "base", base)
    result = analyse(RUN)
    doubled, tripled = (lambda base: base * 2), (lambda base: base * 3)
    assert (result.of(doubled), result.of(tripled)) == (len(result.run.ranks) * 2, len(result.run.ranks) * 3)
    assert made == [result.run.name]
    assert analyse(RUN).of(base) == len(result.run.ranks)  # another analysis has its own
    assert len(made) == 2


def test_what_may_turn_out_not_to_be_needed_is_made_when_it_is_called(monkeypatch) -> None:
    made = []

    @value
    def base() -> int:
        made.append("base")
        return 2

    def unless(whole: bool, base: Later[int]) -> int:
        return 0 if whole else base() + base()

    monkeypatch.setitem(VALUES, "base", base)
    assert (analyse(RUN, whole=True).of(unless), made) == (0, [])
    assert (analyse(RUN).of(unless), made) == (4, ["base"])  # and once


def test_what_is_played_is_made_of_the_part_that_is_played(monkeypatch) -> None:
    whole, part = analyse(RUN), analyse(RUN)
    vars(whole)["part"] = part

    @value
    @played
    def of_part(run: Run) -> Run:
        return run

    def both(run: Run, of_part: Run) -> tuple[Run, Run]:
        return run, of_part

    monkeypatch.setitem(VALUES, "of_part", of_part)
    found, played_again = whole.of(both)
    assert (found is whole.run, played_again is part.run) == (True, True)


def test_tables_stand_behind_those_they_name() -> None:
    entries = [named("a", None), named("z", None)]
    declared = [named("late", "second"), named("first", "a"), named("second", "first"), named("end", None)]
    assert [*in_reading_order(entries, declared)] == ["a", "first", "second", "late", "z", "end"]
    with pytest.raises(LookupError, match="lost"):
        in_reading_order(entries, [named("lost", "nowhere")])


@pytest.mark.slow
def test_a_table_is_the_same_by_name_and_attribute_and_kept() -> None:
    result = analyse(RUN)
    assert result.traffic is result.table("traffic")
    assert_frame_equal(analyse(RUN).table("traffic"), result.traffic)


def test_the_catalog_needs_neither_numpy_nor_pandas() -> None:
    code = (
        "import sys; from commtrace.analysis.catalog import CATALOG; "
        f"sys.exit(len(CATALOG) != {len(CATALOG)} or bool({{'numpy', 'pandas'}} & {{*sys.modules}}))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
