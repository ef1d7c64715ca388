"""The two sides of the contract: what profiling writes into side files, and what the analysis reads of them."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from builders import MS, Collective, write_run
from contract_files import FILES, ContractFile, choices, entry, hints, is_literal, is_record, record_in, rewritten
from sweep_builders import Cell, write_sweep
from training_builders import Trained, write_training

from commtrace import cli
from commtrace.analysis.core.contract.modes import Mode
from commtrace.analysis.core.contract.rank import STILL_RUNNING
from commtrace.analysis.core.contract.rank import RankFile as ReadRank
from commtrace.analysis.core.contract.reader import UNDERSTOOD, check_version, lenient, read_json, typed
from commtrace.profiling.base.contract.fields import docs
from commtrace.profiling.base.contract.run import RunFile
from commtrace.profiling.base.run_directory import UNFINISHED, write_json
from commtrace.profiling.train.config import ParallelName, TrainConfig

SAMPLE = Path(__file__).resolve().parents[1] / "traces" / "resnet18-ddp-w2"
READ = [file for file in FILES if file.read]


def every_record(kind: type) -> dict[type, None]:
    """A record, and all that it holds."""
    found = {kind: None}
    for hint in hints(kind).values():
        inner = record_in(hint)
        if inner is not None:
            found |= every_record(inner)
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_field_says_what_it_means(file: ContractFile) -> None:
    for kind in every_record(file.written):
        assert all(doc.meaning for doc in docs(kind).values()), kind
        assert kind.__doc__


# --- every field that is written is read, or said to be for people only ----------------------------------------------


def mismatches(written: type, read: list[type], foreign: tuple[str, ...], where: str = "") -> list[str]:
    """Fields that one side has otherwise than the other."""
    found = []
    known = [hints(kind) for kind in read]
    for name, doc in docs(written).items():
        readers = [types[name] for types in known if name in types]
        if bool(readers) is not doc.read and name not in foreign:
            found.append(f"{where}{name}: {'nobody reads it' if doc.read else 'is read, and said to be for people'}")
        inner = record_in(hints(written)[name])
        inside = [kind for kind in map(record_in, readers) if kind is not None]
        if doc.read and inner is not None and inside:
            found += mismatches(inner, inside, foreign, f"{where}{name}.")
    surplus = {name for types in known for name in types} - set(docs(written)) - set(foreign)
    return found + [f"{where}{name}: nobody writes it" for name in sorted(surplus)]


@pytest.mark.parametrize("file", READ, ids=lambda file: file.name)
def test_what_is_written_is_read_or_for_people_only(file: ContractFile) -> None:
    assert mismatches(file.written, list(file.read), file.foreign) == []


def test_a_rank_that_is_still_running_is_taken_for_one() -> None:
    assert STILL_RUNNING == UNFINISHED


def test_options_that_are_read_are_options_of_train() -> None:
    written = {field.name for field in fields(TrainConfig)}
    for kind in (hints(reader)["config"] for reader in READ[0].read):
        if is_record(kind):
            assert set(hints(kind)) <= written
    assert get_args(Mode) == get_args(ParallelName)


def test_what_these_tests_rest_on_finds_what_it_looks_for() -> None:
    class Reader(msgspec.Struct):
        run: str
        model: str
        speed: int

    found = mismatches(RunFile, [Reader], ())
    assert "schema_version: nobody reads it" in found
    assert "run: is read, and said to be for people" in found
    assert "speed: nobody writes it" in found


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


_CONFIG = {"model": "vgg16", "parallel": "fsdp", "data": "cifar10", "batch_size": 64, "image_size": 40}
_FIXED: dict[str, Any] = {"schema_version": 1, "against_rank": 0, "parallel": "fsdp"}


def written(file: ContractFile, path: Path) -> Any:
    """A record of the file with every field set, written to `path`."""
    record = Numbers().record(file.written)
    if file.written is RunFile:
        record = replace(record, config=_CONFIG)
    write_json(path, record)
    return record


def same(found: Any, wrote: Any, where: str) -> list[str]:
    """Fields of what was read that differ from what was written."""
    if isinstance(found, msgspec.Struct):
        get = wrote.get if isinstance(wrote, dict) else lambda name: getattr(wrote, name)
        names = [name for name in found.__struct_fields__ if isinstance(wrote, dict) or hasattr(wrote, name)]
        return [one for name in names for one in same(getattr(found, name), get(name), f"{where}.{name}")]
    if isinstance(found, list):
        assert len(found) == len(wrote) > 0, where
        return [one for a, b in zip(found, wrote, strict=True) for one in same(a, b, where)]
    if is_record(type(wrote)):
        return []  # of a type that is not looked into: the devices of dp are counted
    return [] if found == wrote else [f"{where}: wrote {wrote!r}, read {found!r}"]


@pytest.mark.parametrize("file", [file for file in READ if file.name != "comms.json"], ids=lambda file: file.name)
def test_what_is_written_is_read_back(file: ContractFile, tmp_path: Path) -> None:
    record = written(file, tmp_path / "file.json")
    content = read_json(tmp_path / "file.json")
    for kind in file.read:
        assert same(typed(content, kind), record, "") == []
        found, odd = lenient(content, kind)
        assert not odd
        assert same(found, record, "") == []


def test_a_ceiling_is_read_back(tmp_path: Path) -> None:
    (file,) = (file for file in READ if file.name == "comms.json")
    record = written(file, tmp_path / "comms.json")
    found = typed(read_json(tmp_path / "comms.json"), file.read[0])
    assert [one for one in same(found, record, "") if not one.startswith((".config", ".args"))] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_record_is_its_file(file: ContractFile, tmp_path: Path) -> None:
    written(file, tmp_path / "file.json")
    assert rewritten(tmp_path / "file.json", file.written) == (tmp_path / "file.json").read_text(encoding="utf-8")


def test_the_sample_run_has_the_fields_of_its_time() -> None:
    for path in (SAMPLE / "run.json", *SAMPLE.glob("*.meta.json")):
        (file,) = (one for one in FILES if path.name.endswith(one.name.removeprefix("<host>_<rank>")))
        names = list(json.loads(path.read_text(encoding="utf-8")))
        assert names == [name for name in docs(file.written) if name in names]
        assert not lenient(read_json(path), file.read[0]).odd


# --- what makes no sense, and versions --------------------------------------------------------------------------------


def test_single_fields_that_make_no_sense_are_left_out() -> None:
    content = {
        "rank": "one", "host": "node", "device": {"index": "x", "name": "H100"}, "machine": 7,
        "steps": [{"step": 1, "dur_ns": 5, "phase": 3}, {"step": -1, "dur_ns": 5}, None],
        "process_groups": [{"name": 5, "ranks": [0]}, {"ranks": [True]}], "clock_probe": {"at": "start"},
    }  # fmt: skip
    found, odd = lenient(content, ReadRank)
    assert (found.rank, found.host, found.device.index, found.device.name) == (None, "node", None, "H100")
    assert [(step.step, step.phase) for step in found.steps] == [(1, None)]
    assert [(group.name, group.ranks) for group in found.process_groups] == [(5, [0])]
    assert (found.clock_probe, found.machine.boot_id) == ([], None)
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


def test_a_run_can_do_without_a_file_of_another_version(folders, capsys) -> None:
    command, path = folders["rank"]
    path.write_text(json.dumps({"schema_version": 2, "host": "elsewhere"}), encoding="utf-8")
    assert cli.main([*command, "--keep-going"]) == 1  # not all of it could be used
    said = capsys.readouterr()
    assert "schema_version 2, expected 1; upgrade commtrace" in said.err
    assert "run: 2 ranks" in said.out
    assert "elsewhere" not in said.out


def test_the_json_of_others_has_versions_of_its_own(folders) -> None:
    command, path = folders["ceiling"]
    content = json.loads(path.read_text(encoding="utf-8")) | {"tool": None, "schema_version": 7}
    path.write_text(json.dumps(content), encoding="utf-8")
    assert cli.main(command) == 0
