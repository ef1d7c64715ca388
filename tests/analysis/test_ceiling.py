"""A ceiling from every tool that measures one, and a run compared with it."""

import json
import re

import pandas as pd
import pytest
from builders import MS, Collective, analysed, traces_of

from commtrace import analyse
from commtrace.analysis.ceilings.files import Ceiling, read_ceiling
from commtrace.analysis.core.schema import records
from commtrace.analysis.core.tables.communication import CEILING
from commtrace.analysis.errors import NotACeiling, UnreadableFile
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.tables.bandwidth import bandwidth_ceiling
from commtrace.cli import main
from commtrace.contract.comms import COMMS_TOOL

# As NVIDIA/nccl-tests src/util.cu writes it: version 2, booleans and the root as text, what was not measured as null.
ENVIRONMENT = ["PATH=\\/usr\\/bin", "NCCL_DEBUG=WARN"]


def place(time_us: float, size: int, factor: float, wrong: float | None = 0.0) -> dict:
    algbw = size / time_us / 1000
    return {
        "time": time_us,
        "alg_bw": round(algbw, 6),
        "bus_bw": round(algbw * factor, 6),
        "nwrong": wrong,
    }


def result(size: int, out: dict | None, inside: dict | None, name: str = "") -> dict:
    return {
        "size": size,
        "count": size // 4,
        "type": "float",
        "redop": "sum",
        "root": "    -1",
        "out_of_place": out,
        "in_place": inside,
        "actual_iterations": 20,
        "experiment_name": name,
    }


def nccl_tests_json(program: str, results: list[dict], *, processes: int = 1, ngpus: int = 8) -> dict:
    devices = [
        {
            "rank": rank * ngpus,
            "group": 0,
            "pid": 1000 + rank,
            "hostname": "node0",
            "device": rank * ngpus,
            "device_hex": "0000:19:00",
            "device_info": "NVIDIA H100 80GB HBM3",
        }
        for rank in range(processes)
    ]
    return {
        "version": 2,
        "start_time": "2026-01-01 12:00:00",
        "args": [f".\\/build\\/{program}", "-b", "1M", "-e", "4M", "-f", "4", "-J", "out.json"],
        "env": ENVIRONMENT,
        "nccl_version": 22805,
        "config": {
            "nthreads": 1,
            "ngpus": ngpus,
            "minimum_bytes": 1 << 20,
            "maximum_bytes": 4 << 20,
            "step_factor": 4,
            "warmup_iters": 1,
            "iterations": 20,
            "aggregated_iterations": 1,
            "validation": 1,
            "graph": 0,
            "blocking_collectives": "false",
            "per_iter_timing": "false",
            "parallel_init": "false",
            "devices": devices,
        },
        "results": results,
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 100.0, "okay": "unchecked"},
        "errors": [],
        "end_time": "2026-01-01 12:00:09",
    }


def written(folder, content: dict):
    file = folder / "ceiling.json"
    file.write_text(json.dumps(content).replace("\\\\/", "\\/"))
    return file


def rows_of(ceiling: Ceiling) -> list[tuple]:
    return [tuple(row.values()) for row in records(ceiling.table)]


# coreweave/nccl-tests pull request 43: all_reduce_perf on one GB200 NVL72 rack, as printed.
PRINTED = """\
# nccl-tests version 2.17.6 nccl-headers=22805 nccl-library=22805
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 536870912 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
{devices}
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
   536870912     134217728     float     sum      -1   1806.7  297.16  586.06      0   1835.9  292.43  576.74      0
  1073741824     268435456     float     sum      -1   3108.8  345.38  681.17      0   2924.7  367.13  724.06      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 745.53
""".replace(
    "{devices}",
    "\n".join(
        f"#  Rank {r:2} Group  0 Pid  14840 on slurm-gb200 device  {r % 4} [0x01] NVIDIA GB200" for r in range(72)
    ),
)


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "collective", "factor"),
    [
        ("all_reduce_perf", "all_reduce", 1.75),
        ("all_gather_perf", "all_gather", 0.875),
        ("reduce_scatter_perf_mpi", "reduce_scatter", 0.875),
        ("alltoall_perf", "all_to_all", 0.875),
        ("sendrecv_perf", "send_recv", 1),
        ("broadcast_perf", "broadcast", 1),
        ("gather_perf", "gather", 0.875),
    ],
)
def test_json_of_nccl_tests(tmp_path, program, collective, factor):
    results = [result(1 << 20, place(20.0, 1 << 20, factor), place(16.0, 1 << 20, factor)), result(4 << 20, None, None)]
    found = read_ceiling(written(tmp_path, nccl_tests_json(program, results)))
    expected = [(1 << 20) / 20e3 * factor, (1 << 20) / 16e3 * factor]
    assert [row[:3] for row in rows_of(found)] == [(collective, 8, 1 << 20)] * 2
    assert [row[3] for row in rows_of(found)] == pytest.approx(expected)
    assert (found.name, found.notes) == ("ceiling.json", ())


