"""What released exposed collectives: as the simulator made it."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from simulator import Injection, Layout, Window, World, simulate
from simulator.programs import ddp, tp

from commtrace import analyse, cli
from commtrace.analysis.results.analysis import Analysis

DATA = Path(__file__).parent / "data"
STEPS = tuple(range(1, 6))


def analysed(made: World, folder: Path) -> Analysis:
    simulate(made).write(folder)
    return analyse(folder, details=True)


def tp_world() -> World:
    return World(
        3, partial(tp, layers=3, gradient=False), steps=7, layout=Layout(events=True), window=Window(((1, 5),))
    )


def exposed_by(analysis: Analysis, rank: int | None = None) -> dict[str, int]:
    calls = analysis.releases_calls
    own = calls if rank is None else calls[calls["rank"] == rank]
    return {str(by): int(ns) for by, ns in own.groupby("released_by")["exposed_ns"].sum().items()}


@pytest.mark.slow
def test_what_waits_for_compute_is_released_by_it(tmp_path: Path) -> None:
    found = exposed_by(analysed(tp_world(), tmp_path))
    assert found["producer"] > 0.9 * sum(found.values())
    assert found.get("host", 0) < 0.02 * sum(found.values())


@pytest.mark.slow
def test_a_host_that_is_late_releases_what_it_launches_last(tmp_path: Path) -> None:
    late = replace(tp_world(), injections=(Injection("op", (2,), STEPS, 4000.0, 0.6),))
    calls = analysed(late, tmp_path).releases_calls
    after = calls[(calls["rank"] == 2) & (calls["released_by"] == "host")]
    assert after.groupby("step").size().min() >= 1
    others = calls[(calls["rank"] != 2) & (calls["waited_for"] == 2)]
    assert others["exposed_ns"].max() > 1e6


@pytest.mark.slow
def test_buckets_wait_for_the_bucket_before(tmp_path: Path) -> None:
    """Large buckets, close to each other: the stream is what they wait for."""
    made = World(3, partial(ddp, layers=4, layer_us=60.0, buckets=(8 << 20,) * 4), steps=7, window=Window(((1, 5),)))
    found = analysed(made, tmp_path)
    by = exposed_by(found)
    assert by["collective"] > 0.5 * sum(by.values())
    calls = found.releases_calls
    behind = calls[calls["released_by"] == "collective"]
    assert (behind["slack_ns"].dropna() >= behind["since_before_ns"][behind["slack_ns"].notna()]).all()


@pytest.mark.slow
@pytest.mark.parametrize("run", ["nccl-straggler", "nccl-two-hosts", "gloo-training"])
def test_they_add_up_to_all_exposed_communication(run: str) -> None:
    """Of runs in which no two calls of a device run at once."""
    found = analyse(DATA / run, details=True, whole=True)
    whole = found.breakdown["exposed_comm_ns"].sum()
    assert found.releases["exposed_ns"].sum() == found.releases_calls["exposed_ns"].sum() >= whole
    assert found.releases["exposed_share_frac"].sum() == pytest.approx(1)
    if run != "gloo-training":
        assert found.releases["exposed_ns"].sum() == pytest.approx(whole, rel=0.05)


@pytest.mark.slow
def test_the_smallest_distance_is_the_reason() -> None:
    calls = analyse(DATA / "nccl-straggler", details=True).releases_calls
    since = {"host": "since_launch_ns", "collective": "since_before_ns", "producer": "slack_ns"}
    for by, column in since.items():
        own = calls[calls["released_by"] == by]
        assert (own[column] == own[[*since.values()]].min(axis=1)).all()


@pytest.mark.slow
def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["table", "releases", "-f", "csv", str(DATA / "nccl-straggler")]) == 0
    assert capsys.readouterr().out.startswith("process_group,pg_ranks,collective,released_by,calls,exposed_ns,")
    assert cli.main(["table", "releases", "--by", "call", "-f", "csv", str(DATA / "nccl-straggler")]) == 0
    assert "sm90_xmma_gemm_bf16bf16_tp" in capsys.readouterr().out


def test_nothing_is_exposed_without_communication(tmp_path: Path) -> None:
    from builders import MS, traces_of

    traces_of(1, [])[0].step(0, 0, 50 * MS).kernel("gemm", 1 * MS, 5 * MS).write(tmp_path, "x0.json")
    found = analyse(tmp_path, details=True)
    assert len(found.releases) == len(found.releases_calls) == 0
