"""`commtrace table scaling`: epoch times, speedups and efficiencies of a sweep."""

from __future__ import annotations

from ..output import Writing, writes_tables
from ..reading_options import KeepGoing
from ..sweep_input import Sweeps, finish_sweep


@writes_tables
def scaling_command(
    runs: Sweeps,
    keep_going: KeepGoing = False,
    *,
    writing: Writing,
) -> None:
    """Print epoch time, both speedups, strong and weak efficiency.

    \b
    A CSV of timings has the header
      model,parallel,workers,batch_size_per_rank,epoch_s
    and may have dataset_samples and parameters after these.

    \b
    Examples:
      commtrace table scaling traces/my-sweep
      commtrace table scaling --output scaling.tex traces/my-sweep
      commtrace table scaling timings.csv
    """
    writing.check("scaling")
    from ...sweeps.analysis import analyse_sweep

    analysis = analyse_sweep(*runs, keep_going=keep_going)
    writing.table("scaling", analysis.scaling)
    finish_sweep(analysis)
