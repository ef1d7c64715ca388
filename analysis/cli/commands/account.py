"""All the time of a step, in parts that add up."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from ....common.wording import counted, ranges_of
from ...recording.options import ReadOptions
from ..output import Writing, print_message, writes_tables
from ..reading_options import Runs, analysis_of, reads_traces
from ..tables import nothing_measured, print_table

if TYPE_CHECKING:
    from ...metrics.typical_step import TypicalStep


class AccountBy(str, Enum):
    """What a row of the account stands for."""

    part = "part"
    device = "device"
    step = "step"
    culprit = "culprit"


_TABLES = {
    AccountBy.part: "account_parts",
    AccountBy.device: "account",
    AccountBy.step: "account_steps",
    AccountBy.culprit: "account_waits",
}


@reads_traces
@writes_tables
def account_command(
    runs: Runs,
    by: Annotated[
        AccountBy,
        typer.Option(
            help="One row per part of a typical step; per device, or device and step, with all parts beside each "
            "other; or per rank that others waited for."
        ),
    ] = AccountBy.part,
    *,
    writing: Writing,
    reading: ReadOptions,
) -> None:
    """Account for all the time of a step: compute, hidden and exposed communication, copies, idle time by cause.

    The parts add up to the step. `least` and `most` are the share of a part on the ranks where it is smallest and
    largest. With --by device or step they add up to the ns; --by culprit says for which rank each device waited.

    \b
    Examples:
      commtrace table account traces/my-run
      commtrace table account --by step --format csv traces/my-run
      commtrace table account --by culprit traces/my-run
    """
    name = _TABLES[by]
    writing.check(name)
    analysis = analysis_of(runs, reading, details=True)
    if by is AccountBy.part and len(analysis.breakdown):
        print_message(_step_and_windows(analysis.typical_step), kind="note")
    if by is AccountBy.culprit and len(analysis.breakdown) and analysis.account["exposed_wait_ns"].isna().all():
        nothing_measured(analysis, "nothing could be split into wait and transfer; that needs the traces of all ranks")
    print_table(name, analysis, writing)


def _step_and_windows(typical: TypicalStep) -> str:
    """`a step takes 44.1 ms, mean of 32 windows of devices in steps 10-13`."""
    takes = f"takes {typical.parts['window_ns'] / 1e6:,.1f} ms, mean of {counted(typical.windows, 'window')} of devices"
    if not typical.steps:
        return f"no step is marked; the window {takes}"
    return f"a step {takes} in {'steps' if typical.steps[1:] else 'step'} {ranges_of(typical.steps)}"
