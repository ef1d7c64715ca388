"""The tables of five published reports from their published timings, through the formulas of the project.

Where their arithmetic was right, ours gives the digits they printed; where it was not, a test shows theirs and ours.
What they published without the timings it came from is named and not checked. Printed numbers stand as text, so that
their digits count.
"""

import math
from collections.abc import Iterable
from pathlib import Path

import pytest

from commtrace import analyse_sweep
from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.sweeps.by_hand import Estimate
from commtrace.common.nccl_tests import bus_factor

CIFAR10 = 50_000
CIFAR_RESNET18, TORCHVISION_RESNET18 = 11_173_962, 11_689_512

Cell = tuple[int, int]  # batch size per GPU, GPUs

# Seconds of an epoch on 1, 2 and 4 GPUs, by batch size per GPU.
A_SECONDS = {32: ("16.10", "41.32", "24.85"), 128: ("8.37", "10.53", "9.29"), 512: ("9.19", "8.78", "8.76")}
C_SECONDS = {32: ("38", "67", "121"), 128: ("16", "18", "30"), 512: ("13", "9", "11"), 2048: ("13", "10", "11")}
D_SECONDS = {
    32: ("48.612", "30.819", "30.822"),
    128: ("27.224", "20.923", "19.878"),
    512: ("25.945", "15.664", "15.127"),
}


def agrees(value: float, printed: str) -> bool:
    """Whether `value` is `printed` to its last digit; a tie may be rounded either way."""
    last_digit = 10.0 ** -len(printed.partition(".")[2])
    return abs(value - float(printed)) <= 0.5 * last_digit * (1 + 1e-9)


class Tables:
    """The rows of our tables for some timings, by batch size and number of GPUs; times in seconds."""

    def __init__(
        self, folder: Path, seconds: dict[int, tuple[str, ...]], parallel: str, parameters: int = CIFAR_RESNET18
    ) -> None:
        lines = ["model,parallel,workers,batch_size_per_rank,epoch_s,dataset_samples,parameters"]
        for batch, times in seconds.items():
            for workers, time in zip((1, 2, 4), times, strict=False):
                lines.append(f"resnet18,{parallel},{workers},{batch},{time},{CIFAR10},{parameters}")
        path = folder / "timings.csv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self._analysis = analyse_sweep(path)

    def scaling(self, column: str) -> dict[Cell, float]:
        return self._column(records(self._analysis.scaling), column)

    def subtraction(self, column: str) -> dict[Cell, float]:
        return self._column(records(self._analysis.subtraction), column)

    def mistake(self, name: str, column: str = "mistaken_busbw_gb_per_s") -> dict[Cell, float]:
        return self._column(records(self._analysis.mistakes([name])), column)

    @staticmethod
    def _column(rows: Iterable[Row], column: str) -> dict[Cell, float]:
        scale = 1e9 if column.endswith("_ns") else 1
        found = {(row["batch_size_per_worker"], row["workers"]): row[column] for row in rows if row["workers"] > 1}
        assert None not in found.values(), column
        return {cell: value / scale for cell, value in found.items()}


def same(ours: dict[Cell, float], printed: dict[Cell, str]) -> set[Cell]:
    """The cells in which ours and what they printed agree."""
    assert set(printed) <= set(ours)
    return {cell for cell, text in printed.items() if agrees(ours[cell], text)}


# --- report A --------------------------------------------------------------------------------------------------------

A_SPEEDUP = {(32, 2): "0.78", (32, 4): "2.59", (128, 2): "1.59", (128, 4): "3.60", (512, 2): "2.09", (512, 4): "4.20"}
A_COMPUTE = {(32, 2): "8.05", (32, 4): "4.03", (128, 2): "4.19", (128, 4): "2.09", (512, 2): "4.59", (512, 4): "2.29"}
A_COMM = {(32, 2): "33.27", (32, 4): "20.82", (128, 2): "6.34", (128, 4): "7.2", (512, 2): "4.19", (512, 4): "6.47"}
A_MESSAGE = {2: "0.044", 4: "0.065"}
A_BANDWIDTH = {
    (32, 2): "0.0013", (32, 4): "0.0031", (128, 2): "0.0069", (128, 4): "0.0090", (512, 2): "0.0105",
    (512, 4): "0.01005",
}  # fmt: skip


@pytest.fixture(scope="module")
def report_a(tmp_path_factory) -> Tables:
    return Tables(tmp_path_factory.mktemp("a"), A_SECONDS, "dp", TORCHVISION_RESNET18)


