"""Cut GPU traces: texts as Kineto writes them stand in for those of a GPU, and a flag for Kineto that has stopped."""

import os
from pathlib import Path

import pytest
import torch
from capturing import metas, python, three, trace, traced_steps
from samples import with_slow

from commtrace.common.memory import free_bytes
from commtrace.profiling.base import torch_private
from commtrace.profiling.sessions import kineto_buffers
from commtrace.profiling.sessions import session as sessions
from commtrace.profiling.sessions.gpu_reach import cut_short
from commtrace.profiling.sessions.profiler import Profiler

STEP_US = 10_000.0
LAUNCHES = 20
KERNEL = 'void add<{lambda(float)#1}>(int, \\"x\\")'


def event(category: str, name: str, start_us: float, dur_us: float, correlation: int = 0) -> str:
    args = f'"External id": 1,"stream": 7, "correlation": {correlation}'
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": 7, "tid": 7,\n'
        f'    "ts": {start_us:.3f}, "dur": {dur_us:.3f},\n    "args": {{\n      {args}\n    }}\n  }}'
    )


def steps_of(count: int, *, kernels_until: float = 1e9, launches_until: float = 1e9, operators_until: float = 1e9):
    """Events of steps that launch a kernel every 400 us; each part ends at some time in us."""
    for step in range(count):
        begin = 1_000_000.0 + step * STEP_US
        yield event("user_annotation", f"ProfilerStep#{step + 3}", begin, STEP_US)
        for number in range(LAUNCHES):
            at = begin + 400.0 * number
            if at < 1_000_000.0 + operators_until:
                yield event("cpu_op", "aten::add_", at, 60.0)
            if at < 1_000_000.0 + launches_until:
                yield event("cuda_runtime", "cudaLaunchKernel", at + 20, 8.0, step * LAUNCHES + number)
            if at < 1_000_000.0 + kernels_until:
                yield event(
                    "kernel", 'void add<{lambda(float)#1}>(int, \\"x\\")', at + 900, 350.0, step * LAUNCHES + number
                )


@pytest.fixture
def written(tmp_path):
    """Writes events as a trace."""

    def write(*events: str) -> Path:
        path = tmp_path / "trace.json"
        path.write_text('{\n  "traceEvents": [\n' + ",\n".join(events) + "\n  ]\n}\n")
        return path

    return write


@pytest.mark.parametrize("count", [1, 3])
def test_a_trace_that_is_whole(written, count) -> None:
    assert cut_short(written(*steps_of(count))) is None


@pytest.mark.parametrize(("count", "until_us", "missing"), [(1, 4_000, 10), (3, 22_000, 15), (3, 0, 60)])
def test_kernels_that_are_launched_and_missing(written, count, until_us, missing) -> None:
    found = cut_short(written(*steps_of(count, kernels_until=until_us)))
    assert found == f"the last {missing} kernels that were launched are not in it"


def test_launches_are_missing_too(written) -> None:
    found = cut_short(written(*steps_of(3, kernels_until=21_000, launches_until=21_000)))
    assert found == "the GPU's activity ends 8.0 ms before the last step, and operators go on"


def test_a_program_that_stands_still_cuts_no_trace(written) -> None:
    ends = {"kernels_until": 21_000, "launches_until": 21_000, "operators_until": 21_000}
    assert cut_short(written(*steps_of(3, **ends))) is None


def test_what_the_profiler_opened_last_is_no_step(written) -> None:
    rest = event("user_annotation", "ProfilerStep#6", 1_000_000.0 + 3 * STEP_US, 200.0)
    operators = [event("cpu_op", "aten::add_", 1_000_000.0 + 3 * STEP_US + number, 0.5) for number in range(50)]
    assert cut_short(written(*steps_of(3), rest, *operators)) is None


def test_a_trace_of_cpus_only(written) -> None:
    assert cut_short(written(*steps_of(3, kernels_until=0, launches_until=0))) is None
    assert cut_short(written()) is None


RAISES = """
import os, torch
from commtrace.profiling.sessions.kineto_buffers import raise_limit
before = set(os.listdir("/tmp"))
raise_limit()
raise_limit()
assert set(os.listdir("/tmp")) == before
os.environ["KINETO_LOG_LEVEL"] = "0"
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
    pass
"""


@pytest.mark.parametrize(
    ("own", "shown"),
    with_slow(
        [("SOMETHING_NEW=11\n", "Max GPU buffer size: 2048MB")],
        [
            (None, "Max GPU buffer size: 2048MB"),
            ("# mine\nACTIVITIES_MAX_GPU_BUFFER_SIZE_MB = 64", "Max GPU buffer size: 64MB"),
        ],
    ),
    ids=["a file of the user's", "no file", "a limit of the user's"],
)
def test_kineto_reads_the_limit(tmp_path, monkeypatch, own, shown) -> None:
    monkeypatch.delenv("KINETO_CONFIG", raising=False)
    if own is not None:
        (tmp_path / "kineto.conf").write_text(own)
        monkeypatch.setenv("KINETO_CONFIG", str(tmp_path / "kineto.conf"))
    done = python("-c", RAISES)
    assert done.returncode == 0, done.stderr
    assert shown in done.stderr
    if own and "NEW" in own:
        assert "Unrecognized config line: SOMETHING_NEW=11" in done.stderr


def test_a_file_that_cannot_be_read_stays(tmp_path, monkeypatch) -> None:
    def refused(*args: object, **options: object) -> str:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "kineto.conf").write_text("")
    env = {"KINETO_CONFIG": str(tmp_path / "kineto.conf")}
    monkeypatch.setattr(Path, "read_text", refused)
    kineto_buffers.raise_limit(env=env)
    assert env == {"KINETO_CONFIG": str(tmp_path / "kineto.conf")}


