"""XSpaces of JAX: what GPUs and TPUs did, step by step, and which of it is one collective."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nsight_exports import documents
from protobufs import integer, message
from xplanes import Instruction, Plane, Space, program, write_gpus

from commtrace import analyse
from commtrace.analysis.errors import AnalysisError, TraceError
from commtrace.analysis.formats.xplane.ranks import devices_as_ranks
from commtrace.analysis.formats.xplane.reader import read_xplane
from commtrace.analysis.recording.checks import is_consistent
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.results.analysis import Analysis
from commtrace.cli import main

US = 1_000
STEP_NS = 1_000 * US
LAYERS = 3
_NAMED_OTHERWISE = {
    "device", "host", "process_group", "seq", "matched_by", "normal_busbw_gb_per_s", "of_normal_frac", "normal_note"
}  # fmt: skip
_BY_GROUPS_OF_CLOCKS = {
    "times_last", "caused_wait_ns", "caused_wait_frac", "caused_exposed_frac", "late_median_ns", "late_max_ns"
}  # fmt: skip
"""Each host has its own clock, by which it is less certain who was late."""


def tpus(hosts: int = 1, per_host: int = 2, steps: int = 2, *, with_programs: bool = True) -> list[Space]:
    """Hosts whose TPUs take these steps of 1 ms.

    By us: a loop from 0 to 500 of three layers, each a fusion of 100 and an all-gather of 40, with 10 of steering in
    between; an all-reduce that begins at 500 (5 us), runs beside a fusion from 505 to 800, and is waited for from 800
    to 850; from 850 on nothing. Device d is d us later with everything but the end of what all wait for.
    """
    world = hosts * per_host
    said = program(
        [
            Instruction("all-gather.2", "all-gather", "bfloat16", 1 << 20),
            Instruction("all-reduce-start.1", "all-reduce-start", "float32", 1 << 20),
            Instruction("all-reduce-done.9", "all-reduce-done", operand="all-reduce-start.1"),
        ],
        world,
    )
    spaces = []
    for host in range(hosts):
        space = Space(f"node{host}")
        metadata = space.plane("/host:metadata")
        metadata.names["jit_step(7)"]
        if with_programs:
            metadata.programs["jit_step(7)"] = said
        for number in range(per_host):
            _add_tpu(
                space.plane(f"/device:TPU:{number}", device_type_string="TPU v5p"), host * per_host + number, steps
            )
        space.plane("/device:TPU:0 SparseCore 0").line("Sparse Core Ops").event("x", 0, 10)
        space.plane("Task Environment", profile_start_time=1_759_299_000_000_000_000)
        spaces.append(space)
    return spaces


def _add_tpu(device: Plane, late: int, steps: int) -> None:
    device.of_names |= {"fusion.1": {"hlo_category": "convolution fusion"}, "while.3": {"hlo_category": "while"}}
    step_line, module_line, ops, beside = (device.line(n) for n in ("Steps", "XLA Modules", "XLA Ops", "Async XLA Ops"))
    for step in range(steps):
        begin = step * STEP_NS + 100 * US

        def at(us: float, begin: int = begin) -> float:
            return begin + us * US

        step_line.event(str(step + 5), at(0), at(990))
        module_line.event("jit_step(7)", at(0), at(900), run_id=40 + step)
        ops.event("%while.3 = (s32[]) while(%t), body=%b", at(late), at(500))
        for layer in range(LAYERS):
            first = layer * 160
            ops.event("fusion.1", at(first + late + 5), at(first + late + 105))
            ops.event("all-gather.2", at(first + late + 105), at(first + 150))
        ops.event("all-reduce-start.1", at(500 + late), at(505 + late))
        ops.event("fusion.1", at(505 + late), at(800))
        ops.event("all-reduce-done.9", at(800), at(850))
        beside.event("all-reduce-start.1", at(500 + late), at(850))


@pytest.fixture
def of_tpus(tmp_path: Path) -> Analysis:
    return read(tpus(), tmp_path)


def read(spaces: list[Space], folder: Path, **options: Any) -> Analysis:
    for space in spaces:
        space.write(folder / f"{space.host}.xplane.pb")
    return analyse(folder, details=True, **options)


@pytest.mark.parametrize("hosts", [1, 2])
def test_time_of_tpus_is_what_it_was_made_of(tmp_path: Path, hosts: int) -> None:
    found = read(tpus(hosts), tmp_path)
    table = found.table("breakdown")
    assert table["rank"].tolist() == list(range(2 * hosts))
    for rank, row in enumerate(table.to_dict("records")):
        assert row["compute_ns"] == (3 * 100 + 295 - rank) * US
        assert row["comm_ns"] == (3 * (45 - rank) + 350 - rank) * US
        assert row["overlap_ns"] == (295 - rank) * US
        assert row["exposed_comm_ns"] == (3 * (45 - rank) + 5 + 50) * US


def test_a_loop_is_only_what_is_in_it(of_tpus: Analysis) -> None:
    assert not of_tpus.run.activities["name"].str.startswith("while").any()
    kernels = of_tpus.table("kernels").set_index("name")
    assert kernels.loc["fusion.1", "calls"] == 2 * 4
    assert set(kernels.index) == {"fusion.1", "all-gather.2", "all-reduce.1"}


@pytest.mark.parametrize("hosts", [1, 2])
def test_collectives_are_matched_by_runs(tmp_path: Path, hosts: int) -> None:
    found = read(tpus(hosts), tmp_path)
    collectives = found.table("collectives")
    assert collectives["collective"].value_counts().to_dict() == {"all_gather": 6, "all_reduce": 2}
    assert (collectives["ranks"] == " ".join(map(str, range(2 * hosts)))).all()
    assert set(collectives["matched_by"]) == {"comms_id"}
    assert (collectives["group_size"] == 2 * hosts).all()
    of_kind = found.table("bandwidth").set_index("collective")
    assert of_kind.loc["all_gather", "size_bytes"] == 2 * hosts * 2 << 20
    assert of_kind.loc["all_reduce", "size_bytes"] == 4 << 20
    waits = found.table("participation").query("collective == 'all_gather'").groupby("rank")["wait_ns"].unique()
    if hosts == 1:  # they share a clock
        assert [list(ns) for ns in waits] == [[1 * US], [0]]


def test_steps_are_those_that_the_device_marks(of_tpus: Analysis) -> None:
    steps = of_tpus.table("steps")
    assert sorted(set(steps["step"])) == [5, 6]
    assert of_tpus.run.activities["step"].notna().all()


def test_without_programs_sizes_are_unknown_and_said_so(tmp_path: Path) -> None:
    found = read(tpus(with_programs=False), tmp_path)
    assert found.table("bandwidth")["busbw_gb_per_s"].isna().all()
    assert any("no program that says what its collectives move" in note for note in found.run.notes)
    # The first that waits is the one that is done, where no program says which.
    assert (
        found.table("breakdown")["comm_ns"].tolist()
        == read(tpus(), tmp_path / "b").table("breakdown")["comm_ns"].tolist()
    )


def test_advice_on_steps_is_for_jax_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = Space()
    space.plane("/device:TPU:0").line("XLA Ops").event("fusion.1", 0, 100 * US)
    path = space.write(tmp_path / "a.xplane.pb")
    for command in (["summary", "--all"], ["breakdown", "--by", "step"]):
        main([*command, "--no-cache", str(path)])
        said = capsys.readouterr()
        assert "StepTraceAnnotation" in said.out + said.err, command


def test_what_is_left_out_is_named(of_tpus: Analysis) -> None:
    assert any("left out 1 plane" in note and "SparseCore" in note for note in of_tpus.run.notes)


def test_groups_are_those_of_the_program(tmp_path: Path) -> None:
    space = Space()
    metadata = space.plane("/host:metadata")
    metadata.names["jit_step(7)"]
    metadata.programs["jit_step(7)"] = program(
        [
            Instruction("all-reduce.1", "all-reduce", "float32", 64, groups=((0, 1), (2, 3))),
            Instruction("all-reduce.2", "all-reduce", "float32", 64, iota=(2, 2, (2, 2), (1, 0))),
            Instruction("collective-permute.3", "collective-permute", "bfloat16", 64),
        ],
        4,
    )
    for number in range(4):
        device = space.plane(f"/device:TPU:{number}")
        device.line("XLA Modules").event("jit_step(7)", 0, 1000, run_id=3)
        ops = device.line("XLA Ops")
        ops.event("all-reduce.1", 0, 100).event("all-reduce.2", 100, 200).event("collective-permute.3", 200, 300)
    found = read([space], tmp_path)
    groups = found.table("collectives").groupby("ranks").size().to_dict()
    assert groups["0 1"] == groups["2 3"] == groups["0 2"] == groups["1 3"] == 1
    permuted = found.calls[found.calls["collective"] == "collective_permute"]
    assert permuted["size_bytes"].tolist() == [128] * 4


def test_groups_of_several_hosts_are_not_known(tmp_path: Path) -> None:
    """Only that two devices belong together is, so nothing of it is certain, and none is taken for the group of all."""
    groups, drawn = ((0, 1), (2, 3)), random.Random(1)
    said = program(
        [
            Instruction("all-reduce.1", "all-reduce", "float32", 64, groups=groups),
            Instruction("all-gather.2", "all-gather", "float32", 64, groups=((0, 1, 2, 3),)),
        ],
        4,
    )
    spaces = [Space("node0"), Space("node1")]
    devices = []
    for number in range(4):
        devices.append(spaces[number // 2].plane(f"/device:TPU:{number % 2}"))
        for name in ("Steps", "XLA Modules", "XLA Ops"):
            devices[-1].line(name)
    for space in spaces:
        metadata = space.plane("/host:metadata")
        metadata.names["jit_step(7)"]
        metadata.programs["jit_step(7)"] = said
    now = [0, 0, 0, 0]
    for step in range(12):
        begun = list(now)
        for name, of in 3 * [("all-reduce.1", groups)] + [("all-gather.2", ((0, 1, 2, 3),))]:
            for group in of:
                arrived = {rank: now[rank] + drawn.randint(3000, 4500) for rank in group}
                end = max(arrived.values()) + drawn.randint(3000, 5000)
                for rank, start in arrived.items():
                    devices[rank].lines[2].event("fusion.1", now[rank], start).event(name, start, end)
                    now[rank] = end
        for rank, device in enumerate(devices):
            device.lines[0].event(str(step), begun[rank], now[rank])
            device.lines[1].event("jit_step(7)", begun[rank], now[rank], run_id=step)
    found = read(spaces, tmp_path)
    of_kind = dict(list(found.table("collectives").groupby("collective")))
    assert of_kind["all_gather"]["certain"].all()
    reduced = of_kind["all_reduce"]
    assert not reduced["certain"].any()
    assert set(reduced["group_size"]) == {2}
    assert reduced["pg_ranks"].isna().all()
    assert reduced["note"].notna().all()
    participation = found.table("participation").query("collective == 'all_reduce'")
    assert len(participation) == 4 * 36
    assert participation["wait_ns"].isna().all()
    assert found.table("groups")[["pg_ranks", "calls"]].values.tolist() == [["0 1 2 3", 48]]
    assert "capture the same steps" not in " ".join(map(str, found.table("verdicts").iloc[0]))


@pytest.mark.slow_cases("straggler-4")
@pytest.mark.parametrize(("name", "hosts"), [("straggler", 4), ("straggler", 1), ("sharded", 1)])
def test_gpus_do_what_kineto_says(tmp_path: Path, name: str, hosts: int) -> None:
    """Where every rank has its own host, and so its own steps, all is the same; else all but steps."""
    made = documents(name, tmp_path / "kineto")
    write_gpus(made, tmp_path / "jax", hosts=hosts)
    wanted, found = (analyse(tmp_path / one, details=True) for one in ("kineto", "jax"))
    columns = ["kind", "start_ns", "dur_ns", "stream", "size_bytes"]
    own, others = (
        one.run.activities.sort_values(["rank", "start_ns", "stream"]).reset_index(drop=True) for one in (found, wanted)
    )
    assert own[columns].equals(others[columns])
    launches, of_kineto = (one.run.launches.sort_values(["rank", "start_ns"]) for one in (found, wanted))
    assert launches["start_ns"].tolist() == of_kineto["start_ns"].tolist()
    if hosts == len(made):
        for table in ("breakdown", "collectives", "participation", "bandwidth", "ranks"):
            ours, theirs = found.table(table), wanted.table(table)
            left = _NAMED_OTHERWISE | (_BY_GROUPS_OF_CLOCKS if table == "ranks" else set())
            for column in set(ours.columns) - left:
                assert str(ours[column].tolist()) == str(theirs[column].tolist()), (table, column)


def test_one_process_and_annotations_of_the_host_give_steps(tmp_path: Path) -> None:
    write_gpus(documents("straggler", tmp_path / "kineto"), tmp_path / "jax")
    found = analyse(tmp_path / "jax")
    assert found.table("steps")["step"].nunique() >= 2
    assert found.run.activities.groupby("rank")["step"].nunique().min() >= 2


def test_kernels_tell_how_they_were_launched(tmp_path: Path) -> None:
    write_gpus(documents("straggler", tmp_path / "kineto"), tmp_path / "jax")
    activities = analyse(tmp_path / "jax").run.activities
    kernels = activities[activities["kind"] == "compute"]
    assert set(kernels["registers"]) == {32}
    assert set(kernels["blocks_per_sm"]) == {1.0}
    assert set(kernels["occupancy_frac"]) == {0.5}


@pytest.mark.parametrize("name", ["a.xplane.pb", "a.xplane.pb.gz", "trace.bin"])
def test_it_is_recognised_by_name_or_content(tmp_path: Path, name: str) -> None:
    space = tpus()[0]
    path = space.write(tmp_path / name)
    if name == "trace.bin":
        path.write_bytes(space.encoded())
    assert len(analyse(path).table("breakdown")) == 2


def test_a_folder_of_a_run_of_xprof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JAX writes a trace for its viewer beside it, which says less."""
    folder = tmp_path / "plugins" / "profile" / "2026_01_01"
    for space in tpus(2):
        space.write(folder / f"{space.host}.xplane.pb")
    (folder / "node0.trace.json.gz").write_bytes(b"\x1f\x8b not read")
    (folder / "perfetto_trace.json.gz").write_bytes(b"\x1f\x8b not read")
    command = ["table", "breakdown", "--no-cache", "--format", "csv", str(folder)]
    assert main(command) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1 + 4
    assert "left out beside" not in said.err
    (folder / "r0.pt.trace.json").write_bytes(b"of torch")
    assert main(command) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1 + 4
    assert "left out beside xplane.pb files: r0.pt.trace.json; name them to read them" in said.err


