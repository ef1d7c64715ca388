"""Runs named by URL: read, packed and refused like those of this machine, without a word of what is secret."""

import gzip
import json
import os
import pickle
import re
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest
from default_sizes import default_sizes
from fsspec.implementations.memory import MemoryFileSystem
from remote_runs import DATA, asked, copied, tables_of
from samples import with_slow
from sweep_builders import Cell, write_json, write_sweep
from training_builders import Trained, write_training

from commtrace.analysis.core.places import filesystem
from commtrace.analysis.core.places.place import address, path_at, path_named
from commtrace.analysis.core.places.redaction import hide_secrets
from commtrace.analysis.errors import MissingLibrary, UnreachableFile, UnreadableFile
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.sizes import ReadSizes
from commtrace.analysis.results.opening import analyse, analyse_with
from commtrace.cli import main
from commtrace.contract.comms import COMMS_TOOL

ROOT = Path(__file__).resolve().parents[2]
RUN = "nccl-straggler"
SCHEMES = ("memory", "file", "local")
SECRET = "hunter2"


@pytest.fixture(autouse=True)
def memory():
    """The filesystem of `memory://`, empty before and after."""
    yield fsspec.filesystem("memory")
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def run() -> str:
    """A run of four ranks in `memory://`."""
    return copied(DATA / RUN, f"memory://runs/{RUN}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scheme"),
    with_slow([(RUN, "memory")], [(RUN, "file"), (RUN, "local"), *(("gloo-collectives", s) for s in SCHEMES)]),
)
def test_tables_are_the_same(tmp_path, name, scheme):
    url = copied(DATA / name, f"{scheme}://{'' if scheme == 'memory' else tmp_path}/{name}")
    assert tables_of(url) == tables_of(DATA / name)


@pytest.mark.slow_cases("local")
@pytest.mark.parametrize("scheme", ["memory", "local"])
def test_large_files_are_fetched_block_by_block(tmp_path, monkeypatch, scheme):
    for module in ("streams", "filesystem"):  # the first takes its value from the second when it is imported
        monkeypatch.setattr(f"commtrace.analysis.core.places.{module}.BLOCK_BYTES", 5_000)
    url = copied(DATA / RUN, f"{scheme}://{'' if scheme == 'memory' else tmp_path}/{RUN}")
    with asked(MemoryFileSystem) as seen:
        assert analyse(url).breakdown.equals(analyse(DATA / RUN).breakdown)
    assert "all" not in {what for what, _ in seen}


@pytest.mark.slow
def test_sweeps_trainings_and_ceilings_are_read_too(tmp_path, run, capsys):
    write_sweep(tmp_path / "sweep", [Cell(1), Cell(2, epoch_s=9)])
    for name in ("small", "large"):
        write_training(tmp_path / "trained" / name, Trained(scores=[(1.2, 0.56)]))
    measured = {"collective": "all_reduce", "size": 8_388_608, "in_place": None}
    measured["out_of_place"] = {"time": 50.0, "alg_bw": 167.8, "bus_bw": 251.7, "nwrong": 0}
    write_json(
        tmp_path / "ceiling" / "comms.json",
        {"tool": COMMS_TOOL, "world_size": 4, "complete": True, "results": [measured]},
    )
    url = copied(tmp_path, "memory://all")
    for command, here, there in (
        (["table", "scaling"], tmp_path / "sweep", f"{url}/sweep"),
        (["table", "training"], tmp_path / "trained", f"{url}/trained"),
        (["bandwidth", run, "--ceiling"], tmp_path / "ceiling", f"{url}/ceiling"),
    ):
        assert main([*command, str(here)]) == 0
        told = capsys.readouterr().out
        assert main([*command, there]) == 0
        assert capsys.readouterr().out == told


@pytest.mark.slow
def test_plain_files_and_single_ones_are_read_too(tmp_path):
    for file in (DATA / RUN).iterdir():
        (tmp_path / file.name.removesuffix(".gz")).write_bytes(gzip.decompress(file.read_bytes()))
    url = copied(tmp_path, "memory://plain")
    names = sorted(file.name for file in tmp_path.iterdir())
    one_by_one = analyse([f"{url}/{name}" for name in names])
    there, here = one_by_one.breakdown, analyse(DATA / RUN).breakdown
    assert there.equals(here)
    assert one_by_one.run.name == "plain"