def test_a_speedups_are_those_of_scaled_work(report_a):
    assert same(report_a.scaling("speedup_scaled_work"), A_SPEEDUP) == set(A_SPEEDUP)
    # But its GPUs shared the epoch: what it called speedup is too high by the number of GPUs.
    assert not same(report_a.scaling("speedup_fixed_work"), A_SPEEDUP)
    assert report_a.scaling("speedup_fixed_work")[512, 4] == pytest.approx(9.19 / 8.76)


def test_a_compute_and_communication(report_a):
    compute, comm = report_a.subtraction("subtracted_compute_ns"), report_a.subtraction("subtracted_comm_ns")
    # One figure was cut off, 2.2975 to 2.29, and the communication beside it follows from that.
    assert same(compute, A_COMPUTE) == same(comm, A_COMM) == set(A_COMPUTE) - {(512, 4)}
    assert (compute[512, 4], comm[512, 4]) == (2.2975, 6.4625)
    assert agrees(8.76 - float(A_COMPUTE[512, 4]), A_COMM[512, 4])


def test_a_message_is_that_of_another_model(report_a):
    for workers, printed in A_MESSAGE.items():
        gib = {p: bus_factor("all_reduce", workers) * 4 * p / 2**30 for p in (CIFAR_RESNET18, TORCHVISION_RESNET18)}
        assert agrees(gib[TORCHVISION_RESNET18], printed)
        assert not agrees(gib[CIFAR_RESNET18], printed)


def test_a_bandwidth_is_one_message_over_an_epoch_in_gib(report_a):
    ours = report_a.mistake("report-a")
    # Its arithmetic is right from figures already rounded: 0.044 and 0.065, and the communication above.
    for (batch, workers), printed in A_BANDWIDTH.items():
        assert agrees(float(A_MESSAGE[workers]) / float(A_COMM[batch, workers]), printed)
    rounded = {(128, 4), (512, 2), (512, 4)}
    assert same(ours, A_BANDWIDTH) == set(A_BANDWIDTH) - rounded
    assert [round(ours[cell], 5) for cell in sorted(rounded)] == [0.00908, 0.01041, 0.01011]


def test_a_bandwidth_is_too_low_by_the_number_of_messages_and_more(report_a):
    messages = {(32, 2): 782, (32, 4): 391, (128, 2): 196, (128, 4): 98, (512, 2): 49, (512, 4): 25}
    one, gib = report_a.mistake("one-message", "mistaken_factor"), report_a.mistake("gib", "mistaken_factor")
    both = report_a.mistake("report-a", "mistaken_factor")
    right = report_a.subtraction("subtracted_busbw_gb_per_s")
    for cell, count in messages.items():
        assert 1 / one[cell] == pytest.approx(count)
        assert 1 / gib[cell] == pytest.approx(1.073741824)
        assert 1 / both[cell] == pytest.approx(1.073741824 * count)
        assert right[cell] * both[cell] == pytest.approx(report_a.mistake("report-a")[cell])
    assert {cell: round(value, 2) for cell, value in right.items()} == {
        (32, 2): 1.1, (32, 4): 1.32, (128, 2): 1.44, (128, 4): 0.95, (512, 2): 0.55, (512, 4): 0.27,
    }  # fmt: skip


# --- report B --------------------------------------------------------------------------------------------------------
# The times on 2 and 4 GPUs are not published, nor is what its timers for forward and backward began and ended with. Its
# compute and communication, the batch sweep and the accuracies are measurements: nothing published gives them.

B_SWEEP = {32: "21.1586", 128: "6.3523", 512: "2.3797", 2048: "2.9580"}
B_ALONE = {32: "15.89", 128: "9.94", 512: "9.82", 1024: "9.87"}
B_SPEEDUP = {
    (32, 2): "0.57", (32, 4): "0.35", (128, 2): "0.99", (128, 4): "0.86", (512, 2): "0.98", (512, 4): "0.90",
    (1024, 2): "0.96", (1024, 4): "0.90",
}  # fmt: skip
B_COMPUTE = {
    (32, 2): "15.50", (128, 2): "8.57", (512, 2): "7.53", (32, 4): "15.40", (128, 4): "8.50", (512, 4): "7.50",
}  # fmt: skip
B_COMM = {(32, 2): "11.43", (128, 2): "0.40", (512, 2): "1.59", (32, 4): "23.80", (128, 4): "0.98", (512, 4): "3.20"}
B_BANDWIDTH = {
    (32, 2): "15.7", (128, 2): "61.84", (512, 2): "140.3", (32, 4): "31.78", (128, 4): "142.56", (512, 4): "234.12",
}  # fmt: skip


