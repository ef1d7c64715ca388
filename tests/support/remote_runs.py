"""Runs copied to where only fsspec finds them, and all that is read of one."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec.core
import pytest

from commtrace.analysis.catalog import CATALOG
from commtrace.analysis.core.declaring import InputKind
from commtrace.analysis.errors import NothingMeasured
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.render import as_csv
from commtrace.analysis.results.opening import analyse_with

DATA = Path(__file__).parents[1] / "data"
TABLES = [entry.name for entry in CATALOG.values() if entry.of is InputKind.run]


def tables_of(run: Path | str, **options: Any) -> dict[str, str]:
    """Every table of a run as CSV, or why it has none."""
    found = analyse_with(run, ReadOptions(**options))
    tables = {}
    for name in TABLES:
        try:
            tables[name] = as_csv(name, found.table(name))
        except NothingMeasured as err:
            tables[name] = str(err)
    return tables


def copied(run: Path, url: str) -> str:
    """The URL, at which the files of a folder now are."""
    fs, _ = fsspec.core.url_to_fs(url)
    for file in sorted(path for path in run.rglob("*") if path.is_file()):
        there = f"{url}/{file.relative_to(run)}"
        fs.makedirs(there.rpartition("/")[0], exist_ok=True)
        fs.pipe_file(there, file.read_bytes())
    return url


@contextmanager
def asked(filesystem: type) -> Iterator[list[tuple[str, str]]]:
    """What is asked of a filesystem meanwhile: `info`, `ls`, `begin` or `all` of a file, each with the path."""
    seen: list[tuple[str, str]] = []
    before = {name: getattr(filesystem, name) for name in ("info", "ls", "cat_file")}
    for name in before:

        def noted(
            self: Any, path: str, start: int | None = None, end: int | None = None, *, _name: str = name, **more: Any
        ) -> Any:
            bounds = {} if _name != "cat_file" else {"start": start, "end": end}
            seen.append((_name if not bounds else "all" if end is None else "begin", path))
            return before[_name](self, path, **bounds, **more)

        setattr(filesystem, name, noted)
    try:
        yield seen
    finally:
        for name, method in before.items():
            setattr(filesystem, name, method)


@contextmanager
def s3_server(secret: str) -> Iterator[str]:
    """The address of a server of S3 with one empty bucket called so, which the environment names meanwhile."""
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    # All servers of one process have the same buckets.
    urllib.request.urlopen(f"http://{host}:{port}/moto-api/reset", data=b"").close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("bucket")
        yield f"http://{host}:{port}"
        s3fs.S3FileSystem.clear_instance_cache()
    server.stop()