@pytest.mark.slow
def test_other_processes_read_it(tmp_path):
    options = ReadOptions(workers=2, sizes=ReadSizes(process_bytes=0))
    url = copied(DATA / RUN, f"local://{tmp_path}/{RUN}")
    assert analyse_with(url, options).breakdown.equals(analyse(DATA / RUN, workers=1).breakdown)


@pytest.mark.slow
def test_it_is_read_rank_by_rank(tmp_path):
    url = copied(DATA / RUN, f"local://{tmp_path}/{RUN}")
    found = analyse_with(url, ReadOptions(workers=2, sizes=ReadSizes(ranks_bytes=0)))
    assert found.run.spread is not None
    assert found.breakdown.equals(analyse(DATA / RUN, workers=1).breakdown)


@pytest.mark.slow
def test_a_large_file_is_read_in_parts_and_cached_by_what_it_is(tmp_path):
    (file,) = sorted((DATA / RUN).iterdir())[:1]
    (tmp_path / "rank0.json").write_bytes(gzip.decompress(file.read_bytes()))
    url = copied(tmp_path, f"local://{tmp_path}/there")
    cache = tmp_path / "cache"
    sizes = ReadSizes(process_bytes=0, part_bytes=20_000, cache_bytes=0)
    options = ReadOptions(workers=2, cache=str(cache), sizes=sizes)
    first = analyse_with(f"{url}/rank0.json", options)
    (kept,) = cache.iterdir()
    assert kept.stat().st_size
    again = analyse_with(f"{url}/rank0.json", options)
    assert again.breakdown.equals(first.breakdown)
    assert first.breakdown.equals(analyse(tmp_path / "rank0.json").breakdown)


@pytest.mark.slow
def test_what_has_no_state_is_not_cached(run, tmp_path, monkeypatch, capsys):
    default_sizes(monkeypatch, cache_bytes=0)
    assert main(["breakdown", "--cache", str(tmp_path / "known"), run]) == 0
    assert len(list((tmp_path / "known").iterdir())) == 4
    monkeypatch.setattr("commtrace.analysis.core.places.filesystem._TIMES", ())
    assert main(["breakdown", "--cache", str(tmp_path / "unknown"), run]) == 0
    assert not (tmp_path / "unknown").exists()


@pytest.mark.slow
def test_recordings_beside_traces_are_read_instead(run, capsys):
    assert main(["pack", run]) == 0
    assert "recordings beside them" in capsys.readouterr().out
    with asked(MemoryFileSystem) as seen:
        found = analyse(run)
    assert found.breakdown.equals(analyse(DATA / RUN).breakdown)
    assert {path.rpartition(".")[2] for what, path in seen if what == "all"} <= {"ctrace"}
    assert sum(path.endswith(".gz") for _, path in seen) == 4


def test_a_recording_of_another_state_is_not_believed(run, memory):
    assert main(["pack", run]) == 0
    (trace, *_) = sorted(path for path in memory.ls(run, detail=False) if path.endswith(".gz"))
    memory.pipe_file(trace, memory.cat_file(trace))
    notes = analyse(run).run.notes
    assert sum("its recording is of another state" in note for note in notes) == 1


@pytest.mark.slow
def test_packing_from_and_to(tmp_path, run, capsys):
    (tmp_path / "run.json").write_text('{"config": {"model": "tiny"}}')
    copied(tmp_path, run)
    for target in ("memory://packed/there", tmp_path / "here", f"local://{tmp_path}/as-url"):
        assert main(["pack", run, "-o", str(target)]) == 0
        assert f"in {target}" in capsys.readouterr().out
        packed = analyse(str(target))
        assert packed.breakdown.equals(analyse(DATA / RUN).breakdown)
        assert packed.run.config == {"config": {"model": "tiny"}}
    assert main(["pack", str(DATA / RUN), "-o", "memory://packed/from-here"]) == 0
    assert analyse("memory://packed/from-here").breakdown.equals(analyse(DATA / RUN).breakdown)
    assert not list((tmp_path / "as-url").glob(".*"))


