"""Tables have the columns they promise, or an error that names the misfits."""

import re

import pandas as pd
import pytest

from commtrace.analysis.core.schema import Schema, records
from commtrace.analysis.core.tables import communication as schema
from commtrace.analysis.errors import AnalysisError, SchemaError

SMALL = Schema(
    "small", "thing", {"rank": ("int64", "rank"), "dur_ns": ("Int64", "duration"), "name": ("string", "name")}
)
ALL = [value for value in vars(schema).values() if isinstance(value, Schema)]
UNITS = ("ns", "us", "bytes", "elems", "per_s", "frac", "ppm")
# Counts, identities and names have no unit.
UNITLESS = {
    "rank", "cycle", "device", "stream", "thread", "step", "correlation", "external_id", "call_id", "collective_id",
    "verified_events", "requests", "tokens", "registers", "address",
    "world_size", "pid", "group_size", "found_group_size", "seq", "turn", "batch", "root", "waited_for",
    "origin_rank", "blamed_rank", "to_rank", "chance", "first_rank", "last_rank", "cycles", "calls", "split_calls",
    "straggler_rank", "shared_cores", "proxy_send_steps", "proxy_recv_steps",
    "times_last", "complete", "peer", "hot_rank", "linked", "sizes", "n_compute", "n_comm", "n_memory", "n_no_step",
    "cell", "workers", "batch_size_per_worker", "timed_steps", "epoch_steps", "traced_steps", "dataset_samples",
    "blocks_per_sm", "ranks", "devices", "kernels", "steps_a", "steps_b", "captures_a", "captures_b", "p_value",
    "speedup_fixed_work", "speedup_scaled_work", "speedup_same_batch", "mistaken_factor",
    "training", "planned_epochs", "finished_epochs", "after_epochs", "global_batch_size", "lr", "steps",
    "train_loss", "test_loss", "test_loss_difference", "train_samples", "test_samples", "speedup_over_baseline",
}  # fmt: skip


def test_conform_puts_columns_in_order_and_casts_them():
    table = SMALL.conform(pd.DataFrame({"name": ["a"], "dur_ns": [5], "rank": [1.0]}))
    assert list(table.columns) == ["rank", "dur_ns", "name"]
    assert [str(t) for t in table.dtypes] == ["int64", "Int64", "string"]


def test_conform_leaves_its_argument_alone():
    frame = pd.DataFrame({"rank": [1.0], "dur_ns": [5], "name": ["a"]})
    SMALL.conform(frame)
    assert str(frame["rank"].dtype) == "float64"


def test_missing_and_surplus_columns_are_named():
    with pytest.raises(SchemaError, match=r"table small: missing columns \['dur_ns'\], surplus columns \['colour'\]"):
        SMALL.conform(pd.DataFrame({"rank": [1], "name": ["a"], "colour": ["red"]}))


@pytest.mark.parametrize("values", [["one"], [1.5], [None]])
def test_a_column_that_cannot_be_cast_is_named(values):
    with pytest.raises(SchemaError, match="table small: column rank is not int64"):
        SMALL.conform(pd.DataFrame({"rank": values, "dur_ns": [5], "name": ["a"]}))


def test_rows_may_lack_what_can_be_missing():
    assert records(SMALL.frame([{"rank": 1}])) == [{"rank": 1, "dur_ns": None, "name": None}]


@pytest.mark.parametrize("rows", [[{"name": "a"}], [{"rank": None}], [{"rank": "one"}]], ids=str)
def test_rows_may_not_lack_what_must_be_there(rows):
    with pytest.raises(SchemaError, match=r"small.*rank"):
        SMALL.frame(rows)


def test_empty_tables_have_their_columns_and_dtypes():
    for table in (SMALL.empty(), SMALL.frame([]), SMALL.concat([])):
        assert len(table) == 0
        assert [str(t) for t in table.dtypes] == ["int64", "Int64", "string"]


def test_concat_keeps_all_rows():
    one, other = SMALL.frame([{"rank": 1}]), SMALL.frame([{"rank": 2, "name": "b"}])
    assert SMALL.concat([one, SMALL.empty(), other])["rank"].tolist() == [1, 2]


def test_large_integers_survive():
    row = {"rank": 2**62 + 1, "dur_ns": 1_759_300_074_123_456_789, "name": None}
    assert records(SMALL.frame([row])) == [row]


def test_records_are_plain_python():
    (row,) = records(SMALL.frame([{"rank": 1, "dur_ns": 5, "name": "a"}]))
    assert [type(v) for v in row.values()] == [int, int, str]


def test_a_schema_error_is_one_a_caller_can_expect():
    assert issubclass(SchemaError, AnalysisError)


@pytest.mark.parametrize("table", ALL, ids=lambda t: t.name)
def test_every_column_is_described(table):
    assert table.rows
    for name, (dtype, meaning) in table.columns.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
        assert meaning.strip()
        assert str(table.empty()[name].dtype) == dtype


@pytest.mark.parametrize("table", ALL, ids=lambda t: t.name)
def test_numeric_columns_end_in_their_unit(table):
    statistics = ("_min", "_median", "_p95")
    for name, (dtype, _) in table.columns.items():
        if dtype.lower() in ("int64", "float64") and name not in UNITLESS:
            bare = next((name.removesuffix(s) for s in statistics if name.endswith(s)), name)
            assert bare.endswith(UNITS), f"{table.name}.{name} has no unit"


@pytest.mark.parametrize("table", ALL, ids=lambda t: t.name)
def test_times_are_integers_and_shares_and_bandwidths_are_not(table):
    for name, (dtype, _) in table.columns.items():
        if name.endswith(("_ns", "_bytes", "_elems")):
            assert dtype.lower() == "int64"
        if name.endswith(("_frac", "_per_s")):
            assert dtype == "Float64"
        if name.endswith("_ppm"):
            assert dtype == "float64"


def test_tables_have_names_of_their_own():
    assert len({t.name for t in ALL}) == len(ALL)
