"""Sweeps, runs and CSVs of timings as one table, and one line for everything that is wrong with them."""

import json
import os
import shutil

import pytest
from samples import with_slow
from sweep_builders import Cell, edited, write_json, write_sweep

from commtrace import analyse_sweep
from commtrace.analysis.core.schema import records
from commtrace.analysis.errors import AnalysisError, DamagedTimings, DuplicateCell, NoTimings, UnreadableFile
from commtrace.analysis.sweeps.cells import RankEpoch, load_sweep, whole_epoch

HEADER = "model,parallel,workers,batch_size_per_rank,epoch_s"


def rows_of(*paths, **options):
    return records(load_sweep(list(paths), **options).timings)


def csv_file(folder, *lines, name="timings.csv"):
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def fails(error, *paths, naming):
    """The one-line message of an error that names the file."""
    with pytest.raises(error) as caught:
        load_sweep(list(paths))
    assert naming in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


TWO = Cell(workers=2, batch=128, epoch_s=(5.5, 6.0))


@pytest.fixture
def sweep(tmp_path):
    cells = [
        TWO,
        Cell(workers=1, batch=128, epoch_s=10),
        Cell(workers=2, batch=2048, status="out_of_memory", reason="tried to allocate 9 GiB"),
    ]
    return write_sweep(tmp_path / "sweep", cells)


# --- a whole epoch ---------------------------------------------------------------------------------------------------


def test_the_epoch_is_that_of_the_slowest_rank():
    found = whole_epoch([RankEpoch(0, 700, 40, 10, 10), RankEpoch(1, 900, 10, 10, 10)])
    assert found == {"epoch_ns": 900, "timed_steps": 10, "epoch_steps": 10, "data_ns": 40, "step_spread_frac": None}


def test_a_bounded_epoch_is_scaled_rank_by_rank():
    # Rank 1 is slower in what was timed, but has fewer steps to go.
    found = whole_epoch([RankEpoch(0, 700, 30, 10, 40), RankEpoch(1, 800, 30, 10, 30)])
    assert found == {"epoch_ns": 2800, "timed_steps": 10, "epoch_steps": 40, "data_ns": 120, "step_spread_frac": None}


def test_the_spread_of_steps_is_that_of_the_slowest_rank():
    found = whole_epoch([RankEpoch(0, 700, 40, 10, 10, 0.5), RankEpoch(1, 900, 10, 10, 10, 0.2)])
    assert found["step_spread_frac"] == 0.2


@pytest.mark.parametrize(
    ("device", "hosts", "cores"), [("cpu", ("a", "a"), 8), ("cpu", ("a", "b"), None), ("cuda", ("a", "a"), None)]
)
def test_side_files_tell_of_spread_and_of_shared_cores(tmp_path, device, hosts, cores):
    folder = write_sweep(tmp_path / "sweep", [Cell(workers=2)])
    for rank, host in enumerate(hosts):
        path = folder / Cell(workers=2).run / f"node_{rank}.meta.json"
        side = json.loads(path.read_text())
        side["epochs"][1] |= {"step_p10_ns": 90, "step_median_ns": 100, "step_p90_ns": 120}
        edited(path, epochs=side["epochs"], host=host, device={"type": device}, machine={"usable_cores": 8})
    (row,) = records(load_sweep([folder]).timings)
    assert (row["step_spread_frac"], row["shared_cores"]) == (pytest.approx(0.3), cores)


def test_scaling_is_exact_in_integers():
    large = 10**15 + 1
    assert RankEpoch(0, large, 0, 3, 9).whole(large) == 3 * large


# --- what is read ----------------------------------------------------------------------------------------------------


def test_a_sweep_has_all_its_cells_in_order(sweep):
    rows = rows_of(sweep)
    assert [(r["cell"], r["workers"], r["batch_size_per_worker"], r["status"]) for r in rows] == [
        (0, 1, 128, "done"), (1, 2, 128, "done"), (2, 2, 2048, "out_of_memory"),
    ]  # fmt: skip
    one, two, failed = rows
    assert (one["epoch_ns"], two["epoch_ns"], failed["epoch_ns"]) == (10_000_000_000, 6_000_000_000, None)
    assert (two["timed_steps"], two["epoch_steps"], two["data_ns"]) == (196, 196, 500_000_000)
    assert (two["dataset_samples"], two["sample_bytes"]) == (50_000, 3072)
    assert (two["parameters_elems"], two["parameters_bytes"]) == (11_173_962, 44_695_848)
    assert failed["reason"] == "tried to allocate 9 GiB"


