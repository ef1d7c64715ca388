"""What callbacks write to the logs of a training: with real trainers and loggers, read back; and what fails there."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from capturing import SCRIPTS, environment, free_port, fresh_python, metas, python, trace, traced_steps

from commtrace.integrations.logs import MlflowLog, TensorBoardLog, WandbLog, without_twins
from commtrace.profiling.sessions.afterwards import conclusion
from commtrace.profiling.sessions.afterwards.aside import Printed
from commtrace.profiling.trainer import Findings, TrainerCapture, TrainingLog

USERS = SCRIPTS / "users"
LAST_TRACED = 15
"""Optimizer steps after which steps 10 to 14 are over."""


def skipped_without(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(library) is None, reason=f"{library} is not installed: group `trainers`")


# --- real trainers, two ranks with gloo ------------------------------------------------------------------------------


class Logged(NamedTuple):
    """A training that was logged: its folder, and the same training without the callback."""

    folder: Path
    done: "subprocess.CompletedProcess[str]"
    plain: "subprocess.CompletedProcess[str]"

    @property
    def scalars(self) -> dict[str, float]:
        return json.loads((self.folder / "run/scalars.json").read_text())["scalars"]

    @property
    def headline(self) -> str:
        return json.loads((self.folder / "run/scalars.json").read_text())["headline"]

    @property
    def page(self) -> str:
        return (self.folder / "run/report.html").read_text()


LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
COMMANDS: dict[str, Callable[[str], list[object]]] = {
    "transformers": lambda how: [*LAUNCH, USERS / "transformers_callback.py", "theirs", how],
    "lightning": lambda how: [USERS / "lightning_callback.py", how],
}


def logged_to(folder: Path, *command: object, logs: str) -> "subprocess.CompletedProcess[str]":
    """Run a training in this folder, with these logs there."""
    variables = {"LOGGED_TO": logs, "WANDB_MODE": "offline", "MLFLOW_ALLOW_FILE_STORE": "true"}
    variables |= {"MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(), "TENSORBOARD_LOGGING_DIR": str(folder / "board")}
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder, env=environment() | variables, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module", params=COMMANDS)
def logged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Logged:
    """A training that is logged to all that is installed."""
    folder = tmp_path_factory.mktemp(request.param)
    names = [name for name in ("tensorboard", "wandb", "mlflow") if find_spec(name) is not None]
    command = COMMANDS[request.param]
    logs = " ".join(names + ["csv"] * (request.param == "lightning"))
    plain = logged_to(folder / "plain", *command("without"), logs=logs)
    return Logged(folder, logged_to(folder, *command("with"), folder / "run", logs=logs), plain)


def losses(done: "subprocess.CompletedProcess[str]") -> list[str]:
    return re.findall(r"^losses \[(.+)\]$", done.stdout, re.MULTILINE)


@pytest.mark.slow
def test_the_training_is_as_it_was(logged: Logged) -> None:
    assert (logged.done.returncode, logged.plain.returncode) == (0, 0), logged.done.stderr
    assert len(losses(logged.done)) == 1
    assert losses(logged.done) == losses(logged.plain)
    assert "has not all of the capture" not in logged.done.stderr
    assert "commtrace: " not in logged.plain.stderr
    run = logged.folder / "run"
    found = metas(run)
    assert {rank: meta["complete"] for rank, meta in found.items()} == {0: True, 1: True}
    for meta in found.values():
        assert traced_steps(trace(run / meta["traces"][0])) == [10, 11, 12, 13, 14]
        assert len(meta["steps"]) in (24, 25)  # those of the optimizer, not batches
    assert found[0]["absent_ranks"] == []
    assert f"commtrace: report: {run}/report.html" in logged.done.stderr
    assert f"commtrace: done: 2 ranks traced in {run}; " in logged.done.stderr
    assert f"Everything: commtrace summary --all {run}" in logged.done.stderr
    assert "steps 10-14" in (run / "summary.txt").read_text()
    assert len(logged.scalars) > 10


@pytest.mark.slow
@skipped_without("tensorboard")
def test_tensorboard_has_scalars_the_first_screen_and_the_page(logged: Logged) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (page,) = logged.folder.rglob("commtrace-report.html")
    read = EventAccumulator(str(page.parent)).Reload()
    found = {tag: read.Scalars(tag) for tag in read.Tags()["scalars"] if tag.startswith("commtrace/")}
    assert {tag: pytest.approx(event.value) for tag, (event,) in found.items()} == logged.scalars
    assert {event.step for (event,) in found.values()} == {LAST_TRACED}
    (text,) = read.Tensors("commtrace/summary/text_summary")
    assert logged.headline in text.tensor_proto.string_val[0].decode()
    assert page.read_text() == logged.page


@pytest.mark.slow
@skipped_without("wandb")
def test_wandb_offline_has_scalars_and_the_page(logged: Logged) -> None:
    (file,) = logged.folder.glob("wandb/offline-run-*/run-*.wandb")
    rows, summary = wandb_history(file)
    (row,) = [row for row in rows if any(name.startswith("commtrace/") for name in row)]
    assert {name: row[name] for name in logged.scalars} == logged.scalars
    assert {value for name, value in row.items() if name.endswith("/global_step")} == {LAST_TRACED}
    assert (file.parent / "files" / row["commtrace/report/path"]).read_text() == logged.page
    assert summary["commtrace/headline"] == logged.headline


def wandb_history(file: Path) -> tuple[list[dict[str, object]], dict[str, object]]:
    """The rows of a file of W&B, and its summary. wandb itself has no reader for it."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows: list[dict[str, object]] = []
    summary: dict[str, object] = {}
    for content in wandb_records(file.read_bytes()):
        record = Record.FromString(content)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
        elif record.WhichOneof("record_type") == "summary":
            items = record.summary.update
            summary |= {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
    return rows, summary


def wandb_records(content: bytes) -> Iterator[bytes]:
    """LevelDB's log format behind 7 bytes: blocks of 32 KiB of pieces with a CRC, a length and a type."""
    at, record, block, head, full, last = 7, b"", 1 << 15, 7, 1, 4
    while at + head <= len(content):
        left = block - at % block
        if left < head:
            at += left
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        record += content[at + head : at + head + size]
        at += head + size
        if kind in (full, last):
            yield record
            record = b""


@pytest.mark.slow
@skipped_without("mlflow")
def test_a_local_mlflow_has_scalars_and_the_page(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    reading = (
        "import json, sys, mlflow\n"
        "client = mlflow.MlflowClient(sys.argv[1])\n"
        "ids = [e.experiment_id for e in client.search_experiments()]\n"
        "(run,) = client.search_runs(ids)\n"
        "names = [name for name in run.data.metrics if name.startswith('commtrace/')]\n"
        "steps = [point.step for name in names for point in client.get_metric_history(run.info.run_id, name)]\n"
        "page = client.download_artifacts(run.info.run_id, 'commtrace/report.html')\n"
        "print(json.dumps([{name: run.data.metrics[name] for name in names}, steps, run.data.tags, page]))\n"
    )
    done = fresh_python("-c", reading, (logged.folder / "mlruns").as_uri())
    assert done.returncode == 0, done.stderr
    scalars, steps, tags, page = json.loads(done.stdout.splitlines()[-1])
    assert scalars == logged.scalars
    assert {*steps} == {LAST_TRACED}
    assert tags["commtrace.headline"] == logged.headline
    assert Path(page).read_text() == logged.page


@pytest.mark.slow
def test_another_logger_of_lightning_has_the_scalars(logged: Logged) -> None:
    if logged.folder.name.startswith("transformers"):
        pytest.skip("has none")
    file = logged.folder / "numbers/version_0/metrics.csv"
    head, *_, row = (line.split(",") for line in file.read_text().splitlines())
    found = {name: float(value) for name, value in zip(head, row, strict=True) if name.startswith("commtrace/")}
    assert found == logged.scalars


def accelerate(*script: object) -> tuple[object, ...]:
    """A command of accelerate on two ranks; without a GPU, its `--multi_gpu` are processes on the CPU."""
    options = ("--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no")
    return "-m", "accelerate.commands.launch", *options, f"--main_process_port={free_port()}", *script


@pytest.mark.slow
@skipped_without("tensorboard")
def test_the_trainer_under_accelerate(tmp_path: Path) -> None:
    script = (USERS / "transformers_callback.py", "theirs")
    done = logged_to(tmp_path, *accelerate(*script, "with", tmp_path / "run"), logs="tensorboard")
    assert (done.returncode, len(losses(done))) == (0, 1), done.stderr
    assert {rank: meta["complete"] for rank, meta in metas(tmp_path / "run").items()} == {0: True, 1: True}
    assert (tmp_path / "board/commtrace-report.html").is_file()


@pytest.mark.slow
@skipped_without("tensorboard")
def test_a_loop_with_accelerate_logs_what_its_capture_left(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = logged_to(tmp_path, *accelerate(USERS / "accelerate_log.py", tmp_path / "run"), logs="")
    assert done.returncode == 0, done.stderr
    assert {rank: meta["complete"] for rank, meta in metas(tmp_path / "run").items()} == {0: True, 1: True}
    read = EventAccumulator(str(tmp_path / "mine")).Reload()
    expected = json.loads((tmp_path / "run/scalars.json").read_text())["scalars"]
    assert {tag: pytest.approx(event.value) for tag in expected for event in read.Scalars(tag)} == expected


# --- one process, without an analysis --------------------------------------------------------------------------------


class Remembering:
    """A log that keeps what it is given, or fails."""

    def __init__(self, name: str, *, fails: Exception | None = None) -> None:
        self.name = name
        self.given: list[Findings] = []
        self._fails = fails

    def add(self, findings: Findings) -> None:
        self.given.append(findings)
        if self._fails is not None:
            raise self._fails


class Hanging:
    """A log whose server never answers."""

    name = "Hanging"

    def __init__(self) -> None:
        self.ended = threading.Event()

    def add(self, findings: Findings) -> None:
        self.ended.wait(60)


@pytest.fixture
def analysed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The analysis writes what it does, without looking at traces."""

    def run(arguments: list[str], _: object) -> Printed:
        folder = Path(arguments[-1])
        if "--scalars" in arguments:
            found = {"run": "run", "headline": "Rank 1 is late", "scalars": {"commtrace/step_ms": 1.5}, "unknown": {}}
            (folder / "scalars.json").write_text(json.dumps(found))
            (folder / "report.html").write_text("<p>")
        return Printed("Rank 1 is late\nand more\n")

    monkeypatch.setattr(conclusion, "run_aside", run)


def train(capture: TrainerCapture, logs: Callable[[], list[TrainingLog]], *, begin: int = 0) -> None:
    torch = pytest.importorskip("torch")
    capture.begin(steps=8, device=torch.device("cpu"), model=None, step=begin, logs=logs)
    for _ in range(8):
        torch.ones(4, 4) @ torch.ones(4, 4)
        capture.step()
    capture.end()


def capture_in(folder: Path, **options: float) -> TrainerCapture:
    return TrainerCapture("mine", folder, from_step=3, active=2, **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("analysed")
def test_a_log_gets_what_the_analysis_wrote(tmp_path: Path) -> None:
    log = Remembering("mine")
    train(capture_in(tmp_path / "run"), lambda: [log], begin=100)
    page = tmp_path / "run/report.html"
    summary = "Rank 1 is late\nand more\n"
    assert log.given == [Findings(105, {"commtrace/step_ms": 1.5}, "Rank 1 is late", summary, page)]


@pytest.mark.usefixtures("analysed")
def test_a_log_that_fails_is_one_line_and_others_are_written(tmp_path: Path, capfd) -> None:
    logs = [Remembering("first", fails=RuntimeError("no\nserver")), hanging := Hanging(), Remembering("last")]
    train(capture_in(tmp_path / "run", analyse_max_seconds=0.5), lambda: logs)
    hanging.ended.set()
    assert len(logs[2].given) == 1
    assert capfd.readouterr().err.splitlines()[-2:] == [
        "commtrace: first has not all of the capture: RuntimeError: no",
        "commtrace: Hanging has not all of the capture: it took longer than 0.5 s",
    ]


@pytest.mark.usefixtures("analysed")
def test_logs_that_cannot_be_found_cost_no_capture(tmp_path: Path, capfd) -> None:
    def none() -> list[TrainingLog]:
        raise AttributeError("renamed")

    train(capture_in(tmp_path / "run"), none)
    assert metas(tmp_path / "run")[0]["complete"]
    assert "commtrace: what the capture shows will not be logged: AttributeError: renamed" in capfd.readouterr().err


def test_without_an_analysis_nobody_asks_for_logs(tmp_path: Path) -> None:
    train(TrainerCapture("mine", tmp_path / "run", from_step=3, active=2, analyse=False), lambda: pytest.fail("asked"))


def test_a_training_that_fails_is_not_logged(tmp_path: Path, analysed: None) -> None:
    torch = pytest.importorskip("torch")
    log, capture = Remembering("mine"), capture_in(tmp_path / "run")
    capture.begin(steps=8, device=torch.device("cpu"), model=None, logs=lambda: [log])
    capture.end(RuntimeError("of the training"))
    assert log.given == []


# --- which logs there are --------------------------------------------------------------------------------------------


def test_nothing_is_imported_to_look_for_logs() -> None:
    code = "import sys; from commtrace.integrations.logs import active_runs; print([*active_runs('x')], *sys.modules)"
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[] ")
    assert not {"wandb", "mlflow", "tensorboard"} & {*done.stdout.split()}


def test_a_run_that_is_a_logger_and_active_is_logged_to_once() -> None:
    class Run:
        def __init__(self, name: str) -> None:
            self.id = name

    board = TensorBoardLog(object())
    logs: list[TrainingLog] = [
        board, WandbLog(Run("a"), "x"), MlflowLog(None, "b"), WandbLog(Run("a"), "x"), MlflowLog(None, "b"),
        WandbLog(Run("b"), "x"),
    ]  # fmt: skip
    assert without_twins(logs) == [*logs[:3], logs[5]]


@skipped_without("wandb")
@pytest.mark.slow
def test_a_run_of_wandb_that_has_ended_is_not_active(tmp_path: Path) -> None:
    code = (
        "import wandb; from commtrace.integrations.logs import active_runs\n"
        "run = wandb.init(mode='offline', project='mine'); print(len([*active_runs('x')]))\n"
        "run.finish(); print(len([*active_runs('x')]))\n"
    )
    done = logged_to(tmp_path, "-c", code, logs="")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.isdigit()] == ["1", "0"]
