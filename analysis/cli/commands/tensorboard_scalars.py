"""The command that writes what steps cost as scalars of TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...core.wording import counted
from ...recording.options import ReadOptions
from ..output import complain, replace_among, write_out
from ..reading_options import Runs, analysis_of, finish, reads_traces

InFolder = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Write into this folder.", show_default="RUN itself"),
]


@reads_traces
def tensorboard_scalars_command(runs: Runs, output: InFolder = None, *, reading: ReadOptions) -> None:
    """Write an event file that TensorBoard shows under Scalars, beside the curves of the training.

    By step: its length, exposed communication, waiting and transfer in ms, as the median over all devices and as the
    maximum; and the bus bandwidth of each collective in GB/s. An earlier file of this command is replaced.

    \b
    Examples:
      {prog} tensorboard-scalars traces/my-run
      {prog} tensorboard-scalars traces/my-run --output logs/my-run
      tensorboard --logdir traces
    """
    if output is None and not (len(runs) == 1 and runs[0].is_dir()):
        raise typer.BadParameter("is needed where RUN is not one folder", param_hint="--output")
    folder = output or runs[0]
    analysis = analysis_of(runs, reading)
    from ...tensorboard.scalars import SUFFIX, event_file, step_scalars

    scalars = step_scalars(analysis)
    name, content = event_file(scalars)
    replace_among(folder, f"*{SUFFIX}", name, content)
    for note in analysis.run.notes:
        complain(note, kind="note")
    steps, tags = (len({value[place] for value in scalars}) for place in (1, 0))
    write_out(f"{folder / name}: {counted(tags, 'curve')} over {counted(steps, 'step')}\n", None)
    finish(analysis)
