"""Scenarios of a step that can be computed by hand: two ranks, kernels of 10 ms, all_reduces of 4 ms for each MiB."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import MS, Trace

from commtrace import analyse, cli
from commtrace.analysis.core.schema import records
from commtrace.analysis.errors import BadScenario, NothingMeasured
from commtrace.analysis.prediction.options import _PLAYED
from commtrace.analysis.replay.changes import OPTIONS
from commtrace.analysis.replay.playing import Playing
from commtrace.analysis.replay.scenarios.scenario import Scenario
from commtrace.analysis.results.analysis import Analysis

DATA = Path(__file__).parent / "data"
MIB_ELEMS = 1 << 18  # of float32
EACH, ONE = [[0], [1], [2], [3]], [[0, 1, 2, 3]]
THREE_SIZES = [[0], [1, 2], [3, 4, 5]]


def training(folder: Path, buckets: Sequence[Sequence[int]], *, latency: int = 0, group: str = "0") -> Analysis:
    """Kernels that make a gradient of 1 MiB each, all_reduces of `buckets` of these, and an optimizer of 10 ms.

    An all_reduce takes `latency` ms and 4 ms for each MiB; it begins when its last gradient is there, and the one
    before has ended. The CPU launches everything in the first few ms; the optimizer waits for the last all_reduce.
    """
    for rank in (0, 1):
        trace = Trace(rank, 2, groups={group: (0, 1)}, device=rank).step(0, 0, 1000 * MS)
        free = 0
        for number in range(sum(map(len, buckets))):
            launched = number * MS // 2
            trace.kernel(f"gemm{number}", (1 + 10 * number) * MS, 10 * MS, launch=launched)
            shapes: dict[str, Any] = {"Input Dims": [[MIB_ELEMS]], "Input type": ["float"], "Concrete Inputs": [""]}
            trace.event("cpu_op", "torch::autograd::AccumulateGrad", launched + MS // 8, MS // 8, **shapes)
            for seq, bucket in enumerate(buckets):
                if bucket[-1] == number:
                    start, took = max((11 + 10 * number) * MS, free), (latency + 4 * len(bucket)) * MS
                    own = {"elems": MIB_ELEMS * len(bucket), "ranks": (0, 1), "group": group, "dtype": "Float"}
                    trace.nccl("all_reduce", start, took, launch=launched + MS // 3, Seq=seq + 1, **own)
                    free = start + took
        trace.kernel("optimizer", free, 10 * MS, launch=number * MS // 2 + MS // 2)
        trace.write(folder, f"x{rank}.json")
    return analyse(folder, details=True)


def predicted_ms(analysis: Analysis, **options: Any) -> tuple[float, float]:
    """The shortest and the longest that the step may be."""
    [row] = analysis.predict(options).to_dict("records")
    assert row["replay_error_frac"] == 0
    assert row["low_ns"] <= row["step_ns"] <= row["high_ns"]
    return row["low_ns"] / 1e6, row["high_ns"] / 1e6


@pytest.mark.slow
def test_the_step_is_as_described(tmp_path: Path) -> None:
    assert training(tmp_path, EACH).replay_steps["measured_ns"].tolist() == [54 * MS]


# --- buckets ----------------------------------------------------------------------------------------------------------


@pytest.mark.quick_cases("buckets0-0-1-expected0", "buckets2-0-1-expected2", "buckets3-0-2-expected3")
@pytest.mark.parametrize(
    ("buckets", "latency", "mib", "expected"),
    [
        (EACH, 0, 1, (54, 54)),
        (EACH, 0, 100, (54, 66)),  # 4 MiB take 4 ms, if that is all latency, or 16
        (ONE, 0, 1, (54, 84)),  # 16 ms each, one after the other from 10 on, or 4
        ([[0], [1, 2, 3]], 0, 2, (58, 58)),
        ([[0], [1, 2, 3]], 2, 1, (56, 56)),
        ([[0], [1, 2, 3]], 2, 4, (68, 68)),
        ([[0], [1, 2, 3]], 2, 1.5, (60, 60)),  # full with 2 MiB
    ],
)
def test_gradients_in_other_buckets(
    buckets: list[list[int]], latency: int, mib: float, expected: tuple[float, float], tmp_path: Path
) -> None:
    found = predicted_ms(training(tmp_path, buckets, latency=latency), bucket_mb=mib)
    assert found == pytest.approx(expected, abs=0.01)


@pytest.mark.slow
def test_without_gradients_there_are_no_buckets() -> None:
    with pytest.raises(NothingMeasured, match=r"captured with record_shapes=True"):
        analyse(DATA / "nccl-straggler", details=True).predict({"bucket_mb": 5})


# --- collectives ------------------------------------------------------------------------------------------------------


@pytest.mark.quick_cases("options0-expected0", "options4-expected4", "options5-expected5", "options6-expected6")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"links": 2}, (78, 78)),
        ({"latency": 2}, (83, 83)),
        ({"links": "0=4", "latency": "0=2"}, (74, 74)),
        ({"overlap": "perfect"}, (73.2, 81.2)),  # until the last all_reduce; how much that slows compute is not known
        ({"overlap": "perfect", "links": "2"}, (70, 74.8)),
        ({"world_size": 4}, (86, 94)),  # a tree: 2 x 2 + 12 ms; a ring: 2 x 3 + 12 x 1.5
        ({"world_size": "0=4", "batch": "shared"}, (51, 64)),
        ({"world_size": 2}, (84, 84)),
        ({"fuse": True}, (96, 96)),  # 2 ms and 24 in one
    ],
)
def test_other_collectives(options: dict[str, Any], expected: tuple[float, float], tmp_path: Path) -> None:
    found = training(tmp_path, THREE_SIZES, latency=2)
    assert found.fits["latency_us"].tolist() == pytest.approx([2000])
    assert predicted_ms(found, **options) == pytest.approx(expected, abs=0.01)


@pytest.mark.slow
def test_where_latency_is_not_known_it_may_be_none_or_as_much_as_nccl_may_have(tmp_path: Path) -> None:
    found = training(tmp_path, ONE)
    latency = 2 * (14 + 2 * 5.7) / 1000
    ring = 50 + latency * 3 + (16 - latency) * 1.5
    assert predicted_ms(found, world_size=4) == pytest.approx((66, ring), abs=0.01)
    fused = (66 - 3 * latency, 66)
    assert predicted_ms(training(tmp_path / "each", EACH), fuse=True) == pytest.approx(fused, abs=0.01)


def test_a_change_of_ones_own_is_played_once_for_a_run_whether_it_has_a_hash_or_not(tmp_path: Path) -> None:
    class Counted(list[int]):  # which has none
        def __call__(self, members: Sequence[Playing]) -> list[Playing]:
            self.append(len(members))
            return [replace(member, duration=member.duration // 2) for member in members]

    found, change = training(tmp_path, EACH), Counted()
    own = Scenario("half", "everything takes half as long", (change,))
    for _ in range(2):
        (row,) = records(found.predict(own))
        assert row["gain_ns"] > 20 * MS
    assert list(change) == [2]


@pytest.mark.slow
def test_what_is_needed_at_once_is_not_fused(tmp_path: Path) -> None:
    """The second all_reduce has its input from a kernel that waits for the first."""
    for rank in (0, 1):
        trace = Trace(rank, 2, groups={"0": (0, 1)}, device=rank).step(0, 0, 1000 * MS)
        for number in range(2):
            begin = 1 + 20 * number
            own = {"elems": MIB_ELEMS, "ranks": (0, 1), "group": "0", "dtype": "Float"}
            trace.kernel("gemm", begin * MS, 10 * MS, launch=number * MS // 4)
            trace.nccl(
                "all_reduce", (begin + 10) * MS, 10 * MS, launch=number * MS // 4 + MS // 8, Seq=number + 1, **own
            )
        trace.kernel("last", 41 * MS, 10 * MS, launch=MS // 2)
        trace.write(tmp_path, f"x{rank}.json")
    assert predicted_ms(analyse(tmp_path, details=True), fuse=True) == pytest.approx((50, 50), abs=0.01)


# --- what makes no sense ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "a scenario changes nothing; give it one of without_straggler, links"),
        ({"name": "x"}, "a scenario changes nothing"),
        ({"speed": 2}, "no such option of a scenario: speed"),
        ({"no_jitter": "yes"}, "no_jitter is 'yes', but can be only true"),
        ({"overlap": "some"}, "overlap is 'some', but can be only perfect"),
        ({"fuse": 1.5}, "fuse is 1.5, but can be only true"),
        ({"bucket_mb": "large"}, "bucket_mb is 'large', but should be a size in MiB"),
        ({"bucket_mb": 0}, "bucket_mb is 0"),
        ({"bucket_mb": True}, "bucket_mb is True"),
        ({"world_size": "many"}, "'many' is not a number of ranks"),
        ({"world_size": 0}, "'0' is not a number of ranks"),
        ({"world_size": 4, "batch": "none"}, "batch is 'none', but can be only kept or shared"),
        ({"links": -1}, "'-1' is not a factor"),
        ({"without_straggler": 7}, "'7': no rank or host"),
        ({"without_straggler": "0,7"}, "'7': no rank or host"),
        ({"without_straggler": "0, 4-7, x"}, "'4-7', 'x': no rank or host"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadScenario, match=message):
        training(tmp_path, EACH).predict(options)


@pytest.mark.slow
def test_of_several_groups_one_is_to_be_named() -> None:
    found = analyse(DATA / "nccl-two-hosts", details=True)
    with pytest.raises(BadScenario, match=r"say which grows, as in GROUP=16; there are \w+ \(2 ranks\)"):
        found.predict({"world_size": 16})
    of_two = found.collectives[found.collectives["pg_ranks"].str.split().str.len() == 2]["process_group"].iloc[0]
    [row] = found.predict({"world_size": f"{of_two}=16"}).to_dict("records")
    assert row["scenario"].startswith("groups of 4 ranks instead of 2")
    with pytest.raises(BadScenario, match="groups of 2 of 8 ranks do not become whole ones with 10"):
        found.predict({"world_size": f"{of_two}=10"})


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_scenarios_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training(tmp_path / "run", THREE_SIZES, latency=2)
    (tmp_path / "s.toml").write_text(
        '[[scenario]]\nname = "both"\nlinks = [2]\noverlap = "perfect"\n\n[[scenario]]\nbucket_mb = 2\nfuse = false\n'
    )
    assert cli.main(["predict", "--scenario", str(tmp_path / "s.toml"), "-f", "csv", str(tmp_path / "run")]) == 0
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith("scenario,step_ns")
    assert [row.split(",")[0] for row in rows] == ["both", "buckets of 2 MiB"]
    assert rows[0].split(",")[1] == str(70 * MS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ranks = 4", "must hold tables called [[scenario]], and nothing else"),
        ("[scenario]\nranks = 4", "must hold tables called [[scenario]], and nothing else"),
        ("[[scenario]\n", "s.toml: "),
        ("[[scenario]]\nworld_size = 0", "'0' is not a number of ranks"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_no_use(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training(tmp_path / "run", EACH)
    if text is not None:
        (tmp_path / "s.toml").write_text(text)
    assert cli.main(["predict", "--scenario", str(tmp_path / "s.toml"), str(tmp_path / "run")]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_every_option_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training(tmp_path, EACH)
    options = ["--links", "2", "--latency", "2", "--no-jitter", "--overlap", "perfect", "--fuse", "--bucket-mb", "2"]
    options += ["--world-size", "4", "--world-size", "8", "--batch", "shared", "--without-straggler", "0"]
    assert cli.main(["predict", *options, "-f", "csv", str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 9


def test_compute_waits_for_less_than_is_exposed(tmp_path: Path) -> None:
    """Of 14 ms after the last kernel nothing but the optimizer waits; nothing waits for the two before."""
    [row] = training(tmp_path, THREE_SIZES, latency=2).replay_steps.to_dict("records")
    assert (row["exposed_comm_ns"], row["blocking_ns"]) == (14 * MS, 14 * MS)


def test_each_option_is_played_or_says_more_about_one_that_is() -> None:
    assert {name for name, option in OPTIONS.items() if not option.beside} == set(_PLAYED)
    assert {option.beside for option in OPTIONS.values()} - {""} <= set(_PLAYED)
