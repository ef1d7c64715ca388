"""`commtrace comms`: real measurements with gloo, and every way they can end."""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, get_args

import pytest
import torch
from capturing import ROOT, SCRIPTS, begun, environment, leftovers, metas, python, torchrun
from process_tree import family, listening
from samples import with_slow

from commtrace.cli import main
from commtrace.common.nccl_tests import bus_factor
from commtrace.profiling.comms.collectives import COLLECTIVES
from commtrace.profiling.comms.config import CollectiveName, CommsConfig, DtypeName, OpName, size_bytes
from commtrace.profiling.comms.facts import comms_head
from commtrace.profiling.comms.results import CommsRow

SMALL = ["--device", "cpu", "--warmup", "1", "--iters", "2"]


def measured(out, *options: object, name: str = "run") -> "subprocess.CompletedProcess[str]":
    return python("-m", "commtrace", "comms", *options, *SMALL, "--out", out, "--run-name", name)


def written(run_dir) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run_dir / "comms.json").read_text())
    return content


def place_of(result: dict[str, Any]) -> dict[str, Any]:
    (place,) = [result[key] for key in ("out_of_place", "in_place") if result[key] is not None]
    return place


def lines_of(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if not line.startswith("#")]


# --- what is measured ------------------------------------------------------------------------------------------------


FEW_DTYPES = ("float32", "float64", "int32", "int64", "uint8", "bfloat16", "float8_e4m3fn")


@pytest.fixture(scope="module", params=with_slow([FEW_DTYPES], [(("all", "float8_e4m3fn"),)]), ids=["few", "all"])
def dtypes(request) -> tuple[str, ...]:
    named: tuple[str, ...] = request.param
    return named


@pytest.fixture(scope="module")
def everything(dtypes, tmp_path_factory) -> tuple[int, Any, str]:
    """Every collective and reduction of these dtypes, on 3 ranks."""
    out = tmp_path_factory.mktemp("comms")
    options = [word for dtype in dtypes for word in ("--dtype", dtype)]
    options += ["--op", "all", "--factor", "512", "-b", "64", "-e", "32K"]
    done = measured(out, "--workers", 3, *options)
    assert done.returncode == 0, done.stderr
    return 3, out / "run", done.stdout


def test_every_collective_dtype_and_reduction_is_right(everything, dtypes) -> None:
    ranks, run_dir, _ = everything
    found = written(run_dir)
    assert (found["complete"], found["reason"], found["backend"]) == (True, None, "gloo")
    assert found["world_size"] == ranks == len(found["config"]["devices"])
    assert found["out_of_bounds"] == {"count": 0, "okay": True}
    combinations = {(r["collective"], r["type"], r["redop"]) for r in found["results"]}
    measured_dtypes = set(get_args(DtypeName)) - {"float8_e5m2"} if "all" in dtypes else set(dtypes)
    ops = get_args(OpName)
    wanted = {
        (collective, dtype, op)
        for collective in get_args(CollectiveName)
        for dtype in measured_dtypes
        for op in (ops if COLLECTIVES[collective].reduces else ("none",))
    }
    skipped = {(s["collective"], s["type"], s["redop"]) for s in found["skipped"]}
    assert combinations | skipped == wanted
    assert not combinations & skipped
    # All that gloo has, whatever later versions add to it.
    for collective in get_args(CollectiveName):
        op = "sum" if COLLECTIVES[collective].reduces else "none"
        assert {(collective, dtype, op) for dtype in ("float32", "float64", "int32", "int64", "uint8")} <= combinations


def test_what_gloo_lacks_is_said_with_its_own_words(everything) -> None:
    _, run_dir, _ = everything
    reasons = {(s["collective"], s["type"], s["redop"]): s["reason"] for s in written(run_dir)["skipped"]}
    assert reasons["all_reduce", "float8_e4m3fn", "sum"] == "gloo lacks it: Invalid scalar type"
    assert reasons["reduce", "int32", "avg"].startswith("gloo lacks it: ")


def test_sizes_are_of_the_whole_array(everything) -> None:
    ranks, run_dir, _ = everything
    for result in written(run_dir)["results"]:
        itemsize = getattr(torch, result["type"]).itemsize
        shared_out = COLLECTIVES[result["collective"]].shared_out
        assert result["size"] == result["count"] * itemsize * (ranks if shared_out else 1)
        assert any(asked * 0.6 <= result["size"] <= asked for asked in (64, 32768))
        if shared_out and result["size"] > 64:
            assert result["count"] * itemsize % 16 == 0


