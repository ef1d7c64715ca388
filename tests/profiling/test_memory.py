import mmap
import subprocess
import sys

import pytest
import torch
from capturing import ROOT

from profiling import memory
from profiling.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4GiB", 4 * 2**30), ("500MB", 500_000_000), ("1.5 kib", 1536), ("1000", 1000), ("7B", 7), ("2gb", 2 * 10**9)],
)
def test_sizes_have_units_of_both_kinds(text, expected) -> None:
    assert memory.parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "4G", "GiB", "-1GB", "0", "1e9", "4 GiB GiB", "0.1B"])
def test_what_is_no_size_is_refused(text) -> None:
    with pytest.raises(UsageError, match=r"--memory-limit .*: expected a size such as 4GiB"):
        memory.parse_bytes(text)


def in_a_limited_process(statement: str) -> str:
    """What `statement` raises beyond a limit of 300 MB, in a process of its own."""
    code = (
        "import mmap, torch\nfrom profiling import memory\nmemory.limit(300_000_000, None)\n"
        f"try:\n    {statement}\nexcept BaseException as err:\n    print(memory.exhausted(err), type(err).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_real_limit_is_run_into_and_recognised() -> None:
    assert in_a_limited_process("torch.ones(200_000_000)") == "True RuntimeError"
    assert in_a_limited_process("bytearray(800_000_000)") == "True MemoryError"
    assert in_a_limited_process(f"mmap.mmap(-1, 800_000_000, flags={mmap.MAP_PRIVATE})") == "True OSError"
    assert in_a_limited_process("torch.ones(10); print('fits')") == "fits"


def test_other_errors_are_not_exhaustion() -> None:
    assert not memory.exhausted(RuntimeError("shapes do not fit"))
    assert not memory.exhausted(OSError(28, "No space left on device"))
    assert memory.exhausted(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))


def test_the_kernels_count_of_kills(tmp_path) -> None:
    counters = tmp_path / "vmstat"
    counters.write_text("pgfault 12\noom_kill 3\noom_kill_other 4\n")
    assert memory.kernel_kills(counters) == 3
    counters.write_text("pgfault 12\n")
    assert memory.kernel_kills(counters) is None
    assert memory.kernel_kills(tmp_path / "none") is None


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU: would bound torch's share of it, and run into that"
)
def test_a_gpu_has_a_limit_of_its_own() -> None:
    code = (
        "import torch\nfrom profiling import memory\nmemory.limit(2**30, 0)\n"
        "try:\n    torch.ones(2**29, device='cuda')\nexcept RuntimeError as err:\n    print(memory.exhausted(err))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr
