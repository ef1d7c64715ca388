"""A run from the disk and from S3: `python benchmarks/remote.py FOLDER`, of gzipped traces without spaces in names.

`breakdown` of its JSON, its gzip and its recordings, from both in turns, by one process; the fastest of five. The
server of S3, moto's, runs on this machine: what a network adds is not in it.
"""

from __future__ import annotations

import gzip
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TURNS = 5
BUCKET = "bucket"


@contextmanager
def server() -> Iterator[None]:
    """A server of S3 that the environment names."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


def commtrace(*arguments: str) -> tuple[float, float]:
    """Core-seconds and seconds of a command."""
    before, begun = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-m", "commtrace", *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    cores_s = sum(after[2:4]) - sum(before[2:4])
    return cores_s, time.perf_counter() - begun


def forms_of(run: Path, folder: Path) -> dict[str, Path]:
    """The run as JSON, gzip and recordings."""
    forms = {form: folder / form for form in ("JSON", "gzip", "recordings")}
    for form in ("JSON", "gzip"):
        forms[form].mkdir()
    for file in run.glob("*.json.gz"):
        shutil.copy(file, forms["gzip"])
        (forms["JSON"] / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    commtrace("pack", "--no-details", str(forms["gzip"]), "-o", str(forms["recordings"]))
    return forms


def main() -> None:
    """Print a line for each form."""
    import s3fs

    with tempfile.TemporaryDirectory() as folder, server():
        s3 = s3fs.S3FileSystem()
        s3.mkdir(BUCKET)
        for form, path in forms_of(Path(sys.argv[1]), Path(folder)).items():
            s3.put(str(path), f"{BUCKET}/{form}", recursive=True)
            places = (str(path), f"s3://{BUCKET}/{form}")
            turns = [
                [commtrace("breakdown", "--no-cache", "--workers", "1", at) for at in places] for _ in range(TURNS)
            ]
            size = sum(file.stat().st_size for file in path.iterdir()) / 1e6
            (disk_cores_s, disk_s), (s3_cores_s, s3_s) = (
                tuple(min(turn[at][what] for turn in turns) for what in (0, 1)) for at in (0, 1)
            )
            print(
                f"{form}: {size:.1f} MB; core-seconds {disk_cores_s:.2f} from the disk, {s3_cores_s:.2f} from S3; "
                f"seconds {disk_s:.1f} and {s3_s:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