def test_what_cannot_be_written_leaves_nothing(run, memory, monkeypatch, capsys):
    def full(self, path, value, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", full)
    assert main(["pack", run, "-o", "memory://packed"]) == 1
    assert "memory://packed/" in (told := capsys.readouterr().err)
    assert "cannot be written: No space left on device" in told
    assert not memory.exists("/packed")


@pytest.mark.slow_cases("command0-Rank 2 costs")
@pytest.mark.quick_cases("command0-Rank 2 costs", "command1-exposed", "command3-all_reduce")
@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["summary"], "Rank 2 costs"),
        (["breakdown", "--by", "step"], "exposed"),
        (["compare", "--by", "measure", f"memory://runs/{RUN}"], "step"),
        (["bandwidth"], "all_reduce"),
    ],
)
def test_commands_take_urls(run, capsys, command, told):
    assert main([*command, run]) == 0
    assert told in capsys.readouterr().out


@pytest.mark.slow
def test_pages_are_written_here(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", run]) == 0
    assert main(["timeline", run]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {f"{RUN}.html", f"{RUN}.pftrace"}


def test_only_files_of_the_ranks_asked_for_are_fetched(run, memory):
    traces = sorted(memory.ls(run, detail=False))
    for rank, path in enumerate(traces):
        side = path.partition(".")[0] + ".meta.json"
        memory.pipe_file(side, json.dumps({"schema_version": 1, "rank": rank}).encode())
    with asked(MemoryFileSystem) as seen:
        assert analyse(run, ranks="2").run.ranks == [2]
    assert {path for what, path in seen if path.endswith(".gz")} == {traces[2]}


def test_a_file_is_listed_once_and_fetched_once(run):
    with asked(MemoryFileSystem) as seen:
        analyse(run)
    counts = Counter(what for what, _ in seen)
    assert (counts["ls"], counts["begin"], counts["all"]) == (1, 4, 0)  # small files are fetched with their beginning


@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_a_file_that_changes_while_it_is_read_is_said(run, memory, monkeypatch, how):
    victim = sorted(memory.ls(run, detail=False))[1]
    content = memory.cat_file(victim)
    given = MemoryFileSystem.cat_file

    def disturbed(self, path, start=None, end=None, **more):
        found = given(self, path, start, end, **more)
        if path.endswith(victim) and end is None:
            self.rm_file(victim) if how == "removed" else self.pipe_file(victim, content + b"\0")
        return found

    monkeypatch.setattr(MemoryFileSystem, "cat_file", disturbed)
    monkeypatch.setattr("commtrace.analysis.core.places.remote.BEGIN_BYTES", 5_000)
    monkeypatch.setattr("commtrace.analysis.core.places.streams.BEGIN_BYTES", 5_000)
    with pytest.raises(UnreadableFile, match=f"{Path(victim).name}.*(was written to|was removed) while it was read"):
        analyse(run)


def test_what_was_replaced_since_it_was_found_is_said(run, memory):
    found = next(iter(path_named(run).iterdir()))
    memory.pipe_file(f"/runs/{RUN}/{found.name}", b"{}")
    with pytest.raises(UnreachableFile, match="is another file now than when it was found; wait for the writer"):
        found.read_bytes()
    memory.rm_file(f"/runs/{RUN}/{found.name}")
    with pytest.raises(UnreachableFile, match="was removed after it was found"):
        path_at(address(found)).read_bytes()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("memory://nowhere/at-all", "no such file or directory; expected a run directory or Kineto traces"),
        ("gs://bucket/run", "needs a package that is not installed: Please install gcsfs"),
        ("nothing://bucket/run", "no filesystem of fsspec has this name"),
        ("simplecache::s3://bucket/run", "chains of filesystems are not read; copy the files to this machine"),
        ("zip://run/rank0.json", "a filesystem whose files may name others, or be copied, is not read"),
        ("reference:///refs.json", "a filesystem whose files may name others, or be copied, is not read"),
        ("dask::s3://bucket/run", "chains of filesystems are not read"),
    ],
)
def test_what_cannot_be_found_is_one_line(capsys, monkeypatch, url, told):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    assert main(["summary", url]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: {url}")
    assert (told in err, err.count("\n")) == (True, 1)


def test_without_fsspec_it_is_said_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingLibrary, match="fsspec is not installed, and a URL needs it: pip install 'fsspec>="):
        analyse(run)


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