@pytest.mark.slow
def test_all_that_people_see_can_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read(tpus(), tmp_path)
    page, timeline = str(tmp_path / "r.html"), str(tmp_path / "t.pftrace")
    for command in (["summary", "--all"], ["report", "-o", page], ["timeline", "-o", timeline]):
        assert main([*command, "--no-cache", str(tmp_path / "node0.xplane.pb")]) == 0
        said = capsys.readouterr()
        assert "Traceback" not in said.err
    assert (tmp_path / "r.html").stat().st_size > 10_000


def test_feeding_copying_and_messages_are_no_compute(tmp_path: Path) -> None:
    space = Space()
    device = space.plane("/device:TPU:0")
    device.of_names["send.7"] = {"hlo_category": "host send"}
    begun = 0
    for name, us in (
        ("infeed.1", 200), ("fusion.1", 100), ("outfeed.1", 30), ("copy-start.1", 5), ("copy.9", 40),
        ("copy-done.1", 45), ("recv.1", 3), ("send.1", 2), ("fusion.1", 100), ("send-done.1", 10),
        ("recv-done.1", 300), ("send.7", 15), ("send_fusion.1", 50),
    ):  # fmt: skip
        (device.lines or [device.line("XLA Ops")])[0].event(name, begun * US, (begun + us) * US)
        begun += us
    found = read([space], tmp_path)
    kinds = found.run.activities.groupby("kind")["dur_ns"].sum() / US
    assert kinds.to_dict() == {
        "compute": 100 + 40 + 100 + 50,
        "memory": 200 + 30 + 5 + 45 + 15,
        "comm": 2 + 100 + 10 + 3 + 2 + 100 + 10 + 300,
    }
    calls = found.table("calls")[["collective", "dur_ns", "process_group"]]
    assert calls.fillna("").values.tolist() == [["recv", 415 * US, ""], ["send", 112 * US, ""]]
    assert found.table("breakdown")["exposed_comm_ns"].tolist() == [315 * US]
    assert set(found.table("collectives")["note"]) == {"its peer is not known"}


