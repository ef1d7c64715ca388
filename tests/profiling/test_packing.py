"""What becomes of traces beside a training: packed by a process of its own, kept whole or not at all."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from capturing import ROOT, environment, leftovers

from commtrace.profiling.sessions.afterwards import aside
from commtrace.profiling.sessions.afterwards.aside import run_aside
from commtrace.profiling.sessions.afterwards.packing import KeptFiles

SAMPLE = sorted((ROOT / "traces" / "resnet18-ddp-w2").glob("*.json.gz"))[0]
TRACE, RECORDING = "host_0.0000.pt.trace.json.gz", "host_0.0000.pt.trace.ctrace"


def never() -> bool:
    return False


def written(folder: Path, name: str = TRACE) -> str:
    shutil.copy(SAMPLE, folder / name)
    return name


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def finished(files: KeptFiles) -> KeptFiles:
    files.finish(never, tells=False)
    return files


@pytest.mark.slow
@pytest.mark.parametrize(("keep", "left"), [("recording", [RECORDING]), ("both", [TRACE, RECORDING])])
def test_what_is_kept(keep, left, tmp_path) -> None:
    files = KeptFiles(tmp_path, keep)
    files.add(written(tmp_path))
    assert files.names == [TRACE]
    finished(files)
    assert (files.names, files.recordings, files.reason()) == (left, [RECORDING], None)
    assert names(tmp_path) == sorted([TRACE, RECORDING]), "what a side file still names is not removed"
    assert files.discard()
    assert names(tmp_path) == sorted(left)


def test_by_default_nothing_is_packed(tmp_path) -> None:
    files = KeptFiles(tmp_path, "trace")
    files.add(written(tmp_path))
    finished(files)
    assert files.discard()
    assert (files.names, names(tmp_path), files.reason()) == ([TRACE], [TRACE], None)


@pytest.mark.slow
def test_a_trace_that_cannot_be_packed_stays_and_it_is_said_why(tmp_path, capfd, monkeypatch) -> None:
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    damaged = tmp_path / TRACE
    damaged.write_bytes(SAMPLE.read_bytes()[:20_000])
    files = KeptFiles(tmp_path, "recording")
    files.add(TRACE)
    second = "host_0.0001.pt.trace.json.gz"
    files.add(written(tmp_path, second))
    finished(files)
    assert files.discard()
    assert files.names == [TRACE, "host_0.0001.pt.trace.ctrace"]
    assert names(tmp_path) == files.names
    assert TRACE in files.reason()
    assert f"commtrace: {TRACE} was not packed, and is kept as it is: {tmp_path}" in capfd.readouterr().err


@pytest.mark.slow
def test_a_trace_that_cannot_be_removed_is_kept_and_named(tmp_path, monkeypatch) -> None:
    def refused(self: Path, *, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system")

    files = KeptFiles(tmp_path, "recording")
    files.add(written(tmp_path))
    finished(files)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refused)
        assert not files.discard()
    assert files.names == [TRACE, RECORDING]


def test_where_there_is_no_time_the_traces_stay(tmp_path) -> None:
    files = KeptFiles(tmp_path, "recording")
    for cycle in range(3):
        files.add(written(tmp_path, f"host_0.{cycle:04d}.pt.trace.json.gz"))
    files.finish(lambda: True, tells=False)
    assert files.discard()
    assert len(names(tmp_path)) == 3
    assert leftovers(tmp_path) == []
    assert "there was no time left" in files.reason()


def test_no_process_can_be_started(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    files = KeptFiles(tmp_path, "recording")
    files.add(written(tmp_path))
    finished(files)
    assert files.names == [TRACE]
    assert "no process could be started" in files.reason()


@pytest.mark.slow
def test_modules_and_settings_of_a_script_do_not_get_in_the_way(tmp_path, monkeypatch) -> None:
    for name in ("analysis", "profiling", "session", "packing"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the one of the script')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setenv("PYTHONINSPECT", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "2 ranks" in run_aside(["summary", str(SAMPLE.parent)]).out
    assert run_aside(["summary", "nothing"]).why.startswith("nothing: no such file or directory")


def test_it_gives_way(tmp_path, monkeypatch) -> None:
    """By what the system says of a process like it, which prints that in place of the analysis."""
    (tmp_path / "probe.py").write_text(
        "import os; from pathlib import Path\n"
        "from commtrace.profiling.sessions.afterwards.low_priority import give_way\n"
        "give_way()\n"
        'print(os.nice(0), Path("/proc/self/oom_score_adj").read_text(), os.environ["OMP_NUM_THREADS"])\n'
    )
    monkeypatch.setattr(aside, "calling", lambda *_: [str(tmp_path / "probe.py")])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert run_aside([]).out.split() == ["19", "1000", "1"]


@pytest.mark.slow
def test_a_training_that_is_killed_leaves_nothing_half_done(tmp_path) -> None:
    """Killed at many moments, from before the process starts until after the recording is there."""
    code = (
        "import sys; from pathlib import Path; from commtrace.profiling.sessions.afterwards.packing import KeptFiles\n"
        "files = KeptFiles(Path(sys.argv[1]), 'recording'); files.add(sys.argv[2]); print('begun', flush=True)\n"
        "files.finish(lambda: False, tells=False); print('done', flush=True)\n"
    )
    complete = 0
    for moment in range(16):
        folder = tmp_path / str(moment)
        folder.mkdir()
        written(folder)
        with subprocess.Popen(
            [sys.executable, "-c", code, str(folder), TRACE], cwd=ROOT, env=environment(), stdout=subprocess.PIPE
        ) as process:
            assert process.stdout.readline() == b"begun\n"
            time.sleep(0.05 * moment)
            process.send_signal(signal.SIGKILL)
        # SIGTERM reaches what it has started, which ends what it writes: late, where others want cores and disks.
        until = time.monotonic() + 120
        while not set(names(folder)) <= {TRACE, RECORDING} and time.monotonic() < until:
            time.sleep(0.1)
        assert TRACE in names(folder)
        assert set(names(folder)) <= {TRACE, RECORDING}
        if RECORDING in names(folder):
            complete += 1
            os.unlink(folder / TRACE)  # noqa: PTH108
            assert "1 rank" in run_aside(["summary", str(folder)]).out
    assert 0 < complete < 16
