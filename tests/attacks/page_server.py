"""Who gets the page of `serve`, and who can hold it up: `python tests/attacks/page_server.py --tries 200 --seed 0`.

One server is asked in wrong ways: by another user (where this is root) who knows the address, by pages that lead a
browser there under another name, for what is odd or is not there, while many clients are silent, slow or stop reading.
Each whole request of this user gets an answer, none but the right ones what the page holds. After each try the page
comes within seconds, from a server of few threads.
"""

import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from attacking import run_attack
from builders import MS, Collective, write_run
from local_clients import CAN_BE_ANOTHER, ENDS, told, told_another_user

from commtrace import analyse
from commtrace.analysis.report.server import ReportServer

SECONDS = 8.0
MOST_THREADS = 32
WRONG = ("another name", "another page", "another path", "an odd address", "an odd number", "another method")
NAMES = (
    "evil.example",
    "127.0.0.1.evil.example",
    "localhost.",
    "127.0.0.1:80@evil.example",
    "0.0.0.0",
    "[::1]",
    "127.1",
)
NUMBERS = (
    "n=--5", "n=-", "n=", "n=1.5", "n=1e3", "n=%31", "n=\u0663", "n=0x10", "n=" + "9" * 4000, "n=99999999999999999999",
    "n=-9223372036854775809", "n=0&n=1", "collective=--1", "collective=nan", "&&&&&&&&", "=" * 200, "n[]=1", "n=1;n=2",
)  # fmt: skip
ADDRESSES = (
    "http://[bad/", "http://[::1/", "//[bad/", "*", "?", "#", "/%00", "/\x01", "http://", "/../..", "[", "]", "/" * 99,
    "http://127.0.0.1:99999999/", "/\udcff", "javascript:0",
)  # fmt: skip


def attack(folder: Path, tries: int, seed: int) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`."""
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    write_run(folder / "run", 2, [Collective((0, 3 * MS), 10 * MS, elems=250_000)])
    kinds = [*WRONG, *(f"another user, {end}" for end in ENDS if CAN_BE_ANOTHER)]
    with ReportServer(analyse(folder / "run", details=True)) as server:
        before = threading.active_count()
        thread = threading.Thread(target=server.serve_until_idle, args=(3600,))
        thread.start()
        for number in range(tries):
            kind, crowd = chance.choice(kinds), chance.choice((0, 0, 0, 5, 20, 20, 100))
            counts[kind] += 1
            with crowded(server, crowd, chance):
                got = reply(server, kind, chance)
                wrong += [f"try {number}: {kind} got the page"] * (b" 200 " in got[:20])
                wrong += [f"try {number}: {kind} got no answer"] * (not got and "another user" not in kind)
                begun_s = time.monotonic()
                page = told(server.server_port, request(server))
                took_s = time.monotonic() - begun_s
            if b" 200 " not in page[:20] or took_s > SECONDS:
                wrong.append(f"try {number}: the page came after {took_s:.1f} s, {len(page):,} bytes, {crowd} others")
            threads = threading.active_count() - before
            wrong += [f"try {number}: {threads} threads"] * (threads > MOST_THREADS)
        server.end()
        thread.join()
    return counts, wrong


@contextmanager
def crowded(server: ReportServer, number: int, chance: random.Random) -> Iterator[None]:
    """So many connections: silent ones, ones that send a byte now and then, and ones that do not read."""
    said = [chance.choice((b"", b"G", request(server)[:-2], request(server))) for _ in range(number)]
    open_ones = [socket.create_connection(("127.0.0.1", server.server_port), timeout=20) for _ in said]
    for one, begin in zip(open_ones, said, strict=True):
        with suppress(ConnectionError):
            one.sendall(begin)
    yield
    for one in open_ones:
        with suppress(ConnectionError):
            one.sendall(b"x")
        one.close()


def request(server: ReportServer, what: str = "", *, host: str = "127.0.0.1:80", page: str = "none") -> bytes:
    """A request for an address, or for what stands behind the secret; the page says where it comes from."""
    begin = urlsplit(server.url).path
    address = what.removeprefix("!") if what.startswith("!") else f"{begin}{what}"
    lines = [f"GET {address} HTTP/1.1", f"Host: {host}", f"Sec-Fetch-Site: {page}", "", ""]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape")


def reply(server: ReportServer, kind: str, chance: random.Random) -> bytes:
    """What somebody of this kind gets."""
    port = server.server_port
    if kind.startswith("another user"):
        return told_another_user(port, request(server), kind.removeprefix("another user, "))
    if kind == "another name":
        return told(port, request(server, host=chance.choice(NAMES)))
    if kind == "another page":
        return told(port, request(server, page=chance.choice(("cross-site", "same-site", ""))))
    if kind == "another path":
        secret = urlsplit(server.url).path.strip("/")
        paths = ("/", "/alive", f"/{secret[:-1]}/", f"/{secret}x/", f"/{'x' * 32}/alive", f"/{secret}/../{secret}/page")
        return told(port, request(server, "!" + chance.choice(paths)))
    if kind == "an odd address":
        return told(port, request(server, "!" + chance.choice(ADDRESSES)))
    if kind == "an odd number":
        return told(port, request(server, f"{chance.choice(('step', 'behind'))}?{chance.choice(NUMBERS)}"))
    method = chance.choice((b"POST", b"HEAD", b"PUT", b"OPTIONS", b"get", b"X"))
    return told(port, request(server).replace(b"GET", method, 1))


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__))