def test_ranks_of_nccl_tests_are_processes_times_their_gpus(tmp_path):
    content = nccl_tests_json("all_reduce_perf", [result(1 << 20, place(20.0, 1 << 20, 1), None)], processes=4, ngpus=2)
    content["config"]["nthreads"] = 3
    assert set(read_ceiling(written(tmp_path, content)).table["group_size"]) == {24}
    for number, device in enumerate(content["config"]["devices"]):
        device["group"] = number % 2  # NCCL_TESTS_SPLIT: two communicators of half the ranks
    assert set(read_ceiling(written(tmp_path, content)).table["group_size"]) == {12}


def test_a_switch_that_reduces_does_not_change_the_factor(tmp_path):
    # With NCCL_ALGO=NVLS nccl-tests writes (n - 1) / (n + 1) times algbw: not what the run is measured with.
    content = nccl_tests_json("all_reduce_perf", [result(1 << 20, place(20.0, 1 << 20, 7 / 9), None)])
    assert rows_of(read_ceiling(written(tmp_path, content)))[0][3] == pytest.approx((1 << 20) / 20e3 * 1.75)


def test_without_a_time_of_the_device_the_bandwidth_written_counts(tmp_path):
    one = place(20.0, 1 << 20, 1.75)
    one["cpu_time"] = one.pop("time") / 10
    found = read_ceiling(written(tmp_path, nccl_tests_json("all_reduce_perf", [result(1 << 20, one, None)])))
    assert rows_of(found)[0][3] == pytest.approx((1 << 20) / 20e3 * 1.75, rel=1e-6)


def test_wrong_results_are_no_ceiling(tmp_path):
    results = [result(1 << 20, place(20.0, 1 << 20, 1, wrong=3.0), place(40.0, 1 << 20, 1, wrong=None))]
    found = read_ceiling(written(tmp_path, nccl_tests_json("all_reduce_perf", results)))
    assert [row[3] for row in rows_of(found)] == pytest.approx([(1 << 20) / 40e3 * 1.75])
    assert found.notes == ("ceiling.json: left out 1 rows of the ceiling whose results were wrong",)


def test_sizes_of_nothing_and_figures_that_are_none_are_left_out(tmp_path):
    strange = place(20.0, 1 << 20, 1) | {"time": "nan", "alg_bw": "nan", "bus_bw": "nan"}
    results = [result(0, place(20.0, 0, 1), None), result(1 << 20, strange, place(20.0, 1 << 20, 1))]
    found = read_ceiling(written(tmp_path, nccl_tests_json("all_gather_perf", results)))
    assert [row[2] for row in rows_of(found)] == [1 << 20]


def test_text_of_nccl_tests(tmp_path):
    file = tmp_path / "all_reduce.log"
    file.write_text(PRINTED)
    rows = rows_of(read_ceiling(file))
    assert [row[:3] for row in rows] == [("all_reduce", 72, 536870912)] * 2 + [("all_reduce", 72, 1073741824)] * 2
    # The time was printed with five digits, so is what follows from it.
    assert [row[3] for row in rows] == pytest.approx([586.06, 576.74, 681.17, 724.06], rel=5e-5)
    file.write_text("".join(f"[1,0]<stdout>:{line}\n" for line in PRINTED.splitlines()))
    assert rows_of(read_ceiling(file)) == rows


def test_several_tables_in_one_file(tmp_path):
    file = tmp_path / "all.log"
    other = PRINTED.replace("all_reduce_perf", "sendrecv_perf").replace("576.74      0", "576.74    N/A")
    file.write_text(PRINTED + other)
    found = read_ceiling(file).table
    assert found["collective"].value_counts().to_dict() == {"all_reduce": 4, "send_recv": 4}
    assert set(found["group_size"]) == {72}


def test_text_with_the_times_of_single_calls(tmp_path):
    file = tmp_path / "per_iter.log"
    text = PRINTED.replace("#wrong     time", "#wrong    i_min   i_max   i_p99   i_cv%     time")
    file.write_text(text.replace("586.06      0 ", "586.06      0   1800.0   1900.0   1890.0     1.00 "))
    assert [row[3] for row in rows_of(read_ceiling(file))][:2] == pytest.approx([586.06, 576.74], rel=5e-5)


