"""The processes that a test has begun, however they were begun, and the addresses on which they listen. Linux only."""

import socket
import time
import uuid
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_NAME = "COMMTRACE_TEST"


def mark() -> dict[str, str]:
    """A variable for the environment of a process, by which it and all that it starts are found."""
    return {_NAME: uuid.uuid4().hex}


def marked(variable: dict[str, str]) -> list[int]:
    """The processes that have it, as far as they have not ended."""
    line = f"{_NAME}={variable[_NAME]}".encode()
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if line in _environment(folder)]


def family(pid: int) -> list[int]:
    """It, and all that it has started and that has not ended."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(one for child in children for one in family(int(child)))]


def survivors(variable: dict[str, str], patience_s: float) -> list[int]:
    """Those that are still there after a while; none as soon as there is none."""
    until_s = time.monotonic() + patience_s
    while (found := marked(variable)) and time.monotonic() < until_s:
        time.sleep(0.05)
    return found


def listening(pids: Collection[int]) -> set[str]:
    """The addresses, without ports, on which they wait for connections."""
    return {address for address, _ in listening_ports(pids)}


def listening_ports(pids: Collection[int]) -> set[tuple[str, int]]:
    """The addresses and ports on which they wait for connections."""
    sockets = {link for pid in pids for link in _links(pid)}
    found = set()
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for row in Path("/proc/net", table).read_text().splitlines()[1:]:
            cells = row.split()
            if cells[3] == "0A" and f"socket:[{cells[9]}]" in sockets:
                address, _, port = cells[1].partition(":")
                words = bytes.fromhex(address)
                turned = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                found.add((socket.inet_ntop(family, turned), int(port, 16)))
    return found


def _environment(process: Path) -> list[bytes]:
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _links(pid: int) -> list[str]:
    found: list[str] = []
    with suppress(OSError):  # it has ended, or has closed one meanwhile
        found.extend(str(descriptor.readlink()) for descriptor in Path(f"/proc/{pid}/fd").iterdir())
    return found
