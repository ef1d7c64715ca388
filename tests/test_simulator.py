"""The simulator itself: physics, labels, and traces that say what the truth says."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from samples import a_sample, with_slow
from simulator import PRESETS, Clocks, Hang, Injection, Layout, Simulated, Window, World, draw, score, simulate
from simulator.ops import SYNCHRONISING, Communication, Kernel
from simulator.pipelines import three_d
from simulator.programs import rooted, tp

from commtrace import analyse

SEEDS = range(24)
EPS_US = 1e-6


@cache
def simulated(which: int | str) -> Simulated:
    return simulate(PRESETS[which] if isinstance(which, str) else draw(which))


@pytest.fixture(params=a_sample([*PRESETS, *SEEDS], 14))
def made(request: pytest.FixtureRequest) -> Simulated:
    return simulated(request.param)


# --- physics ----------------------------------------------------------------------------------------------------------


def test_nobody_ends_a_collective_before_those_it_needs_have_started(made: Simulated) -> None:
    times = made.happened.times
    for meeting in made.happened.meetings:
        starts = {ran.rank: times[ran.start] for ran in meeting.members}
        last = max(starts.values())
        for ran in meeting.members:
            assert times[ran.end] >= times[ran.needed] >= times[ran.start] or times[ran.end] == math.inf
            if meeting.op in SYNCHRONISING:
                assert times[ran.needed] == last
                assert times[ran.end] >= last + meeting.transfer_us


def test_streams_are_first_in_first_out_and_nothing_starts_before_its_launch(made: Simulated) -> None:
    times = made.happened.times
    for own in made.happened.ran:
        ended: dict[int, float] = {}
        for ran in own:
            if ran.start >= 0 and times[ran.start] < math.inf:
                assert times[ran.begin] < times[ran.start] <= times[ran.end]
                assert times[ran.start] >= ended.get(ran.stream, 0.0)
                ended[ran.stream] = times[ran.end]


def test_the_cpu_does_one_thing_after_the_other(made: Simulated) -> None:
    times = made.happened.times
    for own in made.happened.ran:
        moments = [moment for ran in own for moment in (times[ran.begin], times[ran.done])]
        assert moments == sorted(moments)


def test_who_needs_whom_in_collectives_with_a_root() -> None:
    made = simulate(World(3, partial(rooted, rounds=1, elems=1 << 20), 1, 4, 2, window=Window(((0, 1),))))
    times = made.happened.times
    expected = {
        # step 1, so the root is 1; elements enough that successors are needed
        "broadcast": {1: (1, 2), 2: (1, 2, 3), 3: (1, 2, 3, 0), 0: (1, 2, 3, 0)},
        "reduce": {2: (2, 3), 3: (2, 3, 0), 0: (2, 3, 0, 1), 1: (2, 3, 0, 1)},
        "gather": {0: (0, 1), 1: (0, 1, 2, 3), 2: (2, 1), 3: (3, 1)},
        "scatter": {0: (0, 1), 1: (0, 1, 2, 3), 2: (2, 1), 3: (3, 1)},
    }
    seen = set()
    for meeting in made.happened.meetings:
        if meeting.root == 1:
            starts = {ran.rank: times[ran.start] for ran in meeting.members}
            for ran in meeting.members:
                assert times[ran.needed] == max(starts[rank] for rank in expected[meeting.op][ran.rank])
            seen.add(meeting.op)
    assert seen == set(expected)


# --- truth ------------------------------------------------------------------------------------------------------------


def test_wait_and_transfer_are_the_whole_call(made: Simulated) -> None:
    calls = made.truth.calls
    assert (calls["wait_ns"] + calls["transfer_ns"] == calls["dur_ns"]).all()
    assert (calls["wait_ns"] >= 0).all()
    assert (calls["transfer_ns"] >= 0).all()
    assert not calls.duplicated(["rank", "stream", "start_ns"]).any()


def test_what_injections_delay_is_labelled(made: Simulated) -> None:
    calls, injections = made.truth.calls, made.world.injections
    assert (calls["shift_us"] > -EPS_US).all()
    late = calls["late_us"] >= 1
    assert (calls["label"].notna() == late).all()
    assert set(calls["label"].dropna()) <= {each.kind for each in injections}
    assert set(calls["late_from"].dropna()) <= {rank for each in injections for rank in each.ranks}


def test_without_injections_it_is_the_world_that_they_are_compared_with(made: Simulated) -> None:
    again = simulate(replace(made.world, injections=()))
    assert again.happened.times == made.plain.times


@pytest.mark.parametrize("kind", ["kernel", "slower", "copies", "block", "data", "python", "op", "comm"])
def test_an_injection_makes_its_rank_late_by_what_it_takes(kind: str) -> None:
    world = World(5, partial(tp, layers=3, item=True), 1, 4, injections=(Injection(kind, (2,), (2,), 5000.0, 0.4),))
    calls = simulate(world).truth.calls
    late = calls[calls["late_us"] > 1000]
    # The rank next to it is in its slow collective.
    assert set(late["rank"]) == ({2, 3} if kind == "comm" else {2})
    assert set(late["step"]) == {2}
    assert set(late["label"]) == {kind}
    assert set(late["late_from"]) == {2}
    # What the CPU was ahead by, the GPU has not to wait for.
    least = 2500 if kind in ("data", "python", "op") else 4900
    assert least < late["late_us"].max() < 5300


def test_a_delay_that_came_from_another_rank_names_that_rank() -> None:
    """Rank 2 waits for rank 0 in the pipeline, and then comes late to the gradients that it reduces with rank 3."""
    slow = Injection("slower", (0,), (2,), 3000.0, 0.0)
    made = simulate(World(6, partial(three_d, tp=1, pp=2), 1, 4, injections=(slow,)))
    late = made.truth.calls[made.truth.calls["late_us"] > 1000]
    assert set(late["rank"]) == {0, 2}
    assert set(late["late_from"]) == {0}


def test_a_rank_that_hangs_keeps_the_others() -> None:
    made = simulate(replace(PRESETS["hang"], hang=Hang(rank=1, step=2, at=0.3)))
    truth, times = made.truth, made.happened.times
    assert truth.hang is not None
    assert truth.hang.launched == (0,)
    members = made.happened.meetings[truth.hang.collective].members
    assert all(times[ran.end] == math.inf for ran in members)
    assert not truth.calls["collectives"].map(lambda ids: truth.hang.collective in ids).any()


# --- traces -----------------------------------------------------------------------------------------------------------


def events_of(path: Path) -> list[dict[str, object]]:
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)["traceEvents"]


def test_traces_are_json_and_every_launched_kernel_has_its_launch(made: Simulated, tmp_path: Path) -> None:
    paths = made.write(tmp_path)
    assert len(set(paths)) == len(made.traces)
    for path, trace in zip(paths, made.traces, strict=True):
        events = events_of(path)
        kernels = [e["args"]["correlation"] for e in events if e.get("cat") in ("kernel", "gpu_memcpy")]
        launched = {e["args"]["correlation"] for e in events if e.get("cat") == "cuda_runtime"}
        assert len(kernels) == sum(seen.kernel for seen in trace.seen)
        both = sum(seen.kernel and seen.launch for seen in trace.seen)
        assert sum(correlation in launched for correlation in kernels) == both
        assert all(e.get("dur", 0) >= 0 for e in events)


@pytest.mark.slow_cases("large", "two hosts")
@pytest.mark.parametrize("which", a_sample([*PRESETS, *range(100, 112)], 5))
def test_the_analysis_reads_the_same_calls(which: int | str, tmp_path: Path) -> None:
    made = simulated(which)
    made.write(tmp_path)
    keys = ["rank", "cycle", "stream", "start_ns", "dur_ns"]
    read = analyse(tmp_path, workers=1).calls
    assert set(read[keys].itertuples(index=False)) == set(made.truth.calls[keys].itertuples(index=False))


@pytest.mark.slow
@pytest.mark.parametrize("torch", with_slow(["2.13"], ["2.2", "2.4", "2.5", "2.12"]))
def test_arguments_say_what_is_true(torch: str, tmp_path: Path) -> None:
    for number, name in enumerate(("sharded", "pipeline", "rooted")):
        made = simulate(replace(PRESETS[name], layout=Layout(torch=torch, args_on_kernel=bool(number % 2))))
        made.write(tmp_path / name)
        known = made.truth.calls[made.truth.calls["has_args"]]
        keys = ["rank", "stream", "start_ns"]
        both = analyse(tmp_path / name, workers=1).calls.merge(known, on=keys)
        true = made.truth.collectives.loc[[ids[0] for ids in both["collectives"]]].reset_index()
        assert len(both) == len(known)
        assert (both["collective"] == true["op"]).all()
        even = true["op"] != "all_to_all"
        assert (both["size_bytes"] == true["size_bytes"])[even].all()
        if torch not in ("2.2", "2.4"):
            rooted_ones = true["root"].notna()
            assert (both["root"] == true["root"])[rooted_ones].all()


def test_a_clock_that_is_off_changes_what_is_shown_and_nothing_else() -> None:
    world = PRESETS["two hosts"]
    right = simulate(replace(world, clocks=Clocks())).truth.calls
    off = simulate(replace(world, clocks=Clocks((0.0, 2_000_000.0), (0.0, 50.0), (1.5,)))).truth.calls
    assert (right["true_start_us"] == off["true_start_us"]).all()
    ahead_us = (off["start_ns"] - right["start_ns"]) / 1000
    expected = np.where(off["rank"] < 4, 0.0, 2_000_000 + 50e-6 * off["true_start_us"]) + 1.5
    assert np.abs(ahead_us - expected).max() < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", with_slow(["straggler"], ["plain", "cross", "large"]))
def test_an_analysis_that_is_right_scores_so(name: str, tmp_path: Path) -> None:
    made = simulated(name)
    made.write(tmp_path)
    found = score(analyse(tmp_path, workers=1), made.truth)
    assert (found.unknown, found.missed, found.wrong) == (0, 0, 0)
    assert found.right_frac == found.found_frac == 1
    assert found.wait_error_us[2] < 1
    assert found.transfer_ratio[1] == pytest.approx(1, abs=0.02)


def test_drawn_worlds_differ_and_are_the_same_again() -> None:
    assert repr(draw(3)) == repr(draw(3))
    assert len({repr(draw(seed)) for seed in SEEDS}) == len(SEEDS)
    first, second = (simulate(draw(3)).truth.calls for _ in range(2))
    assert first.equals(second)


@pytest.mark.slow
def test_every_kind_of_communication_is_drawn() -> None:
    ops = {meeting.op for seed in range(36) for meeting in simulated(seed).happened.meetings}
    assert ops == {*SYNCHRONISING, "broadcast", "reduce", "gather", "scatter", "send_recv"}
    kinds = {type(ran.op) for seed in SEEDS for own in simulated(seed).happened.ran for ran in own}
    assert {Kernel, *Communication} <= kinds