def test_comms_json_that_is_not_complete_says_so(tmp_path):
    (tmp_path / "run").mkdir()
    one = {"collective": "all_reduce", "size": 8, "in_place": place(2.0, 8, 1, wrong=0), "out_of_place": None}
    content = {"tool": COMMS_TOOL, "world_size": 2, "complete": False, "reason": "SIGINT", "results": [one]}
    (tmp_path / "run" / "comms.json").write_text(json.dumps(content))
    found = read_ceiling(tmp_path / "run")
    assert rows_of(found) == [("all_reduce", 2, 8, 0.004)]
    assert (found.name, found.notes) == ("run", ("comms.json: the ceiling is not complete: SIGINT",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "found neither JSON nor a row of nccl-tests"),
        ("\x00\xff nonsense", "found neither JSON nor a row of nccl-tests"),
        ("{}", "found other JSON"),
        ('{"results": 3}', "found other JSON"),
        ('{"results": [', "is damaged or ends early"),
        ('{"results": [], "config": {"devices": [{}]}}', "holds no measurement"),
        ('{"results": [{"size": 8, "in_place": {"time": 1}}]}', "names no devices"),
        ('{"results": [{"size": 8, "in_place": {"time": 1}}], "config": {"devices": [{}]}}', "which collective it"),
        (
            '{"results": [{"size": 8, "in_place": {"alg_bw": 1}}], "args": ["barrier"], "config": {"devices": [{}]}}',
            "no bus b",
        ),
        ('{"results": [], "tool": "commtrace comms"}', "found other JSON: Object missing required field"),
        ("\n".join(line for line in PRINTED.splitlines() if "Rank" not in line), "the number of ranks is not known"),
        ("\n".join(line for line in PRINTED.splitlines() if "starting" not in line), "which collective it measured"),
    ],
)
def test_what_is_no_ceiling(tmp_path, content, message):
    file = tmp_path / "ceiling.json"
    file.write_text(content)
    with pytest.raises(NotACeiling, match=message) as raised:
        read_ceiling(file)
    assert str(raised.value).startswith(f"{file}: ")
    assert "\n" not in str(raised.value)


def test_a_ceiling_that_is_not_there(tmp_path):
    with pytest.raises(UnreadableFile, match=r"no/comms\.json: cannot be read|no: cannot be read"):
        read_ceiling(tmp_path / "no")
    with pytest.raises(UnreadableFile, match=r"comms\.json: cannot be read"):
        read_ceiling(tmp_path)


# --- comparing -------------------------------------------------------------------------------------------------------


def ceiling_of(*rows: tuple[str, int, int, float]) -> Ceiling:
    return Ceiling("measured", CEILING.frame(dict(zip(CEILING.columns, row, strict=True)) for row in rows))


@pytest.fixture(scope="module")
def analysis(tmp_path_factory) -> Analysis:
    """all_reduce of 1 MB, 2 MB and 64 MB and an all_gather, over 2 ranks; 100 GB/s each but for the last."""
    truth = [
        Collective((0, 0), 10_000, elems=250_000),
        Collective((1 * MS,) * 2, 20_000, elems=500_000),
        Collective((2 * MS,) * 2, 640_000, elems=16_000_000),
        Collective((4 * MS,) * 2, 10_000, "all_gather", elems=250_000),
    ]
    return analysed(tmp_path_factory.mktemp("ceiling") / "run", *traces_of(2, truth))


def compared(analysis: Analysis, *rows: tuple[str, int, int, float]) -> dict[tuple[str, int], tuple]:
    table = bandwidth_ceiling(analysis.bandwidth, ceiling_of(*rows))
    columns = ("ceiling_busbw_gb_per_s", "of_ceiling_frac", "ceiling_note")
    return {(r["collective"], r["size_bytes"]): tuple(r[c] for c in columns) for r in records(table)}


def test_between_two_sizes_it_is_linear_in_the_logarithm(analysis):
    found = compared(analysis, ("all_reduce", 2, 500_000, 100.0), ("all_reduce", 2, 8_000_000, 500.0))
    assert found["all_reduce", 1_000_000][:2] == (pytest.approx(200), pytest.approx(0.5))
    assert found["all_reduce", 2_000_000][:2] == (pytest.approx(300), pytest.approx(1 / 3))


def test_at_a_measured_size_it_is_what_was_measured_and_the_largest_counts(analysis):
    same = [("all_reduce", 2, 1_000_000, value) for value in (80.0, 125.0, 110.0)]
    found = compared(analysis, *same)
    assert found["all_reduce", 1_000_000] == (125, 0.8, None)


