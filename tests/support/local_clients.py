"""Clients of a server on the loopback: of this user, and of another one."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

import pytest

OTHER_USER = 65_534
ENDS = ("open", "half closed", "gone")
"""What another user may do with its end of a connection after the request."""
CAN_BE_ANOTHER = os.geteuid() == 0
needs_another_user = pytest.mark.skipif(not CAN_BE_ANOTHER, reason="only root can become another user")
_AS_OTHER = f"""
import encodings.idna, os, socket, sys
os.setgroups([]), os.setgid({OTHER_USER}), os.setuid({OTHER_USER})
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as one:
    try:
        one.sendall(sys.stdin.buffer.read())
        if sys.argv[2] == "half closed":
            one.shutdown(socket.SHUT_WR)
        while sys.argv[2] != "gone" and (part := one.recv(1 << 16)):
            sys.stdout.buffer.write(part)
    except OSError:
        pass
"""


def told(port: int, request: bytes, patience_s: float = 20.0) -> bytes:
    """All that this user gets from a port."""
    parts = []
    with socket.create_connection(("127.0.0.1", port), timeout=patience_s) as one:
        with contextlib.suppress(ConnectionError):
            one.sendall(request)
        with contextlib.suppress(ConnectionError):
            while part := one.recv(1 << 20):
                parts.append(part)
    return b"".join(parts)


def told_another_user(port: int, request: bytes, end: str = "open") -> bytes:
    """All that a process of another user gets from a port; `end` is one of ENDS."""
    command = [sys.executable, "-c", _AS_OTHER, str(port), end]
    return subprocess.run(command, input=request, capture_output=True, check=True).stdout