def test_bandwidths_are_those_of_nccl_tests(everything) -> None:
    ranks, run_dir, _ = everything
    for result in written(run_dir)["results"]:
        place = place_of(result)
        algbw = result["size"] / 1e9 / (place["time"] / 1e6)
        assert place["alg_bw"] == pytest.approx(algbw)
        assert place["bus_bw"] == pytest.approx(algbw * bus_factor(result["collective"], ranks))


def test_times_are_of_every_rank(everything) -> None:
    ranks, run_dir, _ = everything
    for result in written(run_dir)["results"]:
        place = place_of(result)
        times = place["time_per_rank"]
        assert len(times) == ranks
        assert min(times) > 0
        assert (place["time_min"], place["time_max"]) == (min(times), max(times))
        assert place["time"] == pytest.approx(sum(times) / ranks)
        assert result["actual_iterations"] == 2


def test_places_and_roots_are_torchs(everything) -> None:
    _, run_dir, _ = everything
    by_name = {r["collective"]: r for r in written(run_dir)["results"]}
    assert {name for name, r in by_name.items() if r["in_place"]} == {"all_reduce", "broadcast", "reduce"}
    assert {name for name, r in by_name.items() if r["root"] == 0} == {"broadcast", "reduce", "gather", "scatter"}
    assert {r["root"] for r in by_name.values()} == {0, -1}


