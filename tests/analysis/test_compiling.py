"""What a run would gain had it compiled before: ranges of any compiler, drawn in size, name and place."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from builders import MS, US, Trace

from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse

_KERNELS, _PERIOD, _KERNEL = 40, 80 * US, 40 * US
_NAMES = (
    "_compile.compile_inner (dynamo_timed)",
    "CachingAutotuner.precompile (dynamo_timed)",
    "nvrtcCompileProgram",
    "KernelExecutor::compileFusion",
)


def compiling(
    place: int | None, name: str, long_ns: int, *, as_operator: bool = False, call: str | None = None
) -> Trace:
    """A rank that launches kernels, and compiles before that at `place`, half of the time in `call`."""
    trace, now = Trace(), 0
    for number in range(_KERNELS):
        if number == place:
            add = trace.op if as_operator else trace.annotation
            add(name, now, long_ns)
            add("backend_compile (dynamo_timed)", now + long_ns // 4, long_ns // 4)  # within the other
            if call is not None:
                trace.event("cuda_runtime", call, now + long_ns // 2, long_ns // 2, tid=4242)
            now += long_ns
        trace.op("aten::mm", now, 20 * US)
        trace.kernel("gemm", now + 10 * US, _KERNEL, launch=now + 2 * US)
        now += _PERIOD
    return trace


def found(folder: Path, trace: Trace) -> Analysis:
    trace.write(folder)
    return analyse(folder, details=True)


def compiled(analysis: Analysis) -> list[Row]:
    return [row for row in records(analysis.syncs) if row["kind"] == "compile"]


@pytest.mark.quick_cases("2")
@pytest.mark.parametrize("seed", range(6))
def test_what_compiles_is_listed_named_and_priced(tmp_path, seed):
    draw = random.Random(seed)
    name, long_ns = draw.choice(_NAMES), 4 * draw.randrange(1, 500) * MS
    analysis = found(tmp_path, compiling(draw.randrange(1, _KERNELS), name, long_ns, as_operator=draw.random() < 0.5))
    [row] = compiled(analysis)
    assert (row["name"], row["operator"], row["calls"], row["total_ns"]) == (name, None, 1, long_ns)
    idle = analysis.idle.iloc[0]
    assert row["lost_ns"] == idle["compile_ns"]
    usual = _KERNELS * _PERIOD - (_PERIOD - _KERNEL)
    assert idle["window_ns"] == usual + long_ns
    gains = analysis.remedies.set_index("remedy")["gain_ns"]
    assert gains["no_compilation"] == pytest.approx(long_ns, rel=0.01)
    assert gains.get("launch_ahead", 0) < usual
    verdict = records(analysis.verdicts)[0]
    assert verdict["headline"].endswith(f": compiling in `{name}` takes {long_ns / 1e6:,.1f} ms")
    assert f"; on rank 0 compiling in `{name}` takes" in verdict["because"]


@pytest.mark.slow_cases("cudaMemcpyAsync")
@pytest.mark.parametrize("call", ["cudaStreamSynchronize", "cudaMalloc", "cuModuleLoadData", "cudaMemcpyAsync"])
def test_a_call_while_something_compiles_is_not_counted_twice(tmp_path, call):
    analysis = found(tmp_path, compiling(20, _NAMES[0], 40 * MS, call=call))
    [row] = compiled(analysis)
    assert row["total_ns"] == 20 * MS
    assert sum(each["lost_ns"] for each in records(analysis.syncs)) <= analysis.idle["starved_ns"].iloc[0]
    gains = analysis.remedies.set_index("remedy")["gain_ns"]
    assert gains["no_compilation"] == pytest.approx(20 * MS, rel=0.01)


@pytest.mark.quick_cases("## Call CompiledFxGraph f1 ##")
@pytest.mark.parametrize("name", ["Torch-Compiled Region: 0/0", "compiled_forward", "## Call CompiledFxGraph f1 ##"])
def test_code_that_was_compiled_and_runs_is_not_compiling(tmp_path, name):
    analysis = found(tmp_path, compiling(None, name, 0).annotation(name, 10 * _PERIOD, 40 * MS))
    assert compiled(analysis) == []
    assert "no_compilation" not in set(analysis.remedies["remedy"])


def test_a_thread_that_compiles_beside_costs_nothing(tmp_path):
    trace = compiling(None, "", 0).annotation(_NAMES[0], 10 * _PERIOD, MS, thread=77)
    trace.event("cuda_runtime", "cuModuleLoadData", 11 * _PERIOD, US, tid=77)
    analysis = found(tmp_path, trace)
    assert [row["lost_ns"] for row in compiled(analysis)] == [0]
    assert "no_compilation" not in set(analysis.remedies["remedy"])
