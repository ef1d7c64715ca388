"""Everything that only a machine with GPUs can show, in one command: `make gpu-check`, or `python tests/gpu/check.py`.

Prints a table of what was seen, and writes it to gpu-check.md. Takes less than 10 minutes on one GPU and on several.
`--share 2` has two ranks share one GPU (nodes.py), so that it shows what NCCL does. With `--device cpu` it does
the same on CPUs, with smaller sizes: a rehearsal, which says nothing about GPUs.
"""

import argparse
import json
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests" / "gpu"
sys.path.insert(0, str(ROOT))

from commtrace import analyse, analyse_snapshots  # noqa: E402
from commtrace.analysis.core.given_peaks import MEMORY_PEAK  # noqa: E402
from commtrace.analysis.core.schema import records  # noqa: E402
from commtrace.analysis.metrics.compute.peaks import peak  # noqa: E402

_LIMIT_S = 150.0
_ENDS_WITHIN_S = 20.0
_AGREE_FRAC = 0.05
_LARGE_BYTES = 64 << 20
_LEAST_BYTES, _SMALL_BYTES = 8, 32 << 10
_SMALL_AGREE_FRAC = 0.25  # calls of some us, of which CUDA events resolve half of one
_TIME, _IN_PLACE = 5, 9  # columns of nccl-tests with the time out of place and in place
_LATE_MS = 20
_LONG_S, _SLOW_MS = 15, 50  # a training, and a step of it, that is captured on demand, which takes some seconds
_OF_DATA_SHEET_FRAC = (0.5, 1.02)  # the least and the most that large products and copies reach
_MEMORY_STEPS = 9
_SHORT_KERNELS, _SHORT_STEPS = 120_000, 6  # more than Kineto has buffers for by default, in the traced steps


@dataclass(frozen=True)
class Seen:
    """What a check found; `ok` is None for what is only noted, or could not be checked here."""

    ok: bool | None
    what: str


@dataclass(frozen=True)
class Machine:
    """Where it runs, and the folder for run directories. `shared` says that all ranks share one GPU."""

    device: str
    ranks: int
    shared: bool
    folder: Path

    def python(self, *args: object, limit_s: float = _LIMIT_S) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, *map(str, args)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)

    def commtrace(self, *args: object) -> "subprocess.CompletedProcess[str]":
        return self.python("-m", "commtrace", *args)

    def of_ranks(self, command: str, *args: object) -> list[object]:
        """Words for `python` that run this command of commtrace on every rank."""
        if self.shared:
            return [HERE / "nodes.py", self.ranks, "-m", "commtrace", command, *args]
        return ["-m", "commtrace", command, "--workers", self.ranks, *args]

    def on_ranks(self, command: str, *args: object) -> "subprocess.CompletedProcess[str]":
        return self.python(*self.of_ranks(command, *args))

    def place(self, name: str) -> tuple[object, ...]:
        return "--device", self.device, "--out", self.folder, "--run-name", name


def last_line(done: "subprocess.CompletedProcess[str]") -> str:
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1][:160] if lines else f"exit code {done.returncode}"


def versions(machine: Machine) -> Seen:
    found = f"torch {torch.__version__}"
    if machine.device == "cpu":
        return Seen(None, f"{found}, on CPUs: a rehearsal")
    names = sorted({torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())})
    nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    sharing = f", shared by {machine.ranks} ranks" if machine.shared else ""
    count = torch.cuda.device_count()
    return Seen(None, f"{found}, CUDA {torch.version.cuda}, NCCL {nccl}, {count} x {', '.join(names)}{sharing}")


