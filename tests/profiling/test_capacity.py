"""`commtrace capacity`: the search, splits over devices, real memory limits, and how it ends."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from capturing import begun, leftovers
from hypothesis import given
from hypothesis import strategies as st

from commtrace.cli import main
from commtrace.profiling.capacity import bench, tries
from commtrace.profiling.capacity.config import CapacityConfig, Share, share
from commtrace.profiling.capacity.search import largest_fitting
from commtrace.profiling.capacity.stage import Stage
from commtrace.profiling.capacity.tries import Try
from commtrace.profiling.errors import MeasurementError, UsageError
from commtrace.profiling.machine import memory
from commtrace.profiling.workloads.stacks import StackShape, stack

# A linear layer and its gradient take 79 MB, the rest little: which stacks fit is no close call.
SIZES = {"batch_size": 2, "channels": 64, "image_size": 16}
OPTIONS = [part for key, value in SIZES.items() for part in (f"--{key.replace('_', '-')}", str(value))]
BEYOND_START_BYTES = 215_000_000


def written(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "capacity.json").read_text())
    return content


def stage(linear: int, limit_bytes: int | None, **changes: Any) -> Stage:
    """The process of one device with a convolution and `linear` linear layers, as a search tries it."""
    options: dict[str, Any] = {"conv": 1, "receives": False, "sends": False, "pooled": False, "index": 0, **SIZES}
    options |= {"device": "cpu", "backend": "gloo", "warmup": 0, "iters": 2}
    return Stage(linear=linear, memory_limit_bytes=limit_bytes, **(options | changes))


# --- the search ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.integers(0, 5000), st.one_of(st.none(), st.integers(0, 5000)))
def test_search_finds_what_a_walk_finds(threshold, most) -> None:
    tried: list[int] = []

    def fits(number: int) -> bool:
        tried.append(number)
        return number <= threshold

    found = largest_fitting(fits, most=most, max_tries=64)
    limit = threshold if most is None else min(threshold, most)
    assert found.fits == limit
    assert found.fails == (threshold + 1 if most is None or most > threshold else None)
    assert len(tried) == len(set(tried)) <= 2 * (limit + 1).bit_length() + 1
    assert all(number >= 1 and (most is None or number <= most) for number in tried)


def test_search_stops_after_so_many_tries_and_says_what_it_knows() -> None:
    found = largest_fitting(lambda number: number <= 100, max_tries=8)
    assert (found.fits, found.fails, found.exact) == (64, 128, False)
    assert largest_fitting(lambda number: True, max_tries=3).fails is None


# --- splits, with memory that is only counted ------------------------------------------------------------------------


def counted(room: int, *, together: int = 0) -> Any:
    """Devices of `room`, where a convolution takes 3, a linear layer 5; `together` is what messages take besides."""

    def run(stages: Sequence[Stage]) -> Try:
        shares = [Share(one.conv, one.linear) for one in stages]
        extra = together if len(stages) > 1 else 0
        for place, one in enumerate(shares):
            if 3 * one.conv + 5 * one.linear + extra > room:
                return Try(shares, False, 0.1, "counted out", place)
        return Try(shares, True, 0.1, None, None, [len(shares) * 10**6] * stages[0].iters, [room] * len(stages))

    return run


def searched(tmp_path: Path, room: int, *, together: int = 0, **options: Any) -> list[dict[str, Any]]:
    config = CapacityConfig(device="cpu", memory_limit_bytes=1, out=tmp_path, run_name="run", **options)
    assert bench.run_capacity(config, ["test"], run_stages=counted(room, together=together)) == 0
    found = written(tmp_path / "run")
    assert found["complete"] is True
    capacities: list[dict[str, Any]] = found["capacities"]
    return capacities


def shares_of(capacity: dict[str, Any]) -> list[tuple[int, int]]:
    return [(one["conv"], one["linear"]) for one in capacity["shares"]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"fixed": 62}, [[(30, 62)], [(133, 0), (30, 62)]]),
        ({"fixed": 62, "devices": 3}, [[(30, 62)], [(133, 0), (133, 0), (30, 62)]]),
        ({"fixed": 0}, [[(133, 0)], [(133, 0), (133, 0)]]),
        ({"fixed": 80}, [[(0, 80)], [(133, 0), (0, 80)]]),
        ({"grow": "linear", "fixed": 100}, [[(100, 20)], [(100, 20), (0, 80)]]),
    ],
)
def test_every_device_is_as_full_as_it_can_be(tmp_path, options, expected) -> None:
    found = searched(tmp_path, 400, **{"devices": 2, **options})
    assert [shares_of(one) for one in found] == expected


def test_a_published_search_with_its_own_numbers(tmp_path, capsys) -> None:
    # 84 + 0 and 54 + 62 against 61 + 62 on one: a convolution takes 3, 62 linear layers as much as 23 of them.
    def room_for(stages: Sequence[Stage]) -> Try:
        shares = [Share(one.conv, one.linear) for one in stages]
        full = [
            place
            for place, (one, share) in enumerate(zip(stages, shares, strict=True))
            if share.conv + (23 if share.linear else 0) + (7 if one.receives else 0) > 84
        ]
        return Try(shares, not full, 0.1, "full" if full else None, full[0] if full else None, [10] * stages[0].iters)

    config = CapacityConfig(device="cpu", memory_limit_bytes=1, devices=2, out=tmp_path, run_name="run")
    assert bench.run_capacity(config, ["test"], run_stages=room_for) == 0
    out = capsys.readouterr().out
    assert "device 0 of 1: 61+62 fits, 62+62 does not" in out
    assert [shares_of(one) for one in written(tmp_path / "run")["capacities"]] == [[(61, 62)], [(84, 0), (54, 62)]]


@pytest.mark.parametrize(
    ("asked", "devices", "expected"),
    [("30+62", 3, [(30, 62)]), ("140+62", 2, [(133, 0), (7, 62)]), ("130+80", 3, [(130, 2), (0, 78)])],
)
def test_a_stack_is_split_from_the_front(tmp_path, asked, devices, expected) -> None:
    (found,) = searched(tmp_path, 400, stack=share(asked), devices=devices)
    assert shares_of(found) == expected
    assert f"{found['conv']}+{found['linear']}" == asked


def test_a_stack_too_large_for_all_devices_says_what_is_left(tmp_path, capsys) -> None:
    (found,) = searched(tmp_path, 400, stack=share("140+200"), devices=2)
    assert (found["fits"], found["conv"], found["step_mean_ns"]) == (False, None, None)
    assert found["notes"] == ["140+200: 133+0, 7+75 fit on 2 devices, 0+125 are left"]
    assert "does not fit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"fixed": 62}, [(131, 0), (28, 62)]), ({"stack": share("140+62")}, [(131, 0), (9, 62)])],
)
def test_what_messages_take_is_taken_from_the_stack(tmp_path, options, expected) -> None:
    found = searched(tmp_path, 400, together=5, devices=2, **options)
    assert shares_of(found[-1]) == expected
    assert any("all at once: device 0 was out of memory: counted out" in note for note in found[-1]["notes"])


def test_times_have_mean_and_spread(tmp_path) -> None:
    one, two = searched(tmp_path, 400, devices=2, warmup=1, iters=4)
    assert one["times_ns"] == [10**6] * 4
    assert (two["step_mean_ns"], two["step_spread_ns"], two["step_min_ns"]) == (2e6, 0.0, 2 * 10**6)


def test_search_that_ends_early_says_so(tmp_path) -> None:
    (found,) = searched(tmp_path, 400, fixed=0, max_tries=8)
    assert found["notes"] == ["device 0 of 1: 128+0 fits; --max-tries 8 ended the search"]


def test_nothing_fits_is_an_error(tmp_path) -> None:
    config = CapacityConfig(device="cpu", memory_limit_bytes=1, fixed=100, out=tmp_path, run_name="run")
    with pytest.raises(MeasurementError, match=r"not even 0\+100 layers fit: .*counted out; raise"):
        bench.run_capacity(config, ["test"], run_stages=counted(400))
    found = written(tmp_path / "run")
    assert (found["complete"], found["capacities"]) == (False, [])
    assert len(found["tries"]) == 2


# --- for real --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """In every process: several of them share the cores of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def limit_bytes() -> int:
    """A limit that leaves room for a few layers, whatever this build of torch needs to start."""
    found = tries.run_stages([stage(1, None)])
    (baseline_bytes,) = found.baseline_bytes
    assert found.fits
    assert baseline_bytes is not None
    return baseline_bytes + BEYOND_START_BYTES


