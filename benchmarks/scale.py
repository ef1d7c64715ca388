"""How do seconds, memory and bytes grow with the ranks of a run, with recordings and without? See README.md.

python benchmarks/scale.py --source TRACES [--ranks 8,64,256,1024] [--workers 1,2] [--command breakdown] [--json 8,64]

The traces of a folder are repeated to 54 MB of JSON each, and are dealt out to the ranks in turn, each with a clock of
its own, in a world of that size. The largest memory is that of the command, and of the processes that it starts, each
counted by pages it shares with others only in part (PSS); it is measured in a run of its own.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
from reading import MB, Repeated, _begun, _end, _held_bytes, _tree

from analysis.formats.kineto.reader import read_kineto
from analysis.formats.recordings.content import TraceSource, packed
from analysis.recording.header import ProcessGroup
from analysis.recording.options import ReadOptions
from analysis.recording.recording import RawTrace

EACH_MB = 54


def whole_world(found: RawTrace, rank: int, ranks: int, chance: random.Random) -> RawTrace:
    """The same trace as another rank of a job of so many, whose groups all hold every rank."""
    everyone = tuple(range(ranks))
    groups = tuple(ProcessGroup(g.name, g.description, g.backend, everyone) for g in found.header.process_groups)
    header = msgspec.structs.replace(
        found.header,
        rank=rank,
        world_size=ranks,
        process_groups=groups,
        base_ns=found.header.base_ns + chance.randrange(20_000),
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
    chance = random.Random(ranks)
    read = [read_kineto(path, ReadOptions()) for path in sources]
    for rank in range(ranks):
        found = whole_world(read[rank % len(read)], rank, ranks, chance)
        name = f"node{rank // 8}_{rank}.0001.pt.trace"
        (partial / f"{name}.ctrace").write_bytes(
            packed(found, TraceSource(f"{name}.json", "Kineto", 0), [], how="fast")
        )
    partial.rename(folder)
    return folder


def traces(given: list[Path], folder: Path, ranks: int) -> Path:
    """A folder with a trace for each rank: links to those of the first ones would all claim the same rank."""
    for rank in range(ranks):
        path = folder / f"node{rank // 8}_{rank}.0001.pt.trace.json"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            Repeated(given[rank % len(given)]).of_world(ranks).write(path, EACH_MB * MB, rank=rank)
    return folder


def measured(command: list[str]) -> tuple[float, float, float]:
    """Seconds, and the most MB that the command held itself, and its children."""
    begin = time.perf_counter()
    _end(command, _begun(command))
    seconds = time.perf_counter() - begin
    process, own, others = _begun(command), 0, 0
    while process.poll() is None:
        pids = _tree(process.pid)
        own = max(own, _held_bytes(process.pid))
        others = max(others, sum(map(_held_bytes, pids[1:])))
        time.sleep(0.05)
    _end(command, process)
    return seconds, own / MB, others / MB


def lines(args: argparse.Namespace) -> Iterator[str]:
    """A table in Markdown."""
    given = sorted(args.source.glob("*.json*"))
    base = traces(given, args.work / "base", len(given))
    sources = sorted(base.glob("*.json"))
    yield "| ranks | of | on disk MB | workers | s | MB of the command | MB of its workers |"
    yield "|---:|---|---:|---:|---:|---:|---:|"
    numbers = [int(number) for number in args.ranks.split(",")]
    plain = {int(number) for number in args.json.split(",") if number}
    for ranks in numbers:
        inputs = {"recordings": recordings(sources, args.work / f"packed-{ranks}", ranks)}
        if ranks in plain:
            inputs["JSON"] = traces(given, args.work / f"json-{ranks}", ranks)
        for what, folder in inputs.items():
            size = sum(path.stat().st_size for path in folder.iterdir()) / MB
            for workers in args.workers.split(","):
                command = [sys.executable, "-m", "analysis", args.command, "--no-cache", "--workers", workers]
                seconds, own, others = measured([*command, "-f", "csv", str(folder)])
                yield f"| {ranks:,} | {what} | {size:,.0f} | {workers} | {seconds:.1f} | {own:,.0f} | {others:,.0f} |"


def main() -> None:
    """Print the table, line by line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="a folder of Kineto traces, one per rank")
    parser.add_argument("--ranks", default="8,64,256,1024")
    parser.add_argument("--json", default="8,64", help="of these, the JSON is written and read as well")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--command", default="breakdown")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "commtrace-scale")
    for line in lines(parser.parse_args()):
        print(line, flush=True)


if __name__ == "__main__":
    main()