class DeniedError(Exception):
    """What aiohttp raises."""

    status = 403


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (PermissionError("Access Denied"), "access is denied (Access Denied); check the credentials"),
        (DeniedError(f"403, url='https://x/?sig={SECRET}'"), "access is denied (403, url='https://x/'); check"),
        (type("NoCredentialsError", (Exception,), {})("Unable to locate"), "no credentials (Unable to locate)"),
        (type("ConnectTimeoutError", (Exception,), {})("30 s"), "no answer in time (30 s); check the network"),
        (ConnectionRefusedError(111, "Connection refused"), "cannot be reached (Connection refused); check"),
        (caused(FileNotFoundError("host"), ConnectionRefusedError(111, "refused")), "cannot be reached (refused)"),
        (FileNotFoundError("The specified bucket does not exist"), "bucket does not exist; check its name"),
        (ValueError(f"odd\nthing with {SECRET}"), "odd thing with ***; try again"),
    ],
)
@pytest.mark.parametrize("command", [["summary"], ["report"], ["pack"], ["table", "scaling"], ["table", "training"]])
def test_failures_of_the_network_are_one_line(monkeypatch, capsys, raised, told, command):
    def fails(self, path, **more):
        raise raised

    monkeypatch.setattr(MemoryFileSystem, "info", fails)
    assert main([*command, f"memory://user:{SECRET}@host/run"]) == 1
    err = capsys.readouterr().err
    assert (told in err, "memory://host/run" in err, SECRET in err, err.count("\n")) == (True, True, False, 1)


