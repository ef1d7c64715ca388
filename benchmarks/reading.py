"""How fast, and in how much memory, are large traces read? Beside HolisticTraceAnalysis, in the same run, alternating.

python benchmarks/reading.py --source RANK0.pt.trace.json.gz          (or: make bench SOURCE=...)
python benchmarks/reading.py --source RANK0.pt.trace.json.gz --cases one,one-gz --rounds 5

Inputs are made from a real trace of one GPU rank, by repeating its events with later times and other ids, and are kept
in --work for the next run. A command is timed from the start of Python to its printed table, with its input in the page
cache; memory, in a run of its own, is the largest sum of what its processes held at one time, pages that several share
counted once (PSS).
"""

import argparse
import compileall
import copy
import gzip
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from commtrace.analysis.formats.kineto.reader import read_kineto  # noqa: E402
from commtrace.analysis.reading.cache import Cache  # noqa: E402
from commtrace.analysis.reading.trace_input import TraceInput  # noqa: E402
from commtrace.analysis.recording.options import ReadOptions  # noqa: E402

MB = 1_000_000
_HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
print(TraceAnalysis(trace_files=dict(enumerate(sys.argv[1:])), trace_dir=".").get_temporal_breakdown(visualize=False))
"""
_WHICH_HTA = """
from importlib.metadata import packages_distributions, version
name = packages_distributions()["hta"][0]
print({"HolisticTraceAnalysis": "HTA"}.get(name, name), version(name))
"""
_SHIFTED = re.compile(rb'"(ts|correlation|External id|id)": ([\d.]+)|ProfilerStep#(\d+)')
_STACK = b"""  },
  {
    "ph": "X", "cat": "python_function", "name": "torch/nn/modules/module.py(1775): _call_impl", "pid": 75, "tid": 75,
    "ts": %.3f, "dur": 20.123,
    "args": {
      "Python parent id": %d, "Python id": %d, "Ev Idx": %d
    }
"""


@dataclass(frozen=True)
class Case:
    """An input, and what is compared on it."""

    name: str
    paths: list[Path]
    hta: bool


@dataclass(frozen=True)
class Measured:
    """One command: median seconds of the rounds, and its largest memory."""

    case: str
    command: str
    json_mb: float
    seconds: float
    seconds_all: list[float]
    peak_mb: float


# --- inputs ----------------------------------------------------------------------------------------------------------


class Repeated:
    """A trace in Kineto's own layout, as often as needed."""

    def __init__(self, source: Path) -> None:
        text = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
        begin = text.index(b'"traceEvents": [') + len(b'"traceEvents": [')
        end = text.rindex(b"\n  }\n  ]")
        self.head, self.events, self.tail = text[:begin], text[begin:end], text[end:]
        times = [float(t) for t in re.findall(rb'"ts": ([\d.]+)', self.events)]
        self.length_us = statistics.quantiles(times, n=100)[98] - statistics.quantiles(times, n=100)[0]
        self.first_us = min(t for t in times if t > 0)
        self.steps = len(set(re.findall(rb"ProfilerStep#(\d+)", self.events)))

    def of_world(self, size: int) -> "Repeated":
        """The same trace, of a job with so many ranks."""
        ranks = ", ".join(map(str, range(size))).encode()
        made = copy.copy(self)
        made.head = re.sub(rb'"world_size": \d+', b'"world_size": %d' % size, self.head)
        made.head = re.sub(rb'"ranks": \[[\d, ]*\]', b'"ranks": [%s]' % ranks, made.head)
        made.head = re.sub(rb'"pg_size": \d+', b'"pg_size": %d' % size, made.head)
        made.events = re.sub(rb'"Process Group Ranks": "[^"]*"', b'"Process Group Ranks": "[%s]"' % ranks, self.events)
        made.events = re.sub(rb'"Group size": \d+', b'"Group size": %d' % size, made.events)
        return made

    def write(self, path: Path, size: int, *, rank: int = 0, stacks: bool = False) -> Path:
        """At least `size` bytes of JSON, packed if the name says so."""
        opened: Callable[..., object] = gzip.open if path.suffix == ".gz" else open
        options = {"compresslevel": 1} if path.suffix == ".gz" else {}
        partial = path.with_name(".partial-" + path.name)
        written, turn = 0, 0
        with opened(partial, "wb", **options) as file:  # type: ignore[attr-defined]
            file.write(re.sub(rb'"rank": \d+', b'"rank": %d' % rank, self.head))
            while written < size:
                piece = self._turn(turn, stacks=stacks)
                file.write(piece if turn == 0 else b"\n  }," + piece)
                written, turn = written + len(piece), turn + 1
            file.write(self.tail)
        partial.rename(path)
        return path

    def _turn(self, turn: int, *, stacks: bool) -> bytes:
        def later(found: re.Match[bytes]) -> bytes:
            key, value, step = found.groups()
            if step is not None:
                return b"ProfilerStep#%d" % (int(step) + turn * self.steps)
            if key == b"ts":
                return b'"ts": %.3f' % (float(value) + turn * self.length_us)
            return b'"%s": %d' % (key, int(value) + turn * 10_000_000)

        events = _SHIFTED.sub(later, self.events)
        if stacks:  # four frames for every hundred bytes of other events, as with_stack=True gives
            begin = self.first_us + turn * self.length_us
            frames = (_STACK % (begin + n, n, n + 1, n) for n in range(len(events) // 160))
            events += b"\n" + b"".join(frames).removesuffix(b"\n")
        return events


def cases(source: Path, work: Path, wanted: set[str]) -> list[Case]:
    """The wanted inputs, made where they are not there yet."""
    repeated = Repeated(source)
    made: list[Case] = []
    sizes = {"one": ("rank0.212mb.json", 212, False), "one-gz": ("rank0.212mb.json.gz", 212, False),
             "stacks": ("rank0.1gb.stacks.json", 1000, True)}  # fmt: skip
    for name, (file, size, stacks) in sizes.items():
        if name in wanted:
            path = work / name / file
            made.append(Case(name, [_once(path, repeated, size, stacks=stacks)], hta=not stacks))
    if "16" in wanted:
        job = repeated.of_world(16)
        paths = [_once(work / "16" / f"node_{rank}.0001.pt.trace.json.gz", job, 50, rank=rank) for rank in range(16)]
        made.append(Case("16", paths, hta=False))
    return made


def _once(path: Path, repeated: Repeated, size: int, *, rank: int = 0, stacks: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        print(f"making {path.name}", file=sys.stderr)
        repeated.write(path, size * MB, rank=rank, stacks=stacks)
    return path


# --- measuring -------------------------------------------------------------------------------------------------------


def timed(command: list[str]) -> float:
    """Seconds that a command takes; nobody looks at it meanwhile."""
    begin = time.perf_counter()
    _end(command, _begun(command))
    return time.perf_counter() - begin


def _into_page_cache(paths: list[Path]) -> None:
    """Read the files once, for it is not the disk that is measured."""
    for path in paths:
        with path.open("rb") as file, Path(os.devnull).open("wb") as nowhere:
            shutil.copyfileobj(file, nowhere, MB)


def peak_mb(command: list[str]) -> float:
    """The most that a command held with its children. To look takes a good part of a core."""
    process = _begun(command)
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(map(_held_bytes, _tree(process.pid))))
        time.sleep(0.01)
    _end(command, process)
    return peak / MB


def _begun(command: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _end(command: list[str], process: "subprocess.Popen[bytes]") -> None:
    _, complaint = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{complaint.decode()}")


def _tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(grandchild for child in children for grandchild in _tree(int(child)))]


def _held_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    held = re.search(r"^Pss: +(\d+) kB", status, re.MULTILINE)
    return int(held[1]) * 1024 if held else 0


def commands(case: Case, work: Path, others: dict[str, str]) -> dict[str, list[str]]:
    """What is compared on a case, by name; `others` are Pythons that have HTA, by its package and version."""
    files = [str(path) for path in case.paths]
    ours = [sys.executable, "-m", "commtrace", "breakdown", *files]
    named = {"commtrace": [*ours, "--no-cache"]}
    if case.name == "16":
        named["commtrace, one process"] = [*ours, "--no-cache", "--workers", "1"]
    if case.name == "stacks":
        named["commtrace, from its cache"] = [*ours, "--cache", str(work / "cache")]
    if case.hta:
        named |= {name: [python, "-c", _HTA, *files] for name, python in others.items()}
    return named


def named_hta(python: str) -> str:
    """The package and version of HTA that a Python has; HTA goes on as traceinsight, with the same modules."""
    found = subprocess.run([python, "-c", _WHICH_HTA], capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"{python} has no HTA: {found.stderr.strip().splitlines()[-1]}")
    return found.stdout.strip()


def measured(case: Case, rounds: int, work: Path, others: dict[str, str]) -> list[Measured]:
    """Every command of a case, in turn, `rounds` times for the clock; once more for the memory, which comes first."""
    named = commands(case, work, others)
    if "commtrace, from its cache" in named:
        timed(named["commtrace, from its cache"])  # which writes it
    print(f"{case.name}: memory", file=sys.stderr)
    peaks = {name: peak_mb(command) for name, command in named.items()}
    seconds: dict[str, list[float]] = {name: [] for name in named}
    for turn in range(rounds):
        for name, command in named.items():
            print(f"{case.name}: {name}, round {turn + 1} of {rounds}", file=sys.stderr)
            _into_page_cache(case.paths)
            seconds[name].append(timed(command))
    size = sum(map(_json_bytes, case.paths)) / MB
    return [
        Measured(case.name, name, size, statistics.median(seconds[name]), seconds[name], peaks[name]) for name in named
    ]


def _json_bytes(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[-4:], "little") if path.suffix == ".gz" else path.stat().st_size


def reading_alone(case: Case, rounds: int, work: Path) -> dict[str, float]:
    """What the cache saves: median seconds in the reader, in one process, with nothing around it; and their ratio."""
    options, cache = ReadOptions(), Cache(work / "cache")
    (path,) = case.paths
    cache.read(TraceInput(path), options)  # which writes it where it is not there
    anew: list[float] = []
    cached: list[float] = []
    for _ in range(rounds):
        begin = time.perf_counter()
        read_kineto(path, options)
        between = time.perf_counter()
        cache.read(TraceInput(path), options)
        anew.append(between - begin)
        cached.append(time.perf_counter() - between)
    first, second = statistics.median(anew), statistics.median(cached)
    return {"seconds": first, "cached_seconds": second, "time_ratio": first / second}


# --- output ----------------------------------------------------------------------------------------------------------


def rows(results: list[Measured]) -> list[dict[str, Any]]:
    """With ratios to `commtrace` on the same input: how many times as long, or as large."""
    base = {result.case: result for result in results if result.command == "commtrace"}
    return [
        asdict(result)
        | {
            "mb_per_s": result.json_mb / result.seconds,
            "time_ratio": result.seconds / base[result.case].seconds,
            "memory_ratio": result.peak_mb / base[result.case].peak_mb,
        }
        for result in results
    ]


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    head = ("| input | command | JSON MB | s | MB/s | peak MB | time ratio | memory ratio |", "|---|---|" + "---:|" * 6)
    line = (
        "| {case} | {command} | {json_mb:,.0f} | {seconds:.2f} | {mb_per_s:,.0f} | {peak_mb:,.0f} | {time_ratio:.1f} | "
        "{memory_ratio:.1f} |"
    )
    return "\n".join((*head, *(line.format(**row) for row in rows)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="a Kineto trace of one GPU rank, as torch wrote it")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "commtrace-bench")
    parser.add_argument("--cases", default="one,one-gz,stacks,16", help="of: one, one-gz, stacks, 16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--hta", nargs="+", default=[sys.executable], metavar="PYTHON", help="Pythons that have HTA, or traceinsight"
    )
    parser.add_argument("--json", type=Path, help="also write the results there")
    args = parser.parse_args()
    if not args.source.is_file():
        parser.error(f"{args.source} is no file; name a trace of one GPU rank: --source, or make bench SOURCE=...")
    compileall.compile_dir(ROOT / "analysis", quiet=1, force=True)  # as installing does, even where Python may not
    results: list[Measured] = []
    chosen = cases(args.source, args.work, set(args.cases.split(",")))
    for case in chosen:
        results += measured(case, args.rounds, args.work, {named_hta(each): each for each in args.hta})
    found: dict[str, Any] = {"results": rows(results)}
    print(table(found["results"]))
    for case in chosen:
        if case.name == "stacks":
            found["reader_alone"] = alone = reading_alone(case, args.rounds, args.work)
            print(f"\n{case.name}, the reader alone: {alone['seconds']:.2f} s; from its cache "
                  f"{alone['cached_seconds']:.3f} s, {alone['time_ratio']:.0f} times as fast")  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