@pytest.fixture(scope="module")
def walked(limit_bytes) -> int:
    """How many linear layers fit behind a convolution, by trying every number up to one that does not."""
    with ThreadPoolExecutor(2) as pool:
        fits = list(pool.map(lambda count: tries.run_stages([stage(count, limit_bytes)]).fits, range(1, 4)))
    assert fits == sorted(fits, reverse=True)
    return sum(fits)


@pytest.mark.slow
def test_capacity_is_what_a_walk_finds_under_the_same_limit(limit_bytes, walked, tmp_path, capsys) -> None:
    assert walked == 2
    options = ["--grow", "linear", "--fixed", "1", "--memory-limit", str(limit_bytes), "--warmup", "1", "--iters", "3"]
    assert main(["capacity", "--device", "cpu", *OPTIONS, *options, "--out", str(tmp_path), "--run-name", "run"]) == 0
    found = written(tmp_path / "run")
    (capacity,) = found["capacities"]
    assert shares_of(capacity) == [(1, walked)]
    assert capacity["notes"] == [f"device 0 of 1: 1+{walked} fits, 1+{walked + 1} does not"]
    assert len(capacity["times_ns"]) == 3
    assert all("allocate" in one["reason"] for one in found["tries"] if not one["fits"])
    assert (found["complete"], found["reason"]) == (True, None)
    assert leftovers(tmp_path / "run") == []
    out, err = capsys.readouterr()
    assert out.splitlines()[2].split()[:4] == ["1", f"1+{walked}", "1", str(walked)]
    assert f"device 0  1+{walked}  " in err