@pytest.mark.parametrize("status", ["open", "out_of_memory", "out_of_data", "failed", "skipped"])
def test_cells_that_are_not_done_are_kept(tmp_path, status):
    write_sweep(tmp_path, [Cell(), Cell(workers=2, status=status)])
    assert [(r["status"], r["epoch_ns"]) for r in rows_of(tmp_path)] == [("done", 10_000_000_000), (status, None)]


def test_what_a_cell_that_is_not_done_left_behind_is_not_read(tmp_path):
    write_sweep(tmp_path, [Cell(), Cell(workers=2, status="failed")])
    (tmp_path / Cell(workers=2).run).mkdir()
    assert rows_of(tmp_path)[1]["status"] == "failed"


def test_sweep_json_itself_its_runs_and_csvs_mix(sweep, tmp_path):
    whole = rows_of(sweep)
    assert rows_of(sweep / "sweep.json") == whole
    alone = rows_of(sweep / "resnet18-ddp-w2-b128", sweep / "resnet18-ddp-w1-b128")
    assert alone == whole[:2]
    table = csv_file(tmp_path, HEADER, "resnet18,ddp,4,128,3.25")
    assert [r["workers"] for r in rows_of(sweep, table)] == [1, 2, 4, 2]


def test_dataparallel_is_one_rank_with_several_workers(tmp_path):
    folder = Cell(workers=4, parallel="dp").write(tmp_path)
    (row,) = rows_of(folder)
    assert (row["parallel"], row["workers"], row["epoch_steps"]) == ("dp", 4, 391)
    edited(folder / "node_0.meta.json", dp=None)
    fails(DamagedTimings, folder, naming="does not say which devices dp drove")


def test_a_pipeline_has_one_batch_for_all_its_ranks(tmp_path):
    folder = Cell(workers=2, batch=64, parallel="pipeline").write(tmp_path)
    (row,) = rows_of(folder)
    assert (row["workers"], row["batch_size_per_worker"]) == (2, 64)
    edited(folder / "run.json", config={"model": "resnet18", "parallel": "pipeline"})
    fails(DamagedTimings, folder, naming="config has no batch_size")


def test_a_bounded_epoch_keeps_its_steps(tmp_path):
    folder = Cell(workers=2, batch=32, epoch_s=100, steps=20).write(tmp_path)
    (row,) = rows_of(folder)
    assert (row["timed_steps"], row["epoch_steps"]) == (20, 782)
    assert row["epoch_ns"] == pytest.approx(100e9, abs=40)


def test_a_run_without_a_model_or_an_image_size(tmp_path):
    folder = Cell().write(tmp_path)
    edited(folder / "node_0.meta.json", model=None)
    edited(folder / "run.json", config={"model": "mine", "parallel": "ddp"})
    (row,) = rows_of(folder)
    assert [row[c] for c in ("model", "sample_bytes", "parameters_elems", "parameters_bytes")] == [
        "mine", None, None, None,
    ]  # fmt: skip


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is damaged"),
        (b'{"schema_version": 1, "cells": [', "is damaged"),
        (b"\xff\xfe", "is damaged"),
        (b"[" * 100_000, "is damaged"),
        (b"[]", "is not as a sweep writes it"),
        (b'{"schema_version": 1}', "`cells`"),
        (b'{"schema_version": 2, "cells": []}', "schema_version 2, expected 1"),
        (b'{"schema_version": 1, "cells": [{"run": "a"}]}', "cells[0]"),
    ],
    ids=lambda v: str(v)[:30],
)
def test_a_damaged_sweep_file(tmp_path, content, reason):
    (tmp_path / "sweep.json").write_bytes(content)
    assert reason in fails(DamagedTimings, tmp_path, naming="sweep.json")


@pytest.mark.parametrize("length", range(0, 400, 37))
def test_a_truncated_sweep_file(sweep, length):
    path = sweep / "sweep.json"
    path.write_bytes(path.read_bytes()[:length])
    fails(DamagedTimings, sweep, naming="sweep.json")


