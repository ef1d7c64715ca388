"""Declare the columns of a table once, with dtype and meaning, and make frames conform to them.

pandas is imported where frames are made: some commands do not need it, and importing it takes longer than they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn, cast

from ..errors import SchemaError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

Row = dict[str, Any]
"""One row of a table as plain Python values, None where the table has NA."""


@dataclass(frozen=True)
class PlainTable:
    """A table as lists of plain Python values, None for NA, with pandas dtypes: what renderers need."""

    columns: dict[str, list[Any]]
    dtypes: dict[str, str]
    whole: PlainTable | None = None
    """The table that these rows were chosen from, if they were: moments are shown as the time since its first."""
    asked: bool = False
    """Whether somebody asked for just these columns: people see all of them, in this order, and every row."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    @property
    def rows(self) -> list[Row]:
        """The rows as dictionaries."""
        return [dict(zip(self.columns, values, strict=True)) for values in zip(*self.columns.values(), strict=True)]

    def is_number(self, column: str) -> bool:
        """Whether the column holds numbers; truth values count as numbers, as in NumPy."""
        return self.dtypes[column].lower().startswith(("int", "uint", "float", "bool"))

    def is_integer(self, column: str) -> bool:
        """Whether the column holds whole numbers."""
        return self.dtypes[column].lower().startswith(("int", "uint"))


def plain(table: pd.DataFrame | PlainTable) -> PlainTable:
    """The table as plain Python values."""
    if isinstance(table, PlainTable):
        return table
    columns = {str(name): column for name, column in table.items()}
    return PlainTable({c: _plain(v) for c, v in columns.items()}, {c: str(v.dtype) for c, v in columns.items()})


def records(table: pd.DataFrame) -> list[Row]:
    """The rows of a table as dictionaries of plain Python values, None for NA."""
    return plain(table).rows


def _plain(column: pd.Series[Any]) -> list[Any]:
    import pandas as pd

    if column.dtype == "int64":  # which has no NA
        return column.tolist()
    if column.dtype in ("Int64", "string", "boolean"):
        return list(column.to_numpy(dtype=object, na_value=cast("Any", None)))
    return [None if v is pd.NA or v is pd.NaT or v != v else v for v in column.tolist()]


def _column(values: list[Any], dtype: str) -> Any:
    """A column of this dtype if the values have exactly its type; otherwise of objects, to be cast."""
    import numpy as np
    import pandas as pd

    kinds = set(map(type, values))
    if dtype == "string" and kinds <= {str, type(None)}:
        return pd.array(values, dtype="string")
    with suppress(OverflowError):
        if dtype == "int64" and kinds <= {int}:
            return np.array(values, dtype=np.int64)
        if dtype == "Int64" and kinds <= {int, type(None)}:
            missing = np.array([v is None for v in values])
            return pd.arrays.IntegerArray(np.array([v or 0 for v in values], dtype=np.int64), missing)
    return pd.Series(values, dtype="object")


def bare(column: pd.Series[Any]) -> NDArray[Any]:
    """Values of a column without NA. `to_numpy` would search texts for NA, which takes longer than using them."""
    import numpy as np

    return np.asarray(column.array)


def text_codes(column: pd.Series[Any]) -> tuple[NDArray[Any], list[str]]:
    """Index of each row's text, -1 for none, and the distinct texts in order of first use.

    Rows of a table mostly share their texts. So texts are told apart by identity before they are compared: each row of
    a large process group has the list of all of its ranks.
    """
    import numpy as np
    import pandas as pd

    values = bare(column)
    objects, distinct = pd.factorize(_identities(values))
    firsts = np.empty(len(distinct), dtype=np.int64)
    firsts[objects[::-1]] = np.arange(len(values))[::-1]  # of several, the last that is written stays
    codes, texts = pd.factorize(values[firsts])
    return codes[objects], [str(text) for text in texts]


class _Addresses:
    """An array of objects as NumPy is to see it: as the addresses that it consists of."""

    def __init__(self, values: NDArray[Any], dtype: str) -> None:
        self.values = values  # which is not freed meanwhile
        self.__array_interface__ = values.__array_interface__ | {"typestr": dtype, "descr": [("", dtype)]}


def _identities(values: NDArray[Any]) -> NDArray[Any]:
    """A number for each object, the same only for the same one: its address, which need not be asked of each."""
    import numpy as np

    return np.asarray(_Addresses(values, np.dtype(np.intp).str)).astype(np.int64, copy=False)


