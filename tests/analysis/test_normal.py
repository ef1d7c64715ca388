"""What collectives normally reach: cells of the packaged file, and where nothing can be compared."""

from __future__ import annotations

import csv
import io
import math
import random
from importlib import resources

import pandas as pd
import pytest
from builders import MS, Collective, analysed, traces_of

from commtrace.analysis.ceilings.headroom import with_share
from commtrace.analysis.ceilings.normal import NORMAL_FROM, Machine, links_are_normal, measurements, with_normal
from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.results.opening import analyse
from commtrace.analysis.show.first_screen import first_screen
from commtrace.analysis.tables.bandwidth import BANDWIDTH

TEXT = resources.files("commtrace.analysis.ceilings").joinpath("data", "nccl.csv").read_text(encoding="utf-8")
CELLS = list(csv.reader(io.StringIO(TEXT)))[1:]
SPELLED = {"alltoall": "all_to_all"}
NAMES = {
    "a100_sxm": "NVIDIA A100-SXM4-80GB", "h100_sxm": "NVIDIA H100 80GB HBM3", "h200_sxm": "NVIDIA H200",
    "b200_sxm": "NVIDIA B200", "b300_sxm": "NVIDIA B300 SXM6 AC", "gb200": "NVIDIA GB200", "gb300": "NVIDIA GB300",
    "rtx_pro_6000_server": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
}  # fmt: skip


def machine(
    model: str = "NVIDIA H100 80GB HBM3", ranks: int = 8, version: str = "2.27.3", **changed: object
) -> Machine:
    of = {"models": [model], "hosts": dict.fromkeys(range(ranks), "node")}
    return Machine(**{**of, "nccl_versions": dict.fromkeys(range(ranks), version), **changed})


def asked(on: Machine, **row: object) -> Row:
    ranks = int(row.pop("ranks", 8))
    given = {
        "process_group": "0", "pg_ranks": " ".join(map(str, range(ranks))), "collective": "all_reduce",
        "size_bytes": 1 << 20, "dtype": "bfloat16", "calls": 1, "time_us_median": 1.0, "busbw_gb_per_s": 100.0,
    }  # fmt: skip
    (answer,) = with_normal(BANDWIDTH.frame([given | row]), on)
    return answer


def in_the_wire(collective: str, ranks: int, size: int, us: float) -> float:
    """Bus bandwidth in GB/s, by the definition of nccl-tests."""
    trips = 2 if collective == "all_reduce" else 1
    return trips * (ranks - 1) * size / ranks / (us * 1e-6) / 1e9


@pytest.mark.parametrize("cell", random.Random(60).sample(CELLS, 20), ids="-".join)
def test_a_cell_is_what_the_file_says(cell):
    gpu, nccl, collective, ranks, size, us = cell
    on = machine(NAMES[gpu], int(ranks), nccl)
    name = SPELLED.get(collective, collective)
    answer = asked(on, ranks=ranks, collective=name, size_bytes=int(size), dtype="float16")
    expected = in_the_wire(collective, int(ranks), int(size), float(us))
    assert answer["normal_busbw_gb_per_s"] == pytest.approx(expected, rel=1e-12)
    assert answer["of_normal_frac"] == pytest.approx(100.0 / expected, rel=1e-12)
    assert f"NCCL {nccl}" in answer["normal_note"]


def test_every_cell_of_the_file_is_there():
    read = sum(len(curve.sizes) for versions in measurements().values() for curve in versions.values())
    assert read == len(CELLS) == len({tuple(cell[:5]) for cell in CELLS})
    assert {cell[0] for cell in CELLS} == set(NAMES)


def test_no_bandwidth_exceeds_what_links_carry_but_with_sharp():
    """NVLink 3, 4 and 5 carry 300, 450 and 900 GB/s in one direction, PCIe 5 63 GB/s."""
    carries = {"a100": 300, "h100": 450, "h200": 450, "b200": 900, "b300": 900, "gb200": 900, "gb300": 900, "rtx": 63}
    for gpu, _, collective, ranks, size, us in CELLS:
        sharp = 1.05 if collective == "all_reduce" else 1
        limit = carries[gpu.split("_")[0]]
        assert in_the_wire(collective, int(ranks), int(size), float(us)) < sharp * limit


