"""Commands that read with a scheduler and workers of Dask which are other processes, in folders of their own.

They share no folder for temporary files, nor a working folder. Some are lost, stopped, or of another version.
"""

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributed import Client

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
RUN = DATA / "nccl-straggler"
COMMTRACE = (sys.executable, "-m", "commtrace")
LONG_S = 120
# Reading begins, and ends when somebody says so: a test knows then that it is in the middle of it.
HELD = """
import time
from pathlib import Path
from commtrace.analysis.results import run_reading

# Dask loads this file twice.
run_reading.__dict__.setdefault("read_at_once", run_reading.read_for_run)

def held(*given, **named):
    Path("begun").touch()
    while not Path("go").exists():
        time.sleep(0.02)
    return run_reading.read_at_once(*given, **named)

run_reading.read_for_run = held
"""


class Cluster:
    """A scheduler and its workers. Each is a process, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.file = folder / "scheduler.json"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.address = f"tcp://127.0.0.1:{found.getsockname()[1]}"
        (folder / "held.py").write_text(HELD, encoding="utf-8")

    def folder(self, name: str) -> Path:
        return self._folder / name

    def start_scheduler(self, name: str = "scheduler") -> None:
        port = self.address.rpartition(":")[2]
        self._start(name, "scheduler", "--host", "127.0.0.1", "--port", port, "--scheduler-file", str(self.file))
        with Client(self.address, timeout=LONG_S):
            pass

    def start_worker(self, name: str, *, is_held: bool = False, path: str = str(ROOT)) -> None:
        more = ["--preload", str(self._folder / "held.py")] if is_held else []
        arguments = [self.address, "--host", "127.0.0.1", "--name", name, "--nthreads", "1", "--no-nanny", *more]
        self._start(name, "worker", *arguments, path=path)

    def wait_for_workers(self, count: int) -> dict[str, str]:
        """The addresses of workers by name, once there are so many."""
        with Client(self.address, timeout=LONG_S) as client:
            client.wait_for_workers(count, timeout=LONG_S)
            workers = client.scheduler_info(n_workers=-1)["workers"]
        return {str(worker["name"]): address for address, worker in workers.items()}

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def wait_for(self, name: str, file: str) -> None:
        """Wait until a worker wrote a file."""
        wait_until((self.folder(name) / file).exists)

    def _start(self, name: str, kind: str, *arguments: str, path: str = str(ROOT)) -> None:
        folder = self.folder(name)
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *arguments, "--no-dashboard"]
        env = os.environ | {"PYTHONPATH": path, "TMPDIR": str(folder)}
        with (folder / "log").open("wb") as log:
            self.processes[name] = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=env)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def cluster(tmp_path) -> Iterator[Cluster]:
    """A scheduler that has no worker yet."""
    made = Cluster(tmp_path)
    try:
        made.start_scheduler()
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start_scheduler()
        made.start_worker("first")
        made.start_worker("second")
        made.wait_for_workers(2)
        yield made
    finally:
        made.end()


def begin(*arguments: str, cwd: Path = ROOT) -> "subprocess.Popen[str]":
    """A command, beginning."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*COMMTRACE, *arguments, "--no-cache"], cwd=cwd, env=env, text=True, **pipes)


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """The exit code, what was printed, and what was said, of a command that ends."""
    try:
        out, err = process.communicate(timeout=LONG_S)
    finally:
        process.kill()
    return process.returncode, out, err


def plain(*arguments: str) -> tuple[int, str, str]:
    return ended(begin(*arguments))


def as_json(folder: Path) -> None:
    for path in RUN.glob("*.gz"):
        (folder / path.name.removesuffix(".gz")).write_bytes(gzip.decompress(path.read_bytes()))


