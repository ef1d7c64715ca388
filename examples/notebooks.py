"""The examples as executed notebooks: `python examples/notebooks.py` writes them anew, beside the scripts.

Cells begin at `# %%`, whose text becomes a cell of its own. Paths are those of a checkout, where they run.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbclient
import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ("read_a_run", "compare_two")
# What only a script needs: a notebook shows a picture that a cell ends with.
LEFT_OUT = re.compile(r"^(import sys|from pathlib .*|sys\.path\.insert.*|folder = .*|print\(\"wrote.*)\n", re.M)


def notebook_of(script: str) -> nbformat.NotebookNode:
    """The notebook of a script of this folder, with nothing executed."""
    text = (ROOT / f"examples/{script}.py").read_text(encoding="utf-8")
    title, *parts = re.split(r"^# %% ", text, flags=re.M)
    cells = [new_markdown_cell(title.strip().strip('"').partition(":")[0] + ".")]
    for part in parts:
        said, _, code = part.partition("\n")
        code = LEFT_OUT.sub("", code)
        code = re.sub(r"^run = .*", 'run = "traces/resnet18-ddp-w2"', code, flags=re.M)
        code = re.sub(r"^a, b = .* else \((.*)\)$", r"a, b = \1", code, flags=re.M)
        cells.append(new_markdown_cell(said))
        *pictures, rest = re.split(r"^(commtrace\.plots\..*)\.save\(.*\)\n", code, flags=re.M)
        rest = re.sub(r"^result\.report\(\).*\n", "", rest, flags=re.M)
        cells += [new_code_cell(each.strip()) for each in [*pictures, rest] if each.strip()]
    for number, cell in enumerate(cells):
        cell["id"] = str(number)
    return new_notebook(cells=cells)


def executed(script: str) -> nbformat.NotebookNode:
    """The notebook of a script, with what its cells show. Needs no network."""
    notebook = notebook_of(script)
    where = {"metadata": {"path": str(ROOT)}}
    nbclient.NotebookClient(
        notebook, timeout=300, record_timing=False, coalesce_streams=True, resources=where
    ).execute()
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        output.get("data", {}).pop("text/plain", None)  # an address
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return notebook


if __name__ == "__main__":
    for name in SCRIPTS:
        path = ROOT / f"examples/{name}.ipynb"
        nbformat.write(executed(name), path)
        sys.stdout.write(f"{path.name}: {path.stat().st_size:,} bytes\n")