def test_between_two_sizes_it_is_linear_in_the_logarithm():
    times = {int(c[4]): float(c[5]) for c in CELLS if c[:4] == ["h100_sxm", "2.27.3", "all_reduce", "8"]}
    low, high = 1 << 24, 1 << 25
    size = 3 << 23
    a, b = (in_the_wire("all_reduce", 8, one, times[one]) for one in (low, high))
    expected = a + (b - a) * (math.log(size) - math.log(low)) / (math.log(high) - math.log(low))
    assert asked(machine(), size_bytes=size)["normal_busbw_gb_per_s"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("size", [1, 511, (1 << 29) + 1, 1 << 40])
def test_nothing_is_extrapolated(size):
    answer = asked(machine(), size_bytes=size)
    assert answer["normal_busbw_gb_per_s"] is None
    assert answer["of_normal_frac"] is None
    assert answer["normal_note"] == "measured were 512 to 536,870,912 bytes"


@pytest.mark.parametrize(
    "model",
    [
        "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA L40S",
        "NVIDIA A100-PCIE-40GB", "NVIDIA A800-SXM4-80GB", "NVIDIA GH200 480GB", "AMD Instinct MI300X", "NVIDIA B100",
        "Tesla V100-SXM2-32GB", "AMD EPYC", "", "NVIDIA H20",
    ],
)  # fmt: skip
def test_other_gpus_were_not_measured(model):
    answer = asked(machine(model))
    assert answer["normal_busbw_gb_per_s"] is None
    assert answer["normal_note"] == f"no measurements of {model}"


@pytest.mark.parametrize(
    ("changed", "row", "why"),
    [
        ({"models": []}, {}, "do not name the model"),
        ({"models": ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]}, {}, "of several models"),
        ({"hosts": {rank: f"node{rank // 4}" for rank in range(8)}}, {}, "on several hosts"),
        ({"hosts": {0: "node"}}, {}, "hosts that are not known"),
        ({"sharing": {3}}, {}, "share a GPU"),
        ({"nccl_versions": {}}, {}, "do not say the version of NCCL"),
        ({"nccl_versions": {0: "2.27.3", 1: "2.29.2"}}, {}, "several versions of NCCL"),
        ({}, {"ranks": 6}, "measured were 2, 4, 8 ranks, not 6"),
        ({}, {"ranks": 1}, "a single rank"),
        ({}, {"pg_ranks": None}, "ranks are not known"),
        ({}, {"dtype": "float32"}, "measured were float16 and int8, not float32"),
        ({}, {"dtype": None}, "not a dtype that is not known"),
        ({}, {"collective": "broadcast"}, "no measurements of broadcast"),
        ({}, {"collective": "send_recv", "ranks": 2}, "no measurements of send_recv"),
        ({}, {"collective": None}, "does not name the collective"),
    ],
)
def test_what_is_not_alike_is_not_compared(changed, row, why):
    answer = asked(machine(**changed), **row)
    assert answer["normal_busbw_gb_per_s"] is None
    assert answer["of_normal_frac"] is None
    assert why in answer["normal_note"]


def test_hosts_without_names_are_said_to_be_taken_for_one():
    answer = asked(machine(hosts={}))
    assert answer["normal_busbw_gb_per_s"] is not None
    assert "if all are in one host" in answer["normal_note"]


def test_the_dtype_matters_only_where_something_is_reduced():
    of = [asked(machine(), collective="all_gather", dtype=dtype) for dtype in ("float32", "int64", None, "float16")]
    assert len({answer["normal_busbw_gb_per_s"] for answer in of}) == 1
    assert of[0]["normal_busbw_gb_per_s"] is not None


@pytest.mark.parametrize(
    ("model", "own", "nearest"),
    [
        ("NVIDIA H100 80GB HBM3", "2.27.3", "2.27.3"), ("NVIDIA H100 80GB HBM3", "2.28.9", "2.29.2"),
        ("NVIDIA H100 80GB HBM3", "2.18.1", "2.27.3"), ("NVIDIA B200", "2.27.4", "2.27.3"),
        ("NVIDIA B200", "2.27.7", "2.27.5"), ("NVIDIA B200", "2.30", "2.29.2"), ("NVIDIA GB200", "2.21.5", "2.23"),
    ],
)  # fmt: skip
def test_the_nearest_version_counts(model, own, nearest):
    answer = asked(machine(model, 4, own), ranks=4)
    assert answer["normal_note"].endswith(f"NCCL {nearest}")


