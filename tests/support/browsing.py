"""A real browser without a window, and what a page does in it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from report_pages import hash_of

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next(filter(None, map(shutil.which, _NAMES)), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs Chromium or Chrome: apt-get install chromium")

_QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--enable-logging=stderr"),
)  # fmt: skip
_NO_NAMES = "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
_OF_THE_BROWSER = re.compile(r"https?://[^/]*\.(google|googleapis|gstatic|gvt1)\.com/")
"""What it asks for its own sake, whatever it shows: the time, its extensions, its settings."""


@dataclass(frozen=True)
class Seen:
    """The page as the browser has it in the end, what its console says, and which addresses were asked for."""

    dom: str
    console: list[str]
    addresses: list[str]


def looked_at(page: Path, folder: Path, width: int = 800) -> Seen:
    """The page opened from its file, in a window of this width."""
    return looked_at_address(page.as_uri(), folder, width)


def looked_at_address(address: str, folder: Path, width: int = 800) -> Seen:
    """The page at an address; `folder` takes what the browser writes."""
    log = folder / "net.json"
    own = (
        f"--user-data-dir={folder / 'browser'}",
        f"--window-size={width},600",
        f"--log-net-log={log}",
        f"--host-resolver-rules={_NO_NAMES}",
    )
    command = [str(BROWSER), *_QUIET, *own, "--virtual-time-budget=3000", "--dump-dom", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    console = re.findall(r'CONSOLE.*?\] "(.*)", source', done.stderr)
    asked = sorted(set(re.findall(r'"url":"((?:https?|wss?):[^"]*)"', log.read_text(encoding="utf-8"))))
    return Seen(done.stdout, console, [address for address in asked if not _OF_THE_BROWSER.match(address)])


def opened(address: str, folder: Path, names: Sequence[str]) -> subprocess.Popen[bytes]:
    """A browser, to be killed, that shows the page at an address. For it, the names are of this machine."""
    rules = ", ".join([*(f"MAP {name} 127.0.0.1" for name in names), _NO_NAMES, "EXCLUDE localhost"])
    own = (f"--user-data-dir={folder / 'browser'}", f"--host-resolver-rules={rules}", "--disable-popup-blocking")
    command = [str(BROWSER), *_QUIET, *own, "--remote-debugging-port=0", address]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def with_script(html: str, code: str) -> str:
    """The page with a script of the test, which its policy admits; it writes what it finds into the title, as JSON."""
    script = f"document.title = JSON.stringify((() => {{ {code} }})());"
    admitted = html.replace("script-src ", f"script-src '{hash_of(script)}' ", 1)
    return admitted.replace("</body>", f"<script>{script}</script></body>")


def found_by(seen: Seen) -> object:
    """What the script of `with_script` found."""
    [title] = re.findall(r"<title>(.*?)</title>", seen.dom, re.DOTALL)[:1]
    return json.loads(title.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