@pytest.mark.parametrize(
    "change",
    [{"status": "fine"}, {"workers": 0}, {"workers": "2"}, {"parallel": "magic"}, {"batch_size_per_rank": -1},
     {"model": None}, {"workers": 2**70}],
    ids=str,
)  # fmt: skip
def test_a_cell_that_makes_no_sense(tmp_path, change):
    write_json(tmp_path / "sweep.json", {"schema_version": 1, "cells": [Cell().listed() | change]})
    fails(DamagedTimings, tmp_path, naming="cells[0]")


def test_a_sweep_without_cells(tmp_path):
    fails(NoTimings, write_sweep(tmp_path, []), naming="lists no cell")


@pytest.mark.parametrize("name", ["../other", "/etc", "", ".", "..", "a/b", "a\0b"])
def test_a_cell_elsewhere(tmp_path, name):
    write_json(tmp_path / "sweep.json", {"schema_version": 1, "cells": [Cell().listed() | {"run": name}]})
    fails(DamagedTimings, tmp_path, naming="is not the name of a folder beside it")


def test_a_cell_whose_run_is_gone(sweep):
    shutil.rmtree(sweep / "resnet18-ddp-w2-b128")
    fails(NoTimings, sweep, naming="resnet18-ddp-w2-b128")


def test_a_cell_whose_run_is_another(sweep):
    path = sweep / "resnet18-ddp-w2-b128" / "run.json"
    edited(path, config=json.loads(path.read_text())["config"] | {"model": "vgg16"})
    fails(DamagedTimings, sweep, naming="sweep.json says model resnet18, its run vgg16")


def test_a_rank_is_missing(sweep):
    (sweep / "resnet18-ddp-w2-b128" / "node_1.meta.json").unlink()
    fails(DamagedTimings, sweep, naming="2 ranks, but side files (*.meta.json) are there of rank 0;")


def test_two_files_of_one_rank(sweep):
    folder = sweep / "resnet18-ddp-w2-b128"
    shutil.copy(folder / "node_1.meta.json", folder / "other_1.meta.json")
    fails(DamagedTimings, sweep, naming="is of rank 1 too")


def epochs(**changes):
    (timed,) = [e for e in Cell().side(0)["epochs"] if e["phase"] == "timed"]
    return [timed | changes]


