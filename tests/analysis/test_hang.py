"""Who is named for a hang, against jobs whose truth is known; and how dumps are found and read."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hanging_jobs import (
    START_NS,
    Fault,
    Job,
    Op,
    Writing,
    broken,
    data_parallel,
    dumps_of,
    ring,
    three_dimensional,
    write_job,
)  # fmt: skip

from commtrace import cli
from commtrace.analysis.errors import DamagedTrace, DuplicateRank, NotATrace, NoTraces, UnknownRank, UnreadableFile
from commtrace.analysis.hang.analysis import Hang, find_hang

SHAPES = [(2, 2, 2), (4, 2, 1), (3, 1, 3), (1, 4, 2), (2, 4, 2), (4, 2, 2)]


def named(hang: Hang) -> set[int]:
    return {rank for origin in hang.origins for rank in origin.ranks}


def whys(hang: Hang) -> dict[tuple[int, ...], str]:
    return {origin.ranks: origin.why.value for origin in hang.origins}


def found(folder: Path, job: Job, writing: Writing | None = None) -> Hang:
    return find_hang(write_job(folder, job, writing or Writing()), workers=1)


def with_faults(job: Job, *faults: Fault, ahead: int = 1) -> Job:
    job.faults, job.ahead = list(faults), ahead
    return job.run()


# Against the truth


def _random_job(choice: random.Random, faults: int) -> Job:
    kinds: list[Callable[[], Job]] = [
        lambda: data_parallel(choice.choice([3, 4, 8])),
        lambda: three_dimensional(*choice.choice(SHAPES)),
        lambda: three_dimensional(*choice.choice(SHAPES)),
        lambda: ring(choice.choice([3, 5])),
    ]
    return broken(choice.choice(kinds)(), choice, faults)


def _random_writing(choice: random.Random) -> Writing:
    return Writing(
        buffer=choice.choice([2000, 2000, 12, 30]),
        only_active=choice.random() < 0.3,
        as_json=choice.random() < 0.3,
        statuses=choice.random() < 0.8,
        protocol=choice.randrange(6),
        numbers_from=choice.choice([0, 0, 40_000]),
    )


def _check(seed: int, folder: Path) -> None:
    choice = random.Random(seed)
    job = _random_job(choice, choice.choice([1, 1, 2]))
    hang = found(folder, job, _random_writing(choice))
    assert hang.found == job.hangs
    # Of two that called different things, nobody knows which one was wrong: then both are named.
    exact = "mismatch" not in whys(hang).values() or len(job.faults) == 1
    assert named(hang) == job.culprits if exact else named(hang) >= job.culprits


@pytest.mark.parametrize("seed", range(60))
def test_the_culprits_are_named_and_nobody_else(seed: int, tmp_path: Path) -> None:
    _check(seed, tmp_path)


@pytest.mark.slow
def test_the_culprits_of_many_jobs_are_named(tmp_path: Path) -> None:
    for seed in range(1000, 2200):
        _check(seed, tmp_path / str(seed))


def _stopped_devices(seed: int, folder: Path) -> bool:
    """Whether all devices are named that stopped after others saw them take part; nobody else ever is.

    If both ranks of a group stop, nobody may have seen it.
    """
    choice = random.Random(seed)
    job = choice.choice([data_parallel(choice.choice([3, 4, 8])), three_dimensional(*choice.choice(SHAPES))])
    for rank in choice.sample(sorted(job.programs), choice.choice([1, 2])):
        program = job.programs[rank]
        places = [
            at for at, op in enumerate(program[:-3]) if op.peer is None and len(job.groups[op.group][1]) > 1
        ]  # of sends and receives nobody sees the end on the other side
        job.faults.append(Fault(rank, choice.choice(places), "device", unseen=choice.choice([1, 2, 3])))
    job.ahead = choice.choice([1, 3, 6])
    hang = found(folder, job.run(), Writing(as_json=choice.random() < 0.3, buffer=choice.choice([2000, 30])))
    stopped = {one.rank for one in job.faults if job.done[one.rank] > one.at}
    if not job.hangs:
        return not hang.found
    assert named(hang) <= stopped
    return named(hang) == stopped


@pytest.mark.parametrize("seed", range(40))
def test_stopped_devices_are_named(seed: int, tmp_path: Path) -> None:
    assert _stopped_devices(seed, tmp_path)


@pytest.mark.slow
def test_many_stopped_devices_are_named(tmp_path: Path) -> None:
    seeds = range(1000, 1600)
    assert sum(_stopped_devices(seed, tmp_path / str(seed)) for seed in seeds) > 0.99 * len(seeds)


@pytest.mark.parametrize("job", [data_parallel(4), three_dimensional(2, 2, 2), ring(4)])
@pytest.mark.parametrize("only_active", [False, True])
def test_a_job_that_ended_does_not_hang(job: Job, only_active: bool, tmp_path: Path) -> None:
    hang = found(tmp_path, job.run(), Writing(only_active=only_active))
    assert not hang.found
    assert "Nothing hangs" in hang.answer[0]


# The reasons


def test_two_groups_in_different_order_are_a_circle(tmp_path: Path) -> None:
    groups = {"0": ("default_pg", [0, 1]), "1": ("A", [0, 1]), "2": ("B", [0, 1])}
    first, second = Op("1", "all_reduce"), Op("2", "all_reduce")
    job = Job(groups, {0: [Op("0", "barrier"), first, second], 1: [Op("0", "barrier"), second, first]}).run()
    hang = found(tmp_path, job)
    assert whys(hang) == {(0, 1): "circle"}
    assert "Ranks 0 and 1 wait for each other in a circle" in hang.answer[0]


def test_a_ring_in_which_all_send_first_is_a_circle(tmp_path: Path) -> None:
    job = ring(4, 1)
    for rank in job.programs:
        job.programs[rank] = sorted(job.programs[rank], key=lambda op: op.kind, reverse=True)
    hang = found(tmp_path, job.run())
    assert whys(hang) == {(0, 1, 2, 3): "circle"}


def test_a_collective_in_which_all_are_does_not_name_one(tmp_path: Path) -> None:
    hang = found(tmp_path, with_faults(data_parallel(3), Fault(1, 2, "device")))
    assert whys(hang) == {(0, 1, 2): "all there"}
    assert "do not say which" in hang.answer[0]


def test_a_device_that_did_not_begin_is_named_where_begins_are_recorded(tmp_path: Path) -> None:
    folder = write_job(tmp_path, with_faults(data_parallel(3), Fault(1, 2, "device")))
    for rank in (0, 2):
        dump = pickle.loads((folder / f"nccl_trace_rank_{rank}").read_bytes())
        dump["entries"][-1]["state"] = "started"
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, 2))
    hang = find_hang(folder)
    assert whys(hang) == {(1,): "not begun"}
    assert "its device has not begun it" in hang.answer[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "broadcast"}, "rank 2 called broadcast float32 1,000 elements"),
        ({"elems": 999}, "rank 2 called all_reduce float32 999 elements"),
        ({"dtype": "BFloat16"}, "rank 2 called all_reduce bfloat16 1,000 elements"),
    ],
)
def test_what_a_rank_called_otherwise_is_said(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    job = data_parallel(4)
    fault = Fault(2, 4, "other", replace(job.programs[2][4], **change))
    hang = found(tmp_path, with_faults(job, fault))
    assert whys(hang) == {(2,): "mismatch"}
    assert said in hang.answer[0]
    assert list(hang.hang_mismatches["ranks"]) == ["0-1, 3", "2"]


def test_a_message_of_another_size_is_said(tmp_path: Path) -> None:
    groups = {"0": ("default_pg", [0, 1, 2])}
    job = Job(groups, {0: [Op("0", "send", 64, peer=1)], 1: [Op("0", "recv", 32, peer=0)], 2: []})
    job.issued, job.done = {0: 1, 1: 1, 2: 0}, dict.fromkeys(range(3), 0)
    hang = found(tmp_path, job)
    assert whys(hang) == {(0, 1): "mismatch"}
    assert "rank 0 called send 64 elements; rank 1 called recv 32 elements" in hang.answer[0]


def test_the_chain_is_followed_over_groups(tmp_path: Path) -> None:
    job = with_faults(three_dimensional(2, 4, 1), Fault(0, 1, "sleep"))
    hang = found(tmp_path, job)
    assert whys(hang) == {(0,): "missing"}
    [row] = hang.hang_origins.to_dict("records")
    assert row["waiting_ranks"] == 7
    assert "6 more ranks wait for those" in hang.answer[0]


def test_an_exited_rank_and_a_sleeping_one_are_told_apart(tmp_path: Path) -> None:
    job = with_faults(data_parallel(5), Fault(1, 3, "sleep"), Fault(4, 3, "exit"))
    hang = found(tmp_path, job)
    assert whys(hang) == {(1,): "missing", (4,): "no dump"}
    assert any("there is no dump of rank 4" in note for note in hang.notes)
    assert any("it is not known which of these ranks stopped first" in note for note in hang.notes)
    sleeper = next(text for text in hang.answer if text.startswith("Rank 1"))
    assert "last issued all_reduce number 3 of group 0" in sleeper
    assert "step (train.py:102)" in sleeper
    assert "since 2025-09-22 22:47:17.003 UTC" in sleeper


def test_numbers_of_the_group_stand_for_calls_that_are_not_in_the_dump(tmp_path: Path) -> None:
    job = with_faults(data_parallel(4), Fault(3, 5, "sleep"))
    hang = found(tmp_path, job, Writing(only_active=True))
    rows = hang.hang_positions.set_index("ranks")
    assert rows.loc["3", ["state", "known_by", "last_issued"]].tolist() == ["missing", "numbers", 5]
    assert rows.loc["0-2", ["state", "known_by", "last_done", "last_issued"]].tolist() == ["waits", "calls", 5, 6]


def test_what_dumps_do_not_show_is_concluded_and_said(tmp_path: Path) -> None:
    job = with_faults(data_parallel(4), Fault(3, 5, "sleep"))
    hang = found(tmp_path, job, Writing(only_active=True, statuses=False))
    assert named(hang) == {3}
    assert hang.hang_waits["unsure"].tolist() == ["3"]
    assert any("no longer shows the group" in note for note in hang.notes)


@pytest.mark.slow
def test_ranks_are_ranges_at_a_thousand(tmp_path: Path) -> None:
    job = Job({"0": ("default_pg", list(range(1024)))}, {rank: [Op("0", "all_reduce")] * 2 for rank in range(1024)})
    job.issued = dict.fromkeys(range(1024), 2) | {700: 1}
    job.done = dict.fromkeys(range(1024), 1)
    hang = found(tmp_path, job)
    assert "Ranks 0-699 and 701-1023 have waited in it" in hang.answer[0]
    assert hang.hang_positions["ranks"].tolist() == ["0-699, 701-1023", "700"]


# Layouts


def _older(dump: dict[str, Any]) -> dict[str, Any]:
    """As torch 2.4 wrote it, and a little older."""
    entries = [
        {key: value for key, value in entry.items() if key not in ("is_p2p", "op_id", "p2p_seq_id", "timeout_ms")}
        | {"seq_id": entry["collective_seq_id"]}
        for entry in dump["entries"]
    ]
    for entry in entries:
        del entry["collective_seq_id"]
    return {"version": "2.1", "pg_config": dump["pg_config"], "nccl_version": "2.20", "entries": entries}


LAYOUTS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "pickle": lambda dump: pickle.dumps(dump, 2),
    "json": lambda dump: json.dumps(dump).encode(),
    "json, sorted and indented": lambda dump: json.dumps(dump, sort_keys=True, indent=1).encode(),
    "older": lambda dump: pickle.dumps(_older(dump), 2),
    "gzip": lambda dump: gzip.compress(pickle.dumps(dump, 2)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_answer(layout: str, tmp_path: Path) -> None:
    job = with_faults(three_dimensional(3, 1, 2), Fault(4, 7, "sleep"))
    for rank, dump in dumps_of(job).items():
        (tmp_path / f"trace_{rank}").write_bytes(LAYOUTS[layout](dump))
    hang = find_hang(tmp_path, workers=1)
    assert whys(hang) == {(4,): "missing"}
    assert "all_reduce number 8 of group 2 (TENSOR_PARALLEL_GROUP, ranks 3-5)" in hang.answer[0]


def test_calls_of_a_batch_have_the_state_of_what_closes_it(tmp_path: Path) -> None:
    """The calls themselves stay scheduled for ever."""
    job = ring(2, 2).run()
    for rank, dump in dumps_of(job).items():
        for entry in dump["entries"]:
            entry.update(state="scheduled", time_discovered_completed_ns=None, retired=False, p2p_seq_id=1)
        closing = dump["entries"][-1] | {"profiling_name": "nccl:coalesced", "state": "completed", "record_id": 4}
        dump["entries"].append(closing)
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(dump, 2))
    assert not find_hang(tmp_path).found


def test_calls_of_a_batch_that_was_left_out_are_done(tmp_path: Path) -> None:
    """A dump of what is active has the calls, which never get done, but not what closed their batch."""
    job = ring(2, 2).run()
    for rank, dump in dumps_of(job).items():
        for entry in dump["entries"]:
            entry.update(state="scheduled", time_discovered_completed_ns=None, retired=False, p2p_seq_id=9)
            entry["record_id"] += 100
        dump["pg_status"]["0"]["last_completed_collective"] = 9
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(dump, 2))
    assert not find_hang(tmp_path).found


def _gloo(job: Job, folder: Path) -> Path:
    """As gloo records: nothing is ever completed, and nobody knows who is in a group."""
    for rank, dump in dumps_of(job, Writing(backend="gloo")).items():
        for entry in dump["entries"]:
            entry.update(retired=entry["state"] == "completed", state="scheduled", time_discovered_completed_ns=None)
        dump["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[]"}}
        (folder / f"trace_{rank}").write_bytes(pickle.dumps(dump, 2))
    return folder


def test_gloo_names_who_never_came(tmp_path: Path) -> None:
    hang = find_hang(_gloo(with_faults(data_parallel(3), Fault(1, 4, "sleep")), tmp_path))
    assert whys(hang) == {(1,): "missing"}
    assert any("gloo does not say" in note for note in hang.notes)


def test_gloo_struck_off_what_failed(tmp_path: Path) -> None:
    """After a timeout a call looks as if it had been done; it was not if a rank never issued it."""
    folder = _gloo(with_faults(data_parallel(3), Fault(1, 4, "sleep")), tmp_path)
    for rank in (0, 2):
        dump = pickle.loads((folder / f"trace_{rank}").read_bytes())
        dump["entries"][-1]["retired"] = True
        (folder / f"trace_{rank}").write_bytes(pickle.dumps(dump, 2))
    assert whys(find_hang(folder)) == {(1,): "missing"}


def test_gloo_that_has_not_struck_off_its_last_call_does_not_hang(tmp_path: Path) -> None:
    folder = _gloo(data_parallel(3).run(), tmp_path)
    dump = pickle.loads((folder / "trace_1").read_bytes())
    dump["entries"][-1]["retired"] = False
    (folder / "trace_1").write_bytes(pickle.dumps(dump, 2))
    assert not find_hang(folder).found


# Files


@pytest.mark.parametrize(
    "name",
    ["nccl_trace_rank_{}", "{}.pickle", "rank{}.of.64.bin", "node7_gpu{}_pid4711.dump", "dump {} ü.json", "r-{}-2024"],
)
def test_files_may_have_any_name_that_holds_the_rank(name: str, tmp_path: Path) -> None:
    writing = Writing(name=name.format, as_json=name.endswith("json"))
    assert named(found(tmp_path, with_faults(data_parallel(4), Fault(2, 3, "sleep")), writing)) == {2}


def test_ranks_come_from_groups_where_names_do_not_tell(tmp_path: Path) -> None:
    job = with_faults(three_dimensional(2, 2, 1), Fault(3, 6, "sleep"))
    names = dict(enumerate(["d", "b", "a", "c"]))
    assert named(found(tmp_path, job, Writing(name=lambda rank: names[rank]))) == {3}


def test_a_file_that_does_not_tell_its_rank_is_an_error(tmp_path: Path) -> None:
    job = with_faults(data_parallel(2), Fault(1, 3, "sleep"))
    with pytest.raises(UnknownRank, match=r"which rank it is of, nor does 1 other; .* let its name end in the rank"):
        found(tmp_path, job, Writing(name=lambda rank: "ab"[rank]))


def test_two_files_of_one_rank_are_an_error(tmp_path: Path) -> None:
    job = with_faults(data_parallel(2), Fault(1, 3, "sleep"))
    one, two = write_job(tmp_path / "one", job), write_job(tmp_path / "two", job)
    with pytest.raises(DuplicateRank, match=r"is of rank 0, as .* is"):
        find_hang([one, two])


def test_a_run_directory_may_hold_them(tmp_path: Path) -> None:
    write_job(tmp_path, with_faults(data_parallel(3), Fault(1, 3, "sleep")), Writing(as_json=True))
    (tmp_path / "run.json").write_text('{"pg_status": 1}')
    (tmp_path / "node_0.1.pt.trace.json").write_text('{"schemaVersion": 1, "distributedInfo": {"pg_config": []}}')
    (tmp_path / "notes.txt").write_text("entries, pg_status")
    assert named(find_hang(tmp_path)) == {1}


def test_a_folder_without_dumps_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    with pytest.raises(NoTraces, match=r"holds no dump .*did you mean one of its folders \(inner\)"):
        find_hang(tmp_path)
    with pytest.raises(NoTraces, match="no such file"):
        find_hang(tmp_path / "gone")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", DamagedTrace),
        (b'{"entries": [', DamagedTrace),
        (b'{"traceEvents": []}', NotATrace),
        (b"hello", NotATrace),
        (b"\x80\x02]q\x00.", NotATrace),
        (b'{"entries": [{"profiling_name": 7}]}', DamagedTrace),
        (b'{"entries": 7}', DamagedTrace),
        (b'{"entries": [7]}', DamagedTrace),
        (b'{"entries": [], "pg_config": {"0": {"name": "0", "ranks": "[0, 0]"}}}', DamagedTrace),
    ],
)
def test_what_is_not_a_dump_is_an_error_that_names_it(content: bytes, error: type[Exception], tmp_path: Path) -> None:
    (tmp_path / "x_1").write_bytes(content)
    with pytest.raises(error, match="x_1"):
        find_hang(tmp_path / "x_1")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "dump_1")
    with pytest.raises(UnreadableFile, match="dump_1: cannot be read: is a pipe"):
        find_hang(tmp_path / "dump_1")


def test_damaged_files_are_left_out_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_job(tmp_path, data_parallel(3).run())
    whole = (folder / "nccl_trace_rank_2").read_bytes()
    (folder / "nccl_trace_rank_2").write_bytes(whole[:900])
    assert cli.main(["hang", str(folder)]) == 1
    assert "nccl_trace_rank_2: is a pickle that ends early, after 900 bytes" in capsys.readouterr().err
    assert cli.main(["hang", "--keep-going", str(folder)]) == 1
    out, err = capsys.readouterr()
    assert "Nothing hangs" in out
    assert "no dump of rank 2" in out
    assert "ends early" in err


@pytest.mark.slow
def test_any_change_of_a_dump_gives_an_answer_or_an_error_of_ours(tmp_path: Path) -> None:
    choice = random.Random(1)
    job = with_faults(three_dimensional(2, 2, 1), Fault(3, 6, "sleep"))
    folder = write_job(tmp_path, job, Writing(as_json=True))
    path = folder / "nccl_trace_rank_2"
    whole = json.loads(path.read_bytes())
    for _ in range(150):
        changed = json.loads(json.dumps(whole))
        entry = choice.choice(changed["entries"])
        odd = choice.choice([None, "", -1, 1 << 70, [], {}, "x" * 50, [[1 << 62]], True, 1.5])
        choice.choice([entry, changed, changed["pg_config"], changed["pg_status"]])[
            choice.choice([*entry, *changed, "0"])
        ] = odd
        path.write_text(json.dumps(changed))
        assert cli.main(["hang", "--format", "json", str(folder)]) in (0, 1)


# The command


@pytest.fixture
def hung(tmp_path: Path) -> Path:
    return write_job(tmp_path / "dumps", with_faults(data_parallel(4), Fault(2, 3, "sleep")))


def test_the_command_says_it_and_exits_with_1(hung: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["hang", str(hung)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("hang ")
    assert "Rank 2 is missing from all_gather number 4 of group 0 (default_pg, ranks 0-3)." in " ".join(out.split())
    for heading in ("Who waits for whom", "Where ranks stand", "Where code stands"):
        assert heading in out


def test_it_exits_with_0_where_nothing_hangs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_job(tmp_path, data_parallel(4).run())
    assert cli.main(["hang", str(folder)]) == 0
    assert "Nothing hangs: no rank waits in the 32 calls that 4 ranks recorded." in capsys.readouterr().out


def test_the_formats(hung: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["hang", "--format", "json", str(hung)]) == 1
    content = json.loads(capsys.readouterr().out)
    assert content["hang"] is True
    assert content["hang_origins"][0]["ranks"] == "2"
    assert content["hang_origins"][0]["since_ns"] == START_NS + 3_000_000
    assert cli.main(["hang", "--format", "csv", "--by", "wait", str(hung)]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split(",")[:5] == ["0", "default_pg", "0-3", "all_gather", "4"]
    assert "Rank 2 is missing" in err
    for output_format in ("markdown", "latex", "table"):
        for by in ("origin", "wait", "group", "mismatch", "stack"):
            assert cli.main(["hang", "--format", output_format, "--by", by, str(hung)]) == 1
    assert cli.main(["hang", "--format", "markdown", str(hung)]) == 1
    assert "- **hang**: Rank 2" in capsys.readouterr().out


def test_a_dump_is_not_written_over(hung: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (hung / "nccl_trace_rank_0").read_bytes()
    assert cli.main(["hang", "--output", str(hung / "nccl_trace_rank_0"), str(hung)]) == 2
    assert "which is read; name another file" in capsys.readouterr().err
    assert (hung / "nccl_trace_rank_0").read_bytes() == before


def test_hostile_names_cannot_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = data_parallel(3)
    job.groups = {"0": ("\x1b[2Jdefault\n_pg", [0, 1, 2])}
    folder = write_job(tmp_path, with_faults(job, Fault(2, 3, "sleep")))
    assert cli.main(["hang", str(folder)]) == 1
    assert "\x1b" not in capsys.readouterr().out


def test_it_is_in_the_public_interface(hung: Path) -> None:
    import commtrace

    assert commtrace.find_hang(hung).found


# What is not in the dumps


def test_a_group_of_one_rank_that_does_not_end(tmp_path: Path) -> None:
    job = data_parallel(2)
    job.groups["alone"] = ("tp", (0,))
    write_job(tmp_path, job.run())
    (path,) = (path for path in tmp_path.iterdir() if path.name.endswith("0"))
    content = pickle.loads(path.read_bytes())
    last = content["entries"][-1]
    lone = last | {"process_group": ("alone", "tp"), "pg_id": 1, "collective_seq_id": 1, "state": "scheduled"}
    lone |= {"record_id": last["record_id"] + 1, "retired": False, "time_discovered_completed_ns": None}
    content["entries"].append(lone)
    path.write_bytes(pickle.dumps(content))
    hang = find_hang(tmp_path, workers=1)
    assert whys(hang) == {(0,): "all there"}
    assert hang.answer[0].startswith("Rank 0 has issued ")


@pytest.mark.parametrize(("issued", "done", "sure"), [(3, 2, False), (1, -1, False), (2, 2, True), (-1, -1, True)])
def test_a_status_without_calls_is_no_proof_that_nothing_hangs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], issued: int, done: int, sure: bool
) -> None:
    write_job(tmp_path, data_parallel(2).run(), Writing())
    for path in tmp_path.iterdir():
        content = pickle.loads(path.read_bytes())
        content["pg_status"]["7"] = {"last_enqueued_collective": issued, "last_completed_collective": done}
        path.write_bytes(pickle.dumps(content))
    assert cli.main(["hang", str(tmp_path)]) == (0 if sure else 1)
    assert (
        "It is not known whether anything hangs: ranks 0 and 1 have not finished all" in capsys.readouterr().out
    ) == (not sure)


def test_dumps_that_show_nothing_prove_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        empty = {"version": "2.9", "pg_config": {}, "entries": [], "nccl_version": "2.27.3"}
        (tmp_path / f"dump_{rank}").write_bytes(pickle.dumps(empty))
    assert cli.main(["hang", str(tmp_path)]) == 1
    assert "It is not known whether anything hangs" in capsys.readouterr().out