@pytest.mark.parametrize(
    "name", ["rs-start.1 rs-done.1", "reduce-scatter.5-start reduce-scatter.5-done"], ids=["by program", "by name"]
)
def test_what_a_general_start_begins_is_one_collective(tmp_path: Path, name: str) -> None:
    start, done = name.split()
    space = Space()
    metadata, device = space.plane("/host:metadata"), space.plane("/device:TPU:0")
    if start == "rs-start.1":
        metadata.names["jit_step(7)"]
        metadata.programs["jit_step(7)"] = program(
            [
                Instruction(start, "async-start", "float32", 64, wraps="reduce-scatter"),
                Instruction(done, "async-done", operand=start),
            ],
            2,
        )
    device.of_names |= {start: {"hlo_category": "async-start"}, done: {"hlo_category": "async-done"}}
    device.line("XLA Modules").event("jit_step(7)", 0, 100 * US, run_id=3)
    ops = device.line("XLA Ops").event(start, 0, 5 * US)
    ops.event("fusion.1", 5 * US, 55 * US).event(done, 55 * US, 100 * US)
    found = read([space], tmp_path)
    calls = found.table("calls")
    assert calls[["collective", "dur_ns"]].values.tolist() == [["reduce_scatter", 100 * US]]
    assert found.table("breakdown")[["compute_ns", "overlap_ns"]].values.tolist() == [[50 * US, 50 * US]]
    if start == "rs-start.1":
        assert calls["size_bytes"].tolist() == [64 * 4]


