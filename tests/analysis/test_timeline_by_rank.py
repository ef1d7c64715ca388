"""Timelines of runs whose tables are made rank by rank, against those of the same runs made at once."""

import tarfile
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
from perfetto_reading import ReadSlice, tracks_of
from samples import with_slow

from commtrace.analysis.errors import NothingMeasured
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.sizes import ReadSizes
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse, analyse_with
from commtrace.analysis.run.spread import SpreadTables
from commtrace.analysis.timeline.drawing import run_timeline
from commtrace.cli import main

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
SPREAD = ReadSizes(ranks_bytes=0)
RUNS = with_slow(
    ["nccl-two-hosts", "nccl-pipeline", "gloo-training"],
    ["nccl-straggler", "nccl-rooted", "nccl-hang", "nccl-periodic", "gloo-collectives"],
)


def spread(run: Path, **options) -> Analysis:
    found = analyse_with(run, ReadOptions(workers=1, sizes=SPREAD, **options))
    assert found.run.spread is not None
    return found


def shown(content: bytes) -> list[tuple]:
    """All that a timeline shows, whatever the order of its file; without the notes across the top."""
    return sorted(
        (
            track.path,
            track.place,
            track.unit,
            track.points,
            "" if track.name == "about" else track.description,
            [said(each) for each in track.slices],
        )
        for track in tracks_of(content)
    )


def said(one: ReadSlice) -> tuple:
    """A slice, with the beginning of the one around it."""
    notes = sorted((name, str(value)) for name, value in one.notes.items() if not name.startswith("note "))
    around = None if one.parent is None else (one.parent.start, one.parent.name)
    return one.start, one.end, one.name, notes, one.out, one.into, around, one.shade


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_made_elsewhere_it_shows_the_same(name):
    by_rank, at_once = spread(DATA / name), analyse(DATA / name, details=False)
    steps, ranks = at_once.run.steps, at_once.run.ranks
    choices: list[dict] = [{}, {"ranks": ranks[-1:]}, {"ranks": ranks[:2], "steps": steps[1:2] or None}]
    choices += [{"steps": steps[:1]}] if steps else []
    for choice in choices:
        drawn, expected = run_timeline(by_rank, **choice), run_timeline(at_once, **choice)
        content = b"".join(drawn.parts)
        assert shown(content) == shown(b"".join(expected.parts))
        assert (drawn.zero_ns, drawn.slices, drawn.moved) == (expected.zero_ns, expected.slices, expected.moved)
        assert drawn.sums.size_bytes == len(content)
        assert drawn.notes[1:] == expected.notes[1:]
    assert "whole" not in vars(by_rank.run.spread)


@pytest.mark.slow
def test_so_it_does_with_what_cpus_did():
    run = DATA / "nccl-two-hosts"
    elsewhere, here = spread(run, details=True, dask="local"), analyse(run, details=True)
    assert shown(elsewhere.timeline()) == shown(here.timeline())
    assert any(track.name == "critical path" for track in tracks_of(here.timeline()))


@pytest.mark.slow
def test_each_rank_is_a_sequence_of_its_own():
    packets = Trace.FromString(spread(DATA / "nccl-two-hosts").timeline()).packet
    by_sequence: dict[int, set[int]] = {}
    for packet in packets:
        if packet.HasField("track_descriptor"):
            by_sequence.setdefault(packet.trusted_packet_sequence_id, set()).add(packet.track_descriptor.uuid)
    ranks = analyse(DATA / "nccl-two-hosts").run.ranks
    assert sorted(by_sequence) == list(range(1, len(ranks) + 2))
    assert len(set.union(*by_sequence.values())) == sum(map(len, by_sequence.values()))


@pytest.mark.slow
def test_processes_write_the_same_bytes():
    here = spread(DATA / "nccl-straggler").timeline()
    there = analyse_with(DATA / "nccl-straggler", ReadOptions(workers=2, sizes=SPREAD)).timeline()
    assert there == here


@pytest.mark.slow
def test_only_the_ranks_that_are_drawn_are_made(monkeypatch):
    made = []
    by_rank = SpreadTables.by_rank

    def noted(self, work, given):
        made.extend((work.__name__, rank) for rank in given)
        return by_rank(self, work, given)

    found = spread(DATA / "nccl-straggler")
    assert found.culprits == [2]
    found.verdicts  # noqa: B018 - which looks at all ranks
    monkeypatch.setattr(SpreadTables, "by_rank", noted)
    found.timeline(ranks=[1, 2])
    assert made == [("drawn_rank", 2), ("drawn_rank", 1)]  # the open one comes first


def test_what_is_not_there_is_said_alike():
    by_rank, at_once = spread(DATA / "nccl-straggler"), analyse(DATA / "nccl-straggler")
    for choice in ({"steps": [99]}, {"ranks": [0, 77]}):
        errors = []
        for found in (by_rank, at_once):
            with pytest.raises(NothingMeasured) as error:
                found.timeline(**choice)
            errors.append(str(error.value))
        assert errors[0] == errors[1]


@pytest.fixture
def without_details(tmp_path):
    """A run of which no operators are known, however small."""
    packed = tmp_path / "packed"
    assert main(["pack", "--no-details", "--output", str(packed), str(DATA / "nccl-straggler")]) == 0
    return packed


@pytest.mark.slow
def test_what_is_left_out_is_said(tmp_path, capsys, without_details):
    target = tmp_path / "x.pftrace"
    assert main(["timeline", "--dask", "local", "--output", str(target), str(without_details)]) == 0
    said_of_it = capsys.readouterr().err
    assert "no cause of idle time and no CPU is drawn" in said_of_it
    assert "--no-details" in said_of_it
    assert f"{target.stat().st_size / 1e6:,.1f} MB" in said_of_it
    assert target.read_bytes() == spread(without_details).timeline()


@pytest.mark.slow
def test_a_bundle_holds_it_too(tmp_path, without_details):
    target = tmp_path / "x.tar"
    assert main(["timeline", "--bundle", "--dask", "local", "--output", str(target), str(without_details)]) == 0
    with tarfile.open(target) as found:
        assert found.extractfile("timeline.pftrace").read() == spread(without_details).timeline()
        assert len(found.getnames()) == 2 + 4


@pytest.mark.slow
@pytest.mark.parametrize("given", ["--details", "--no-details"])
def test_with_or_without_details_recordings_are_read_rank_by_rank(tmp_path, given):
    packed = tmp_path / "packed"
    assert main(["pack", given, "--output", str(packed), str(DATA / "nccl-straggler")]) == 0
    elsewhere, here = spread(packed, details=True), analyse(packed, details=True)
    assert elsewhere.run.details == here.run.details == (given == "--details")
    assert shown(elsewhere.timeline()) == shown(here.timeline())


@pytest.mark.slow
def test_it_says_that_recordings_lack_what_was_asked_for(tmp_path, capsys):
    packed = tmp_path / "packed"
    assert main(["pack", "--no-details", "--output", str(packed), str(DATA / "nccl-straggler")]) == 0
    assert main(["timeline", "--output", str(tmp_path / "x.pftrace"), str(packed)]) == 0
    assert "packed --no-details: operators and runtime calls are only in the trace itself" in capsys.readouterr().err