@pytest.fixture(scope="module")
def report_b(tmp_path_factory) -> Tables:
    """The epochs on 2 and 4 GPUs as its compute and communication together, which is all that it tells of them."""
    together = {cell: f"{float(B_COMPUTE[cell]) + float(B_COMM[cell]):.2f}" for cell in B_COMPUTE}
    seconds = {batch: (B_ALONE[batch], together[batch, 2], together[batch, 4]) for batch in (32, 128, 512)}
    return Tables(tmp_path_factory.mktemp("b"), seconds, "dp")


def test_b_speedups_do_not_follow_from_its_own_compute_and_communication(report_b):
    ours = report_b.scaling("speedup_fixed_work")
    printed = {cell: text for cell, text in B_SPEEDUP.items() if cell in ours}
    assert len(printed) == 6
    assert not same(ours, printed)
    assert {cell: round(value, 2) for cell, value in ours.items()} == {
        (32, 2): 0.59, (32, 4): 0.41, (128, 2): 1.11, (128, 4): 1.05, (512, 2): 1.08, (512, 4): 0.92,
    }  # fmt: skip
    # By what it prints the epochs took longer than what it says they consisted of.
    assert all(float(B_ALONE[batch]) / float(text) > float(B_ALONE[batch]) / ours[batch, workers]
               for (batch, workers), text in printed.items())  # fmt: skip


def test_b_speedup_has_the_other_name_with_us(report_b):
    # "Weak scaling" is what it called T1 / TN; over a shared epoch that is the speedup, and N times the efficiency.
    speedup, weak = report_b.scaling("speedup_fixed_work"), report_b.scaling("weak_efficiency_frac")
    for (batch, workers), value in speedup.items():
        assert weak[batch, workers] == pytest.approx(value / workers, rel=0.03)


def test_b_compute_is_not_that_of_subtraction(report_b):
    ours = report_b.subtraction("subtracted_compute_ns")
    assert not same(ours, B_COMPUTE)
    assert [ours[32, n] for n in (2, 4)] == [7.945, 3.9725]
    # By its timers 2 and 4 GPUs computed as long as one, though they shared the epoch.
    assert all(float(text) > 0.75 * float(B_ALONE[batch]) for (batch, _), text in B_COMPUTE.items())


def test_b_bandwidths_do_not_follow_from_its_own_times():
    factors = {}
    for (batch, workers), seconds in B_COMM.items():
        steps = math.ceil(CIFAR10 / (workers * batch))
        ours = Estimate(4 * CIFAR_RESNET18, bus_factor("all_reduce", workers), steps, round(float(seconds) * 1e9))
        factors[batch, workers] = float(B_BANDWIDTH[batch, workers]) / ours.gb_per_s
    assert {cell: round(factor, 1) for cell, factor in factors.items()} == {
        (32, 2): 5.1, (128, 2): 2.8, (512, 2): 101.9, (32, 4): 28.9, (128, 4): 21.3, (512, 4): 447.0,
    }  # fmt: skip
    # Another model, unit, bus factor, or epoch that is not shared would be off by the same factor at every batch size.
    for workers in (2, 4):
        of_one = [factor for (_, n), factor in factors.items() if n == workers]
        assert max(of_one) > 15 * min(of_one)


def test_b_gives_two_times_for_the_same_epoch_on_one_gpu():
    ratios = {batch: float(B_SWEEP[batch]) / float(B_ALONE[batch]) for batch in (32, 128, 512)}
    assert {batch: round(ratio, 2) for batch, ratio in ratios.items()} == {32: 1.33, 128: 0.64, 512: 0.24}


# --- report C --------------------------------------------------------------------------------------------------------

C_STRONG = {
    (32, 2): "0.567164", (32, 4): "0.31405", (128, 2): "0.888889", (128, 4): "0.533333", (512, 2): "1.444444",
    (512, 4): "1.181818", (2048, 2): "1.3", (2048, 4): "1.181818",
}  # fmt: skip
C_SCALED = {(32, 2): "1.134328", (32, 4): "1.256198"}
C_COMM = {
    (32, 2): "48", (32, 4): "111.5", (128, 2): "10", (128, 4): "26", (512, 2): "2.5", (512, 4): "7.75",
    (2048, 2): "3.5", (2048, 4): "7.75",
}  # fmt: skip
C_BANDWIDTH = {
    (32, 2): "0.363852", (128, 2): "0.436902", (512, 2): "0.438019", (32, 4): "0.234954", (128, 4): "0.252059",
    (512, 4): "0.211945",
}  # fmt: skip


