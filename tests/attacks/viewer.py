"""Who gets the file of `timeline --open` but the viewer: `python tests/attacks/viewer.py --tries 20 --seed 0`.

Each try serves a file and asks for it in wrong ways, some at the same time: another user (where this is root) who knows
the address, pages as browsers say who they are, other hosts, wrong paths, silence, requests that never end, and readers
that stop. None gets a byte of the file, none ends the waiting or holds it up, and then the viewer reads all of it.
"""

import random
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attacking import run_attack
from local_clients import CAN_BE_ANOTHER, ENDS, told, told_another_user

from commtrace.analysis.cli import serving

PATIENCE_S = 20.0
CONTENT = b"commtrace" * 400_000
VIEWER = {
    "Origin": "https://ui.perfetto.dev", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors",
    "Sec-Fetch-Dest": "empty",
}  # fmt: skip
PAGES: dict[str, dict[str, str | None]] = {
    "a picture": {"Origin": None, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    "a script": {"Origin": None, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
    "a script with CORS": {"Sec-Fetch-Dest": "script"},
    "a frame": {"Origin": None, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    "the address bar": {"Origin": None, "Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"},
    "an old browser's picture": dict.fromkeys(VIEWER),
    "another origin": {"Origin": "https://ui.perfetto.dev.example.org"},
    "no origin": {"Origin": "null"},
    "the same site": {"Sec-Fetch-Site": "same-site"},
}
WRONG = (
    *PAGES,
    "another host",
    "a wrong path",
    "another method",
    "no request",
    "silence",
    "a slow one",
    "a reader that stops",
)


def attack(folder: Path, tries: int, seed: int) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`."""
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    kinds = [*WRONG, *(f"another user, {end}" for end in ENDS if CAN_BE_ANOTHER)]
    for number in range(tries):
        file = folder / f"{number} & more.pftrace"
        file.write_bytes(CONTENT[: chance.choice((100, 70_000, len(CONTENT)))])
        with served(file) as server, silent(server, chance.randrange(14)):
            for kind in chance.sample(kinds, 6):
                counts[kind] += 1
                with suppress(ConnectionError):
                    got = reply(server, kind, chance)
                    wrong += [f"try {number}: {kind} got the file"] * (file.read_bytes()[:9] in got)
                wrong += [f"try {number}: {kind} ended it"] * server.is_read.is_set()
            viewer = told(server.server_port, request(server))
            server.is_read.wait(PATIENCE_S)
            if viewer.partition(b"\r\n\r\n")[2] != file.read_bytes() or not server.is_read.is_set():
                wrong.append(f"try {number}: the viewer got {len(viewer):,} bytes")
    return counts, wrong


@contextmanager
def served(file: Path) -> Iterator[serving.FileServer]:
    """A server for the file, on a port of its own, until it was read."""
    with serving.FileServer(file, 0) as server:
        thread = threading.Thread(target=server.serve, args=(PATIENCE_S,))
        thread.start()
        yield server
        thread.join()


@contextmanager
def silent(server: serving.FileServer, number: int) -> Iterator[None]:
    """So many connections on which nothing is said."""
    open_ones = [connected(server) for _ in range(number)]
    yield
    for one in open_ones:
        one.close()


def request(server: serving.FileServer, changes: dict[str, str | None] | None = None, path: str | None = None) -> bytes:
    """The viewer's request, with changed headers."""
    headers = {"Host": server.host, **VIEWER, **(changes or {})}
    lines = [f"GET {path or server.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items() if value)]
    return "\r\n".join([*lines, "", ""]).encode()


def reply(server: serving.FileServer, kind: str, chance: random.Random) -> bytes:
    """What somebody of this kind gets."""
    if kind in PAGES:
        return told(server.server_port, request(server, PAGES[kind]))
    if kind.startswith("another user"):
        return told_another_user(server.server_port, request(server), kind.removeprefix("another user, "))
    if kind == "another host":
        return told(
            server.server_port, request(server, {"Host": chance.choice(("evil.example:9001", "localhost:9001", ""))})
        )
    if kind == "a wrong path":
        part = server.path.split("/")[1]
        name = server.path.split("/")[2]
        paths = (
            "/",
            f"/{name}",
            f"/{part}/",
            f"/{part}",
            f"/{part[:-1]}/{name}",
            f"/{'x' * 32}/{name}",
            "/%2e%2e/etc/passwd",
        )
        return told(server.server_port, request(server, path=chance.choice(paths)))
    if kind == "another method":
        return told(
            server.server_port,
            request(server).replace(b"GET", chance.choice((b"POST", b"HEAD", b"PUT", b"get", b"X")), 1),
        )
    if kind == "no request":
        return told(server.server_port, chance.randbytes(chance.choice((1, 100, 70_000))) + b"\r\n\r\n")
    with connected(server) as one:
        if kind == "a slow one":
            one.sendall(request(server)[: chance.randrange(200)])
        elif kind == "a reader that stops":
            one.sendall(request(server))
            one.recv(chance.choice((1, 15)))
        return b""


def connected(server: serving.FileServer) -> socket.socket:
    return socket.create_connection(server.server_address[:2], timeout=PATIENCE_S)


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__))
