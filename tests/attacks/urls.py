"""Secrets in URLs, however they are written: `python tests/attacks/urls.py --tries 200 --seed 0`.

Each try is a form of URL with a random secret and a command that takes one, or has no use for one. The secret, or a
large piece of it, must be nowhere: in what is printed, in a report of a bug with its traceback, in names and contents
of files that are written, of the cache and of /tmp; and nothing is copied there. What a filesystem raises names the URL
as it is; half of the time it is one that fails like that, the other half one that has the files.
"""

import gzip
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import fsspec
import pytest
from attacking import ROOT, called, complaint, run_attack
from default_sizes import default_sizes
from fsspec.implementations.memory import MemoryFileSystem

RUN = ROOT / "tests/data/nccl-straggler"
# S is where the secret stands.
FORMS = (
    "https://S@host/run", "https://S:@host/run", "https://:S@host/run", "https://user:S@host/run",
    "https://user:S@host:8443/run", "https://user:a/S@host/run", "https://user:S/b@host/run", "https://user:a@S@host/run",
    "https://user:a/b@S@host/run", "https://user:S@a/b@host/run", "https://user:8080/S@host/run", "https://a/S@host/run",
    "https://user:a?S@host/run", "https://user:a#S@host/run", "https://user:a;S@host/run", "https://user:S",
    "https://user:S/run", "https://host/run?S", "https://host/run?token=S", "https://host/run?a=b@c&sig=S",
    "https://host/run?a/S", "https://host/run?/S", "https://host/run;token=S", "https://host/run;token=S/rank0.json",
    "https://host/run;S", "https://host/run#S", "https://host/run#access_token=S", "https://host/run&token=S",
    "https://host/run%3Ftoken=S", "https://user:S%40host/run", "https://host/token=S/run", "HTTPS://S@host/run",
    "http://host/run?X-Amz-Signature=S&x=1", "ftp://user:S@host/run", "sftp://user:S@host/run", "ssh://S@host/run",
    "smb://group;user:S@host/share/run", "s3://S@bucket/run", "s3://key:S@bucket/run", "s3://key:a/S@bucket/run",
    "s3://bucket/run?S", "s3://bucket/run?versionId=S", "gs://S@bucket/run", "abfs://c@a.example.org/run?sig=S",
    "abfs://user:S@a/run", "az://c/run?S", "hf://S@datasets/org/repo/run", "hf://datasets/S@org/repo/run",
    "hf://datasets/org/repo@S/run", "hf://user:S@datasets/org/repo", "hdfs://user:S@host:9000/run",
    "webhdfs://user:S@host/run", "webdav://user:S@host/run", "nothing://user:S@host/run", "nothing://host/run?S",
    "github://org:S@repo/run", "simplecache::https://S@host/run", "filecache::s3://key:S@bucket/run",
    "reference://::https://S@host/refs.json", "zip://x::https://host/x.zip?S", "dask::https://S@host/run",
    "https:/S@host/run", "https:/user:S@host/run", "memory://user:S@host/run", "memory://S@host/run",
    "memory://host/run?S", "memory://host/run;token=S", "memory://host/run#S",
)  # fmt: skip
TAKES_ONE = (
    ("summary", "URL"), ("URL",), ("breakdown", "--format", "json", "URL"), ("report", "URL"), ("timeline", "URL"),
    ("pack", "URL", "--output", "packed"), ("pack", "RUN", "--output", "URL"), ("table", "scaling", "URL"),
    ("table", "training", "URL"),
    ("compare", "RUN", "URL"), ("bandwidth", "RUN", "--ceiling", "URL"), ("bandwidth", "RUN", "--ceiling=URL"),
)  # fmt: skip
TAKES_NONE = (
    ("breakdown", "RUN", "--cache", "URL"), ("report", "RUN", "--output", "URL"), ("hang", "URL"), ("URL", "URL"),
    ("timeline", "--step", "URL", "RUN"), ("breakdown", "--workers=URL", "RUN"), ("explain", "URL"),
    ("breakdown", "--dask", "URL", "RUN"), ("breakdown", "--URL", "RUN"), ("sumary", "URL"),
)  # fmt: skip


class Odd(Exception):
    """An error of no kind that is known, with the URL in it."""


def attack(folder: Path, tries: int, seed: int) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`."""
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    default_sizes(pytest.MonkeyPatch(), cache_bytes=0)
    shutil.copytree(RUN, folder / "run")
    contents = {file.name: file.read_bytes() for file in (folder / "run").iterdir()}
    for number in range(tries):
        form = FORMS[number % len(FORMS)]
        secret = "".join(chance.choices("abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789", k=20))
        url = re.sub(r"(?<![A-Za-z-])S(?![A-Za-z])", secret, form)
        values = {"URL": url, "RUN": str(folder / "run")}
        chosen = chance.choice(TAKES_ONE + TAKES_ONE + TAKES_NONE)
        command = [re.sub("URL|RUN", lambda word, values=values: values[word[0]], part) for part in chosen]
        place = folder / str(number)
        fails = chance.choice((None, Odd, FileNotFoundError, PermissionError, ConnectionError, ValueError))
        with working_in(place), filesystems(url, contents, fails):
            code, out, err = called(*command)
        counts[form.partition(":")[0].lower()] += 1
        fault = complaint(code, out, err) if code != 2 else None
        shown = {"printed": out + err + str(code), **written(place)}
        leaks = [where for where, text in shown.items() if secret[:8] in text or secret[-8:] in text]
        label = f"try {number}, {form}, {command[0]}, {fails.__name__ if fails else 'there'}"
        wrong += [f"{label}: {fault}"] * bool(fault) + [f"{label}: {where}" for where in leaks]
        wrong += [f"{label}: left {path}" for path in (place / "tmp").rglob("*")]
    return counts, wrong


@contextmanager
def working_in(place: Path) -> Iterator[None]:
    """Work in this folder, with its own folders for the cache and for temporary files."""
    (place / "tmp").mkdir(parents=True)
    before = Path.cwd()
    os.chdir(place)
    with (
        patch.dict(os.environ, XDG_CACHE_HOME=str(place / "cache")),
        patch.object(tempfile, "tempdir", str(place / "tmp")),
    ):
        yield
    os.chdir(before)


@contextmanager
def filesystems(url: str, contents: dict[str, bytes], fails: type[Exception] | None) -> Iterator[None]:
    """Every filesystem is one in memory, which has a run at the URL, or fails with an error that names it."""

    class Everything(MemoryFileSystem):
        cachable = False

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return "/" + str(path).partition("://")[2].strip("/") if "://" in str(path) else "/" + str(path).strip("/")

        def info(self, path: str, **more: object) -> dict[str, object]:
            if fails is not None:
                raise fails(f"no luck with {url} and {self._strip_protocol(path)}") from Odd(url)
            return super().info(path, **more)

    Everything.store, Everything.pseudo_dirs = {}, [""]
    for name, content in contents.items():
        Everything().pipe_file(f"{url.rstrip('/')}/{name}", content)
    with patch.object(fsspec.core, "get_filesystem_class", lambda _: Everything), patch.object(
        fsspec.core, "filesystem", lambda *_, **__: Everything()
    ):  # fmt: skip
        yield


def written(place: Path) -> dict[str, str]:
    """Names and contents of all files below the folder."""
    found = {}
    for path in place.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        content += gzip.decompress(content) if content[:2] == b"\x1f\x8b" else b""
        found[f"written to {path.relative_to(place)}"] = (
            f"{path.relative_to(place)} {content.decode('utf-8', 'replace')}"
        )
    return found


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__))