def combined(columns: Iterable[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The number of each row's combination of small integers, from -1, and the first row of each combination.

    Combinations are numbered in order of first use.
    """
    import numpy as np
    import pandas as pd

    number: Any = 0
    for codes in columns:
        number = pd.factorize(number * (int(codes.max(initial=0)) + 2) + codes + 1)[0]
    return number, np.flatnonzero(~pd.Series(number).duplicated())


def flags_of_texts(column: pd.Series[Any], holds: Callable[[str], bool]) -> NDArray[Any]:
    """Whether something holds for each row's text, False for NA, of dtype bool; each distinct text is asked once."""
    import numpy as np

    codes, texts = text_codes(column)
    result: NDArray[Any] = np.array([*map(holds, texts), False], dtype=bool)[codes]  # -1, for NA, takes the last
    return result


def grouped(
    table: pd.DataFrame, keys: list[str], columns: list[str] | None = None
) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Yield the rows of each combination of keys, ascending, with at least these columns. Keys have no NA.

    If the rows are in that order already, as in the tables of a run, nothing is copied.
    """
    import numpy as np

    values = [bare(table[key]) for key in keys]
    changes = np.logical_or.reduce([column[1:] != column[:-1] for column in values])
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(table)]
    groups = list(zip(*(column[bounds[:-1]].tolist() for column in values), strict=True)) if len(table) else []
    if all(a < b for a, b in pairwise(groups)):
        for key, (start, end) in zip(groups, pairwise(bounds), strict=False):  # without rows there are only bounds
            yield key, table.iloc[start:end]
        return
    for key, rows in (table if columns is None else table[columns]).groupby(keys, sort=True):
        yield cast("tuple[Any, ...]", key), rows


class Meanings(dict[str, str]):
    """What each column of a table means. It cannot be changed, so that all tables of a schema share one.

    pandas copies `attrs` deeply into every table that it derives, and writes them to Parquet as JSON, which takes only
    dictionaries.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Meanings:
        return self

    def __reduce__(self) -> tuple[type[Meanings], tuple[dict[str, str]]]:
        return Meanings, (dict(self),)

    def _fixed(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("the meanings of columns cannot be changed; make a dictionary of them")

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _fixed


@dataclass(frozen=True)
class Schema:
    """Columns of one table, in order: name -> (pandas dtype, meaning)."""

    name: str
    rows: str
    columns: Mapping[str, tuple[str, str]]

    def conform(self, frame: pd.DataFrame) -> pd.DataFrame:
        """`frame` with exactly these columns, in this order and with these dtypes.

        `partial` may be missing, and is NA then: only who knows the files can fill it. Raises SchemaError naming
        missing and surplus columns, or the column that cannot be cast.
        """
        if "partial" in self.columns and "partial" not in frame.columns:
            frame = frame.copy(deep=False)
            frame["partial"] = None
        missing = [c for c in self.columns if c not in frame.columns]
        surplus = [c for c in frame.columns if c not in self.columns]
        if missing or surplus:
            raise SchemaError(f"table {self.name}: missing columns {missing}, surplus columns {surplus}")
        import pandas as pd

        # New columns replace old ones below, so no value of `frame` is changed, and none needs to be copied.
        result = frame[list(self.columns)] if list(frame.columns) != list(self.columns) else frame.copy(deep=False)
        result.index = pd.RangeIndex(len(result))
        # All at once: taking a column out of a frame costs ten times as much, and there are many small tables.
        dtypes = [str(dtype) for dtype in result.dtypes]
        for (column, (dtype, _)), is_now in zip(self.columns.items(), dtypes, strict=True):
            if is_now == dtype:
                continue
            try:
                # Through Int64, which refuses what int64 would truncate.
                whole = result[column].astype("Int64") if dtype == "int64" else result[column]
                result[column] = whole.astype(cast("Any", dtype))
            except (TypeError, ValueError, OverflowError) as err:
                raise SchemaError(f"table {self.name}: column {column} is not {dtype}: {err}") from err
        result.attrs.clear()  # which are those of another table, if that was one of the catalog
        return result

    def described(self, table: pd.DataFrame) -> pd.DataFrame:
        """The table, whose `attrs` say its name and what its columns mean."""
        result = table.copy(deep=False)
        result.attrs = {"table": self.name, "columns": self._meanings}
        return result

    @cached_property
    def _meanings(self) -> Meanings:
        return Meanings((name, meaning) for name, (_, meaning) in self.columns.items())

    def empty(self) -> pd.DataFrame:
        """The table without rows."""
        return self._empty.copy(deep=False)  # no value of it can be changed

    @cached_property
    def _empty(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame({c: pd.Series(dtype=dtype) for c, (dtype, _) in self.columns.items()})

    def plain(self, rows: Iterable[Mapping[str, object]]) -> PlainTable:
        """A table from row dictionaries, whose values are trusted; missing columns are None."""
        listed = list(rows)
        columns = {c: [r.get(c) for r in listed] for c in self.columns}
        return PlainTable(columns, {c: dtype for c, (dtype, _) in self.columns.items()})

    def frame(self, rows: Iterable[Mapping[str, object]]) -> pd.DataFrame:
        """A table from row dictionaries; missing columns are NA."""
        import pandas as pd

        listed = list(rows)
        if not listed:
            return self.empty()
        columns = {c: _column([r.get(c) for r in listed], dtype) for c, (dtype, _) in self.columns.items()}
        return self.conform(pd.DataFrame(columns))

    def concat(self, frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
        """Concatenate frames that conform to this schema."""
        import pandas as pd

        filled = [f for f in frames if len(f)]
        if not filled:
            return self.empty()
        return self.conform(pd.concat(filled, ignore_index=True) if len(filled) > 1 else filled[0])
