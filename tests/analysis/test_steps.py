"""Steps: by launch, and their windows on a device."""

import numpy as np
import pandas as pd
import pytest
from builders import BASE_NS, MS, Trace, analysed

from commtrace.analysis.core.steps import NO_STEP, Window, step_windows
from commtrace.analysis.results.opening import load_run


def steps_of(folder, trace: Trace) -> dict[str, int | None]:
    trace.write(folder)
    table = load_run([folder]).activities
    return {name: None if pd.isna(step) else step for name, step in zip(table["name"], table["step"], strict=True)}


def windows(*activities: tuple[int | None, int, int]) -> list[tuple[int, int, int]]:
    """Windows of activities given as (step, start, end)."""
    step, start, end = zip(*activities, strict=True)
    found = step_windows(np.array(start), np.array(end), np.array([NO_STEP if n is None else n for n in step]))
    return [tuple(window) for window in found]


def test_the_step_is_that_of_the_launch_not_of_the_activity(tmp_path):
    trace = Trace().step(1, 0, 10 * MS).step(2, 10 * MS, 20 * MS)
    trace.kernel("launched early, runs late", 15 * MS, 1 * MS, launch=9 * MS)
    trace.kernel("second", 16 * MS, 1 * MS, launch=11 * MS)
    assert steps_of(tmp_path, trace) == {"launched early, runs late": 1, "second": 2}


def test_without_a_launch_or_outside_every_step_there_is_none(tmp_path):
    trace = Trace().step(1, 10 * MS, 20 * MS)
    trace.kernel("before the window", 1 * MS, 1 * MS, launch=None)
    trace.kernel("before the step", 2 * MS, 1 * MS, launch=9 * MS)
    trace.kernel("after the step", 30 * MS, 1 * MS, launch=20 * MS)
    trace.kernel("first moment", 15 * MS, 1 * MS, launch=10 * MS)
    trace.kernel("last moment", 17 * MS, 1 * MS, launch=20 * MS - 1)
    assert steps_of(tmp_path, trace) == {
        "before the window": None,
        "before the step": None,
        "after the step": None,
        "first moment": 1,
        "last moment": 1,
    }


def test_between_two_steps_there_is_none(tmp_path):
    trace = Trace().step(1, 0, 10 * MS).step(2, 12 * MS, 20 * MS).kernel("between", 15 * MS, 1 * MS, launch=11 * MS)
    assert steps_of(tmp_path, trace) == {"between": None}


def test_steps_in_any_order_in_the_file_and_beyond_nine(tmp_path):
    trace = Trace().step(10, 10 * MS, 20 * MS).step(9, 0, 10 * MS)
    trace.kernel("a", 5 * MS, 1).kernel("b", 15 * MS, 1)
    assert steps_of(tmp_path, trace) == {"a": 9, "b": 10}


def test_steps_of_the_gpu_side_and_of_other_annotations_do_not_count(tmp_path):
    trace = Trace().event("gpu_user_annotation", "ProfilerStep#4", 0, 10 * MS, tid=7, pid=0)
    trace.annotation("ProfilerStep#x", 0, 10 * MS).annotation("my ProfilerStep#5", 0, 10 * MS).kernel("k", 5 * MS, 1)
    assert steps_of(tmp_path, trace) == {"k": None}


def test_a_launch_on_another_thread_belongs_to_the_step_all_the_same(tmp_path):
    trace = Trace().step(3, 0, 10 * MS).kernel("backward", 5 * MS, 1, thread=77)
    assert steps_of(tmp_path, trace) == {"backward": 3}


# --- windows ---------------------------------------------------------------------------------------------------------


def test_a_window_reaches_to_the_first_activity_of_the_next_step():
    assert windows((1, 100, 200), (1, 220, 250), (2, 300, 320), (2, 340, 400)) == [(1, 100, 300), (2, 300, 400)]


def test_the_last_window_ends_with_the_last_activity_that_has_a_step():
    assert windows((1, 100, 200), (1, 110, 500), (None, 450, 900)) == [(1, 100, 500)]


def test_an_activity_of_a_later_step_that_starts_early_begins_its_window():
    # The prefetch of step 2 starts at 150, while step 1 is at work until 260.
    assert windows((1, 100, 200), (2, 150, 170), (1, 210, 260), (2, 300, 400)) == [(1, 100, 150), (2, 150, 400)]


def test_a_step_that_a_later_one_overtakes_altogether_has_an_empty_window():
    # Boundaries never run backwards: step 1 begins no later than step 2 does.
    assert windows((1, 300, 320), (2, 100, 120), (3, 400, 500)) == [(1, 100, 100), (2, 100, 400), (3, 400, 500)]


def test_steps_need_not_be_consecutive():
    assert windows((4, 0, 10), (7, 20, 30)) == [(4, 0, 20), (7, 20, 30)]


def test_no_steps_no_windows():
    assert windows((None, 0, 10)) == []
    nothing = np.array([], dtype=np.int64)
    assert step_windows(nothing, nothing, nothing) == []


def test_a_window_is_named():
    assert step_windows(np.array([5]), np.array([9]), np.array([3])) == [Window(3, 5, 9)]


@pytest.mark.parametrize("device", [0, 1])
def test_devices_of_a_process_share_its_windows(tmp_path, device):
    trace = Trace().step(1, 0, 5 * MS).step(2, 5 * MS, 9 * MS)
    trace.kernel("a", 1 * MS, 1 * MS, device=0).kernel("b", 6 * MS, 1 * MS, device=0)
    trace.kernel("a", 2 * MS, 1 * MS, device=1).kernel("b", 8 * MS, 1 * MS, device=1)
    table = analysed(tmp_path, trace).breakdown_steps
    found = table[table["device"] == str(device)][["step", "window_ns"]].to_numpy().tolist()
    assert found == [[1, 5 * MS], [2, 4 * MS]]  # from the mark of each step, before which nothing was left to do


def test_on_gloo_an_activity_is_its_own_launch(tmp_path):
    trace = Trace(backend="gloo").step(1, 0, 5 * MS).step(2, 5 * MS, 9 * MS).op("aten::mm", 1 * MS, 1 * MS)
    trace.gloo("all_reduce", 6 * MS, 1 * MS)
    trace.write(tmp_path)
    table = load_run([tmp_path]).activities
    assert table[["name", "step", "start_ns"]].to_numpy().tolist() == [
        ["aten::mm", 1, BASE_NS + 1 * MS],
        ["gloo:all_reduce", 2, BASE_NS + 6 * MS],
    ]
