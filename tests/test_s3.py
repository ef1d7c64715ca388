"""Runs in S3: a server of its own on the loopback, s3fs, worker processes, Dask, and files that change meanwhile."""

import gzip
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from remote_runs import DATA, copied, s3_server, tables_of

from commtrace.analysis.errors import UnreadableFile
from commtrace.analysis.recording.sizes import ReadSizes
from commtrace.analysis.results.opening import analyse, load_run
from commtrace.cli import main

s3fs = pytest.importorskip("s3fs")
pytest.importorskip("moto")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
RUNS = ("nccl-straggler", "nccl-two-hosts", "gloo-collectives")
SECRET = "not-to-be-seen"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server of S3 with one empty bucket."""
    with s3_server(SECRET) as address:
        yield address


@pytest.fixture
def run(server) -> str:
    """A run of four ranks in S3."""
    return copied(DATA / RUNS[0], f"s3://bucket/{os.urandom(4).hex()}/{RUNS[0]}")


def unpacked(run: Path, folder: Path) -> Path:
    """The folder, with the traces as plain JSON."""
    folder.mkdir()
    for file in run.iterdir():
        content = file.read_bytes()
        (folder / file.name.removesuffix(".gz")).write_bytes(
            gzip.decompress(content) if file.suffix == ".gz" else content
        )
    return folder


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("sort", ["gzip", "JSON", "recordings"])
def test_tables_are_the_same(server, tmp_path, name, sort, capsys):
    there = copied(
        DATA / name if sort != "JSON" else unpacked(DATA / name, tmp_path / name), f"s3://bucket/{sort}/{name}"
    )
    if sort == "recordings":
        assert main(["pack", there, "-o", f"s3://bucket/packed/{name}"]) == 0
        there = f"s3://bucket/packed/{name}"
    assert tables_of(there) == tables_of(DATA / name)


def test_worker_processes_read_it(run):
    assert tables_of(run, workers=2, sizes=ReadSizes(process_bytes=0)) == tables_of(DATA / RUNS[0], workers=1)


def test_it_is_read_rank_by_rank(run):
    assert tables_of(run, workers=2, sizes=ReadSizes(ranks_bytes=0)) == tables_of(DATA / RUNS[0], workers=1)


def test_workers_of_dask_read_it(run):
    from distributed import Client

    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        found = analyse(run, executor=client)
        assert found.run.spread is not None
        assert found.breakdown.equals(analyse(DATA / RUNS[0]).breakdown)


def test_recordings_beside_the_traces_are_read_instead(run, capsys):
    assert main(["pack", run]) == 0
    fs = s3fs.S3FileSystem()
    traces = [path for path in fs.ls(run, detail=False, refresh=True) if path.endswith(".gz")]
    assert tables_of(run) == tables_of(DATA / RUNS[0])
    fs.pipe_file(traces[0], gzip.compress(gzip.decompress(fs.cat_file(traces[0])), 1))
    notes = analyse(run).run.notes
    assert sum("its recording is of another state" in note for note in notes) == 1


def large(run: Path) -> bytes:
    """A trace of several blocks."""
    (file, *_) = sorted(run.glob("*.gz"))
    content = gzip.decompress(file.read_bytes())
    event = b'{"ph": "X", "cat": "python_function", "name": "f", "pid": 1, "tid": 1, "ts": 1, "dur": 1},\n'
    return content.replace(b'"traceEvents": [', b'"traceEvents": [' + event * 140_000, 1)


@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_a_file_that_changes_while_it_is_read_is_said(server, how):
    fs, content = s3fs.S3FileSystem(), large(DATA / RUNS[0])
    fs.pipe_file("bucket/large/rank0.json", content)
    whole = load_run(["s3://bucket/large/rank0.json"], workers=1)
    assert len(whole.activities)
    assert len(content) > 12e6
    done = []

    def meanwhile(position: int) -> None:
        if not done and position > 1e6:
            done.append(position)
            other = s3fs.S3FileSystem(skip_instance_cache=True)
            if how == "removed":
                other.rm_file("bucket/large/rank0.json")
            else:
                other.pipe_file("bucket/large/rank0.json", content.replace(b'"f"', b'"g"'))

    with pytest.raises(UnreadableFile) as told:
        load_run(["s3://bucket/large/rank0.json"], workers=1, progress=meanwhile)
    assert done
    assert str(told.value).startswith("s3://bucket/large/rank0.json: ")
    assert "then try again" in str(told.value)


def test_what_cannot_be_reached_is_one_line(run, server):
    def told(url: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "commtrace", "summary", url],
            cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
        assert SECRET not in done.stderr
        return done.stderr

    assert "bucket does not exist; check its name" in told("s3://no-such-bucket/run")
    assert "no such file or directory" in told("s3://bucket/no-such-run")
    assert "cannot be reached" in told(run, AWS_ENDPOINT_URL="http://127.0.0.1:9")
    no_credentials = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"}
    assert "check the credentials" in told(run, HOME="/nowhere", **no_credentials)
    _let_everybody(server, calls=0)
    try:
        assert "access is denied" in told(run)
    finally:
        _let_everybody(server, calls=1 << 40)


def _let_everybody(server: str, calls: int) -> None:
    """Check credentials after this many calls."""
    url, plain = f"{server}/moto-api/reset-auth", {"Content-Type": "text/plain"}
    urllib.request.urlopen(urllib.request.Request(url, str(calls).encode(), plain)).close()


def test_no_bucket_is_made(server, capsys):
    assert main(["pack", str(DATA / RUNS[0]), "-o", "s3://bukcet/packed"]) == 1
    assert "bucket does not exist" in capsys.readouterr().err
    assert s3fs.S3FileSystem().ls("", detail=False, refresh=True) == ["bucket"]
