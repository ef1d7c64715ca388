"""Measure products of matrices and copies on each device, and record each at once."""

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from ...contract.rank import STILL_RUNNING
from ...contract.single import GEMM_FILE, GemmEntry, GemmFile
from ..base import run_directory as rundir
from ..base.console import text_table
from ..base.console.messages import tell
from ..base.console.progress import Reporter
from ..errors import UsageError
from ..machine import environment, measurement, memory
from ..ranks import process_group as parallel
from ..sessions.step_clock import finish, one_by_one_ns
from .config import MEMORY, GemmConfig, GemmDtype

_HEAD = ("device", "name", "size", "median (us)", "TFLOP/s", "TB/s")
_TF32_FROM = (8, 0)
"""Compute capability of the first GPUs that have it."""


def run_gemm(config: GemmConfig, command: Sequence[str]) -> int:
    """Measure, print the table, and write gemm.json; the exit code. Raises ProfilingError."""
    if parallel.under_torchrun():
        raise UsageError("gemm measures the devices of this machine by itself; run it without torchrun")
    where = parallel.rank_device(config.device, 0)
    folder = config.run_dir(where.type)
    rundir.check_free(folder)
    rundir.create_empty(folder)
    file = GemmFile(**measurement.measurement_head("gemm", config.as_json(), where, command))
    results: list[GemmEntry] = []

    def save(reason: str | None) -> None:
        rundir.write_json(folder / GEMM_FILE, replace(file, complete=reason is None, reason=reason, results=results))

    todo = [(name, amount, device) for device in _devices(where) for name, amount in _subjects(config, where.type)]
    with measurement.recorded(save), Reporter(rank=0, steps=len(todo), unit="measurement") as reporter:
        for number, (name, amount, device) in enumerate(todo):
            what = f"{name} {amount} on {device}"
            if not reporter.advance(number, what):
                reporter.say(f"{number + 1:>3}/{len(todo)}  {what}")
            results.append(_measured(name, amount, device, config))
            save(STILL_RUNNING)
    tell("\n".join(text_table.lines(_HEAD, [_cells(entry) for entry in results], names=2)))
    for entry in results:
        if entry.reason is not None:
            print(f"{entry.device}: {entry.name} was not measured: {entry.reason}", file=sys.stderr)
    print(folder / GEMM_FILE, file=sys.stderr)
    return 0


def _devices(first: torch.device) -> list[torch.device]:
    if first.type == "cpu":
        return [first]
    return [torch.device(first.type, index) for index in range(torch.cuda.device_count())]


def _subjects(config: GemmConfig, device_type: str) -> Iterator[tuple[str, int]]:
    """Yield names with the rows of matrices, or with the bytes to copy."""
    for dtype in config.dtypes_on(device_type):
        for size in config.sizes_on(device_type):
            yield dtype, size
    yield MEMORY, config.copied_bytes_on(device_type)


def _measured(name: str, amount: int, device: torch.device, config: GemmConfig) -> GemmEntry:
    """The measurement, or why there is none: memory runs out, or the device does not take the type."""
    entry = GemmEntry(
        device=str(device),
        device_name=environment.device(device).name,
        name=name,
        rows=None if name == MEMORY else amount,
        copied_bytes=amount if name == MEMORY else None,
    )
    try:
        with _on(device), _precision(name):
            call = _copy(amount, device) if name == MEMORY else _product(name, amount, device)  # type: ignore[arg-type]
            for _ in range(config.warmup):
                call()
            finish(device)
            times_ns = one_by_one_ns(call, config.iters, device)
    except (RuntimeError, ValueError, NotImplementedError, MemoryError) as err:
        return replace(entry, reason=memory.first_line(err))
    median_ns = max(statistics.median(times_ns), 1)
    if name == MEMORY:
        return replace(entry, times_ns=times_ns, tb_per_s=2 * amount / median_ns / 1e3)
    return replace(entry, times_ns=times_ns, tflop_per_s=2 * amount**3 / median_ns / 1e3)


@contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Make this the current GPU in the block."""
    if device.type == "cpu":
        yield
        return
    with torch.cuda.device(device):
        yield


@contextmanager
def _precision(name: str) -> Iterator[None]:
    """Let products of float32 use TF32 in the block for `tf32`, and not for anything else."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _copy(size_bytes: int, device: torch.device) -> Callable[[], object]:
    source, target = (torch.zeros(size_bytes, dtype=torch.uint8, device=device) for _ in range(2))
    return lambda: target.copy_(source)


def _product(dtype: GemmDtype, size: int, device: torch.device) -> Callable[[], object]:
    """A product of random matrices, as products of zeros take less power. Raises ValueError."""
    if dtype == "tf32" and not _has_tf32(device):
        raise ValueError("this device has no TF32")
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    if dtype == "float8_e4m3fn":
        return _product_of_float8(a, b)
    if dtype != "tf32":
        a, b = (matrix.to(getattr(torch, dtype)) for matrix in (a, b))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def _product_of_float8(a: torch.Tensor, b: torch.Tensor) -> Callable[[], object]:
    """With one scale for each matrix, the second in columns, and the result in bfloat16. Raises ValueError."""
    functional = torch.nn.functional
    if not hasattr(functional, "scaled_mm"):
        raise ValueError(f"torch {torch.__version__} has no scaled_mm; 2.10 has")
    scale, recipe = torch.ones((), device=a.device), functional.ScalingType.TensorWise
    first, second = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
    return lambda: functional.scaled_mm(
        first, second, scale, recipe, scale, recipe, output_dtype=torch.bfloat16, use_fast_accum=True
    )


def _has_tf32(device: torch.device) -> bool:
    return device.type == "cuda" and (
        torch.version.hip is not None or torch.cuda.get_device_capability(device) >= _TF32_FROM
    )


def _cells(entry: GemmEntry) -> list[str]:
    amount = entry.rows if entry.rows is not None else entry.copied_bytes
    median_us = f"{statistics.median(entry.times_ns) / 1e3:,.1f}" if entry.times_ns else "NA"
    speeds = ("NA" if speed is None else f"{speed:.4g}" for speed in (entry.tflop_per_s, entry.tb_per_s))
    return [entry.device, entry.name, str(amount), median_us, *speeds]
