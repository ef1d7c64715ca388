"""Change one place of the analysis after the other, in a copy, and see whether the quick tests notice.

    python tests/attacks/mutants.py                            30 places, drawn with a seed: an hour on two cores
    python tests/attacks/mutants.py --count 100 --seed 7
    python tests/attacks/mutants.py --slow analysis/core       and the slow tests, in one folder

Comparisons turn (< into <=), sums into differences, `and` into `or`; `not` goes, whole numbers grow by one. A change
that no test notices is listed: it shows a gap, or makes no difference to what can be seen.
"""

from __future__ import annotations

import argparse
import ast
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[2]
CORE = (
    "analysis/core",
    "analysis/formats",
    "analysis/metrics",
    "analysis/recording",
    "analysis/results",
    "analysis/run",
)
"""What gets measured, without what prints it. The schemas in core/tables are text, and compared as such."""
TESTS = sorted(
    path for path in [*ROOT.glob("tests/analysis/test_*.py"), *ROOT.glob("tests/docs/test_*.py"),
                      *ROOT.glob("tests/test_*.py")]
    if path.name not in ("test_readme.py", "test_distribution.py", "test_requirements.py")
    and "end_to_end" not in path.name
)  # fmt: skip
SECONDS = 600
"""For the tests of one mutant; one that does not end is noticed, too."""

_TURNED = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.FloorDiv: ("//", "*"), ast.Div: ("/", "*"), ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One place of one file, from a line and column to another, and what shall be there instead."""

    file: str
    line: int
    start: int
    stop: int
    text: str

    def apply(self, source: str) -> str:
        """The source with this change. Columns are those of UTF-8, as in `ast`."""
        lines = source.encode().splitlines(keepends=True)
        line = lines[self.line - 1]
        lines[self.line - 1] = line[: self.start] + self.text.encode() + line[self.stop :]
        return b"".join(lines).decode()

    def __str__(self) -> str:
        source = (ROOT / self.file).read_text(encoding="utf-8")
        before, after = (text.splitlines()[self.line - 1].strip() for text in (source, self.apply(source)))
        return f"{self.file}:{self.line}\n    {before}\n    {after}"


def mutants_of(path: Path) -> Iterator[Mutant]:
    """All changes to what stands in the functions of a module, each within one line."""
    source = path.read_text(encoding="utf-8")
    lines = source.encode().splitlines()
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]
    statements = [statement for function in functions for statement in function.body]
    found = {place for statement in statements for node in ast.walk(statement) for place in _places(node, lines)}
    for line, start, stop, text in sorted(found):
        yield Mutant(str(path.relative_to(ROOT)), line, start, stop, text)


def _places(node: ast.AST, lines: list[bytes]) -> Iterator[tuple[int, int, int, str]]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _TURNED:
            yield from _between(left, right, _TURNED[type(op)], lines)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _TURNED:
            yield from _between(left, right, _TURNED[type(op)], lines)
        case ast.BoolOp(op=op, values=[left, right, *_]):
            yield from _between(left, right, _TURNED[type(op)], lines)
        case ast.UnaryOp(op=ast.Not()):
            yield node.lineno, node.col_offset, node.col_offset + len("not "), ""
        case ast.Constant(value=int(value)) if not isinstance(value, bool) and node.end_col_offset is not None:
            yield node.lineno, node.col_offset, node.end_col_offset, str(value + 1)


def _between(
    left: ast.expr, right: ast.expr, turned: tuple[str, str], lines: list[bytes]
) -> Iterator[tuple[int, int, int, str]]:
    """The operator between two operands, if it stands on the line of both."""
    if left.end_lineno == right.lineno and left.end_col_offset is not None:
        old, new = turned
        between = lines[right.lineno - 1][left.end_col_offset : right.col_offset].decode()
        if (at := between.find(old)) >= 0:
            start = left.end_col_offset + len(between[:at].encode())
            yield right.lineno, start, start + len(old), new


def tests_for(mutant: Mutant) -> list[str]:
    """All tests, those first that name the module most often."""
    name = Path(mutant.file).stem
    return [
        str(path.relative_to(ROOT))
        for path in sorted(TESTS, key=lambda path: -(path.stem.count(name) * 100 + path.read_text().count(name)))
    ]


def noticed(mutant: Mutant, copy: Path, *, slow: bool) -> str | None:
    """The first test that fails with a mutant in a copy of the project, or None."""
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    (copy / mutant.file).write_text(mutant.apply(source), encoding="utf-8")
    try:
        return first_failure(copy, tests_for(mutant), slow=slow)
    finally:
        (copy / mutant.file).write_text(source, encoding="utf-8")


def first_failure(copy: Path, tests: list[str], *, slow: bool) -> str | None:
    """What pytest says of the first test that fails in a copy, or None."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    command += [*([] if slow else ["-m", "not slow and not alone"]), *tests]
    try:
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no end in {SECONDS} s"
    if done.returncode == 0:
        return None
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0] if failed else f"exit code {done.returncode}"


def copied(folder: Path) -> Path:
    """A copy of the files that git knows of."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, files.decode().split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return folder


def main() -> int:
    """The exit code says whether all were noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", default=CORE, metavar="FOLDER", help="where to change something")
    parser.add_argument("--count", type=int, default=30, help="how many places (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=19, help="which ones (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="so many at once (default: %(default)s)")
    parser.add_argument("--slow", action="store_true", help="run the slow tests, too")
    options = parser.parse_args()
    files = sorted(file for folder in options.folders for file in (ROOT / folder).rglob("*.py"))
    places = [mutant for file in files if "tables" not in file.parts for mutant in mutants_of(file)]
    chosen = random.Random(options.seed).sample(places, min(options.count, len(places)))
    missed = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for worker in range(options.workers):
            copies.put(copied(Path(folder) / str(worker)))

        if failure := first_failure(Path(folder) / "0", tests_for(chosen[0]), slow=options.slow):
            parser.error(f"a test fails already: {failure}")

        def attempt(mutant: Mutant) -> str | None:
            copy = copies.get()
            try:
                return noticed(mutant, copy, slow=options.slow)
            finally:
                copies.put(copy)

        for mutant, by in zip(chosen, pool.map(attempt, chosen), strict=True):
            missed += by is None
            print(f"{'NOT NOTICED' if by is None else by}\n  {mutant}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} noticed, of {len(places)} places")
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
