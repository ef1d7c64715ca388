"""How well a replay foretells a step it has not seen: `python tests/support/leave_one_out.py RUN...` prints a table.

Each step in turn is left out: its activities, transfers and the CPU's work before a launch take what they take on the
same rank in the other steps, and delays are the usual ones. The step is played, and compared with the real one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from commtrace import Analysis, analyse
from commtrace.analysis.core.arrays import Ints
from commtrace.analysis.errors import AnalysisError
from commtrace.analysis.replay.alike import Alike
from commtrace.analysis.replay.engine import Playing
from commtrace.analysis.replay.lengths import measured_lengths, played_lengths
from commtrace.analysis.replay.programs import NONE
from commtrace.analysis.replay.table import MOST_ERROR_FRAC
from commtrace.analysis.replay.working import work_of
from commtrace.analysis.tables.replay import replayed


def errors(analysis: Analysis) -> dict[int, float]:
    """By step, (foretold - measured) / measured, for the steps of cycles that have several."""
    found = {}
    for members in analysis.of(replayed).usual:
        steps = sorted({step for m in members for step in np.unique(m.program.step).tolist() if step >= 0})
        if len(steps) < 2:
            continue
        measured = measured_lengths([members])
        for step in steps:
            found[step] = played_lengths([list(_foretold(members, step))])[step] / measured[step] - 1
    return found


def _foretold(members: Sequence[Playing], step: int) -> Iterator[Playing]:
    alike = Alike.by_place([m.program for m in members])
    worked = [work_of(m).launching_ns for m in members]
    durations, transfers, before = (
        _of_others(members, alike, step, values)
        for values in ([m.duration for m in members], [m.transfer for m in members], worked)
    )
    for m, duration, transfer, usual, own in zip(members, durations, transfers, before, worked, strict=True):
        program = m.program
        saved = np.zeros(len(program.call_start), dtype=np.int64)
        known = (program.launch != NONE) & (program.step == step)
        saved[program.launch[known]] = (own - usual)[known]
        delay = np.where(program.paced & (program.step == step), usual, m.delay)
        yield replace(m, duration=duration, transfer=transfer, delay=delay, saved=m.saved + np.cumsum(saved))


def _of_others(members: Sequence[Playing], alike: Alike, step: int, values: Sequence[Ints]) -> list[Ints]:
    """In that step the mean over the other steps of the same rank, where these do the same; all else as it is."""
    table = pd.DataFrame({
        "member": np.repeat(np.arange(len(members)), [len(v) for v in values]),
        "code": alike._code,
        "step": np.concatenate([m.program.step for m in members]),
        "value": np.concatenate(values),
    })  # fmt: skip
    others = table[(table["step"] != step) & (table["step"] >= 0) & (table["code"] != NONE)]
    means = others.groupby(["member", "code"])["value"].mean()
    keys = pd.MultiIndex.from_frame(table[["member", "code"]])
    foretold = means.reindex(keys).to_numpy()
    mine = (table["step"] == step).to_numpy() & ~np.isnan(foretold)
    result = np.where(mine, np.rint(np.nan_to_num(foretold)), table["value"]).astype(np.int64)
    return np.split(result, np.cumsum([len(v) for v in values])[:-1])


def row_of(folder: Path) -> str:
    """The row of a run in the table."""
    try:
        analysis = analyse(folder, details=True)
        error = analysis.of(replayed).error_frac
        by_step = errors(analysis) if error <= MOST_ERROR_FRAC else {}
    except AnalysisError as err:
        return f"| {folder.name} | | | {str(err).split(': ', 1)[-1]} |"
    ranks = f"{len(analysis.run.ranks)} of {analysis.run.world_size or len(analysis.run.ranks)}"
    if error > MOST_ERROR_FRAC:
        return f"| {folder.name} | {ranks} | refused: {error:.0%} | - |"
    missed = np.abs(list(by_step.values()))
    left_out = f"{float(np.median(missed)):.1%} ({len(missed)})" if len(missed) else "one step only"
    return f"| {folder.name} | {ranks} | {error:.1%} | {left_out} |"


if __name__ == "__main__":
    print("| run | ranks | replay error | a step left out: median (steps) |\n|---|---|---|---|")
    for name in sys.argv[1:]:
        print(row_of(Path(name)), flush=True)
