"""Commands that write for other tools: TensorBoard, torch's compiler, agents, logs, and whatever reads Parquet."""

from __future__ import annotations

from pathlib import Path
from pkgutil import get_data
from typing import Annotated

import typer

from ....common.wording import counted
from ...recording.options import ReadOptions
from ..output import (
    check_new_folder,
    print_message,
    replace_among,
    replacing_in,
    write_folder,
    write_out,
    write_parts,
)
from ..reading_options import CeilingFile, Peaks, Runs, analysis_of, analysis_to_show, finish, reads_traces
from ..tables import nothing_measured, why_empty

NewFolder = Annotated[Path, typer.Argument(metavar="OUT", help="The folder to create.", show_default=False)]
InFolder = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="DIR", help="Write the event file into this folder.", show_default="RUN itself"
    ),
]


@reads_traces
def tensorboard_copy_command(runs: Runs, out: NewFolder, *, reading: ReadOptions) -> None:
    """Write traces on which the Distributed view of torch-tb-profiler counts right.

    In traces of NCCL that view (of torch-tb-profiler) counts most communication wrongly; in the copy it counts
    correctly. The copy holds steps, kernels, copies and collectives. For operators, modules and memory, open the traces
    themselves.

    The charts of time agree with `breakdown --by step`. The view shows waiting only for collectives of all ranks, and
    of five kinds: no smaller groups, no send/recv, no all_to_all. It cannot show who was late, or why. The
    browser loads what draws it from www.gstatic.com, without which it stays a turning circle.

    \b
    Examples:
      commtrace export tensorboard-copy traces/my-run traces/my-run-tensorboard
      tensorboard --logdir traces
    """
    check_new_folder(out)
    analysis = analysis_of(runs, reading)
    from ...tensorboard.distributed_view import trace_copies

    copies = list(trace_copies(analysis))
    write_folder({copy.name: copy.content for copy in copies}, out)
    for note in analysis.run.notes:
        print_message(note, kind="note")
    compared, all_ = sum(copy.compared for copy in copies), sum(copy.operations for copy in copies)
    size = sum(len(copy.content) for copy in copies) / 1e3
    write_out(
        f"{out}: {counted(len(copies), 'trace')}, {size:,.0f} kB; `tensorboard --logdir {out}`, view Distributed\n",
        None,
    )
    print_message(
        "the browser needs www.gstatic.com to draw that view: without it, it stays a turning circle", kind="note"
    )
    if compared < all_:
        print_message(
            f"{compared:,} of {all_:,} collectives are in its charts of waiting and of operations; of the others, "
            "which are not of all ranks or of a kind that it does not know, it shows only the time",
            kind="note",
        )
    finish(analysis)


@reads_traces
def tensorboard_scalars_command(runs: Runs, output: InFolder = None, *, reading: ReadOptions) -> None:
    """Write an event file that TensorBoard shows under Scalars, beside the curves of the training.

    The curves show, by step, its length, exposed communication, waiting and transfer in ms, each as the median and the
    maximum over all devices, and the bus bandwidth of each collective in GB/s; of traces with allocations also the
    peaks of allocated and reserved memory in GB. They replace those that this command wrote before.

    \b
    Examples:
      commtrace export tensorboard-scalars traces/my-run
      commtrace export tensorboard-scalars traces/my-run --output logs/my-run
      tensorboard --logdir traces
    """
    if output is None and not (len(runs) == 1 and runs[0].is_dir()):
        raise typer.BadParameter("is needed where RUN is not one folder", param_hint="--output")
    folder = output or runs[0]
    analysis = analysis_to_show(runs, reading)
    from ...tensorboard.scalars import SUFFIX, event_file, step_scalars

    scalars = step_scalars(analysis)
    name, content = event_file(scalars)
    replace_among(folder, f"*{SUFFIX}", name, content)
    for note in analysis.run.notes:
        print_message(note, kind="note")
    steps, tags = (len({value[place] for value in scalars}) for place in (1, 0))
    write_out(f"{folder / name}: {counted(tags, 'curve')} over {counted(steps, 'step')}\n", None)
    finish(analysis)


ScalarsFile = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout, as JSON."),
]


@reads_traces
def scalars_command(
    runs: Runs, output: ScalarsFile = None, ceiling: CeilingFile = None, peak: Peaks = None, *, reading: ReadOptions
) -> None:
    """Write some numbers of a run as JSON, under names that stay, for the log of a training.

    `scalars` has times of a typical step in ms, bandwidth, who is late, and what the first change would gain;
    `unknown` says why others are not known; `headline` is the first sentence of the summary.

    \b
    Examples:
      commtrace export scalars traces/my-run
      commtrace export scalars traces/my-run --output scalars.json
    """
    analysis = analysis_to_show(runs, reading, ceiling, peak)
    from ...show.scalars import run_scalars

    write_out(run_scalars(analysis).as_json(), output)
    for note in analysis.run.notes:
        print_message(note, kind="note")
    finish(analysis)