def gpu_tests(machine: Machine) -> Seen:
    if machine.device == "cpu":
        return Seen(None, "need a GPU")
    done = machine.python("-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "tests/profiling")
    return Seen(done.returncode == 0, done.stdout.strip().splitlines()[-1] if done.stdout.strip() else last_line(done))


def capture_of(mode: str) -> Callable[[Machine], Seen]:
    def check(machine: Machine) -> Seen:
        batch = 64 if machine.device == "cuda" else 4
        options = ["--parallel", mode, "--batch-size", batch, "--repeat", 2, "--steps", 22]
        run = machine.commtrace if mode in ("single", "dp") else machine.on_ranks
        done = run("train", *options, *machine.place(f"train-{mode}"))
        if done.returncode:
            return Seen(False, last_line(done))
        return whole(machine, f"train-{mode}", steps=22, cycles=2)

    return check


def own_script(machine: Machine) -> Seen:
    script = HERE / "straggler.py"
    options = ["--repeat", 2, "--wait", 2, "--active", 2, "--out", machine.folder, "--run-name", "run"]
    done = machine.on_ranks("run", *options, script, -1, 0)
    return whole(machine, "run", steps=None, cycles=2) if done.returncode == 0 else Seen(False, last_line(done))


def on_demand(machine: Machine) -> Seen:
    """The steps that `run` traces by itself, and two more that `trigger` asks for while the script runs."""
    script, run = HERE / "straggler.py", machine.folder / "long"
    options = ["--out", machine.folder, "--run-name", run.name]
    words = machine.of_ranks("run", *options, script, 0, _SLOW_MS, round(_LONG_S * 1e3 / _SLOW_MS))
    with subprocess.Popen([sys.executable, *map(str, words)], cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        asked = machine.commtrace("trigger", run, "--steps", 2)
        while asked.returncode and process.poll() is None:  # nobody listens yet
            time.sleep(2)
            asked = machine.commtrace("trigger", run, "--steps", 2)
        said = process.communicate(timeout=_LIMIT_S)[1]
    if process.returncode or asked.returncode:
        return Seen(False, f"{last_line(asked)}; {said.strip().splitlines()[-1][:160]}")
    seen = [whole(machine, run.name, steps=None, cycles=1)]
    folders = sorted(machine.folder.glob("long-step*"))
    seen += [whole(machine, folder.name, steps=None, cycles=1) for folder in folders]
    first = [int(folder.name.removeprefix("long-step")) for folder in folders]
    expected = [set(range(10, 15)), *({step, step + 1} for step in first)]
    traced = [set(analyse(machine.folder / name).steps["step"]) for name in (run.name, *(f.name for f in folders))]
    good = len(folders) == 1 and traced == expected and all(each.ok for each in seen)
    return Seen(good, f"steps {' and '.join(map(str, map(sorted, traced)))}; {'; '.join(each.what for each in seen)}")


def nccl_log(machine: Machine) -> Seen:
    """NCCL's log goes to a file for each rank, and not to the console."""
    if machine.device == "cpu":
        return Seen(None, "needs GPUs")
    done = machine.on_ranks("train", "--batch-size", 4, "--nccl-debug", "INFO", *machine.place("logged"))
    if done.returncode:
        return Seen(False, last_line(done))
    logs = sorted((machine.folder / "logged").glob("*.nccl.log"))
    said = [log for log in logs if "NCCL INFO" in log.read_text(errors="replace")]
    on_console = "NCCL INFO" in done.stderr + done.stdout
    found = f"{len(said)} of {machine.ranks} ranks have a log" + (", and it is on the console" if on_console else "")
    return Seen(len(said) == machine.ranks and not on_console, found)


def whole(machine: Machine, name: str, steps: int | None, cycles: int) -> Seen:
    """Whether a run has all step times, and in every cycle of every rank what its device did, up to the end."""
    result = analyse(machine.folder / name)
    sides = [json.loads(path.read_text()) for path in sorted((machine.folder / name).glob("*.meta.json"))]
    wrong = [f"rank {side['rank']}: {side['reason']}" for side in sides if not side["complete"]]
    wrong += [
        f"rank {side['rank']} has the times of {len(side['steps'])} of {steps} steps"
        for side in sides
        if steps is not None and len(side["steps"]) != steps
    ]
    seen = {(ran.rank, ran.cycle) for ran in result.run.tables.ran if ran.devices}
    wrong += [
        f"nothing ran in cycle {n} of rank {r['rank']}"
        for r in sides
        for n in range(cycles)
        if (r["rank"], n) not in seen
    ]
    wrong += [note for note in result.run.notes if "kernel" in note or "cut" in note]
    backends = sorted(set(result.run.traces["backend"].dropna()))
    sources = dict(result.calls["metadata_from"].value_counts())
    known = ", ".join(f"{source} {count}" for source, count in sources.items()) or "nowhere"
    text = (
        f"{len(sides)} ranks, {', '.join(backends) or 'no backend'}, {len(result.calls)} calls, metadata from {known}"
    )
    return Seen(not wrong, "; ".join(wrong[:3]) or text)


def comms(machine: Machine) -> Seen:
    largest = "1M" if machine.device == "cpu" else "128M" if machine.shared else "1G"
    options = ["all_reduce", "all_gather", "send_recv", "-b", _LEAST_BYTES, "-e", largest, "-f", 4, "--trace"]
    done = machine.on_ranks("comms", *options, *machine.place("comms"))
    if done.returncode:
        return Seen(False, last_line(done))
    large = [row for row in rows_of(machine) if row["size"] >= (_LARGE_BYTES if machine.device == "cuda" else 0)]
    apart = [
        abs(statistics.median(map(statistics.median, row["traced_times_us"])) / measured(row)["time"] - 1)
        for row in large
    ]
    found = f"traced and timed differ by {max(apart):.1%} at most, from {large[0]['size']:,} bytes up"
    return Seen(None if machine.device == "cpu" else max(apart) <= _AGREE_FRAC, found)


def ceiling_of_itself(machine: Machine) -> Seen:
    """The traces of `comms` against its own timing."""
    result = analyse(machine.folder / "comms", ceiling=machine.folder / "comms")
    unmatched = int((result.collectives["matched_by"] == "none").sum())
    reached = [row for row in records(result.bandwidth_ceiling) if row["size_bytes"] >= _LARGE_BYTES]
    parts = [row["of_ceiling_frac"] for row in reached if row["of_ceiling_frac"] is not None]
    if not parts:
        return Seen(None, f"{unmatched} collectives unmatched; no size from {_LARGE_BYTES:,} bytes up")
    good = all(abs(part - 1) <= _AGREE_FRAC for part in parts) and not unmatched
    return Seen(
        good, f"{unmatched} collectives unmatched; traces reach {min(parts):.0%} to {max(parts):.0%} of what was timed"
    )


def small_sizes(machine: Machine) -> Seen:
    """Whether ranks begin together: one that is there early measures how long the others still need."""
    rows = [row for row in rows_of(machine) if row["size"] <= _SMALL_BYTES and row["collective"] != "send_recv"]
    times = [sorted(measured(row)["time_per_rank"]) for row in rows]
    apart = [each[-1] / each[0] - 1 for each in times]
    found = f"up to {rows[-1]['size']:,} bytes the slowest rank takes {max(apart):.1%} longer than the fastest at most"
    return Seen(None if machine.device == "cpu" else max(apart) <= _SMALL_AGREE_FRAC, found)


def nccl_tests(machine: Machine) -> Seen:
    program = shutil.which("all_reduce_perf")
    if program is None or machine.device == "cpu":
        return Seen(None, "all_reduce_perf is not installed" if machine.device == "cuda" else "needs GPUs")
    command = [program, "-b", _LEAST_BYTES, "-e", "1G", "-f", "4", "-g", str(machine.ranks)]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    ours = {row["size"]: measured(row)["time"] for row in rows_of(machine) if row["collective"] == "all_reduce"}
    return beside_nccl_tests(ours, done.stdout) or Seen(False, f"no size in common: {last_line(done)}")


def beside_nccl_tests(ours_us: dict[int, float], output: str) -> Seen | None:
    """Our times of all_reduce by size beside those that `all_reduce_perf` printed; None without a size of both.

    It launches from C, on the host's clock: where a call is short, it may be launches that it measures. So ours may be
    shorter there, and not longer.
    """
    lines = [fields for line in output.splitlines() if (fields := line.split()) and fields[0].isdigit()]
    theirs_us = {int(fields[0]): float(fields[_IN_PLACE if len(fields) > _IN_PLACE else _TIME]) for fields in lines}
    both = sorted(ours_us.keys() & theirs_us.keys())
    ratios = {size: ours_us[size] / theirs_us[size] for size in both}
    if not ratios:
        return None
    most = {size: 1 + (_SMALL_AGREE_FRAC if size < _LARGE_BYTES else 2 * _AGREE_FRAC) for size in both}
    worst = max(both, key=lambda size: ratios[size] / most[size])
    return Seen(
        all(ratios[size] < most[size] for size in both),
        f"our all_reduce takes {min(ratios.values()):.2f} to {max(ratios.values()):.2f} times as long, from "
        f"{both[0]:,} bytes up; {ours_us[worst]:.1f} us instead of {theirs_us[worst]:.1f} for {worst:,} bytes",
    )


def gemm(machine: Machine) -> Seen:
    """What products of matrices and copies reach of the data sheet."""
    sizes = ["--size", 8192] if machine.device == "cuda" else ["--dtype", "float32", "--size", 256, "--copy", "16MiB"]
    done = machine.commtrace("gemm", *sizes, *machine.place("gemm"))
    if done.returncode:
        return Seen(False, last_line(done))
    entries = json.loads((machine.folder / "gemm" / "gemm.json").read_text())["results"]
    reached = {entry["name"]: entry["tflop_per_s"] or entry["tb_per_s"] for entry in entries if not entry["reason"]}
    sheet = peak(torch.cuda.get_device_name(0)) if machine.device == "cuda" else None
    if sheet is None:
        return Seen(None, ", ".join(f"{name} {value:,.3g}" for name, value in reached.items()))
    limits = {name: sheet.tb_per_s if name == MEMORY_PEAK else sheet.of(name) for name in reached}
    parts = {name: reached[name] / limit for name, limit in limits.items() if limit}
    least, most = _OF_DATA_SHEET_FRAC
    found = ", ".join(f"{name} {reached[name]:,.3g} ({part:.0%} of the data sheet)" for name, part in parts.items())
    return Seen(bool(parts) and all(least <= part <= most for part in parts.values()), found)


def flops(options: list[str]) -> Callable[[Machine], Seen]:
    """FLOPs of a traced step beside those that torch counts, and the MFU."""

    def check(machine: Machine) -> Seen:
        run = machine.folder / "-".join(["gpt", *options])
        done = machine.on_ranks("run", "--out", machine.folder, "--run-name", run.name, HERE / "gpt.py", *options)
        if done.returncode:
            return Seen(False, last_line(done))
        counted = int(re.findall(r"^flops (\d+)$", done.stdout, re.MULTILINE)[0])
        result = analyse(run, details=True)
        (traced,) = {round(row["tflop"] * 1e12) for row in records(result.mfu_steps)}
        reached = ", ".join(f"{row['mfu_frac']:.1%}" for row in records(result.mfu) if row["mfu_frac"] is not None)
        found = f"{traced:,} FLOPs a step in the trace, {counted:,} by torch; MFU {reached or 'unknown'}"
        return Seen(None if machine.device == "cpu" else traced == counted, found)

    return check


def short_kernels(machine: Machine) -> Seen:
    """Whether the profiler keeps all kernels where a step has very many."""
    name = "kernels"
    options = ["--from-step", 2, "--active", 2, "--out", machine.folder, "--run-name", name]
    count = _SHORT_KERNELS if machine.device == "cuda" else 1000
    done = machine.commtrace("run", *options, HERE / "kernels.py", count, _SHORT_STEPS)
    if done.returncode:
        return Seen(False, last_line(done))
    result = analyse(machine.folder / name)
    seen = sum(int(row["calls"]) for row in records(result.kernels) if "add" in row["name"].lower())
    notes = "; ".join(note for note in result.run.notes if "kernel" in note or "cut" in note)
    found = "; ".join(filter(None, [f"{seen:,} short kernels in 2 steps that launch {count:,} each", notes]))
    return Seen(None if machine.device == "cpu" else seen >= 2 * count and not notes, found)


def memory(machine: Machine) -> Seen:
    """Whether the snapshot of an error has the peak that torch counts, and the request that failed."""
    run = machine.folder / "memory"
    options = ["--memory", "--from-step", 2, "--active", 3, "--out", machine.folder, "--run-name", run.name]
    done = machine.commtrace("run", *options, HERE / "memory.py", _MEMORY_STEPS)
    if machine.device == "cpu":
        return Seen(None, last_line(done))
    [side] = (json.loads(path.read_text()) for path in run.glob("*.meta.json"))
    counted = max(one["peak_allocated_bytes"] for one in side["step_memory"])
    found = analyse_snapshots(run)
    [told], [fragments] = records(found.memory), records(found.fragments)
    failed = fragments["failed_request_bytes"]
    what = f"peak {told['peak_allocated_bytes']:,} bytes, torch {counted:,}; failed request {failed or 'none'}"
    named = "OutOfMemoryError" in (side["memory_snapshot_reason"] or "")
    return Seen(told["peak_allocated_bytes"] == counted and bool(failed) and named and done.returncode != 0, what)


def rows_of(machine: Machine) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((machine.folder / "comms" / "comms.json").read_text())["results"]
    return rows


def measured(row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = row["in_place"] or row["out_of_place"]
    return found


def ended_by(signum: signal.Signals) -> Callable[[Machine], Seen]:
    def check(machine: Machine) -> Seen:
        name = f"ended-{signum.name}"
        options = ["--wait", 1, "--warmup", 1, "--active", 5000, "--batch-size", 4]
        words = machine.of_ranks("train", *options, *machine.place(name))
        command = [sys.executable, *map(str, words)]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                next(line for line in process.stderr if "traced" in line and line.startswith("step"))
                time.sleep(2)
                begun_s = time.monotonic()
                process.send_signal(signum)
                process.communicate(timeout=60)
            except (StopIteration, subprocess.TimeoutExpired):
                process.kill()
                return Seen(False, "it did not end within 60 s, or traced nothing")
        took_s, traces = time.monotonic() - begun_s, list((machine.folder / name).glob("*.pt.trace.json.gz"))
        good = took_s <= _ENDS_WITHIN_S and len(traces) == machine.ranks and process.returncode == 128 + signum
        return Seen(
            good, f"exit code {process.returncode} after {took_s:.1f} s, {len(traces)} traces of {machine.ranks} ranks"
        )

    return check


def straggler(machine: Machine) -> Seen:
    """Rank 1 is late in every step, and has to be named."""
    if machine.ranks < 2:
        return Seen(None, "needs 2 GPUs")
    script = HERE / "straggler.py"
    options = ["--wait", 3, "--active", 5, "--out", machine.folder, "--run-name", "late"]
    done = machine.on_ranks("run", *options, script, 1, _LATE_MS)
    if done.returncode:
        return Seen(False, last_line(done))
    found = records(analyse(machine.folder / "late").ranks)
    blamed = max(found, key=lambda row: row["caused_wait_ns"] or 0)
    per_step_ms = (blamed["caused_wait_ns"] or 0) / 5 / (machine.ranks - 1) / 1e6
    return Seen(
        blamed["rank"] == 1,
        f"rank {blamed['rank']} makes each other one wait {per_step_ms:.1f} ms a step; it sleeps {_LATE_MS}",
    )


def checks(machine: Machine) -> Iterator[tuple[str, Callable[[Machine], Seen]]]:
    yield "versions", versions
    yield "tests marked gpu", gpu_tests
    for mode in ("single", *(("ddp", "fsdp", "pipeline") if machine.ranks > 1 else ("ddp",))):
        yield f"train --parallel {mode}, 2 cycles", capture_of(mode)
    if machine.device == "cuda" and torch.cuda.device_count() > 1:
        yield "train --parallel dp, 2 cycles", capture_of("dp")
    yield "run, 2 cycles", own_script
    yield "run, and 2 steps on demand", on_demand
    yield "train --nccl-debug", nccl_log
    if machine.ranks > 1:
        yield "comms --trace", comms
        yield "comms against its own traces", ceiling_of_itself
        yield "comms of small sizes", small_sizes
        yield "comms against nccl-tests", nccl_tests
    yield "gemm", gemm
    yield "FLOPs of a GPT", flops([])
    yield "FLOPs of a compiled GPT", flops(["--compile"])
    yield "many short kernels", short_kernels
    yield "run --memory, out of memory", memory
    yield "SIGINT while tracing", ended_by(signal.SIGINT)
    yield "SIGTERM while tracing", ended_by(signal.SIGTERM)
    yield "a straggler on rank 1", straggler


def seen_by(check: Callable[[Machine], Seen], machine: Machine) -> Seen:
    try:
        return check(machine)
    except subprocess.TimeoutExpired:
        return Seen(False, f"did not end within {_LIMIT_S:.0f} s")
    except Exception as err:  # noqa: BLE001 - the other checks go on
        return Seen(False, f"{type(err).__name__}: {err}".splitlines()[0][:200])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--share", type=int, metavar="RANKS", help="have this many ranks share one GPU")
    parser.add_argument("--keep", type=Path, help="keep what was captured in this folder")
    parser.add_argument("--output", type=Path, default=Path("gpu-check.md"))
    parser.add_argument("--only", default="", metavar="REGEX", help="checks whose names match")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write(f"error: torch {torch.__version__} finds no GPU here; --device cpu rehearses the checks\n")
        return 1
    ranks = options.share or (torch.cuda.device_count() if options.device == "cuda" else 2)
    lines = ["| check | | seen | s |", "|---|---|---|---:|"]
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        machine = Machine(options.device, ranks, bool(options.share), options.keep or Path(scratch))
        for name, check in checks(machine):
            if not re.search(options.only, name):
                continue
            begun_s = time.monotonic()
            found = seen_by(check, machine)
            failed += found.ok is False
            mark = {True: "ok", False: "**wrong**", None: "-"}[found.ok]
            lines.append(f"| {name} | {mark} | {found.what.replace('|', '/')} | {time.monotonic() - begun_s:.0f} |")
            print(f"{mark:>9}  {name}: {found.what}", flush=True)
    options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{failed} wrong; the table is in {options.output}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