def as_recordings(folder: Path) -> None:
    subprocess.run([*COMMTRACE, "pack", str(RUN), "-o", str(folder)], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("made", [as_json, as_recordings])
def test_commands_print_the_same(two_workers, tmp_path, made):
    run = tmp_path / "run"
    run.mkdir()
    made(run)
    for command, where in (
        (["summary"], two_workers.address),
        (["table", "kernels", "--format", "csv"], str(two_workers.file)),
    ):
        code, out, err = plain(*command, str(run))
        assert (code, bool(out)) == (0, True), err
        assert plain(*command, str(run), "--dask", where) == (code, out, err), command


@pytest.mark.parametrize("command", ["breakdown", "predict"])
def test_other_commands_print_the_same(two_workers, command):
    code, out, err = plain(command, str(RUN))
    assert (code, bool(out)) == (0, True), err
    assert plain(command, str(RUN), "--dask", two_workers.address) == (code, out, err)


def test_the_report_is_the_same(two_workers, tmp_path):
    pages = []
    for name, more in (("here", []), ("dask", ["--dask", str(two_workers.file)])):
        (tmp_path / name).mkdir()
        page = tmp_path / name / "page.html"
        code, _, err = plain("report", str(RUN), "-o", str(page), *more)
        assert code == 0, err
        pages.append(page.read_bytes())
    assert pages[0] == pages[1]


def test_a_worker_is_killed_while_it_reads(cluster):
    cluster.start_worker("lost", is_held=True)
    cluster.start_worker("other")
    cluster.wait_for_workers(2)
    process = begin("breakdown", str(RUN), "--dask", cluster.address)
    cluster.wait_for("lost", "begun")
    cluster.kill("lost")
    assert ended(process) == plain("breakdown", str(RUN))


def test_a_worker_is_stopped_for_a_while(cluster):
    cluster.start_worker("slow", is_held=True)
    cluster.start_worker("other")
    cluster.wait_for_workers(2)
    process = begin("breakdown", str(RUN), "--dask", cluster.address)
    cluster.wait_for("slow", "begun")
    cluster.processes["slow"].send_signal(signal.SIGSTOP)
    (cluster.folder("slow") / "go").touch()
    time.sleep(3)
    assert process.poll() is None
    cluster.processes["slow"].send_signal(signal.SIGCONT)
    assert ended(process) == plain("breakdown", str(RUN))


def test_a_worker_with_another_version_is_named(cluster, tmp_path):
    shim = tmp_path / "shim" / "commtrace-0.0.1.dist-info"
    shim.mkdir(parents=True)
    (shim / "METADATA").write_text("Metadata-Version: 2.1\nName: commtrace\nVersion: 0.0.1\n", encoding="utf-8")
    cluster.start_worker("new")
    cluster.start_worker("old", path=f"{shim.parent}{os.pathsep}{ROOT}")
    old = cluster.wait_for_workers(2)["old"]
    code, out, err = plain("breakdown", str(RUN), "--dask", cluster.address)
    assert (code, out) == (1, "")
    assert f"error: Dask: worker {old} has commtrace 0.0.1 instead of " in err
    assert err.endswith("; install the same everywhere\n")
    assert err.count("\n") == 1


def test_a_worker_whose_commtrace_is_broken_is_named(cluster, tmp_path):
    shim = tmp_path / "shim" / "commtrace"
    shim.mkdir(parents=True)
    (shim / "__init__.py").write_text("raise ImportError('half a copy')", encoding="utf-8")
    cluster.start_worker("broken", path=f"{shim.parent}{os.pathsep}{ROOT}")
    address = cluster.wait_for_workers(1)["broken"]
    code, out, err = plain("breakdown", str(RUN), "--dask", cluster.address)
    assert (code, out) == (1, "")
    assert f"error: Dask: worker {address} cannot use commtrace: half a copy; install commtrace " in err
    assert err.count("\n") == 1


def test_the_scheduler_is_killed_and_started_again(cluster):
    cluster.start_worker("first", is_held=True)
    cluster.wait_for_workers(1)
    process = begin("breakdown", str(RUN), "--dask", cluster.address)
    cluster.wait_for("first", "begun")
    begun = time.monotonic()
    cluster.kill("scheduler")
    code, out, err = ended(process)
    assert time.monotonic() - begun < 60
    assert (code, out) == (1, "")
    assert err == (
        "error: Dask: the connection to the scheduler is lost, and so is what its workers did; start the scheduler "
        "and its workers again, then this\n"
    )
    code, out, err = plain("breakdown", str(RUN), "--dask", str(cluster.file))
    assert (code, out) == (1, "")
    assert "no scheduler can be reached there" in err
    cluster.start_scheduler("scheduler again")
    cluster.start_worker("second")
    cluster.wait_for_workers(1)
    assert plain("breakdown", str(RUN), "--dask", str(cluster.file)) == plain("breakdown", str(RUN))


def test_no_worker_at_all(cluster):
    begun = time.monotonic()
    code, out, err = plain("breakdown", str(RUN), "--dask", cluster.address)
    assert time.monotonic() - begun < 60
    assert (code, out) == (1, "")
    assert err == (
        "error: Dask: the scheduler has no workers; start some, and this again when they are there: dask worker "
        f"{cluster.address}\n"
    )


def test_ctrl_c_ends_it_and_the_workers_go_on(cluster):
    cluster.start_worker("first", is_held=True)
    cluster.wait_for_workers(1)
    process = begin("breakdown", str(RUN), "--dask", cluster.address)
    cluster.wait_for("first", "begun")
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    assert (code, out) == (130, "")
    assert "Traceback" not in err
    (cluster.folder("first") / "go").touch()
    assert plain("breakdown", str(RUN), "--dask", cluster.address) == plain("breakdown", str(RUN))


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="a path that is another one in each process")
def test_a_worker_that_does_not_see_the_path_is_named(cluster):
    cluster.start_worker("blind")
    address = cluster.wait_for_workers(1)["blind"]
    run = f"/proc/self/cwd/{RUN.name}"
    first = f"{run}/{min(path.name for path in RUN.glob('*.gz'))}"
    code, out, err = ended(begin("breakdown", run, "--dask", cluster.address, cwd=RUN.parent))
    assert (code, out) == (1, "")
    told = f"{first}: cannot be read: No such file or directory (on Dask worker {address}; workers need the same paths)"
    assert err == f"error: {told}\n"


def test_the_file_of_a_scheduler_names_its_address(two_workers):
    assert json.loads(two_workers.file.read_text(encoding="utf-8"))["address"] == two_workers.address
