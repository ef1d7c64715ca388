"""docs/coming-from-hta.md with what both libraries print: `python tests/docs/hta_page.py` writes it."""

from __future__ import annotations

import ast
import importlib
import io
import logging
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "coming-from-hta.md"
_RUNS = ("tests/data/nccl-straggler", "tests/data/nccl-periodic", "tests/data/host-bound")
_BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<text>.*?)```\n)?", re.DOTALL)
_WIDE = {"display.width": 118, "display.max_columns": 20, "display.max_colwidth": 36, "display.max_rows": 40}


def page_as_printed(page: str) -> str:
    """The page with every output as it is now; needs HTA."""
    import pandas as pd

    names: dict[str, Any] = {}
    options = [part for option in _WIDE.items() for part in option]
    # HTA writes into the folder that it reads, prints headings, and shows pictures unasked.
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
        pd.option_context(*options),
        redirect_stdout(io.StringIO()),
        patch("plotly.basedatatypes.BaseFigure.show"),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        rounding(True)
        try:
            copies = {run: str(shutil.copytree(ROOT / run, Path(folder) / Path(run).name)) for run in _RUNS}
            return _BLOCK.sub(lambda block: _printed(block, names, {**copies, "OUT": folder}), page)
        finally:
            logging.disable(logging.NOTSET)
            rounding(True)


def rounding(on: bool) -> None:
    """Whether HTA rounds times to microseconds, as it does unless the page says otherwise."""
    options = importlib.import_module("hta.configs.env_options").HTAEnvOptions
    options.instance().set_disable_ns_rounding(not on)


def _printed(block: re.Match[str], names: dict[str, Any], copies: Mapping[str, str]) -> str:
    code = block["code"]
    for run, copy in copies.items():
        code = code.replace(f'"{run}"', f'"{copy}"')
    *before, last = ast.parse(code).body
    exec(compile(ast.Module(before, []), str(PAGE), "exec"), names)
    if not isinstance(last, ast.Expr):
        exec(compile(ast.Module([last], []), str(PAGE), "exec"), names)
        return block[0]
    try:
        shown = str(eval(compile(ast.Expression(last.value), str(PAGE), "eval"), names))
    except (KeyError, ValueError) as err:
        shown = f"{type(err).__name__}: {err}"
    lines = "".join(f"{line.rstrip()}\n" for line in shown.splitlines())
    return f"```python\n{block['code']}```\n\n```text\n{lines}```\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page_as_printed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name}: outputs written\n")
