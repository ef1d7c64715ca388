"""How much is recorded of traced steps: options of captures, on the CPU and as if on a GPU; a stand-in is named so."""

import re
from typing import Any

import pytest
import torch
from capturing import metas, python, trace
from torch.profiler import ProfilerActivity, profile

from commtrace import capture
from commtrace.analysis.core.schema import records
from commtrace.analysis.results.opening import analyse
from commtrace.profiling.errors import UsageError
from commtrace.profiling.sessions import profiler as profilers
from commtrace.profiling.sessions import session as sessions


def captured(folder, **options: Any) -> dict[str, Any]:
    """The side file of a capture of one step; beside it is the trace."""
    with capture(folder, wait=0, warmup=0, active=1, **options) as session:
        torch.ones(8, 8) @ torch.ones(8, 8)
        session.step()
    return metas(folder)[0]


@pytest.mark.parametrize("light", [False, True])
def test_light_leaves_out_shapes(tmp_path, light) -> None:
    meta = captured(tmp_path / "run", light=light, device="cpu")
    assert (meta["complete"], meta["profiler"]["record_shapes"]) == (True, not light)
    events = trace(tmp_path / "run" / meta["traces"][0])["traceEvents"]
    (product,) = [event for event in events if event.get("name") == "aten::mm"]
    assert ("Input Dims" in product["args"]) is not light


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"light": True, "with_stack": True}, "--light --with-stack: contradict each other"),
        ({"light": True, "profile_memory": True}, "--light --profile-memory: contradict each other"),
        ({"kineto_buffer_mb": 3}, "--kineto-buffer-mb 3: expected at least 4"),
        ({"kineto_buffer_mb": 0}, "--kineto-buffer-mb 0: expected at least 4"),
    ],
)
def test_what_cannot_be(tmp_path, options, why) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        capture(tmp_path / "run", **options)


def test_what_is_for_gpus_is_said_on_a_cpu(tmp_path, capfd) -> None:
    meta = captured(tmp_path / "run", sync_events=True, kineto_buffer_mb=64, device="cpu")
    said = "commtrace: --sync-events, --kineto-buffer-mb: only for GPUs, and this capture is of a CPU; left out\n"
    assert said in capfd.readouterr().err
    assert (meta["complete"], meta["profiler"]["sync_events"]) == (True, False)
    assert meta["profiler"]["kineto_buffer_mb"] is None


@pytest.mark.parametrize("options", [{}, {"sync_events": True, "kineto_buffer_mb": 64}], ids=["as usual", "asked for"])
def test_what_a_gpu_is_recorded_with(tmp_path, monkeypatch, options) -> None:
    given, limits = [], []

    def on_cpu(*, activities: list[ProfilerActivity], **settings: Any) -> profile:
        given.append((activities, settings))
        return profile(activities=[ProfilerActivity.CPU], **settings)

    def of_gpu(schedule, device, detail) -> profilers.Profiler:
        return profilers.Profiler(schedule, torch.device("cuda"), detail)

    monkeypatch.setattr(sessions, "Profiler", of_gpu)
    monkeypatch.setattr(profilers, "profile", on_cpu)
    monkeypatch.setattr(
        profilers, "raise_limit", lambda asked_mb, default_mb: limits.append((asked_mb, default_mb > 0))
    )
    meta = captured(tmp_path / "run", device="cpu", **options)
    ((activities, settings),) = given
    assert activities == [ProfilerActivity.CPU, ProfilerActivity.CUDA], "NCCL's kernels get metadata from operators"
    config = settings["experimental_config"]
    usual = torch._C._profiler._ExperimentalConfig
    wanted = usual(enable_cuda_sync_events=True).__getstate__() if options else None
    assert (config and config.__getstate__()) == wanted != usual().__getstate__()
    assert limits == [(options.get("kineto_buffer_mb"), True)]
    assert meta["profiler"]["sync_events"] is options.get("sync_events", False)
    assert meta["profiler"]["kineto_buffer_mb"] == options.get("kineto_buffer_mb")


@pytest.mark.slow
def test_a_light_run_of_gloo_is_measured_but_for_sizes(tmp_path) -> None:
    """Gloo says what it moves by shapes only: sizes and roots are NA, and so is what follows from them."""
    options = ("--workers", 2, "--device", "cpu", "--batch-size", 2, "--active", 2, "--steps", 5)
    done = python("-m", "commtrace", "train", "--light", *options, "--out", tmp_path, "--run-name", "run")
    assert done.returncode == 0, done.stderr
    found = analyse(tmp_path / "run")
    calls = records(found.calls)
    assert {row["collective"] for row in calls} == {"all_reduce", "broadcast"}
    assert {(row["metadata_from"], row["group_size"], row["pg_ranks"]) for row in calls} == {("c10d", 2, "0 1")}
    for unknown in ("size_bytes", "dtype", "in_elems", "root"):
        assert {row[unknown] for row in calls} == {None}
    assert records(found.bandwidth) == []
    collectives = records(found.collectives)
    assert all(row["complete"] and row["ranks"] == "0 1" for row in collectives)
    reduced = [row for row in collectives if row["collective"] == "all_reduce"]
    assert all(row["transfer_ns"] is not None and row["busbw_gb_per_s"] is None for row in reduced)
    assert any("have no size in any trace" in note for note in map(str, found.warnings))
