"""Servers on the loopback: no client is waited for longer than a request takes, and none keeps others out."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus

import pytest
from local_clients import ENDS, needs_another_user, told, told_another_user

from commtrace.analysis.core.loopback import LoopbackHandler, LoopbackServer

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
MOST = 16


class _Handler(LoopbackHandler):
    def do_GET(self) -> None:  # noqa: N802 - as the base class has it
        if self.path == "/bug":
            raise ZeroDivisionError
        self.begin_answer(HTTPStatus.OK, {"Content-Length": 5})
        self.wfile.write(b"hello")


@contextmanager
def serving(request_s: float = 10.0) -> Iterator[LoopbackServer]:
    ended = threading.Event()
    with LoopbackServer(0, _Handler, request_s) as server:
        thread = threading.Thread(target=server.serve_while, args=(lambda: not ended.is_set(),))
        thread.start()
        try:
            yield server
        finally:
            ended.set()
            thread.join()


def connected(server: LoopbackServer) -> socket.socket:
    return socket.create_connection(server.server_address[:2], timeout=20)


@needs_another_user
@pytest.mark.parametrize("end", ENDS)
def test_other_users_get_nothing(end):
    with serving() as server:
        answer = told_another_user(server.server_port, REQUEST, end)
        assert b"hello" not in answer
        # Who has closed an end may be gone before the answer comes.
        assert answer.startswith(b"HTTP/1.0 403 ") or (end != "open" and answer == b"")
        assert told(server.server_port, REQUEST).endswith(b"hello")


@pytest.mark.parametrize("begin", [b"", b"G", REQUEST[:-2], REQUEST[:-2] + b"X: " + b"y" * 1000])
def test_a_request_that_does_not_end_is_ended(begin):
    with serving(request_s=0.2) as server:
        assert told(server.server_port, begin) == b""


@pytest.mark.slow
def test_a_byte_now_and_then_keeps_no_connection_open():
    begun_s = time.monotonic()
    with serving(request_s=0.3) as server, connected(server) as slow, suppress(ConnectionError):
        while time.monotonic() < begun_s + 10:
            slow.sendall(b"G")
            time.sleep(0.02)
    assert time.monotonic() < begun_s + 5


@pytest.mark.slow
def test_silent_clients_keep_nobody_out_and_take_few_threads():
    with serving() as server, ExitStack() as silent:
        before = threading.active_count()
        for _ in range(80):
            silent.enter_context(connected(server))
        assert told(server.server_port, REQUEST).endswith(b"hello")
        assert threading.active_count() - before <= 2 * MOST


def test_a_client_that_sends_on_after_its_request_gets_one_answer():
    with serving() as server:
        assert told(server.server_port, REQUEST * 3).count(b"hello") <= 1


def test_a_bug_is_shown_and_ends_one_connection_only(capsys):
    with serving() as server:
        assert told(server.server_port, REQUEST.replace(b"/ ", b"/bug ")) == b""
        assert told(server.server_port, REQUEST).endswith(b"hello")
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_client_that_goes_away_is_no_bug(capsys):
    with serving() as server:
        for begin in (b"", REQUEST[:9], REQUEST):
            connected(server).close()
            with connected(server) as one:
                one.sendall(begin)
        assert told(server.server_port, REQUEST).endswith(b"hello")
    assert capsys.readouterr().err == ""
