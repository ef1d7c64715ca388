"""The files of a run directory: what is written into them, and what is read of files that are older, or damaged."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from builders import MS, Collective, write_run
from contract_files import FILES, choices, entry, hints, is_literal, is_record, record_in, rewritten
from sweep_builders import Cell, write_sweep
from training_builders import Trained, write_training

from commtrace import cli
from commtrace.analysis.ceilings.files import read_ceiling
from commtrace.analysis.core.small_files import read_json
from commtrace.common.nccl_tests import bus_factor
from commtrace.contract.comms import COMMS_TOOL, CommsFile
from commtrace.contract.rank import RankFile
from commtrace.contract.reading import UNDERSTOOD, check_version, lenient, typed
from commtrace.contract.record import docs
from commtrace.contract.run import RunFile, SweptOptions, TrainedOptions
from commtrace.contract.sweep import SweepRecord
from commtrace.contract.training import TrainingFile
from commtrace.profiling.base.run_directory import write_json
from commtrace.profiling.comms.config import CollectiveName
from commtrace.profiling.train.config import TrainConfig

SAMPLE = Path(__file__).resolve().parents[1] / "traces" / "resnet18-ddp-w2"


def every_record(kind: type) -> dict[type, None]:
    """A record, and all that it holds."""
    found = {kind: None}
    for hint in hints(kind).values():
        inner = record_in(hint)
        if inner is not None:
            found |= every_record(inner)
    return found


@pytest.mark.parametrize("record", FILES.values(), ids=FILES)
def test_every_field_says_what_it_means(record: type) -> None:
    for kind in every_record(record):
        assert all(doc.meaning for doc in docs(kind).values()), kind
        assert kind.__doc__


def test_options_that_are_read_are_options_of_train() -> None:
    for kind in (SweptOptions, TrainedOptions):
        assert {*kind.__struct_fields__} <= {field.name for field in fields(TrainConfig)}


# --- a file with every field set is read back to the same values -----------------------------------------------------


class Numbers:
    """Values that are all different."""

    def __init__(self) -> None:
        self.last = 1

    def value(self, hint: Any, name: str) -> Any:
        kind = choices(hint)[0]
        if is_literal(kind):
            return get_args(kind)[-1]
        if is_record(kind):
            return self.record(kind)
        if entry(kind) is not None:
            return [self.value(entry(kind), name)]
        self.last += 1
        plain = {int: self.last, float: 1 / self.last, str: f"text {self.last}", bool: True}
        return _FIXED.get(name, plain.get(kind, {"key": f"text {self.last}"}))

    def record(self, kind: type) -> Any:
        return kind(**{name: self.value(hint, name) for name, hint in hints(kind).items()})


_FIXED: dict[str, Any] = {"schema_version": 1, "against_rank": 0, "parallel": "fsdp"}


@pytest.mark.parametrize("kind", [RunFile, RankFile, TrainingFile, SweepRecord])
def test_what_is_written_is_read_back(kind: type, tmp_path: Path) -> None:
    record = Numbers().record(kind)
    write_json(tmp_path / "file.json", record)
    content = read_json(tmp_path / "file.json")
    assert differences(typed(content, kind), record) == []
    found, odd = lenient(content, kind)
    assert not odd
    assert differences(found, record) == []


def differences(found: Any, wrote: Any, where: str = "") -> list[str]:
    """Fields of what was read that differ from what was written."""
    if isinstance(found, msgspec.Struct):
        names = found.__struct_fields__
        assert names, where
        return [one for n in names for one in differences(getattr(found, n), getattr(wrote, n), f"{where}.{n}")]
    if isinstance(found, list):
        assert len(found) == len(wrote) > 0, where
        return [one for a, b in zip(found, wrote, strict=True) for one in differences(a, b, where)]
    if is_record(type(wrote)):
        return []  # of a type that is not looked into: the devices of dp are counted
    return [] if found == wrote else [f"{where}: wrote {wrote!r}, read {found!r}"]


@pytest.mark.parametrize("collective", get_args(CollectiveName))
def test_what_comms_measures_is_read_back_as_a_ceiling(collective: str, tmp_path: Path) -> None:
    record = replace(Numbers().record(CommsFile), tool=COMMS_TOOL, world_size=8)
    (result,) = record.results
    place = replace(result.out_of_place, nwrong=0)
    result = replace(result, collective=collective, out_of_place=place, in_place=None)
    write_json(tmp_path / "comms.json", replace(record, results=[result]))
    (row,) = read_ceiling(tmp_path).table.to_dict("records")
    busbw = result.size / (place.time * 1000) * bus_factor(collective, 8)
    assert row == {"collective": collective, "group_size": 8, "size_bytes": result.size, "busbw_gb_per_s": busbw}


@pytest.mark.parametrize("kind", FILES.values(), ids=FILES)
def test_a_record_is_its_file(kind: type, tmp_path: Path) -> None:
    write_json(tmp_path / "file.json", Numbers().record(kind))
    assert rewritten(tmp_path / "file.json", kind) == (tmp_path / "file.json").read_text(encoding="utf-8")


def test_the_sample_run_has_the_fields_of_its_time() -> None:
    for path in (SAMPLE / "run.json", *SAMPLE.glob("*.meta.json")):
        (kind,) = (kind for name, kind in FILES.items() if path.name.endswith(name.removeprefix("<host>_<rank>")))
        names = list(json.loads(path.read_text(encoding="utf-8")))
        assert names == [name for name in docs(kind) if name in names]
        assert not lenient(read_json(path), kind)[1]


# --- what makes no sense, and versions --------------------------------------------------------------------------------


def test_single_fields_that_make_no_sense_are_left_out() -> None:
    content = {
        "rank": "one", "host": "node", "device": {"index": "x", "name": "H100"}, "machine": 7,
        "steps": [{"step": 1, "dur_ns": 5, "phase": 3}, {"step": -1, "dur_ns": 5}, None],
        "process_groups": [{"name": 5, "ranks": [0]}, {"ranks": [True]}], "clock_probe": {"at": "start"},
    }  # fmt: skip
    found, odd = lenient(content, RankFile)
    assert (found.rank, found.host, found.device.index, found.device.name) == (None, "node", None, "H100")
    assert [(step.step, step.phase) for step in found.steps] == [(1, None)]
    assert [(group.name, group.ranks) for group in found.process_groups] == [(5, [0])]
    assert (found.clock_probe, found.machine.boot_id) == (None, None)
    assert odd == {"rank", "device", "machine", "steps", "process_groups", "clock_probe"}


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, tuple[list[str], Path]]:
    """Commands, and a file of each kind that they read."""
    run, swept = tmp_path / "run", write_sweep(tmp_path / "sweep", [Cell(1)])
    write_run(run, 2, [Collective((0, 3 * MS), 10 * MS, elems=250_000_000)])
    worker = next(run.glob("*.pt.trace.json*")).name.partition(".")[0]
    trained = write_training(tmp_path / "training", Trained(scores=[(1.2, 0.5)]))
    place = {"time": 10_000.0, "alg_bw": 100.0, "nwrong": 0}
    result = {"collective": "all_reduce", "size": 10**9, "in_place": place}
    comms = {"tool": "commtrace comms", "schema_version": 1, "world_size": 2, "results": [result], "complete": True}
    (run / "run.json").write_text('{"schema_version": 1}')
    (run / f"{worker}.meta.json").write_text('{"schema_version": 1}')
    (tmp_path / "comms.json").write_text(json.dumps(comms))
    cell = swept / Cell(1).run
    return {
        "run": (["summary", str(run)], run / "run.json"),
        "rank": (["summary", str(run)], run / f"{worker}.meta.json"),
        "one device": (["breakdown", str(next(run.glob("*.pt.trace.json*")))], run / "run.json"),
        "sweep": (["table", "scaling", str(swept)], swept / "sweep.json"),
        "run of a cell": (["table", "scaling", str(swept)], cell / "run.json"),
        "rank of a cell": (["table", "scaling", str(swept)], next(cell.glob("*.meta.json"))),
        "training": (["table", "training", str(trained)], trained / "training.json"),
        "run of a training": (["table", "training", str(trained)], trained / "run.json"),
        "ceiling": (["bandwidth", "--ceiling", str(tmp_path / "comms.json"), str(run)], tmp_path / "comms.json"),
    }


@pytest.mark.slow_cases("ceiling", "rank", "run")
@pytest.mark.parametrize(
    "what",
    ["run", "rank", "one device", "sweep", "run of a cell", "rank of a cell", "training", "run of a training",
     "ceiling"],
)  # fmt: skip
def test_a_newer_version_is_refused_on_every_path(what, folders, capsys) -> None:
    command, path = folders[what]
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content | {"schema_version": UNDERSTOOD[-1] + 1}), encoding="utf-8")
    assert cli.main(command) == 1
    said = capsys.readouterr().err
    assert str(path) in said
    assert f"schema_version {UNDERSTOOD[-1] + 1}, expected 1; upgrade commtrace" in said
    path.write_text(json.dumps(content), encoding="utf-8")
    assert cli.main(command) == 0


def test_a_version_that_never_was_is_refused(folders, capsys) -> None:
    command, path = folders["rank"]
    path.write_text('{"schema_version": 0}', encoding="utf-8")
    assert cli.main(command) == 1
    assert "has schema_version 0, expected 1; no commtrace wrote that" in capsys.readouterr().err


@pytest.mark.parametrize("version", [None, "1", 1.5, True, []])
def test_what_is_no_version_says_nothing(version) -> None:
    check_version({"schema_version": version})


@pytest.mark.slow
def test_a_run_can_do_without_a_file_of_another_version(folders, capsys) -> None:
    command, path = folders["rank"]
    path.write_text(json.dumps({"schema_version": 2, "host": "elsewhere"}), encoding="utf-8")
    assert cli.main([*command, "--keep-going"]) == 1  # not all of it could be used
    said = capsys.readouterr()
    assert "schema_version 2, expected 1; upgrade commtrace" in said.err
    assert "run: 2 ranks" in said.out
    assert "elsewhere" not in said.out


@pytest.mark.slow
def test_the_json_of_others_has_versions_of_its_own(folders) -> None:
    command, path = folders["ceiling"]
    content = json.loads(path.read_text(encoding="utf-8"))
    of_others = {"results": content["results"], "args": ["all_reduce_perf"], "config": {"devices": [{}, {}]}}
    path.write_text(json.dumps(of_others | {"schema_version": 7}), encoding="utf-8")
    assert cli.main(command) == 0