def test_a_row_without_bandwidth_says_so():
    answer = asked(machine(), busbw_gb_per_s=None)
    assert answer["normal_busbw_gb_per_s"] is not None
    assert answer["of_normal_frac"] is None
    assert "its own bandwidth is not known" in answer["normal_note"]


def bandwidth_of(*rows: tuple[int, float, float | None]) -> pd.DataFrame:
    """Rows with so many calls, their median time in us, and the fraction of what is normal."""
    return BANDWIDTH.frame(
        {"calls": calls, "time_us_median": us, "of_normal_frac": frac, "collective": "all_reduce", "size_bytes": size}
        for size, (calls, us, frac) in enumerate(rows)
    )


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (((10, 100.0, 0.97),), True),
        (((10, 100.0, NORMAL_FROM),), True),
        (((10, 100.0, NORMAL_FROM - 0.01),), False),
        (((10, 100.0, 0.9), (1, 50.0, None)), True),
        (((10, 100.0, 0.9), (1, 500.0, None)), False),
        (((10, 100.0, None),), False),
        ((), False),
    ],
)
def test_links_are_normal_if_nearly_all_time_is(rows, expected):
    assert links_are_normal(bandwidth_of(*rows)) is expected


def test_a_verdict_on_transfers_says_the_share():
    keys = {"process_group": "0", "pg_ranks": "0 1", "collective": "all_reduce", "dtype": "float16", "size_bytes": 8}
    verdicts = pd.DataFrame(
        [keys | {"verdict": verdict, "because": "it moves data"} for verdict in ("transfer-bound", "skew-bound")]
    )
    bandwidth = BANDWIDTH.frame([keys | {"calls": 1, "of_normal_frac": 0.714}])
    said = with_share(verdicts, bandwidth, "of_normal_frac", "what others get")
    assert said["because"].tolist() == ["it moves data, at 71% of what others get", "it moves data"]


def run_of(folder, us: float, *, version: str | None = "2.27.3"):
    """Eight H100 with two all_reduces of 128 MiB in bfloat16, each of which takes `us` to transfer."""
    calls = [Collective((at * MS,) * 8, int(us * 1000), elems=1 << 26, dtype="BFloat16") for at in (1, 11)]
    traces = traces_of(8, calls)
    for trace in traces:
        trace.host = "node"
        trace.step(0, 0, 20 * MS).kernel("gemm", 0, MS)
        if version:
            trace.nccl_version = version
    return analysed(folder, *traces)


def test_the_first_screen_says_what_others_get(tmp_path):
    run = run_of(tmp_path, 820.0)
    (row,) = records(run.bandwidth)
    normal = next(
        in_the_wire("all_reduce", 8, 1 << 27, float(c[5]))
        for c in CELLS
        if c[:5] == ["h100_sxm", "2.27.3", "all_reduce", "8", str(1 << 27)]
    )
    assert row["normal_busbw_gb_per_s"] == pytest.approx(normal)
    (rate,) = first_screen(run).rates
    assert rate.others == f"others get {normal:.0f} ({row['busbw_gb_per_s'] / normal:.0%})"
    assert rate.beside.endswith("of NVLink 4")


def test_without_a_version_the_first_screen_says_nothing_of_others(tmp_path):
    (rate,) = first_screen(run_of(tmp_path, 820.0, version=None)).rates
    assert rate.others == ""
    assert rate.normal_gb_per_s is None


@pytest.mark.slow
@pytest.mark.parametrize(("us", "advises"), [(600.0, False), (2000.0, True)])
def test_links_that_are_normal_are_not_advised_upon(tmp_path, us, advises):
    run_of(tmp_path, us)
    run = analyse(tmp_path, details=True)
    [remedy] = [row for row in records(run.remedies) if row["remedy"] == "twice_links"]
    assert remedy["gain_ns"] > 0
    assert ("NCCL settings" in remedy["how"]) is advises
    assert ("nothing to mend" in remedy["how"]) is not advises
    [verdict] = [row for row in records(run.verdicts) if row["collective"] == "all_reduce"]
    assert "of what others get at this size" in verdict["because"]
