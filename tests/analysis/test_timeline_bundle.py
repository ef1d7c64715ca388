"""Bundles, the command `timeline`, and the file that is handed to the viewer."""

import _thread
import io
import json
import re
import shutil
import socket
import tarfile
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from local_clients import ENDS, needs_another_user, told, told_another_user
from perfetto_reading import tracks_of

from commtrace.analysis.cli import serving
from commtrace.analysis.cli.commands import timeline
from commtrace.analysis.errors import CannotServe
from commtrace.analysis.results.opening import analyse
from commtrace.analysis.timeline.bundle import bundle, tar
from commtrace.analysis.timeline.drawing import run_timeline
from commtrace.cli import main

RUN = Path(__file__).parent.parent / "data" / "nccl-two-hosts"
VIEWER = "https://ui.perfetto.dev"


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as found:
        return {name: found.extractfile(name).read() for name in found.getnames()}


@pytest.mark.slow
def test_a_bundle_has_the_traces_untouched_and_where_they_stand_in_time(tmp_path, capsys):
    assert main(["timeline", "--bundle", "--output", str(tmp_path / "all.tar"), str(RUN)]) == 0
    found = members(tmp_path / "all.tar")
    analysis = analyse(RUN, details=True)
    files = json.loads(found.pop("perfetto_manifest.json"))["perfetto_manifest"]["files"]
    assert [file["path"] for file in files] == [
        *(f"rank{rank}.0.json.gz" for rank in analysis.run.ranks),
        "timeline.pftrace",
    ]
    assert found["timeline.pftrace"] == analysis.timeline()
    for rank in analysis.run.ranks:
        assert found[f"rank{rank}.0.json.gz"] == analysis.run.files[rank][0].read_bytes()
    assert all(len(file["path"]) <= 99 for file in files)
    assert sum("clocks" not in file for file in files) == 1
    assert all(file["clocks"]["offset_ns"] >= 0 for file in files if "clocks" in file)


@pytest.mark.slow
def test_offsets_put_the_files_where_the_timeline_has_them(tmp_path):
    found = analyse(RUN)
    drawn = run_timeline(found)
    made = bundle(found.run.traces, found.run.tables.ran, found.clocks, drawn.zero_ns)
    base = found.run.traces.set_index("rank")["base_ns"]
    later = {file.rank: file.offset_ns for file in made.files}
    for member in found.participation.itertuples():
        in_file = member.start_ns - base[member.rank]
        on_timeline = member.arrived_ns - drawn.zero_ns
        assert abs(in_file + later[member.rank] - (on_timeline + made.offset_ns)) <= made.drift_ns + 1


@pytest.mark.slow
def test_only_the_chosen_ranks_are_bundled(tmp_path):
    assert main(["timeline", "--bundle", "--draw-ranks", "1", "--output", str(tmp_path / "one.tar"), str(RUN)]) == 0
    assert [*members(tmp_path / "one.tar")] == ["perfetto_manifest.json", "timeline.pftrace", "rank1.0.json.gz"]


@pytest.mark.slow
def test_a_trace_that_became_shorter_is_no_longer_bundled(tmp_path, monkeypatch, capsys):
    run = shutil.copytree(RUN, tmp_path / "run")
    (first, *_) = sorted(run.glob("*.json.gz"))
    read = timeline.analysis_of

    def then_cut(*args, **options):
        found = read(*args, **options)
        size = first.stat().st_size
        monkeypatch.setattr(timeline, "_content", lambda path, _: content(path, size + 1))
        return found

    content = timeline._content
    monkeypatch.setattr(timeline, "analysis_of", then_cut)
    assert main(["timeline", "--bundle", "--output", str(tmp_path / "x.tar"), str(run)]) == 1
    assert "became shorter while it was read" in capsys.readouterr().err
    assert not (tmp_path / "x.tar").exists()


def test_a_tar_holds_files_of_any_size():
    parts = {"a": b"", "b": bytes(512), "c": b"x" * 700}
    made = b"".join(tar((name, len(content), [content[:10], content[10:]]) for name, content in parts.items()))
    with tarfile.open(fileobj=io.BytesIO(made)) as found:
        assert {name: found.extractfile(name).read() for name in found.getnames()} == parts


