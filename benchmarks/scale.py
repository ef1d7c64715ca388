"""How do seconds, memory and bytes grow with the ranks of a run, with recordings and without? See README.md.

python benchmarks/scale.py --source TRACES [--ranks 8,64,256,1024] [--workers 1,2] [--command summary,report] [--json 8]

The traces of a folder are repeated to some 54 MB of JSON each, and are dealt out to the ranks in turn, eight to a host,
each host with a clock of its own, in a world of that size. Recordings are as `commtrace pack` makes them, with details.
Where others use the machine too, the seconds of all cores say more than those that pass. The largest memory is that of
the command, and of the process that it starts and that takes most, each counted by pages it shares with others only in
part (PSS), five times a second.
"""

import argparse
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
from reading import MB, Repeated, _begun, _end, _held_bytes, _tree

from commtrace.analysis.formats.kineto.reader import read_kineto
from commtrace.analysis.formats.recordings.content import TraceSource, packed
from commtrace.analysis.recording.header import ProcessGroup
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.recording import RawTrace

EACH_MB = 54


def whole_world(found: RawTrace, rank: int, ranks: int) -> RawTrace:
    """The trace as if of another rank, of a job of so many; all groups hold every rank, and hosts have own clocks."""
    everyone = tuple(range(ranks))
    groups = tuple(ProcessGroup(g.name, g.description, g.backend, everyone) for g in found.header.process_groups)
    header = msgspec.structs.replace(
        found.header,
        rank=rank,
        world_size=ranks,
        process_groups=groups,
        base_ns=found.header.base_ns + random.Random(rank // 8).randrange(20_000),
        host=f"node{rank // 8}",
    )
    rows = [
        row | {name: value for name, value in (("group_size", ranks), ("pg_ranks", None)) if name in row}
        for row in found.comm_args
    ]
    return msgspec.structs.replace(found, header=header, comm_args=rows)


def recordings(sources: list[Path], folder: Path, ranks: int) -> Path:
    """A folder with a recording for each rank, and how long packing took a trace, in the name of nothing."""
    if folder.exists():
        return folder
    partial = folder.with_name(f".{folder.name}")
    partial.mkdir(parents=True, exist_ok=True)
    read = [read_kineto(path, ReadOptions(details=True)) for path in sources]
    for rank in range(ranks):
        found = whole_world(read[rank % len(read)], rank, ranks)
        name = f"node{rank // 8}_{rank}.0001.pt.trace"
        (partial / f"{name}.ctrace").write_bytes(
            packed(found, TraceSource(f"{name}.json", "Kineto", 0), [], how="fast")
        )
    partial.rename(folder)
    return folder


def traces(given: list[Path], folder: Path, ranks: int) -> Path:
    """A folder with a trace for each rank: links to those of the first ones would all claim the same rank.

    All repeat after the same time, so that calls which met still do.
    """
    repeated = [Repeated(path).of_world(ranks) for path in given]
    for one in repeated:
        one.length_us = max(each.length_us for each in repeated)
    turns = -(-EACH_MB * MB // max(len(one.events) for one in repeated))
    for rank in range(ranks):
        path, one = folder / f"node{rank // 8}_{rank}.0001.pt.trace.json", repeated[rank % len(repeated)]
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            one.write(path, (turns - 1) * len(one.events) + 1, rank=rank)
    return folder


class Taken(NamedTuple):
    """What a command took: seconds, those of all cores together, and the most MB of it and of one of its workers."""

    seconds: float
    core_seconds: float
    own_mb: float
    worker_mb: float


def measured(command: list[str]) -> Taken:
    """What it takes."""
    begin, before = time.perf_counter(), _core_seconds()
    process, own, worker = _begun(command), 0, 0
    while process.poll() is None:
        pids = _tree(process.pid)
        own = max(own, _held_bytes(process.pid))
        worker = max(worker, *map(_held_bytes, pids[1:]), 0)
        time.sleep(0.2)
    _end(command, process)
    return Taken(time.perf_counter() - begin, _core_seconds() - before, own / MB, worker / MB)


def _core_seconds() -> float:
    """Of all commands that have ended, and their workers."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def lines(args: argparse.Namespace) -> Iterator[str]:
    """A table in Markdown."""
    given = sorted(args.source.glob("*.json*"))
    base = traces(given, args.work / "base", len(given))
    sources = sorted(base.glob("*.json"))
    yield (
        "| command | ranks | of | on disk MB | workers | s | s of all cores | MB of the command | MB of a worker "
        "| written MB |"
    )
    yield "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|"
    plain = {int(number) for number in args.json.split(",") if number}
    for ranks in map(int, args.ranks.split(",")):
        inputs = {"recordings": recordings(sources, args.work / f"packed-{ranks}", ranks)}
        if ranks in plain:
            inputs["JSON"] = traces(given, args.work / f"json-{ranks}", ranks)
        for what, folder in inputs.items():
            size = sum(path.stat().st_size for path in folder.iterdir()) / MB
            for command, workers in product(args.command.split(","), args.workers.split(",")):
                target = args.work / "written"
                target.unlink(missing_ok=True)
                how = ["--output", str(target)] if command in ("report", "timeline") else []
                start = [sys.executable, "-m", "commtrace", command, "--no-cache", "--workers", workers]
                took = measured([*start, *how, str(folder)])
                written = f"{target.stat().st_size / MB:,.1f}" if target.exists() else ""
                yield (
                    f"| {command} | {ranks:,} | {what} | {size:,.1f} | {workers} | {took.seconds:.1f} "
                    f"| {took.core_seconds:.1f} | {took.own_mb:,.0f} | {took.worker_mb:,.0f} | {written} |"
                )


def main() -> None:
    """Print the table, line by line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="a folder of Kineto traces, one per rank")
    parser.add_argument("--ranks", default="8,64,256,1024")
    parser.add_argument("--json", default="8", help="of these, the JSON is written and read as well")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--command", default="breakdown,summary,report,timeline")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "commtrace-scale")
    for line in lines(parser.parse_args()):
        print(line, flush=True)


if __name__ == "__main__":
    main()
