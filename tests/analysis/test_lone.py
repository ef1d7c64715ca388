"""One file that shows one device: the breakdown is that of all tables, and what takes those all the same."""

import subprocess
import sys
from pathlib import Path

from builders import MAIN_THREAD, MS, US, Trace
from reading_checks import assert_same_alone, lone

from commtrace.analysis.core.schema import records
from commtrace.analysis.render import as_csv
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import load_run
from commtrace.cli import main

ROOT = Path(__file__).resolve().parents[2]


def kernels() -> Trace:
    trace = Trace(rank=1, world=2).step(4, 1 * MS, 5 * MS).step(5, 5 * MS, 12 * MS)
    trace.kernel("early", 0, 1 * MS, launch=None).kernel("gemm", 2 * MS, 2 * MS)
    trace.nccl("all_reduce", 3 * MS, 3 * MS).memcpy("HtoD", 7 * MS, 1 * MS)
    return trace.kernel("gemm", 10 * MS, 1 * MS)


def test_as_by_way_of_tables(tmp_path):
    assert_same_alone(kernels().write(tmp_path))


def test_the_whole_job_waits_for_nobody(tmp_path, capsys):
    trace = Trace(0, 1).kernel("gemm", 0, 2 * MS).nccl("all_reduce", 3 * MS, 3 * MS, ranks=(0,), Seq=1)
    path = trace.write(tmp_path)
    assert lone(path) is None
    found = Analysis(load_run([path]))
    row = records(found.breakdown)[0]
    assert (row["exposed_wait_ns"], row["exposed_transfer_ns"], row["exposed_unsplit_ns"]) == (0, 3 * MS, 0)
    assert "traces of all ranks" not in found.verdicts["because"].iloc[0]
    assert records(found.ranks)[0]["times_last"] is None
    assert main(["breakdown", str(path), "-f", "csv"]) == 0
    assert capsys.readouterr().out == as_csv("breakdown", found.breakdown)
    assert lone(Trace(0, 1).kernel("gemm", 0, 2 * MS).write(tmp_path)) is not None


def test_without_steps(tmp_path, capsys):
    path = Trace().kernel("gemm", 1 * MS, 1 * MS).write(tmp_path)
    assert_same_alone(path)
    assert main(["breakdown", "--by", "step", str(path)]) == 1
    assert "no activity belongs to a step" in capsys.readouterr().err


def test_negative_durations_and_gloo_beside_the_gpu(tmp_path):
    trace = kernels().annotation("gloo:all_reduce", 1 * MS, 1 * MS)
    trace.events[-2]["dur"] = -1.0
    path = trace.write(tmp_path)
    assert_same_alone(path)
    assert len(lone(path).notes) == 2


def test_the_first_of_several_launches_counts_wherever_it_stands(tmp_path):
    trace = Trace().step(1, 0, 4 * MS).step(2, 4 * MS, 9 * MS)
    trace.event("cuda_runtime", "cudaLaunchKernel", 5 * MS, 5 * US, tid=MAIN_THREAD, correlation=trace.next_id)
    path = trace.kernel("gemm", 6 * MS, 1 * MS, launch=3 * MS).kernel("gemm", 8 * MS, 1 * MS).write(tmp_path)
    assert_same_alone(path)
    assert lone(path).breakdown_steps.columns["step"] == [1, 2]


def test_several_devices_take_all_tables(tmp_path, capsys):
    path = kernels().kernel("gemm", 3 * MS, 1 * MS, device=1).write(tmp_path)
    assert lone(path) is None
    assert main(["breakdown", str(path), "-f", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_run_on_cpus_takes_all_tables(tmp_path, capsys):
    trace = Trace(backend="gloo").step(1, 0, 5 * MS).op("aten::mm", 1 * MS, 1 * MS)
    path = trace.gloo("all_reduce", 3 * MS, 1 * MS).write(tmp_path)
    assert lone(path) is None
    assert main(["breakdown", str(path), "-f", "csv"]) == 0
    assert "0,cpu,1,1,1" in capsys.readouterr().out


def test_a_damaged_file_takes_all_tables(tmp_path, capsys):
    path = kernels().write(tmp_path, gz=False)
    path.write_bytes(path.read_bytes()[:-700])
    assert main(["breakdown", str(path)]) == 1
    assert "ends in the middle" in capsys.readouterr().err
    assert main(["breakdown", "--keep-going", str(path), "-f", "csv"]) == 1
    assert capsys.readouterr().out.splitlines()[1].endswith(",True")


def test_a_side_file_that_cannot_be_read_is_an_error(tmp_path, capsys):
    path = kernels().write(tmp_path)
    path.with_name("run.json").write_text("{")
    assert main(["breakdown", str(path)]) == 1
    assert "run.json: side file cannot be read" in capsys.readouterr().err


def test_pandas_is_not_imported(tmp_path):
    path = kernels().write(tmp_path)
    program = (
        "import sys; from commtrace.cli import main; "
        "code = main(sys.argv[1:]); sys.exit(code or 'pandas' in sys.modules)"
    )
    for output_format in ("table", "csv", "json"):
        command = [sys.executable, "-c", program, "breakdown", "--by", "step", "-f", output_format, str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout
