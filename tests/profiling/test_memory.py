import mmap
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from capturing import ROOT, fresh_python

from commtrace.profiling.errors import UsageError
from commtrace.profiling.machine import memory


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


def in_a_limited_process(*statements: str) -> str:
    """What each statement raises beyond a limit of 300 MB, in a process of their own."""
    code = "import mmap, torch\nfrom commtrace.profiling.machine import memory\nmemory.limit(300_000_000, None)\n"
    code += "".join(
        f"try:\n    {statement}\nexcept BaseException as err:\n    print(memory.exhausted(err), type(err).__name__)\n"
        for statement in statements
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_a_real_limit_is_run_into_and_recognised() -> None:
    beyond = (
        "torch.ones(200_000_000)",
        "bytearray(800_000_000)",
        f"mmap.mmap(-1, 800_000_000, flags={mmap.MAP_PRIVATE})",
    )
    said = in_a_limited_process(*beyond, "torch.ones(10); print('fits')")
    assert said.splitlines() == ["True RuntimeError", "True MemoryError", "True OSError", "fits"]


def test_other_errors_are_not_exhaustion() -> None:
    assert not memory.exhausted(RuntimeError("shapes do not fit"))
    assert not memory.exhausted(OSError(28, "No space left on device"))
    assert memory.exhausted(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))


class Gpus:
    """A stand-in for torch.cuda with GPUs of 80 GB, so much of which is free."""

    def __init__(self, *free_bytes: int, share: float = 1.0, reserved: int = 0) -> None:
        self._free, self._share, self._reserved = free_bytes, share, reserved

    def install(self, monkeypatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(self._free))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (self._free[index], 80 * 10**9))
        monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda index: self._share)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: self._reserved)


@pytest.mark.parametrize(
    "words",
    [
        "GET was unable to find an engine to execute this computation",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    ],
)
@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (Gpus(10**10), False),
        (Gpus(10**10, 10**7), True),
        (Gpus(10**10, share=0.1, reserved=8 * 10**9), True),
        (Gpus(10**10, share=0.1, reserved=10**9), False),
    ],
)
def test_ambiguous_words_count_where_a_gpu_is_full(monkeypatch, words, gpus, expected) -> None:
    gpus.install(monkeypatch)
    assert memory.exhausted(RuntimeError(words)) == expected


def test_ambiguous_words_without_a_gpu_are_no_exhaustion() -> None:
    assert not memory.exhausted(RuntimeError("unable to find an engine"))


def test_every_gpu_that_is_named_is_limited(monkeypatch) -> None:
    limited = {}
    facts = SimpleNamespace(total_memory=80 * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: facts)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda part, index: limited.update({index: part})
    )
    memory.limit(8 * 10**9, *range(3))
    assert limited == dict.fromkeys(range(3), 0.1)


@pytest.mark.parametrize(("limit_bytes", "expected"), [(10**9, True), (resource.RLIM_INFINITY, False)])
def test_a_primitive_that_cannot_be_created_is_exhaustion_below_a_limit(monkeypatch, limit_bytes, expected) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit_bytes, resource.RLIM_INFINITY))
    assert memory.exhausted(RuntimeError("could not create a primitive")) == expected
    assert not memory.exhausted(RuntimeError("could not create a primitive descriptor for a convolution"))


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (3, 5, "killed by SIGKILL, most likely by the kernel: it killed 2 processes meanwhile"),
        (None, None, "killed by SIGKILL, most likely by the kernel, which was out of memory"),
        (3, 3, None),
    ],
)
def test_what_the_kernel_counts_says_of_a_killed_process(before, after, reason) -> None:
    found = memory.killed_for_memory(before, after)
    assert found is reason is None or (found is not None and found.startswith(reason))


def test_the_first_line_of_an_error_without_the_place_in_torchs_source() -> None:
    said = "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory\nframe #0: 0x12"
    assert memory.first_line(RuntimeError(said)) == "DefaultCPUAllocator: can't allocate memory"
    assert memory.first_line(MemoryError()) == "MemoryError"


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
        "import torch\nfrom commtrace.profiling.machine import memory\nmemory.limit(2**30, 0)\n"
        "try:\n    torch.ones(2**29, device='cuda')\nexcept RuntimeError as err:\n    print(memory.exhausted(err))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.slow
def test_who_has_run_into_a_limit_can_have_it_lifted_to_say_so() -> None:
    code = """
from commtrace.profiling.machine import memory
memory.limit(1, None)
try:
    bytearray(1 << 28)
except MemoryError:
    memory.lift_limit()
    print(len(bytearray(1 << 28)))
"""
    done = fresh_python("-c", code)
    assert (done.returncode, done.stdout) == (0, f"{1 << 28}\n"), done.stderr
