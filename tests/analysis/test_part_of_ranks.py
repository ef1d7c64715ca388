"""Part of the ranks: the same as if the other files were not there, and said."""

import gzip
import json
import shutil
from pathlib import Path

import pytest

from commtrace.analysis.catalog import CATALOG
from commtrace.analysis.core.declaring import InputKind
from commtrace.analysis.errors import NoSuchRanks, NothingMeasured
from commtrace.analysis.recording.options import ReadOptions, numbers_in
from commtrace.analysis.recording.sizes import USUAL_SIZES, ReadSizes
from commtrace.analysis.render import as_csv
from commtrace.analysis.results.opening import analyse, analyse_with
from commtrace.cli import main

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
TABLES = [entry.name for entry in CATALOG.values() if entry.of is InputKind.run]


def tables_of(run: Path, **options) -> dict[str, str]:
    """Every table of a run as CSV, or why it has none."""
    found = analyse_with(run, ReadOptions(**options))
    tables = {}
    for name in TABLES:
        try:
            tables[name] = as_csv(name, found.table(name))
        except NothingMeasured as err:
            tables[name] = str(err)
    return tables


def ranks_of(run: Path) -> dict[Path, int]:
    """The trace files of a run, and which rank each is."""
    files = sorted(run.glob("*.pt.trace.json.gz"))
    return {path: json.loads(gzip.decompress(path.read_bytes()))["distributedInfo"]["rank"] for path in files}


@pytest.mark.slow
@pytest.mark.parametrize("spread", [False, True], ids=["at once", "rank by rank"])
@pytest.mark.parametrize("name", ["nccl-straggler", "nccl-two-hosts"])
def test_as_if_the_other_files_were_not_there(tmp_path, name, spread):
    sizes = ReadSizes(ranks_bytes=0) if spread else USUAL_SIZES
    some = tmp_path / name
    some.mkdir()
    for path, rank in ranks_of(DATA / name).items():
        if rank in (0, 1):
            shutil.copy(path, some)
    without = {"facts"}  # which have the notes
    alone = {table: rows for table, rows in tables_of(some, workers=1, sizes=sizes).items() if table not in without}
    found = tables_of(DATA / name, ranks=(0, 1), workers=1, sizes=sizes)
    assert {table: rows for table, rows in found.items() if table not in without} == alone


def test_what_is_left_out_is_said():
    run = analyse(DATA / "nccl-straggler", ranks=[2, 0]).run
    assert run.ranks == [0, 2]
    assert any(note.startswith("left out, as asked for: rank 1") for note in run.notes)
    assert any("read in part" in note for note in run.notes)
    assert not any("left out, as asked" in note for note in analyse(DATA / "nccl-straggler").run.notes)


def test_files_of_other_ranks_are_not_even_read(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(DATA / "nccl-straggler", run)
    for path, rank in ranks_of(run).items():
        side = path.with_name(f"{path.name.partition('.')[0]}.meta.json")
        side.write_text(json.dumps({"schema_version": 1, "rank": rank}), encoding="utf-8")
        if rank > 1:
            path.write_bytes(b"damaged")
    found = analyse(run, ranks="0-1")
    assert found.run.ranks == [0, 1]
    assert any(note.startswith("left out, as asked for: rank 2") for note in found.run.notes)


@pytest.mark.slow
def test_by_host_and_group():
    whole = analyse(DATA / "nccl-two-hosts").run
    name = whole.hosts[0]
    assert name is not None
    on_host = [rank for rank, host in whole.hosts.items() if host == name]
    assert analyse(DATA / "nccl-two-hosts", hosts=[name]).run.ranks == on_host
    group = whole.process_groups.iloc[-1]
    members = {int(rank) for rank in group["pg_ranks"].split()}
    assert members <= set(analyse(DATA / "nccl-two-hosts", groups=[group["process_group"]]).run.ranks)


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (["--ranks", "0,99"], 1, "no trace of rank 99; there are those of 0-"),
        (["--ranks", "5-2"], 2, "is not a number or a range"),
        (["--ranks", "all"], 2, "is not a number or a range"),
        (["--hosts", "nowhere"], 1, "no host is called nowhere"),
        (["--groups", "nothing"], 1, "no process group is called nothing"),
    ],
)
def test_what_is_not_there_is_an_error(capsys, options, code, told):
    assert main(["breakdown", *options, str(DATA / "nccl-straggler")]) == code
    assert told in capsys.readouterr().err


def test_nothing_in_common_is_an_error():
    whole = analyse(DATA / "nccl-two-hosts").run
    last = whole.hosts[max(whole.hosts)]
    assert last not in (None, whole.hosts[0])
    with pytest.raises(NoSuchRanks, match="in all that was asked for"):
        analyse(DATA / "nccl-two-hosts", ranks=[0], hosts=[str(last)])


@pytest.mark.slow
def test_commands_with_ranks_of_their_own(capsys, tmp_path):
    target = tmp_path / "shown.pftrace"
    given = ["--ranks", "0-1", "--draw-ranks", "1", "--output", str(target), str(DATA / "nccl-straggler")]
    assert main(["timeline", *given]) == 0
    assert "left out, as asked for: rank 2" in capsys.readouterr().err


def test_lists_of_numbers():
    assert numbers_in("0-2,5, 7-7") == [0, 1, 2, 5, 7]
    for text in ("", "1-", "-1", "2-1", "a", "0-99999999"):
        with pytest.raises(ValueError, match="is not a number or a range"):
            numbers_in(text)
