"""`commtrace serve`: what it answers is what the page of a file holds, to nobody but that page, until it is closed."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from browsing import looked_at_address, needs_browser
from builders import MS, Collective, analysed, traces_of
from local_clients import ENDS, needs_another_user, told, told_another_user

from commtrace import analyse
from commtrace.analysis.cli.serving import open_in_browser
from commtrace.analysis.errors import UnreadableFile
from commtrace.analysis.report.server import ReportServer
from commtrace.analysis.report.steps import StepsOfRun, steps_data
from commtrace.cli import main

DATA = Path(__file__).parent.parent / "data"


@pytest.fixture(scope="module")
def run():
    return analyse(DATA / "nccl-straggler", details=True)


@contextmanager
def serving(run) -> Iterator[ReportServer]:
    with ReportServer(run) as served:
        thread = threading.Thread(target=served.serve_until_idle, args=(60,))
        thread.start()
        try:
            yield served
        finally:
            served.end()
            thread.join()


@pytest.fixture
def server(run) -> Iterator[ReportServer]:
    with serving(run) as served:
        yield served


def asked(server: ReportServer, what: str, **headers: str):
    """Status, headers and content of an answer."""
    address = urlsplit(server.url)
    connection = HTTPConnection("127.0.0.1", address.port, timeout=20)
    connection.request("GET", what if what.startswith("/") else f"{address.path}{what}", headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def names_resolved(step, names):
    text = json.dumps({key: value for key, value in step.items() if key not in ("collectives", "late")})
    collectives = {
        number: [names[row[0]] if row[0] is not None else None, *row[1:2], *row[4:]]
        for number, row in step["collectives"].items()
    }
    return text, collectives


@pytest.mark.slow
def test_its_steps_are_those_of_the_file(run, server) -> None:
    held = json.loads(steps_data(run).json)
    for step in held["steps"]:
        status, headers, content = asked(server, f"step?n={step['step']}")
        assert (status, headers["Content-Type"]) == (200, "application/json")
        answered = json.loads(content)
        assert names_resolved(answered["steps"][0], answered["names"]) == names_resolved(step, held["names"])
    for number, behind in held["behind"].items():
        answered = json.loads(asked(server, f"behind?collective={number}")[2])["behind"][number]
        assert [len(rank["cpu"]) for rank in answered["ranks"]] == [len(rank["cpu"]) for rank in behind["ranks"]]
        by_collective = json.loads(asked(server, f"step?collective={number}")[2])
        assert number in by_collective["steps"][0]["collectives"]


@pytest.mark.parametrize(
    "what",
    [
        *("step?n=999", "step?n=x", "step?n=--5", "step?n=-", "step?n=1&n=1", f"step?{'n&' * 9}", f"step?n={'9' * 30}"),
        *("step", "behind?collective=-5", "secrets", "/", "/x/", "/x/step?n=1", "../", "%00", "//[bad/"),
    ],
)
def test_what_is_not_there_is_not_found(server, what) -> None:
    assert asked(server, what)[0] == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:80"},
        {"Host": "127.0.0.1:80@evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_other_pages_get_nothing(server, headers) -> None:
    assert asked(server, "", **headers)[0] == 404


@pytest.mark.parametrize("address", ["http://[bad/", "http://127.0.0.1/", "*", "?", "[", "\udcff"])
def test_odd_addresses_are_not_found(server, address) -> None:
    request = f"GET {address} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode("utf-8", "surrogateescape")
    assert told(server.server_port, request).startswith(b"HTTP/1.0 404 ")


@needs_another_user
@pytest.mark.parametrize("end", ENDS)
def test_another_user_who_knows_the_address_gets_nothing(server, end) -> None:
    request = f"GET {urlsplit(server.url).path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    assert b"data-live" not in told_another_user(server.server_port, request, end)
    assert b"data-live" in told(server.server_port, request)


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1:9000"])
def test_it_answers_at_the_other_end_of_ssh(server, host) -> None:
    assert asked(server, "", Host=host)[0] == 200


@pytest.mark.slow
def test_an_open_page_asks_before_the_server_ends(run) -> None:
    with ReportServer(run) as served:
        served.serve_until_idle(0.03)
        _, content = served.answer(f"{urlsplit(served.url).path}alive")
    assert json.loads(content) == {"again_s": 0.01}


def test_it_may_be_shown_in_no_frame_and_kept_nowhere(server) -> None:
    status, headers, content = asked(server, "")
    assert status == 200
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert b'data-live="yes"' in content


@pytest.mark.slow
def test_it_ends_when_nobody_looks(run) -> None:
    with ReportServer(run) as served:
        begun = time.monotonic()
        served.serve_until_idle(0.1)
        assert time.monotonic() - begun < 10


@pytest.mark.slow
def test_a_run_without_communication_is_shown_as_well(tmp_path) -> None:
    [trace] = traces_of(1, [])
    with ReportServer(analysed(tmp_path, trace.step(0, 0, 9 * MS).kernel("gemm", 0, 5 * MS))) as served:
        assert served.answer(urlsplit(served.url).path) is not None
        assert served.answer(f"{urlsplit(served.url).path}step?n=0") is not None
        assert served.answer(f"{urlsplit(served.url).path}behind?collective=0") is None


@pytest.mark.slow
def test_a_port_in_use_is_an_error_that_says_what_to_do(server, capsys) -> None:
    port = str(urlsplit(server.url).port)
    assert main(["serve", "--no-browser", "--port", port, str(DATA / "nccl-straggler")]) == 1
    assert f"port {port}: cannot be listened on" in capsys.readouterr().err


@pytest.mark.slow
def test_a_browser_that_waits_until_it_is_closed_gets_the_page(monkeypatch, capsys) -> None:
    is_shown, is_closed = threading.Event(), threading.Event()

    def in_the_terminal(url: str) -> None:
        with urllib.request.urlopen(url, timeout=20) as page:
            if b"data-live" in page.read():
                is_shown.set()
        is_closed.wait(60)

    monkeypatch.setattr(webbrowser, "open_new_tab", in_the_terminal)
    assert main(["serve", "--idle-minutes", "0.02", str(DATA / "nccl-straggler")]) == 0
    is_closed.set()
    assert is_shown.is_set()


@pytest.mark.parametrize("error", [webbrowser.Error("none"), OSError("none")])
def test_a_browser_that_cannot_be_started_is_no_error(monkeypatch, error) -> None:
    is_tried = threading.Event()

    def missing(_: str) -> None:
        is_tried.set()
        raise error

    monkeypatch.setattr(webbrowser, "open_new_tab", missing)
    open_in_browser("http://127.0.0.1:1/")  # an exception in a thread is a warning, and so an error here
    assert is_tried.wait(20)


def test_a_file_that_has_gone_is_said(run, server, monkeypatch) -> None:
    def gone(*_: object) -> None:
        raise UnreadableFile("rank0.json: has gone")

    monkeypatch.setattr(StepsOfRun, "step", gone)
    status, _, content = asked(server, f"step?n={StepsOfRun(run).order[0]}")
    assert (status, b"rank0.json: has gone" in content) == (500, True)


@pytest.mark.slow
@needs_browser
def test_a_browser_goes_down_to_the_late_rank(tmp_path) -> None:
    traces = traces_of(2, [Collective((10 * MS, 30 * MS), 5 * MS, elems=10**7)])
    for trace in traces:
        trace.step(0, 0, 60 * MS).kernel("gemm", 2 * MS, 3 * MS)
        if trace.rank == 1:
            trace.event("cpu_op", "aten::nonzero", 12 * MS, 16 * MS)
    analysed(tmp_path / "run", *traces)
    with serving(analyse(tmp_path / "run", details=True)) as served:
        seen = looked_at_address(f"{served.url}#rank=1", tmp_path)
    assert seen.console == []
    assert "Rank 1 came 20 ms late." in seen.dom
    assert "aten::nonzero: 16 ms" in seen.dom
    assert all(address.startswith("http://127.0.0.1:") for address in seen.addresses)


@pytest.mark.slow
def test_the_command_ends_by_ctrl_c() -> None:
    command = [sys.executable, "-m", "commtrace", "serve", "--no-browser", "--no-cache", str(DATA / "nccl-straggler")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=DATA.parents[1]) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert re.match(r"note: http://127\.0\.0\.1:\d+/[\w-]{32}/ shows the run; end with ctrl-C", said)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