ProfileFile = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write the profile to this file, as JSON.",
        show_default="RUN.inductor.json",
    ),
]
OperatorsOf = Annotated[
    int | None,
    typer.Option("--rank", metavar="N", help="Take operators and kernels from this rank.", show_default="the first"),
]


@reads_traces
def inductor_command(
    runs: Runs,
    output: ProfileFile = None,
    rank: OperatorsOf = None,
    *,
    reading: ReadOptions,
) -> None:
    """Write a profile for torch.compile.

    torch.compile uses it to estimate how long operators and collectives take. Set
    torch._inductor.config.aten_distributed_optimizations.profile_guided_estimations_profile_path to the same file on
    all ranks. The time of a collective is its transfer without waiting: the median over all ranks, for each size and
    group. Operators come from one rank, if it was captured with shapes.

    \b
    Examples:
      commtrace export inductor traces/my-run
      commtrace export inductor traces/my-run --output profile.json
    """
    analysis = analysis_of(runs, reading)
    from ...exports.inductor import inductor_profile

    profile = inductor_profile(analysis, rank)
    for note in analysis.run.notes:
        print_message(note, kind="note")
    target = output or Path(f"{analysis.run.name}.inductor.json")
    write_parts(profile.parts, target)
    sizes, calls = counted(profile.collectives, "size"), counted(profile.operators, "call")
    written = f"{sizes} of collectives, {calls} of operators"
    write_out(f"{target}: {written}\n", None) if output is None else print_message(f"{target}: {written}", kind="note")
    if profile.left_out:
        left_out = counted(profile.left_out, "call")
        print_message(
            f"{left_out} of collectives left out: the trace has no size, or wait and transfer could not be split",
            kind="note",
        )
    if not profile.operators:
        print_message("no operator has shapes; capture with record_shapes=True to include operators", kind="note")
    finish(analysis)


ParquetFolder = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Write the files into this folder.", show_default="RUN-parquet"),
]


@reads_traces
def parquet_command(
    runs: Runs, output: ParquetFolder = None, ceiling: CeilingFile = None, peak: Peaks = None, *, reading: ReadOptions
) -> None:
    """Write every table as a Parquet file, for DuckDB, Polars or Spark.

    Beside the tables of `commtrace table`, `activities` has every kernel and copy of every rank, with its times on the
    common clock; `cpu_operators`, `runtime_calls` and others have what CPUs did. A table that is empty for this run is
    written without rows. Columns: docs/tables.md, and in the files. Needs pyarrow.

    \b
    Examples:
      commtrace export parquet traces/my-run
      duckdb -c "SELECT * FROM 'my-run-parquet/ranks.parquet'"
    """
    from ...exports.parquet import check_pyarrow, write_parquet

    check_pyarrow()
    analysis = analysis_to_show(runs, reading, ceiling, peak)
    if not analysis.run.devices and not len(analysis.calls):
        nothing_measured(analysis, why_empty("breakdown", analysis))
    folder = output or Path(f"{analysis.run.name}-parquet")
    with replacing_in(folder) as new_file:
        written = write_parquet(analysis, new_file)
    for note in analysis.run.notes:
        print_message(note, kind="note")
    if written.empty:
        print_message(f"without rows: {', '.join(written.empty)}; the metadata of each file say why", kind="note")
    rows, size = sum(written.rows.values()), sum((folder / f"{name}.parquet").stat().st_size for name in written.rows)
    write_out(f"{folder}: {counted(len(written.rows), 'table')}, {counted(rows, 'row')}, {size / 1e6:,.1f} MB\n", None)
    finish(analysis)


def skill_command(out: NewFolder) -> None:
    """Write a skill file: when to use which command, how to read a verdict, and when to say that it is not known.

    Agents that take such files find it in a folder of its own, named `SKILL.md`.

    \b
    Examples:
      commtrace export skill ~/.claude/skills/commtrace
      commtrace export skill .claude/skills/commtrace
    """
    check_new_folder(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    name = "SKILL.md"
    content = get_data("commtrace.analysis.agents", f"assets/{name}")
    assert content is not None
    write_folder({name: content}, out)
    write_out(f"{out / name}\n", None)