@pytest.fixture(scope="module")
def report_c(tmp_path_factory) -> Tables:
    return Tables(tmp_path_factory.mktemp("c"), C_SECONDS, "dp")


def test_c_both_speedups(report_c):
    assert same(report_c.scaling("speedup_fixed_work"), C_STRONG) == set(C_STRONG)
    assert same(report_c.scaling("speedup_scaled_work"), C_SCALED) == set(C_SCALED)


def test_c_communication(report_c):
    assert same(report_c.subtraction("subtracted_comm_ns"), C_COMM) == set(C_COMM)


def test_c_bandwidth_is_in_elements_and_of_an_epoch_that_nobody_shares(report_c):
    assert same(report_c.mistake("report-c"), C_BANDWIDTH) == set(C_BANDWIDTH)
    right = report_c.subtraction("subtracted_busbw_gb_per_s")
    assert not same(right, C_BANDWIDTH)
    assert {cell: round(right[cell], 6) for cell in C_BANDWIDTH} == {
        (32, 2): 0.728170, (128, 2): 0.876039, (512, 2): 0.876039, (32, 4): 0.235104, (128, 4): 0.252703,
        (512, 4): 0.216270,
    }  # fmt: skip


def test_c_mistakes_cancel_on_four_gpus(report_c):
    elements, steps = (report_c.mistake(name, "mistaken_factor") for name in ("elements", "unshared-epoch"))
    assert set(elements.values()) == {0.25}
    assert steps[32, 2] == pytest.approx(1563 / 782)
    assert steps[32, 4] == pytest.approx(1563 / 391)
    both = report_c.mistake("report-c", "mistaken_factor")
    assert both[32, 2] == pytest.approx(0.5, rel=0.001)
    assert both[32, 4] == pytest.approx(1.0, rel=0.001)


def test_c_whole_seconds_leave_few_digits(tmp_path):
    # Between two timestamps of whole seconds lies up to a second more or less than their difference.
    comm = []
    for alone, two in (("14", "8"), ("13", "9"), ("12", "10")):
        comm.append(Tables(tmp_path, {512: (alone, two)}, "dp").subtraction("subtracted_comm_ns")[512, 2])
    assert comm == [1.0, 2.5, 4.0]


# --- report D --------------------------------------------------------------------------------------------------------
# It printed times only. Its "communication" was the time of the data loader, which it did not publish.


def test_d_times_give_speedups_and_communication_that_it_did_not(tmp_path):
    report = Tables(tmp_path, D_SECONDS, "ddp")
    assert {cell: round(value, 2) for cell, value in report.scaling("speedup_fixed_work").items()} == {
        (32, 2): 1.58, (32, 4): 1.58, (128, 2): 1.30, (128, 4): 1.37, (512, 2): 1.66, (512, 4): 1.72,
    }  # fmt: skip
    assert report.subtraction("subtracted_comm_ns") == {
        (32, 2): 6.513, (32, 4): 18.669, (128, 2): 7.311, (128, 4): 13.072, (512, 2): 2.6915, (512, 4): 8.64075,
    }  # fmt: skip


def test_d_mistake_needs_the_time_of_its_data_loader(tmp_path):
    path = tmp_path / "timings.csv"
    header = "model,parallel,workers,batch_size_per_rank,epoch_s,dataset_samples,parameters,sample_bytes,data_s"
    rows = ["resnet18,ddp,1,32,48.612,50000,11173962,3072,", "resnet18,ddp,2,32,30.819,50000,11173962,3072,"]
    path.write_text("\n".join([header, *rows]), encoding="utf-8")
    (row,) = records(analyse_sweep(path).mistakes(["report-d"]))
    assert row["mistaken_busbw_gb_per_s"] is None
    assert row["note"] == "the time of the data loader is not known"
    path.write_text("\n".join([header, rows[0], rows[1] + "4.5"]), encoding="utf-8")
    (row,) = records(analyse_sweep(path).mistakes(["report-d"]))
    assert row["mistaken_busbw_gb_per_s"] == pytest.approx(CIFAR10 * 3072 / 4.5e9)


# --- report E --------------------------------------------------------------------------------------------------------


def test_e_speedup_of_the_profiled_steps(tmp_path):
    path = tmp_path / "timings.csv"
    path.write_text(
        "model,parallel,workers,batch_size_per_rank,epoch_s\nvgg16,ddp,1,64,84.09047\nvgg16,ddp,2,64,44.41658\n",
        encoding="utf-8",
    )
    _, two = records(analyse_sweep(path).scaling)
    assert agrees(two["speedup_fixed_work"], "1.89")
