"""Sums over the steps that count: one window for every table, that of the first screen and the verdict.

What was recorded begins and ends within steps, and holds evaluations and other steps that are like none. A share of all
that is another number than the same share of a typical step (one run: 12 and 17 % MFU), and nobody can tell which of
the two a table has. So tables of sums are over the steps of which the typical step is a mean; `whole` asks for all.
"""

from __future__ import annotations

from collections.abc import Collection

from ..core.frames import np, pd
from ..core.schema import bare, grouped
from ..core.steps import NO_STEP, windows_of

_KEYS = ["rank", "device"]


def in_steps(table: pd.DataFrame, steps: Collection[int]) -> pd.DataFrame:
    """The rows of a table with a column `step` that are of these steps; all of them if there are no steps."""
    return table[table["step"].isin(steps).to_numpy(dtype=bool)] if steps else table


def placed(activities: pd.DataFrame) -> pd.DataFrame:
    """The activities, where those without a step get that in whose window they began; NA outside of all.

    What was launched before the recording takes time in the windows of the breakdown, so it counts with them.
    """
    missing = activities["step"].isna().to_numpy()
    if not missing.any() or missing.all():
        return activities
    step = activities["step"].to_numpy(dtype=np.int64, na_value=NO_STEP)
    start, filled = bare(activities["start_ns"]), step.copy()
    for rows in activities.groupby(["rank", "cycle"], sort=False).indices.values():
        for window in windows_of(activities.iloc[rows]):
            began = missing[rows] & (start[rows] >= window.start_ns) & (start[rows] < window.end_ns)
            filled[rows[began]] = window.step
    return activities.assign(step=pd.arrays.IntegerArray(np.where(filled == NO_STEP, 0, filled), filled == NO_STEP))


def over_steps(whole: pd.DataFrame, by_step: pd.DataFrame, steps: Collection[int]) -> pd.DataFrame:
    """The table `whole`, a row per rank and device, with sums of `by_step` over these steps; NA where one of them is.

    Without steps it is the table itself. Devices that did nothing in these steps have no row. Columns that are not
    sums stay as they are: whoever knows their formula replaces them.
    """
    if not steps:
        return whole
    rows = in_steps(by_step, steps)
    summed = [name for name in map(str, by_step) if name in whole and (name.startswith("n_") or name.endswith("_ns"))]
    groups = rows.groupby(_KEYS, sort=True)
    sums = groups[summed].sum()
    for column in summed:
        if (unknown := rows[column].isna()).any():
            sums[column] = sums[column].mask(unknown.groupby([rows[key] for key in _KEYS]).any())
    first = whole.drop_duplicates(_KEYS).set_index(_KEYS).reindex(sums.index)
    others = first[[column for column in first if column not in summed]]
    if "note" in others:
        notes = {key: "; ".join(dict.fromkeys(own["note"].dropna())) or None for key, own in grouped(rows, _KEYS)}
        others = others.assign(note=pd.array([notes[key] for key in sums.index], dtype="string"))
    return pd.concat([sums, others], axis=1).reset_index()[list(whole)].astype(whole.dtypes)


def breakdown_over(whole: pd.DataFrame, by_step: pd.DataFrame, steps: Collection[int]) -> pd.DataFrame:
    """The table `breakdown` over these steps; all that was recorded if there are none."""
    if not steps:
        return whole
    found = over_steps(whole, by_step, steps)
    counts = in_steps(by_step, steps).groupby(_KEYS, sort=True)["step"].nunique()
    return found.assign(
        steps=pd.array(bare(counts), dtype="Int64"),
        exposed_comm_frac=_share(found["exposed_comm_ns"], found["window_ns"]),
        hidden_comm_frac=_share(found["overlap_ns"], found["comm_ns"]),
    )


def _share(part: pd.Series[int], of: pd.Series[int]) -> pd.Series[float]:
    """Quotients as Float64; NA where the whole is 0."""
    return part.astype("Float64") / of.astype("Float64").mask(of == 0)