@pytest.fixture(name="server", scope="module")
def _server() -> Iterator[str]:
    """The URL of a server that answers `/N/...` with status N, and anything else with a redirect to itself."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = self.path.split("/")[1]
            self.send_response(int(number) if number.isdecimal() else 302)
            self.send_header("Location", self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815 - the name that http.server wants

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("404", "no such file or directory"),
        ("410", "no such file or directory"),
        ("403", "access is denied (403, message='Forbidden'"),
        ("429", "the server answers with an error (429, message='Too Many Requests'"),
        ("500", "the server answers with an error (500, message='Internal Server Error'"),
        ("503", "the server answers with an error (503, message='Service Unavailable'"),
        ("loop", "is redirected without end ("),
    ],
)
def test_only_what_a_server_does_not_have_is_missing(server, capsys, answer, told):
    pytest.importorskip("aiohttp")
    assert main(["breakdown", f"{server}/{answer}/rank0.json?sig={SECRET}"]) == 1
    err = capsys.readouterr().err
    assert (told in err, SECRET in err, err.count("\n")) == (True, False, 1)


@pytest.mark.parametrize(
    ("url", "shown", "name"),
    [
        ("s3://bucket/run/", "s3://bucket/run", "run"),
        ("s3://bucket", "s3://bucket", "bucket"),
        (f"ftp://user:{SECRET}@host:21/a/run", "ftp://host:21/a/run", "run"),
        (f"s3://key:{SECRET}/x@bucket/run", "s3://bucket/run", "run"),
        ("abfs://container@account/run", "abfs://container@account/run", "run"),
        (f"https://host/rank0.json?sig={SECRET}&x=a/b", "https://host/rank0.json", "rank0.json"),
        ("s3://bucket/what?/rank0.json", "s3://bucket/what?/rank0.json", "rank0.json"),
        ("hdfs://host:9000/run", "hdfs://host:9000/run", "run"),
        ("simplecache::s3://bucket/run", "simplecache::s3://bucket/run", "run"),
        (f"https://{SECRET}@host/run", "https://host/run", "run"),
        (f"https://host/run?{SECRET}", "https://host/run", "run"),
        (f"https://host/run;token={SECRET}", "https://host/run", "run"),
        (f"https://host/run#{SECRET}", "https://host/run", "run"),
        (f"https://host:8443/token={SECRET}/run", "https://host:8443/token=***/run", "run"),
        (f"https://user:a/{SECRET}@b@host/run", "https://host/run", "run"),
        (f"https://user:a?{SECRET}@host/run", "https://***", "***"),
        (f"https://host/run?by=a@b&sig={SECRET}", "https://***", "***"),
        (f"https://user:{SECRET}/run", "https://***/run", "run"),
        (f"https://a/{SECRET}@host/run", "https://***@host/run", "run"),
        (f"s3://{SECRET}@bucket/run", "s3://bucket/run", "run"),
        (f"s3://bucket/run?{SECRET}", "s3://bucket/run", "run"),
        ("s3://bucket/runs/me@home/run", "s3://***@home/run", "run"),
        ("s3://arn:aws:s3:eu-west-1:1:accesspoint/x/run", "s3://arn:aws:s3:eu-west-1:1:accesspoint/x/run", "run"),
        (f"hf://{SECRET}@datasets/org/repo/run", "hf://***/org/repo/run", "run"),
        (f"hf://datasets/org/repo@{SECRET}/run", "hf://***/run", "run"),
        (f"simplecache::https://{SECRET}@host/run", "simplecache::https://***", "***"),
    ],
)
def test_urls_are_shown_without_secrets(url, shown, name):
    path = path_named(url)
    assert (str(path), f"{path}", repr(path), path.name) == (shown, shown, f"RemotePath({shown!r})", name)
    assert path_at(address(path)) == path == pickle.loads(pickle.dumps(path))
    assert path_named(path) is path
    with pytest.raises(TypeError, match="is not on this machine"):
        os.fspath(path)


@pytest.mark.parametrize(
    ("url", "text", "shown"),
    [
        (f"https://user:{SECRET}@host/x", f"no user: {SECRET}, users", "no user: ***, users"),
        ("https://user:ron@host/x", "ron, strong ron.json /mnt/ron/x ron_2", "***, strong ron.json /mnt/ron/x ron_2"),
        ("https://user:ron@host/x", "'ron' user:ron@host ron@host =ron;", "'***' user:***@host ***@host =***;"),
        ("https://user:p%20q@host/x", "p%20q p+q %70%20q user:p%2520q", "*** *** *** user:***"),
        ("https://ann:hunter2@host/x", "Basic YW5uOmh1bnRlcjI= of ann", "Basic ***= of ***"),
        ("https://host/x?versionId=3sL4kqtJ", "versionId 3sL4kqtJ, 3sL4kqtJlcpX", "versionId ***, ***"),
        ("https://host/x?X-Amz-Expires=300&X-Amz-Signature=abc", "300 s, host, abc", "300 s, host, ***"),
        ("https://host/x?token=abc", "https://host/x?token=abcdef or =abc/y", "https://host/x or =***/y"),
        ("s3://b/tokens=9/monkey=1/apiKey=2/x", "authors=3", "authors=3"),
    ],
)
def test_secrets_are_hidden_in_texts_and_words_stay(url, text, shown):
    assert hide_secrets(f"{url}: {text}", [url]) == f"{path_named(url)}: {shown}"


def test_what_is_beside_or_in_a_url_shows_no_more_of_it(memory):
    file = path_named(f"https://a/{SECRET}/b@host/run/rank0.json?{SECRET}")
    for path in (file.parent, file.parent.parent.parent.parent, file.with_name("run.json"), file / "x"):
        assert SECRET not in str(path) + str(path_at(address(path)))
    there = copied(DATA / RUN, "memory://bucket/what?/and#3")
    assert {str(path) for path in path_named(there).iterdir()} == {
        f"memory://bucket/what?/and/{path.name}" for path in (DATA / RUN).iterdir()
    }


def test_a_name_in_a_folder_is_no_chain(tmp_path, memory):
    (tmp_path / "secret.json").write_text("{}")
    name = f"x::local://{tmp_path}/secret.json"
    for scheme in ("memory", "local"):
        with pytest.raises(FileNotFoundError):
            path_named(f"{scheme}:///nowhere/{name}").read_bytes()


def test_no_traceback_names_a_secret(memory, monkeypatch, capsys, tmp_path):
    url = f"memory://user:{SECRET}@host/run"

    def fails(self, path, **more):
        raise ValueError(f"odd: {url}") from OSError(url)

    monkeypatch.setattr(MemoryFileSystem, "info", fails)
    with pytest.raises(UnreachableFile) as told:
        path_named(url).stat()
    shown = "".join(traceback.format_exception(told.value))
    assert "memory://host/run" in shown
    assert SECRET not in shown
    monkeypatch.setattr("commtrace.analysis.core.places.filesystem.plain_errors", lambda _: nullcontext())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["breakdown", "--verbose", url]) == 70
    shown = capsys.readouterr().err + "".join(path.read_text() for path in tmp_path.iterdir())
    assert "this is a bug of commtrace" in shown
    assert "odd: memory://host/run" in shown
    assert SECRET not in shown


@pytest.mark.parametrize("url", [f"https://{SECRET}@host/x", f"https:/{SECRET}@host/x", f"s3://bucket/x?{SECRET}"])
@pytest.mark.parametrize("option", ["--cache", "--output"])
def test_where_a_path_is_wanted_a_url_is_refused(tmp_path, monkeypatch, capsys, url, option):
    monkeypatch.chdir(tmp_path)
    assert main(["breakdown", option, url, str(DATA / RUN)]) == 2
    assert "is a URL; name a path of this machine" in (told := capsys.readouterr().err)
    assert SECRET not in told
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_secrets_are_in_nothing_that_is_written(memory, tmp_path, monkeypatch, capsys):
    there = copied(DATA / RUN, f"memory://user:{SECRET}@host/{RUN}")
    monkeypatch.chdir(tmp_path)
    for command in (["summary"], ["report"], ["table", "collectives", "--format", "json"], ["pack", "-o", "packed"]):
        assert main([*command, there]) == 0
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    written += [gzip.decompress(content) for content in written if content[:2] == b"\x1f\x8b"]
    told = capsys.readouterr()
    assert len(written) > 8
    assert SECRET not in told.out + told.err
    assert [content for content in written if SECRET.encode() in content] == []


def test_secrets_are_not_logged(memory, capsys, tmp_path):
    there = copied(DATA / RUN, f"memory://user:{SECRET}@host/{RUN}")
    assert main(["breakdown", "--verbose", there, "--output", str(tmp_path / "table.csv")]) == 0
    assert main(["breakdown", "--verbose", f"memory://user:{SECRET}@host/{RUN}/x?token={SECRET}"]) == 1
    told = capsys.readouterr().err
    assert told.count(f"'memory://host/{RUN}/node00_") == 4
    assert told.count("read as Kineto") == 4
    assert SECRET not in told


def test_names_of_this_machine_are_paths(tmp_path):
    assert path_named("a/b:c") == Path("a/b:c")
    assert path_named("file:///tmp/a%20b") == Path("/tmp/a b")
    assert path_at(address(Path("x"))) == Path.cwd() / "x"


@pytest.mark.slow
def test_fsspec_is_not_imported_for_paths():
    code = "import sys; from commtrace.cli import main; main(sys.argv[1:]); print('fsspec' in sys.modules)"
    command = [sys.executable, "-c", code, "breakdown", str(DATA / RUN)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")


def test_the_page_lists_the_filesystems_that_are_read():
    page = (ROOT / "docs" / "remote.md").read_text(encoding="utf-8")
    listed = page.partition("**Which filesystems** are read: ")[2].partition(". Others")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == filesystem._SCHEMES


def test_hang_takes_a_run_by_url(run, capsys):
    assert main(["hang", "--no-cache", run]) == 0
    assert capsys.readouterr().out == "no collective hangs\n"
    assert main(["hang", "memory://nothing/here"]) == 1
    assert "memory://nothing/here: no such file or directory" in capsys.readouterr().err


def test_a_file_that_was_removed_is_no_more_in_its_folder(memory):
    memory.pipe({"/removed/a.json": b"{}", "/removed/b.json": b"{}"})
    folder = path_named("memory://removed")
    names = sorted(each.name for each in folder.iterdir())
    next(each for each in folder.iterdir() if each.name == "a.json").unlink()
    assert (names, [each.name for each in folder.iterdir()]) == (["a.json", "b.json"], ["b.json"])