def test_the_table_has_the_columns_of_nccl_tests(everything) -> None:
    _, run_dir, out = everything
    titles = [line.lstrip("#").split() for line in out.splitlines() if "busbw" in line]
    assert titles == [["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "min", "max"]] * 9
    rows, results = lines_of(out), written(run_dir)["results"]
    assert len(rows) == len(results)
    for row, result in zip(rows, results, strict=True):
        keys = ("size", "count", "type", "redop", "root")
        assert row[:5] == [str(result[key]) for key in keys]
        place = place_of(result)
        shown = [float(cell) for cell in row[5:]]
        wanted = [place[key] for key in ("time", "alg_bw", "bus_bw", "nwrong", "time_min", "time_max")]
        assert shown == pytest.approx(wanted, rel=0.06)
    assert out.splitlines()[-1] == "# Out of bounds values : 0 OK"


def test_nothing_but_comms_json_is_left(everything) -> None:
    assert [path.name for path in everything[1].iterdir()] == ["comms.json"]


def test_the_file_says_on_which_stream_a_gpu_was_measured_and_how_it_was_set_up(monkeypatch) -> None:
    """Without a GPU: the head alone."""
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    head = comms_head(CommsConfig(("all_reduce",)), torch.device("cuda"), None, ["comms"])
    assert "current stream" in head.config.stream
    assert head.config.maximum_bytes == 1 << 30
    assert {"NCCL_ALGO": "Ring", "TORCH_NCCL_BLOCKING_WAIT": "1"}.items() <= head.settings.items()
    assert comms_head(CommsConfig(("all_reduce",)), torch.device("cpu"), None, ["comms"]).config.stream is None


def test_a_row_is_what_nccl_tests_printed() -> None:
    # coreweave/nccl-tests pull request 43: all_reduce_perf on 72 ranks.
    row = CommsRow("all_reduce", 536870912, 134217728, "float32", "sum", -1, True, 20, [1806.7e3] * 72, 0)
    cells = row.line().split()
    assert cells == [
        "536870912",
        "134217728",
        "float32",
        "sum",
        "-1",
        "1806.70",
        "297.16",
        "586.06",
        "0",
        "1806.70",
        "1806.70",
    ]


# --- wrong results ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_corrupted_results_are_counted(tmp_path) -> None:
    options = ["-b", "512", "-e", "8K", "--factor", "16", "--run-name", "run", "--out", tmp_path]
    done = torchrun(2, SCRIPTS / "corrupting.py", "comms", "all_reduce", "broadcast", *SMALL, *options)
    assert done.returncode == 1
    found = written(tmp_path / "run")
    wrong = {(r["collective"], r["size"]): place_of(r)["nwrong"] for r in found["results"]}
    assert wrong == {
        ("all_reduce", 512): 0,
        ("all_reduce", 8192): 2,
        ("broadcast", 512): 0,
        ("broadcast", 8192): 0,
    }
    assert found["complete"] is True
    assert found["out_of_bounds"] == {"count": 2, "okay": False}
    assert done.stdout.splitlines()[-1] == "# Out of bounds values : 2 FAILED"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: rank 0")]
    assert "2 elements of the results are wrong" in line
    assert "comms.json says which collectives and sizes" in line


# --- traces ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_traced_calls_are_others_than_the_timed_ones(tmp_path) -> None:
    done = measured(tmp_path, "all_reduce", "gather", "-b", "4K", "-e", "8K", "--trace", "--trace-iters", "3")
    assert done.returncode == 0, done.stderr
    run_dir = tmp_path / "run"
    for result in written(run_dir)["results"]:
        assert [len(times) for times in result["traced_times_us"]] == [3, 3]
    assert all(meta["complete"] for meta in metas(run_dir).values())
    assert json.loads((run_dir / "run.json").read_text())["config"]["trace_iters"] == 3
    from commtrace import analyse

    found = analyse(run_dir, ceiling=run_dir)
    calls = found.calls[found.calls["collective"] != "barrier"]
    assert calls.groupby(["rank", "collective", "size_bytes"]).size().tolist() == [3] * 8
    assert found.run.notes == ()
    compared = found.bandwidth_ceiling
    assert compared["of_ceiling_frac"].notna().all()
    assert sorted(zip(compared["collective"], compared["size_bytes"], strict=True)) == [
        (name, size) for name in ("all_reduce", "gather") for size in (4096, 8192)
    ]


# --- how it ends -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_stopped_midway_it_leaves_what_was_measured(tmp_path) -> None:
    command = ["-m", "commtrace", "comms", "all_reduce", "--device", "cpu", "--iters", "1000000"]
    options = ["-b", "8", "-e", "8", "--dtype", "int8", "--out", tmp_path, "--run-name", "run"]
    with begun(*command, *options) as process:
        file = tmp_path / "run" / "comms.json"
        while not file.exists():
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(1)
        assert listening(family(process.pid)) == {"127.0.0.1"}
        before = json.loads(file.read_text())
        assert (before["complete"], before["reason"]) == (False, "still running, or killed before it could say why")
        process.terminate()
        _, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    assert "Traceback" not in err
    found = written(tmp_path / "run")
    assert (found["complete"], found["results"], found["end_time"]) == (False, [], None)
    assert found["reason"] in ("SIGTERM", "another rank ended first, and broke a collective")
    assert leftovers(tmp_path / "run") == []


@pytest.mark.slow
def test_stopped_after_some_rows_they_are_kept(tmp_path) -> None:
    command = ["-m", "commtrace", "comms", "all_reduce", "--device", "cpu", "--iters", "30"]
    options = ["-b", "8", "-e", "1G", "--out", tmp_path, "--run-name", "run"]
    with begun(*command, *options, stderr=subprocess.DEVNULL) as process:
        rows = 0
        for line in process.stdout:
            rows += not line.startswith("#")
            if rows == 3:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stdout.read()
        process.wait(timeout=120)
    assert process.returncode == 130
    found = written(tmp_path / "run")
    shown = rows + len(lines_of(rest))
    assert found["complete"] is False
    assert [r["size"] for r in found["results"]] == [8 << k for k in range(shown)]


@pytest.mark.slow
def test_a_reader_that_has_seen_enough(tmp_path) -> None:
    command = f"{sys.executable} -m commtrace comms broadcast -e 1K {' '.join(SMALL)} --out {tmp_path} --run-name run"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | head -1"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert written(tmp_path / "run")["complete"] is True


@pytest.mark.slow
def test_nothing_that_can_be_measured(tmp_path) -> None:
    done = measured(tmp_path, "all_reduce", "--dtype", "float8_e5m2")
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: rank")]
    assert len(errors) == 2, "rank 0's, and the launcher's"
    assert "skipped all_reduce sum of float8_e5m2: gloo lacks it" in errors[0]
    assert written(tmp_path / "run")["complete"] is False


@pytest.mark.slow
def test_one_rank_sends_to_nobody(tmp_path) -> None:
    done = measured(tmp_path, "send_recv", "all_reduce", "--workers", "1", "-e", "8")
    assert done.returncode == 0, done.stderr
    found = written(tmp_path / "run")
    assert [(s["collective"], s["reason"]) for s in found["skipped"]] == [("send_recv", "needs 2 ranks")]
    assert [place_of(r)["bus_bw"] for r in found["results"]] == [0]


@pytest.mark.slow
def test_sizes_below_an_element_for_every_rank_are_skipped(tmp_path) -> None:
    done = measured(tmp_path, "all_gather", "broadcast", "-b", "2", "-e", "8")
    assert done.returncode == 0, done.stderr
    found = written(tmp_path / "run")
    assert [(r["collective"], r["size"]) for r in found["results"]] == [
        ("all_gather", 8),
        ("broadcast", 4),
        ("broadcast", 8),
    ]
    assert [(s["collective"], s["size"], s["reason"]) for s in found["skipped"]] == [
        ("all_gather", 2, "less than an element"),
        ("all_gather", 4, "less than an element for every rank"),
        ("broadcast", 2, "less than an element"),
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path) -> None:
    tmp_path.chmod(0o500)
    done = measured(tmp_path / "deep", "broadcast", "-e", "8")
    assert done.returncode == 1
    assert "cannot be written" in done.stderr


@pytest.mark.slow
def test_a_file_in_the_place_of_the_folder(tmp_path) -> None:
    (tmp_path / "out").write_text("")
    done = measured(tmp_path / "out", "broadcast", "-e", "8")
    assert done.returncode == 1
    assert f"{tmp_path}/out/run: cannot be written: Not a directory" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _alone(monkeypatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8", 8), ("512K", 512 << 10), ("64M", 64 << 20), ("1G", 1 << 30), ("1g", 1 << 30), ("64MB", 64 << 20),
        ("64MiB", 64 << 20), ("1.5k", 1536), (" 4 M ", 4 << 20), (".5K", 512), ("3.7", 3), ("10B", 10),
    ],
)  # fmt: skip
def test_sizes_are_read_as_nccl_tests_reads_them(text, expected) -> None:
    assert size_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "M", "-8", "8T", "1e3", "0x10", "8 8", "eight", "8MM", "nan", "8Ki8"])