@pytest.mark.slow
def test_a_stack_too_large_for_one_runs_on_two(limit_bytes, walked, tmp_path) -> None:
    options = ["--devices", "2", "--memory-limit", str(limit_bytes), "--warmup", "0", "--iters", "2"]
    stack = ["--stack", f"1+{walked + 1}", "--max-tries", "2"]  # which ends the search of the first share early
    assert main(["capacity", "--device", "cpu", *stack, *OPTIONS, *options, "--out", str(tmp_path / "out")]) == 0
    (folder,) = (tmp_path / "out").iterdir()
    found = written(folder)
    (capacity,) = found["capacities"]
    assert found["tries"][0]["shares"] == [{"conv": 1, "linear": walked + 1}]
    assert found["tries"][0]["fits"] is False
    assert shares_of(capacity) == [(1, 1), (0, walked)]
    assert (capacity["devices"], capacity["conv"], capacity["linear"]) == (2, 1, walked + 1)
    assert len(capacity["times_ns"]) == len(capacity["peak_bytes"]) == 2
    assert max(capacity["peak_bytes"]) < limit_bytes + 500_000_000  # resident code of libraries is beyond the limit


@pytest.mark.slow
def test_convolutions_run_linked() -> None:
    small = {"batch_size": 2, "channels": 2, "image_size": 8}
    found = tries.run_stages([stage(0, None, sends=True, **small), stage(1, None, receives=True, index=1, **small)])
    assert found.fits, found.reason
    assert list(found.shares) == [Share(1, 0), Share(1, 1)]
    assert len(found.times_ns) == 2


def test_a_stage_is_not_blamed_for_being_ended_with_another(monkeypatch) -> None:
    """The first would go on, the second is out of memory, or fails; and this kernel does not count whom it kills."""
    says = {"oom": 'print(\'{"status": "out_of_memory", "reason": "full"}\')', "fails": "raise RuntimeError('broken')"}
    monkeypatch.setattr(memory, "kernel_kills", lambda: None)
    for what, code in says.items():
        codes = iter(["import time; time.sleep(60)", code])
        monkeypatch.setattr(tries, "stage_command", lambda *args, codes=codes: [sys.executable, "-c", next(codes)])
        stages = [stage(0, None, sends=True), stage(2, None, receives=True, index=1)]
        if what == "oom":
            found = tries.run_stages(stages)
            assert (found.fits, found.failed, found.reason) == (False, 1, "full")
        else:
            with pytest.raises(MeasurementError, match=r"a try of 1\+2 layers ended .*: RuntimeError: broken"):
                tries.run_stages(stages)


