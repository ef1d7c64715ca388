"""The command that writes a copy of a run for torch-tb-profiler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...core.wording import counted
from ...recording.options import ReadOptions
from ..output import check_new_folder, complain, write_folder, write_out
from ..reading_options import Runs, analysis_of, finish, reads_traces

NewFolder = Annotated[Path, typer.Argument(metavar="OUT", help="The folder to make.", show_default=False)]


@reads_traces
def tensorboard_copy_command(runs: Runs, out: NewFolder, *, reading: ReadOptions) -> None:
    """Write traces on which the Distributed view of torch-tb-profiler counts right.

    On those that torch captures with NCCL it does not. The copy has steps, kernels, copies and collectives, as all
    commands here count them; for operators, modules and memory look at the traces themselves.

    The charts of time agree with `breakdown --by step`. Waiting is shown only for collectives in which all ranks take
    part, and of the five kinds that the view knows: no groups, no send/recv, no all_to_all. Who was late, and why, it
    cannot show at all.

    \b
    Examples:
      {prog} tensorboard-copy traces/my-run traces/my-run-tensorboard
      tensorboard --logdir traces
    """
    check_new_folder(out)
    analysis = analysis_of(runs, reading)
    from ...tensorboard.distributed_view import trace_copies

    copies = list(trace_copies(analysis))
    write_folder({copy.name: copy.content for copy in copies}, out)
    for note in analysis.run.notes:
        complain(note, kind="note")
    compared, all_ = sum(copy.compared for copy in copies), sum(copy.operations for copy in copies)
    size = sum(len(copy.content) for copy in copies) / 1e3
    write_out(
        f"{out}: {counted(len(copies), 'trace')}, {size:,.0f} kB; `tensorboard --logdir {out}`, view Distributed\n",
        None,
    )
    if compared < all_:
        complain(
            f"{compared:,} of {all_:,} collectives are in its charts of waiting and of operations; the others are not "
            "of all ranks, or of a kind that it does not know, and only their time counts",
            kind="note",
        )
    finish(analysis)
