"""Tables as they travel: the same rows come back, and texts that are equal are one object."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtrace.analysis.core.schema import Schema, text_codes
from commtrace.analysis.results.slim_tables import Added, slim_table, whole_table

TABLE = Schema("small", "thing", {
    "rank": ("int64", "rank"),
    "dur_ns": ("Int64", "duration"),
    "name": ("string", "name"),
    "partial": ("boolean", "whether"),
})  # fmt: skip
NUMBERS = st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(
    st.fixed_dictionaries({
        "rank": NUMBERS,
        "dur_ns": st.none() | st.integers(0, 2**33) | NUMBERS,
        "name": st.none() | st.sampled_from(["", "a", "0 1 2", "\U0001f600"]),
        "partial": st.none() | st.booleans(),
    }),
    max_size=6,
)  # fmt: skip


@pytest.mark.slow
@given(st.lists(ROWS, max_size=3))
def test_rows_of_all_parts_come_back(parts):
    whole = whole_table(TABLE, [Added(slim_table(TABLE, rows), {}) for rows in parts])
    pd.testing.assert_frame_equal(whole, TABLE.frame([row for rows in parts for row in rows]))


def test_what_is_added_does_not_make_known_what_is_not():
    part = slim_table(TABLE, [{"rank": 0, "dur_ns": None}, {"rank": 1, "dur_ns": 5}])
    whole = whole_table(TABLE, [Added(part, {}), Added(part, {"rank": 10, "dur_ns": 100})])
    assert whole["rank"].tolist() == [0, 1, 10, 11]
    assert whole["dur_ns"].tolist() == [pd.NA, 5, pd.NA, 105]


def test_equal_texts_of_several_parts_are_one_object():
    parts = [slim_table(TABLE, [{"rank": 0, "name": " ".join(["0", "1", "2"])}] * 2) for _ in range(2)]
    whole = whole_table(TABLE, [Added(part, {}) for part in parts])
    assert len(set(map(id, whole["name"].array))) == 1


@pytest.mark.parametrize("texts", [["bb", None, "aa", "bb"], [None], []])
def test_codes_of_texts_are_those_of_the_first_that_come(texts):
    copies = pd.Series(pd.array([text and "".join([*text]) for text in texts], dtype="string"))
    codes, distinct = text_codes(copies)
    expected, uniques = pd.factorize(copies)
    assert codes.tolist() == expected.tolist()
    assert distinct == uniques.tolist()


@pytest.mark.parametrize("rows", [slice(None), slice(1, None, 3), slice(None, None, -1), slice(0, 0)])
def test_texts_are_told_apart_in_any_part_of_a_column(rows):
    column = pd.Series(pd.array([*"abcab", None, *"cc"], dtype="string")).iloc[rows]
    codes, distinct = text_codes(column)
    assert [None if code < 0 else distinct[code] for code in codes] == [None if v is pd.NA else v for v in column]
    assert distinct == list(dict.fromkeys(column.dropna()))
