"""Read a CSV of timings, taken elsewhere or copied from a report, as rows of cells.

    model,parallel,workers,batch_size_per_worker,epoch_s[,dataset_samples][,parameters][,data_s][,sample_bytes]

`batch_size_per_rank` is another name of the batch size. Further columns are ignored.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path

from ...contract.modes import MODES
from ..core.schema import Row
from ..core.small_files import small_file
from ..errors import DamagedTimings, NoTimings, UnreadableFile

FLOAT32_BYTES = 4

_BATCH = ("batch_size_per_rank", "batch_size_per_worker")
_REQUIRED = ("model", "parallel", "workers", "epoch_s")
_EXAMPLE = "model,parallel,workers,batch_size_per_rank,epoch_s"
# float() and int() would also take 1_000, nan, infinity and digits of other scripts.
_WHOLE = re.compile(r"\+?[0-9]{1,18}")
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_LARGEST_S = 2**63 / 1e9


def csv_rows(path: Path) -> list[Row]:
    """Read cells as rows of TIMINGS without a number. Raises UnreadableFile, DamagedTimings, NoTimings."""
    try:
        text = small_file(path).decode("utf-8-sig")  # spreadsheets begin a CSV with a byte order mark
    except OSError as err:
        raise UnreadableFile(f"{path}: cannot be read: {err.strerror}") from err
    except UnicodeDecodeError as err:
        raise DamagedTimings(f"{path}: is not text in UTF-8; expected a CSV with the header {_EXAMPLE}") from err
    rows = [_row(cells, f"{path}, line {line}") for line, cells in _records(path, text)]
    if not rows:
        raise NoTimings(f"{path}: has no row below its header; expected one per cell of a sweep")
    return rows


def _records(path: Path, text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and fields by name of every row. Raises DamagedTimings."""
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(path, header)
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                raise DamagedTimings(
                    f"{path}, line {reader.line_num}: expected {len(header)} cells as in the header, found "
                    f"{len(cells)}; write decimals with a point, and quote cells that hold a comma"
                )
            yield reader.line_num, {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
    except csv.Error as err:
        raise DamagedTimings(f"{path}, line {reader.line_num}: is not CSV: {err}") from err


def _check_header(path: Path, header: list[str]) -> None:
    missing = [name for name in _REQUIRED if name not in header]
    if not set(header) & set(_BATCH):
        missing.append(_BATCH[0])
    if missing:
        columns = ", ".join(header[:9]) or "nothing"
        hint = "separate cells with commas" if len(header) == 1 and ";" in header[0] else f"expected {_EXAMPLE}"
        raise DamagedTimings(f"{path}: the header lacks {', '.join(missing)}; found {columns[:200]}; {hint}")
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice or set(_BATCH) <= set(header):
        raise DamagedTimings(f"{path}: the header names {', '.join(twice or _BATCH)} twice; keep one of them")


def _row(cells: dict[str, str], where: str) -> Row:
    model, parallel = cells["model"], cells["parallel"]
    if not model:
        raise DamagedTimings(f"{where}: model is empty; name the model, any name will do")
    if parallel not in MODES:
        raise DamagedTimings(f"{where}: parallel is {parallel!r}; expected one of {', '.join(MODES)}")
    batch_column = next(name for name in _BATCH if name in cells)
    workers, batch = _count(cells, "workers", where), _count(cells, batch_column, where)
    if workers is None or batch is None:
        raise DamagedTimings(f"{where}: workers or {batch_column} is empty; expected a whole number from 1")
    epoch_ns, samples = _nanoseconds(cells, "epoch_s", where, least=1), _count(cells, "dataset_samples", where)
    if epoch_ns is None:
        raise DamagedTimings(f"{where}: epoch_s is empty; leave out a cell that was not timed")
    parameters = _count(cells, "parameters", where)
    steps = math.ceil(samples / (workers * batch)) if samples and not MODES[parallel].shares_batch else None
    return {
        "run": f"{model}-{parallel}-w{workers}-b{batch}",
        "model": model,
        "parallel": parallel,
        "workers": workers,
        "batch_size_per_worker": batch,
        "status": "done",
        "epoch_ns": epoch_ns,
        "timed_steps": steps,
        "epoch_steps": steps,
        "data_ns": _nanoseconds(cells, "data_s", where, least=0),
        "dataset_samples": samples,
        "sample_bytes": _count(cells, "sample_bytes", where),
        "parameters_elems": parameters,
        "parameters_bytes": FLOAT32_BYTES * parameters if parameters else None,
    }


def _count(cells: dict[str, str], column: str, where: str) -> int | None:
    """A whole number of at least 1; None if the field is empty or missing."""
    text = cells.get(column, "")
    if not text:
        return None
    if not _WHOLE.fullmatch(text) or not int(text):
        raise DamagedTimings(f"{where}: {column} is {text[:40]!r}; expected a whole number from 1")
    return int(text)


def _nanoseconds(cells: dict[str, str], column: str, where: str, *, least: int) -> int | None:
    """Seconds as ns, at least `least`; None if the field is empty or missing."""
    text = cells.get(column, "")
    if not text:
        return None
    if re.fullmatch(r"-?[0-9.]*,[0-9]+", text):
        raise DamagedTimings(f"{where}: {column} is {text[:40]!r}; expected seconds with a decimal point, not a comma")
    seconds = float(text) if _DECIMAL.fullmatch(text) else math.nan
    if not 0 <= seconds < _LARGEST_S or round(seconds * 1e9) < least:
        raise DamagedTimings(f"{where}: {column} is {text[:40]!r}; expected seconds, {_at_least(least)}")
    return round(seconds * 1e9)


def _at_least(least: int) -> str:
    return "more than 0" if least else "0 or more"