@pytest.mark.slow
def test_the_command_writes_into_this_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["timeline", "--step", "0-999", str(RUN)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("nccl-two-hosts.pftrace: ")
    assert "slices" in out
    assert tracks_of((tmp_path / "nccl-two-hosts.pftrace").read_bytes())


@pytest.mark.parametrize(
    "given", ["--step=x", "--step=3-1", *(f"--draw-ranks={ranks}" for ranks in ("-1", "0-9999999999", "1,,2"))]
)
def test_what_is_no_range_is_refused(given, capsys):
    assert main(["timeline", given, str(RUN)]) == 2
    assert "is not a number or a range" in capsys.readouterr().err


def test_no_trace_is_overwritten(capsys):
    (first, *_) = sorted(RUN.glob("*.json.gz"))
    assert main(["timeline", "--output", str(first), str(RUN)]) == 2
    assert "is read; name another file" in " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.fixture
def port(monkeypatch) -> int:
    """A free port instead of the only one that the viewer reads from."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    monkeypatch.setattr(serving, "_PORT", free)
    return free


def fetched(url: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    request = urllib.request.Request(url, headers=headers, method=headers.pop("method", "GET"))
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except urllib.error.HTTPError as err:
        with err:
            return err.code, err.read(), dict(err.headers)


@pytest.mark.slow
def test_the_viewer_gets_the_file_once(tmp_path, monkeypatch, port, capsys):
    answers = []

    def browser(url: str) -> None:
        begin, _, address = url.partition("/#!/?url=")
        assert begin == VIEWER

        def read() -> None:
            answers.append(fetched(address))  # as a page's <img> asks
            answers.append(fetched(address, Origin="https://example.org"))
            answers.append(fetched(f"{address}/../../etc/passwd", Origin=VIEWER))
            answers.append(fetched(f"http://127.0.0.1:{port}/{address.rpartition('/')[2]}", Origin=VIEWER))
            answers.append(fetched(address, Origin=VIEWER, Host=f"evil.example:{port}"))
            answers.append(fetched(address, Origin=VIEWER, method="OPTIONS"))
            answers.append(fetched(address, Origin=VIEWER))

        reader.append(threading.Thread(target=read))
        reader[0].start()

    reader: list[threading.Thread] = []
    monkeypatch.setattr(serving.webbrowser, "open_new_tab", browser)
    target = tmp_path / "a run & more.pftrace"
    assert main(["timeline", "--open", "--output", str(target), str(RUN)]) == 0
    reader[0].join()
    assert [status for status, _, _ in answers] == [403, 403, 403, 403, 403, 204, 200]
    assert {headers["Cross-Origin-Resource-Policy"] for _, _, headers in answers} == {"same-origin"}
    assert answers[-1][1] == target.read_bytes()
    assert answers[-1][2]["Access-Control-Allow-Origin"] == VIEWER
    assert answers[-2][2]["Access-Control-Allow-Private-Network"] == "true"
    with pytest.raises(urllib.error.URLError):
        fetched(f"http://127.0.0.1:{port}/")


@pytest.mark.slow
def test_if_no_viewer_comes_it_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(serving.webbrowser, "open_new_tab", lambda url: None)
    target = tmp_path / "x.pftrace"
    server = serving.FileServer(target, 0)
    with pytest.raises(CannotServe, match=re.escape(f"{target}: no viewer has read it in 0.005 minutes")):
        serving.serve_once(server, patience_s=0.3)


@needs_another_user
@pytest.mark.parametrize("end", ENDS)
def test_another_user_who_knows_the_address_gets_nothing(tmp_path, end):
    (tmp_path / "x.pftrace").write_bytes(b"timeline")
    with serving.FileServer(tmp_path / "x.pftrace", 0) as server:
        waiting = threading.Thread(target=server.serve, args=(20.0,))
        waiting.start()
        request = f"GET {server.path} HTTP/1.1\r\nHost: {server.host}\r\nOrigin: {VIEWER}\r\n\r\n".encode()
        assert b"timeline" not in told_another_user(server.server_port, request, end)
        assert not server.is_read.is_set()
        assert told(server.server_port, request).endswith(b"timeline")
        waiting.join()


@pytest.mark.slow
def test_a_port_in_use_is_said(tmp_path, monkeypatch, port, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert main(["timeline", "--open", "--output", str(tmp_path / "x.pftrace"), str(RUN)]) == 1
    assert f"error: 127.0.0.1:{port}: cannot be served from" in capsys.readouterr().err


@pytest.mark.slow
def test_an_interrupt_ends_the_waiting(tmp_path, monkeypatch, port):
    monkeypatch.setattr(serving.webbrowser, "open_new_tab", lambda url: _thread.interrupt_main())
    assert main(["timeline", "--open", "--output", str(tmp_path / "x.pftrace"), str(RUN)]) == 130
    with pytest.raises(urllib.error.URLError):
        fetched(f"http://127.0.0.1:{port}/")