@pytest.mark.slow
def test_a_page_of_what_takes_no_time(tmp_path: Path) -> None:
    space = Space()
    ops = space.plane("/device:TPU:0").line("XLA Ops")
    ops.event("all-reduce.1", 0, 0).event("fusion.1", 0, 0).event("fusion.2", 0, 0)
    path, page = space.write(tmp_path / "a.xplane.pb"), tmp_path / "r.html"
    for command in (["summary", "--all"], ["report", "-o", str(page)]):
        assert main([*command, "--no-cache", str(path)]) == 0
    assert "device time is in" not in page.read_text()
    verdict = analyse(path).table("verdicts").iloc[0]
    assert verdict["verdict"] == "inconclusive"
    assert verdict["because"].startswith("Nothing was measured: what devices did took no time.")


@pytest.mark.parametrize("planes", [[], ["/host:CPU"], ["/device:TPU:0"]])
def test_where_no_device_did_anything_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], planes: list[str]
) -> None:
    space = Space()
    for name in planes:
        space.plane(name)
    path = space.write(tmp_path / "a.xplane.pb")
    assert main([str(path)]) == 1
    said = capsys.readouterr().err.strip()
    assert "nothing" in said
    assert said.count("\n") == 0


def working(space: Space, number: int) -> Space:
    space.plane(f"/device:TPU:{number}").line("XLA Ops").event("fusion.1", 0, 1000).event("fusion.2", 1000, 3000)
    return space