def test_what_is_no_size(text) -> None:
    with pytest.raises(ValueError, match="is no size; expected bytes such as 8, 512K, 64M or 1G"):
        size_bytes(text)


def test_sizes_of_a_sweep() -> None:
    assert CommsConfig(("all_reduce",), min_bytes=8, max_bytes=100, factor=3).sizes_bytes("cpu") == [8, 24, 72]
    assert CommsConfig(("all_reduce",), min_bytes=8, max_bytes=8).sizes_bytes("cuda") == [8]
    assert CommsConfig(("all_reduce",)).sizes_bytes("cpu") == [8 << k for k in range(24)]
    assert CommsConfig(("all_reduce",)).sizes_bytes("cuda")[-1] == 1 << 30
    assert CommsConfig(("all_reduce",), min_bytes=2 << 30).sizes_bytes("cpu") == [2 << 30]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-b", "2M", "-e", "1M"], "--max-bytes 1048576: is below --min-bytes 2097152"),
        (["-b", "0"], "--min-bytes must be at least 1, found 0"),
        (["--factor", "1"], "--factor must be at least 2, found 1"),
        (["--iters", "0"], "--iters must be at least 1"),
        (["--warmup", "-1"], "--warmup must be at least 0"),
        (["--run-name", "a/b"], "expected one folder name"),
        (["--root", "2", "--workers", "2", "--device", "cpu"], "--root 2: there are 2 ranks, counted from 0"),
        (["--backend", "nccl", "--device", "cpu"], "nccl"),
        (["--backend", "smoke", "--device", "cpu"], "--backend smoke: this torch knows"),
        (["--backend", "mpi", "--device", "cpu"], "--backend mpi: "),
    ],
)
def test_options_that_cannot_be(options, message, capsys) -> None:
    assert main(["comms", *options]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert message in err


@pytest.mark.parametrize(
    "options", [["all_shuffle"], ["--dtype", "float4"], ["--op", "mean"], ["-b", "8T"], ["--nope"], ["--workers", "0"]]
)
def test_unknown_words_are_usage_errors(options, capsys) -> None:
    assert main(["comms", *options]) == 2
    err = capsys.readouterr().err
    assert (err.startswith("error: "), err.endswith("; see `commtrace comms -h`\n"), err.count("\n")) == (True, True, 1)


def test_help_has_examples(capsys) -> None:
    assert main(["comms", "--help"]) == 0
    assert "torchrun --nproc-per-node 8 -m commtrace comms" in capsys.readouterr().out


def test_a_taken_run_directory_is_refused_before_ranks_start(tmp_path, capsys) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "comms.json").write_text("{}")
    assert main(["comms", "--device", "cpu", "--out", str(tmp_path), "--run-name", "old"]) == 1
    assert f"{tmp_path}/old: expected a new or empty run directory" in capsys.readouterr().err
    assert (tmp_path / "old" / "comms.json").read_text() == "{}"


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="needs a GPU: would measure with NCCL and CUDA events, check results on the device, and trace its kernels",
)
def test_nccl(tmp_path) -> None:
    options = ["--dtype", "float32", "--dtype", "bfloat16", "-b", "1K", "-e", "1M", "--factor", "32", "--trace"]
    done = python("-m", "commtrace", "comms", *options, "--out", tmp_path, "--run-name", "run")
    assert done.returncode == 0, done.stderr
    found = written(tmp_path / "run")
    assert (found["backend"], found["world_size"]) == ("nccl", torch.cuda.device_count())
    assert found["out_of_bounds"]["count"] == 0
    wanted = set(get_args(CollectiveName)) - ({"send_recv"} if torch.cuda.device_count() == 1 else set())
    assert {r["collective"] for r in found["results"]} == wanted
