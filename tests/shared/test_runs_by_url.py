"""Real traces in S3: the same tables as from the disk, from the traces and from recordings beside them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from beside_checkout import SHARED
from remote_runs import copied, s3_server, tables_of

from commtrace.cli import main

FOLDER = SHARED / "traces"
SETS = sorted(path.name for path in FOLDER.glob("*-*")) if FOLDER.exists() else []

pytest.importorskip("s3fs")
pytest.importorskip("moto")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not SETS, reason="no shared traces beside the checkout")]


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[str]:
    """A server of S3."""
    with s3_server("secret") as address:
        yield address


@pytest.mark.parametrize("name", SETS[::4])
def test_all_tables_are_the_same(name: str) -> None:
    here, url = tables_of(FOLDER / name), copied(FOLDER / name, f"s3://bucket/{name}")
    assert tables_of(url) == here
    assert main(["pack", url]) == 0
    assert tables_of(url) == here