@pytest.mark.slow
def test_signals_do_not_fade_in_deep_stacks() -> None:
    shape = StackShape(2, 4, 16)
    with torch.no_grad():
        deep = stack(shape, 0, 100, pooled=True)(torch.randn(shape.input_shape(pooled=True)))
    assert 1e-2 < float(deep.std()) < 1e2


@pytest.mark.slow
def test_interrupted_it_leaves_valid_json_and_no_process(tmp_path) -> None:
    signum = signal.SIGTERM
    command = ["-m", "commtrace", "capacity", "--device", "cpu", "--memory-limit", "2GB", "--fixed", "0"]
    with begun(*command, "--out", tmp_path, "--run-name", "run") as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until = time.monotonic() + 60
        while not (found := children.read_text().split()) and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signum)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signum
    assert (out, "Traceback" in err) == ("", False)
    content = written(tmp_path / "run")
    assert (content["complete"], content["reason"]) == (False, f"interrupted by {signum.name}")
    assert found
    until = time.monotonic() + 30  # who was killed is there until somebody has waited for it
    while any(left := [Path(f"/proc/{pid}").exists() for pid in found]) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(left)
    assert leftovers(tmp_path / "run") == []


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ([], 2, "on a CPU --memory-limit is required"),
        (["--memory-limit", "4G"], 2, "--memory-limit 4G: expected a size such as 4GiB"),
        (["--stack", "61"], 2, "--stack 61: expected convolutions and linear layers, as in 138+62"),
        (["--devices", "0"], 2, "--devices must be at least 1, found 0"),
        (["--fixed", "-1"], 2, "--fixed must be at least 0, found -1"),
        (["--run-name", "a/b"], 2, "expected one folder name"),
    ],
)
def test_bad_options_are_one_line(options, code, message, tmp_path, capsys) -> None:
    assert main(["capacity", "--device", "cpu", "--out", str(tmp_path), *options]) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_results_are_never_overwritten(tmp_path, capsys) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").touch()
    options = ["--memory-limit", "1GB", "--out", str(tmp_path), "--run-name", "run"]
    assert main(["capacity", "--device", "cpu", *options]) == 1
    assert "expected a new or empty run directory" in capsys.readouterr().err


def test_it_starts_its_processes_itself(monkeypatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="run it without torchrun"):
        bench.run_capacity(CapacityConfig(device="cpu", memory_limit_bytes=1), [])


def test_help_has_examples(capsys) -> None:
    assert main(["capacity", "--help"]) == 0
    assert "commtrace capacity --devices 2 --stack 138+62" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="needs a GPU: would search how many layers fit into 1 GiB of it, against a walk, and time them",
)
def test_capacity_of_a_gpu_is_what_a_walk_finds(tmp_path) -> None:
    walked = 0
    while tries.run_stages([stage(walked + 1, 2**30, device="cuda", backend="nccl")]).fits:
        walked += 1
    options = [
        "--grow",
        "linear",
        "--fixed",
        "1",
        "--memory-limit",
        "1GiB",
        *OPTIONS,
        "--out",
        str(tmp_path),
        "--run-name",
        "run",
    ]
    assert main(["capacity", "--device", "cuda", *options]) == 0
    (capacity,) = written(tmp_path / "run")["capacities"]
    assert shares_of(capacity) == [(1, walked)]
    assert len(capacity["times_ns"]) == 10


@pytest.mark.gpu
@pytest.mark.skipif(
    torch.cuda.device_count() < 2,
    reason="needs 2 GPUs: would split the largest stack over them, linked by NCCL, and time it",
)
def test_two_gpus_hold_more_than_one(tmp_path) -> None:
    options = ["--devices", "2", "--grow", "linear", "--fixed", "1", "--memory-limit", "1GiB", *OPTIONS]
    assert main(["capacity", "--device", "cuda", *options, "--out", str(tmp_path), "--run-name", "run"]) == 0
    one, two = written(tmp_path / "run")["capacities"]
    assert two["linear"] > one["linear"]
    assert len(two["shares"]) == len(two["peak_bytes"]) == 2


def test_environment_of_the_processes_is_the_users(monkeypatch) -> None:
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "7")
    seen = tries._environment(2)
    assert (seen["OMP_NUM_THREADS"], seen["MALLOC_MMAP_THRESHOLD_"]) == ("7", "131072")