def test_nothing_is_extrapolated_or_taken_from_others(analysis):
    found = compared(analysis, ("all_reduce", 2, 1_500_000, 100.0), ("all_reduce", 2, 3_000_000, 100.0))
    outside = "outside the sizes of the ceiling, 1,500,000 to 3,000,000 bytes"
    assert found["all_reduce", 1_000_000] == found["all_reduce", 64_000_000] == (None, None, outside)
    assert found["all_gather", 1_000_000] == (None, None, "the ceiling has no all_gather")
    found = compared(analysis, ("all_reduce", 8, 1, 100.0), ("all_reduce", 4, 1 << 30, 100.0))
    assert found["all_reduce", 1_000_000] == (None, None, "the ceiling is of 4, 8 ranks, not of 2")


def test_a_bandwidth_that_is_not_known_has_a_ceiling_all_the_same(tmp_path):
    lone = traces_of(2, [Collective((0, 0), 10_000, elems=250_000)])[:1]
    found = compared(analysed(tmp_path, *lone), ("all_reduce", 2, 1_000_000, 100.0))
    assert found["all_reduce", 1_000_000] == (100, None, "its own bandwidth is not known")


def test_of_one_rank_there_is_nothing_to_reach(analysis):
    alone = analysis.bandwidth.assign(pg_ranks="0", busbw_gb_per_s=0.0)
    table = bandwidth_ceiling(alone, ceiling_of(("all_reduce", 1, 1, 0.0), ("all_reduce", 1, 1 << 30, 0.0)))
    (row, *_) = [row for row in records(table) if row["collective"] == "all_reduce"]
    note = "the ceiling is 0: one rank alone moves nothing"
    assert (row["ceiling_busbw_gb_per_s"], row["of_ceiling_frac"], row["ceiling_note"]) == (0, None, note)


def test_the_other_columns_are_those_of_bandwidth(analysis):
    table = bandwidth_ceiling(analysis.bandwidth, ceiling_of(("all_reduce", 2, 1, 1.0)))
    pd.testing.assert_frame_equal(table[list(analysis.bandwidth.columns)], analysis.bandwidth)


# --- from the command line -------------------------------------------------------------------------------------------


@pytest.fixture
def run_and_ceiling(tmp_path):
    run = tmp_path / "run"
    for trace in traces_of(2, [Collective((k * MS,) * 2, 10_000, elems=250_000) for k in range(3)]):
        trace.write(run)
    one = {"collective": "all_reduce", "size": 1_000_000, "in_place": place(8.0, 1_000_000, 1, wrong=0)}
    content = {"tool": COMMS_TOOL, "world_size": 2, "complete": True, "results": [one]}
    (run / "comms.json").write_text(json.dumps(content))
    return run


@pytest.mark.slow
def test_bandwidth_and_summary_show_it(run_and_ceiling, capsys):
    run = str(run_and_ceiling)
    assert main(["bandwidth", "--ceiling", run, run, "-f", "json"]) == 0
    captured = capsys.readouterr()
    content = json.loads(captured.out)
    assert content["table"] == "bandwidth_ceiling"
    assert captured.err == "", "comms.json in a run directory is no trace"
    assert [(r["busbw_gb_per_s"], r["of_ceiling_frac"]) for r in content["rows"]] == [(100, 0.8)]
    assert main(["--ceiling", run, run]) == 0
    assert re.search(r"all_reduce of .* 100 GB/s, 80% of the ceiling\n", capsys.readouterr().out)
    assert main(["--all", "--ceiling", run, run]) == 0
    out = capsys.readouterr().out
    assert "ceiling      run: 1 of 1 row of bandwidth can be compared, and reach 80% to 80% of it\n" in out
    assert "Bandwidth against the ceiling" in out
    assert "of its exposed time moves data, at 80% of the ceiling" in out
    assert main([run]) == 0
    assert "ceiling" not in capsys.readouterr().out


def test_a_bad_ceiling_is_one_line(run_and_ceiling, tmp_path, capsys):
    assert main(["bandwidth", "--ceiling", str(tmp_path / "no.json"), str(run_and_ceiling)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {tmp_path}/no.json: cannot be read")
    assert captured.err.count("\n") == 1


@pytest.mark.slow
def test_from_python(run_and_ceiling):
    found = analyse(run_and_ceiling, ceiling=run_and_ceiling)
    assert found.bandwidth_ceiling["of_ceiling_frac"].tolist() == [0.8]
    without = analyse(run_and_ceiling).bandwidth_ceiling
    assert without["ceiling_note"].tolist() == ["the ceiling has no all_reduce"]