@pytest.mark.parametrize(
    ("changes", "error", "naming"),
    [
        ({"epochs": None}, NoTimings, "has no timed epoch"),
        ({"epochs": []}, NoTimings, "has no timed epoch"),
        ({"epochs": epochs(phase="warmup")}, DamagedTimings, "expected one timed epoch of rank 0, found 0"),
        ({"epochs": epochs() * 2}, DamagedTimings, "expected one timed epoch of rank 0, found 2"),
        ({"epochs": epochs(step_ns=0)}, DamagedTimings, "step_ns"),
        ({"epochs": epochs(step_ns=-5)}, DamagedTimings, "step_ns"),
        ({"epochs": epochs(step_ns="soon")}, DamagedTimings, "step_ns"),
        ({"epochs": epochs(step_ns=1.5)}, DamagedTimings, "step_ns"),
        ({"epochs": epochs(data_ns=-1)}, DamagedTimings, "data_ns"),
        ({"epochs": epochs(steps=0)}, DamagedTimings, "steps"),
        ({"epochs": epochs(steps=10**6)}, DamagedTimings, "but a whole epoch has 1563"),
        ({"epochs": {"epoch": 0}}, DamagedTimings, "epochs"),
        ({"dataset_samples": None}, DamagedTimings, "dataset_samples"),
        ({"full_epoch_steps": 0}, DamagedTimings, "full_epoch_steps"),
        ({"rank": -1}, DamagedTimings, "rank"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_a_side_file_that_makes_no_sense(tmp_path, changes, error, naming):
    folder = Cell().write(tmp_path)
    edited(folder / "node_0.meta.json", **changes)
    assert folder.name in fails(error, folder, naming=naming)


def test_ranks_that_contradict_each_other(tmp_path):
    folder = Cell(workers=2).write(tmp_path)
    edited(folder / "node_1.meta.json", dataset_samples=10_000)
    fails(DamagedTimings, folder, naming="the ranks differ in dataset_samples: 10000 and 50000")


def test_an_epoch_too_long_to_count(tmp_path):
    folder = Cell().write(tmp_path)
    edited(folder / "node_0.meta.json", epochs=epochs(step_ns=2**62, steps=1))
    fails(DamagedTimings, folder, naming="its epoch would take more than 100 years")


def leaves(content, path=()):
    """The places of all values in a JSON document, containers included."""
    yield path
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        if isinstance(value, dict | list):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def replaced(content, path, value):
    if not path:
        return value
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[path[0]] = replaced(content[path[0]], path[1:], value)
    return copy


@pytest.mark.slow_cases("'x'-resnet18-ddp-w2-b128/node_1.meta.json")
@pytest.mark.parametrize(
    "name", ["sweep.json", "resnet18-ddp-w2-b128/run.json", "resnet18-ddp-w2-b128/node_1.meta.json"]
)
@pytest.mark.parametrize("value", with_slow([-1, 2**63, "x", {}], [None, 0, 3, 1.5, "", True, []]), ids=repr)
def test_any_value_anywhere_is_used_or_named(sweep, name, value):
    original = json.loads((sweep / name).read_text(encoding="utf-8"))
    for place in leaves(original):
        write_json(sweep / name, replaced(original, place, value))
        try:
            found = analyse_sweep(sweep)
            assert len(found.scaling) == len(found.timings)
            assert len(found.subtraction) == (found.timings["workers"] > 1).sum()
        except AnalysisError as err:
            assert str(sweep) in str(err)  # noqa: PT017


@pytest.mark.parametrize("name", ["a" * 5000, "bad\udcff"], ids=["long", "no text"])
def test_a_path_that_cannot_be(tmp_path, name):
    with pytest.raises(AnalysisError):
        load_sweep([tmp_path / name])


def test_nothing_there(tmp_path):
    fails(NoTimings, tmp_path / "nowhere", naming="nowhere: no such file or directory")
    fails(NoTimings, tmp_path, naming="is not there; expected a sweep")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(sweep):
    (sweep / "sweep.json").chmod(0)
    fails(UnreadableFile, sweep, naming="Permission denied")


def test_a_cell_twice(sweep, tmp_path):
    table = csv_file(tmp_path, HEADER, "resnet18,ddp,2,128,3.25")
    message = fails(DuplicateCell, sweep, table, naming="both time resnet18 ddp with 2 workers at batch size 128")
    assert str(sweep) in message
    assert str(table) in message
    fails(DuplicateCell, csv_file(tmp_path, HEADER, *["m,ddp,1,32,5"] * 2), naming="both time m ddp")


# --- CSV -------------------------------------------------------------------------------------------------------------


def test_a_csv_is_read_as_it_is_meant(tmp_path):
    path = tmp_path / "timings.csv"
    text = (
        "\ufeffcomment, epoch_s,workers,model,parallel,batch_size_per_worker,"
        "dataset_samples,parameters,data_s,sample_bytes\r\n"
        '"a, b",16.10,2,resnet18,dp,32,50000,11689512,,3072\r\n'
        "\r\n"
        ",1e1,1,resnet18,dp,32,,,0.5,\r\n"
    )
    path.write_bytes(text.encode("utf-8"))
    one, two = rows_of(path)
    assert (two["epoch_ns"], two["epoch_steps"], two["timed_steps"]) == (16_100_000_000, 782, 782)
    assert (two["parameters_elems"], two["parameters_bytes"], two["sample_bytes"]) == (11_689_512, 46_758_048, 3072)
    assert (two["run"], two["status"], two["data_ns"]) == ("resnet18-dp-w2-b32", "done", None)
    assert (one["epoch_ns"], one["epoch_steps"], one["data_ns"]) == (10_000_000_000, None, 500_000_000)


def test_the_steps_of_a_pipeline_do_not_follow_from_its_batch(tmp_path):
    path = csv_file(tmp_path, HEADER + ",dataset_samples", "m,pipeline,2,32,5,50000")
    assert rows_of(path)[0]["epoch_steps"] is None


@pytest.mark.parametrize(
    ("lines", "naming"),
    [
        ([], "the header lacks model, parallel, workers, epoch_s, batch_size_per_rank"),
        (["model,parallel,workers,epoch_s", "m,ddp,1,5"], "the header lacks batch_size_per_rank"),
        (["model;parallel;workers;batch_size_per_rank;epoch_s", "m;ddp;1;32;16,1"], "separate cells with commas"),
        ([HEADER + ",epoch_s", "m,ddp,1,32,5,5"], "names epoch_s twice"),
        ([HEADER + ",batch_size_per_worker", "m,ddp,1,32,5,32"], "twice"),
        ([HEADER, "m,ddp,1,32"], "line 2: expected 5 cells as in the header, found 4"),
        ([HEADER, "m,ddp,1,32,16,10"], "write decimals with a point"),
        ([HEADER, 'm,ddp,1,32,"16,10"'], "expected seconds with a decimal point, not a comma"),
        ([HEADER, "m,ddp,1,32,"], "epoch_s is empty; leave out a cell that was not timed"),
        ([HEADER, "m,ddp,1,32,nan"], "epoch_s is 'nan'"),
        ([HEADER, "m,ddp,1,32,inf"], "epoch_s is 'inf'"),
        ([HEADER, "m,ddp,1,32,-5"], "expected seconds, more than 0"),
        ([HEADER, "m,ddp,1,32,0"], "expected seconds, more than 0"),
        ([HEADER, "m,ddp,1,32,1e-12"], "expected seconds, more than 0"),
        ([HEADER, "m,ddp,1,32,1e300"], "epoch_s is '1e300'"),
        ([HEADER, "m,ddp,1,32,1_0"], "epoch_s is '1_0'"),
        ([HEADER, "m,ddp,1,32,16 s"], "epoch_s is '16 s'"),
        ([HEADER, "m,ddp,1,32,=1+1"], "epoch_s is '=1+1'"),
        ([HEADER, "m,ddp,0,32,5"], "workers is '0'; expected a whole number from 1"),
        ([HEADER, "m,ddp,2.0,32,5"], "workers is '2.0'"),
        ([HEADER, "m,ddp,,32,5"], "workers or batch_size_per_rank is empty"),
        ([HEADER, "m,ddp,1,-32,5"], "batch_size_per_rank is '-32'"),
        ([HEADER, "m,ddp,1,٣٢,5"], "batch_size_per_rank is"),
        ([HEADER, "m,DataParallel,1,32,5"], "parallel is 'DataParallel'; expected one of single, dp, ddp"),
        ([HEADER, ",ddp,1,32,5"], "model is empty"),
        ([HEADER, "m,ddp,1,32,5", 'm,ddp,2,32,"5'], "is not CSV"),
        ([HEADER + ",data_s", "m,ddp,1,32,5,-1"], "data_s is '-1'; expected seconds, 0 or more"),
        ([HEADER + ",parameters", "m,ddp,1,32,5,1e6"], "parameters is '1e6'"),
    ],
    ids=lambda v: str(v)[-40:],
)
def test_a_csv_that_makes_no_sense(tmp_path, lines, naming):
    fails(DamagedTimings, csv_file(tmp_path, *lines), naming=naming)


def test_a_csv_without_rows_or_of_bytes(tmp_path):
    fails(NoTimings, csv_file(tmp_path, HEADER), naming="has no row below its header")
    (tmp_path / "latin.csv").write_bytes(HEADER.encode() + b"\nm\xfc,ddp,1,32,5\n")
    fails(DamagedTimings, tmp_path / "latin.csv", naming="is not text in UTF-8")
    (tmp_path / "nul.csv").write_bytes(HEADER.encode() + b"\nm\0,ddp,1,32\n")
    fails(DamagedTimings, tmp_path / "nul.csv", naming="nul.csv")


# --- keeping going ---------------------------------------------------------------------------------------------------


def test_keep_going_marks_the_cell_and_names_the_failure(sweep):
    edited(sweep / "resnet18-ddp-w2-b128" / "node_1.meta.json", epochs=None)
    found = load_sweep([sweep], keep_going=True)
    assert [r["status"] for r in records(found.timings)] == ["done", "unreadable", "out_of_memory"]
    assert "has no timed epoch" in records(found.timings)[1]["reason"]
    (failure,) = found.failed
    assert "node_1.meta.json" in failure


def test_keep_going_past_a_path_and_with_nothing_left(sweep, tmp_path):
    found = load_sweep([tmp_path / "nowhere", sweep], keep_going=True)
    assert len(found.timings) == 3
    assert "nowhere" in found.failed[0]
    with pytest.raises(NoTimings, match="no timing could be used"):
        load_sweep([tmp_path / "nowhere"], keep_going=True)