def test_devices_that_did_nothing_are_left_out(tmp_path: Path) -> None:
    space = Space("node0")
    space.plane("/device:TPU:0").line("XLA Ops")
    idle = Space("node1")
    idle.plane("/device:TPU:0")
    found = read([working(working(space, 1), 2), idle], tmp_path)
    assert found.table("breakdown")["rank"].tolist() == [0, 1]
    notes = " ".join(found.run.notes)
    assert "device 0 did nothing while the trace was captured, and is left out" in notes
    assert "left out node1.xplane.pb: its devices did nothing" in notes
    assert found.run.world_size == 2


def test_where_no_operations_were_recorded_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = Space()
    space.plane("/device:TPU:0").line("Steps").event("1", 0, 100)
    assert main([str(space.write(tmp_path / "a.xplane.pb"))]) == 1
    said = capsys.readouterr().err
    assert "no operations of its device were recorded" in said
    assert "--ranks" not in said


def test_a_second_plane_of_a_device_is_named(tmp_path: Path) -> None:
    found = read([working(working(Space(), 0), 0)], tmp_path)
    assert found.run.activities["dur_ns"].sum() == 3000
    assert any("left out 1 plane with the number of a device before" in note for note in found.run.notes)


def mutants(content: bytes, seed: int, count: int) -> Iterator[bytes]:
    """The file with bytes changed, cut out, doubled, or cut off."""
    drawn = random.Random(seed)
    for _ in range(count):
        changed = bytearray(content)
        for _ in range(drawn.randint(1, 4)):
            at, to = sorted(drawn.randrange(len(changed) + 1) for _ in range(2))
            way = drawn.randrange(4)
            if way == 0 and at < len(changed):
                changed[at] = drawn.choice([0, 1, 127, 128, 255, changed[at] ^ (1 << drawn.randrange(8))])
            elif way == 1:
                del changed[at : min(to, at + drawn.randint(1, 40))]
            elif way == 2:
                changed[at:at] = changed[at : min(to, at + 40)]
            elif drawn.random() < 0.3:
                del changed[at:]
        yield bytes(changed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tpu", "gpu"])
def test_no_damage_breaks_the_reader(tmp_path: Path, kind: str) -> None:
    if kind == "tpu":
        content = tpus()[0].encoded()
    else:
        content = write_gpus(documents("straggler", tmp_path / "k")[:2], tmp_path / "j")[0].read_bytes()
    path, were_read = tmp_path / "a.xplane.pb", 0
    for mutant in mutants(content, 1, 150):
        path.write_bytes(mutant)
        for keep_going in (False, True):
            options = ReadOptions(details=True, memory_gb=0.3, keep_going=keep_going)
            for rank in devices_as_ranks([path]).paths:
                try:
                    raw = read_xplane(rank, options)
                except AnalysisError:
                    continue
                assert is_consistent(raw)
                were_read += 1
    assert were_read > 50


def test_what_stands_before_the_damage_is_kept_if_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tpus()[0].write(tmp_path / "a.xplane.pb")
    content = path.read_bytes()
    end = content.index(b"/device:TPU:0 SparseCore")
    path.write_bytes(content[: end - 10])
    assert main([str(path)]) == 1
    assert "ends in the middle of a message at byte" in capsys.readouterr().err
    found = analyse(path, keep_going=True)
    assert found.run.partial_ranks == [0]
    assert len(found.table("breakdown")) == 1


def test_the_damage_of_a_file_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tpus()[0].write(tmp_path / "a.xplane.pb")
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b"/device:TPU:0 SparseCore") - 2])
    assert main(["breakdown", "--no-cache", "--keep-going", str(path)]) == 1
    said = capsys.readouterr()
    assert said.out.count("\n") >= 2
    assert said.err.count("ends in the middle") == 1
    path.write_bytes(content[:1])
    assert main(["breakdown", "--no-cache", "--keep-going", str(path)]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"error: {path}: ends in the middle of a message")
    assert "\\n" not in said.err


@pytest.mark.parametrize(
    "content",
    [
        message(1, message(2, "/device:TPU:0") + message(3, message(2, "XLA Ops") + message(4, b"") * 300_000)),
        message(1, message(2, "/device:TPU:0") + message(3, message(4, integer(2, 1) * 300_000))),
        message(1, message(2, "/device:TPU:0") + b"\x22\x00" * 300_000),
    ],
    ids=["empty events", "a field again and again", "empty names"],
)
def test_what_would_take_much_memory_is_refused_before(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(content)
    with pytest.raises(TraceError):
        read_xplane(path, ReadOptions(memory_gb=0.02))