def test_a_child_has_a_limit_of_its_own(tmp_path) -> None:
    """It outlives its parent, whose memory the variable names."""
    env: dict[str, str] = {}
    kineto_buffers.raise_limit(env=env)
    first = env["KINETO_CONFIG"].replace("/fd/", f"/task/{os.getpid()}/fd/")  # as if it were another process's
    env["KINETO_CONFIG"] = first
    kineto_buffers.raise_limit(env=env)
    assert env["KINETO_CONFIG"] != first
    assert Path(env["KINETO_CONFIG"]).read_text() == Path(first).read_text()
    for name in (first, env["KINETO_CONFIG"]):
        os.close(int(Path(name).name))


def test_what_is_asked_for_goes_before_a_limit_of_the_users(tmp_path) -> None:
    (tmp_path / "kineto.conf").write_text("FIRST=1\nACTIVITIES_MAX_GPU_BUFFER_SIZE_MB = 64\nLAST=2")
    env = {"KINETO_CONFIG": str(tmp_path / "kineto.conf")}
    kineto_buffers.raise_limit(512, env)
    ours = env["KINETO_CONFIG"]
    assert Path(ours).read_text().split() == ["FIRST=1", "LAST=2", "ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB=512"]
    assert "= 64" in (tmp_path / "kineto.conf").read_text()
    kineto_buffers.raise_limit(8, env)
    kineto_buffers.raise_limit(env=env)
    assert env["KINETO_CONFIG"] == ours, "Kineto asks for the name once in a process"
    assert Path(ours).read_text().split() == ["FIRST=1", "LAST=2", "ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB=8"]
    os.close(int(Path(ours).name))


@pytest.fixture
def examined(monkeypatch) -> None:
    """Has sessions of the CPU examine their traces as if they were of a GPU."""
    monkeypatch.setattr(sessions, "GpuRecord", lambda _: kineto_buffers.GpuRecord(torch.device("cuda")))


@pytest.mark.usefixtures("examined")
@pytest.mark.parametrize("sign", ["flag", "trace", None])
def test_a_cut_trace_is_not_complete(tmp_path, monkeypatch, sign) -> None:
    if sign == "trace":
        monkeypatch.setattr(kineto_buffers.gpu_reach, "cut_short", lambda path: f"{path.suffix} ends early")
    with three(tmp_path / "run", device="cpu") as session:
        for step in range(6):
            # It stays on from one profiler to the next: outside of our cycle it says nothing.
            monkeypatch.setattr(torch.autograd, "_is_kineto_stopped", lambda on=step in (0, 3): on and sign == "flag")
            torch.ones(8, 8) @ torch.ones(8, 8)
            session.step()
    meta = metas(tmp_path / "run")[0]
    reason = {
        "flag": "Kineto stopped recording the GPU by step 3, because its buffers were full; trace fewer steps",
        "trace": "a trace is cut short: .tmp ends early; trace fewer steps",
        None: None,
    }[sign]
    assert (meta["complete"], meta["reason"]) == (sign is None, reason)
    assert traced_steps(trace(session.run_dir / session.traces[0])) == [2, 3, 4]


def test_torch_tells_whether_kineto_has_stopped() -> None:
    assert torch_private.kineto_has_stopped() is False


class OfTorch(Profiler):
    """One of the CPU, which torch itself takes for one of a GPU once it has been prepared."""

    def step(self) -> None:
        self._torch.use_device = "cuda" if self._schedule.phase(self.steps_done) == "active" else None
        super().step()


@pytest.mark.usefixtures("examined")
@pytest.mark.skipif(not hasattr(torch.profiler.ProfilerAction, "DEVICE_STOPPED"), reason="this torch does not end it")
def test_a_cycle_that_torch_ends_early_is_no_displaced_one(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sessions, "Profiler", OfTorch)
    with three(tmp_path / "run", device="cpu", active=4, repeat=2) as session:
        for step in range(13):
            monkeypatch.setattr(torch.autograd, "_is_kineto_stopped", lambda on=step == 3: on)
            torch.ones(8, 8) @ torch.ones(8, 8)
            session.step()
    meta = metas(tmp_path / "run")[0]
    assert meta["reason"].startswith("Kineto stopped recording the GPU by step 3")
    steps = [traced_steps(trace(session.run_dir / name)) for name in session.traces]
    assert steps == [[2, 3], [8, 9, 10, 11]]


def test_all_ranks_of_a_host_together_take_a_part_of_its_memory() -> None:
    """Eight ranks would take 16 GiB where nobody says it."""
    assert kineto_buffers.limit_mb(8, 512 << 30) == 2048
    assert kineto_buffers.limit_mb(8, 16 << 30) == 512
    assert kineto_buffers.limit_mb(8, 1 << 30) == 128  # as much as Kineto takes without us
    assert kineto_buffers.limit_mb(1, None) == 2048


def test_free_memory_is_that_of_the_container(tmp_path) -> None:
    assert free_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 900 kB\nMemAvailable: 700 kB\n")
    assert free_bytes(tmp_path) == 700 * 1024
    cgroup = tmp_path / "sys/fs/cgroup"
    cgroup.mkdir(parents=True)
    (cgroup / "memory.current").write_text("1000\n")
    (cgroup / "memory.max").write_text("max\n")
    assert free_bytes(tmp_path) == 700 * 1024
    (cgroup / "memory.max").write_text("5000\n")
    assert free_bytes(tmp_path) == 4000
    (cgroup / "memory.stat").write_text("anon 100\ninactive_file 600\nactive_file 300\n")  # files that were read once
    assert free_bytes(tmp_path) == 4600
    (cgroup / "memory.current").write_text("9000\n")
    assert free_bytes(tmp_path) == 0
