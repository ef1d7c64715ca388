"""A second opinion: HolisticTraceAnalysis. Tests that ask for it skip where requirements-hta.txt is not installed."""

from __future__ import annotations

import importlib
import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

VERSION = "0.6.1"


def hta(module: str = "hta.trace_analysis") -> Any:
    """A module of the version that documents and tests are about."""
    pytest.importorskip("hta.version", minversion=VERSION, reason=f"HolisticTraceAnalysis {VERSION} is not installed")
    return importlib.import_module(module)


@contextmanager
def to_the_ns() -> Iterator[None]:
    """Meanwhile it does not round the times of traces to microseconds."""
    options = hta("hta.configs.env_options").HTAEnvOptions.instance()
    before = options.disable_ns_rounding()
    options.set_disable_ns_rounding(True)
    try:
        yield
    finally:
        options.set_disable_ns_rounding(before)


def trace_analysis(traces: Path, folder: Path) -> Any:
    """Its analysis of the traces in a folder, the last step included; it writes where it reads, so of a copy."""
    copied = shutil.copytree(traces, folder, copy_function=shutil.copy, dirs_exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            return hta().TraceAnalysis(trace_dir=str(copied), include_last_profiler_step=True)
        finally:
            logging.disable(logging.NOTSET)
