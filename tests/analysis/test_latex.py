"""Tables as LaTeX: a tabular that compiles whatever the names hold, with the cells of the markdown form."""

import re
import shutil
import subprocess

import pandas as pd
import pytest
from builders import MS, Collective, analysed, calls_table, traces_of

from commtrace.analysis.core.tables.sweeps import SUBTRACTION
from commtrace.analysis.render import as_latex, as_markdown
from commtrace.analysis.show.summary import summary
from commtrace.analysis.tables.ranks import RANKS
from commtrace.common.markup import for_latex

NAMES = ("breakdown", "breakdown_steps", "calls", "collectives", "participation", "bandwidth", "ranks", "clocks",
         "verdicts")  # fmt: skip
NASTY = [
    "nccl_x%_&", r"\input{/etc/passwd}", "$x^2$ #1 ~", "{}", "}{", "a|b<c>d", "[2cm]", "*", "--", "---", "`'\"",
    "\\\\", "%", "a\nb", "\x1b[31mred", "\\", "^^M", "{\\bf", "void f<int*>(float&)", "",
]  # fmt: skip
# Everything with a backslash that may stand in a table; anything else would be a command out of a name.
COMMANDS = {
    r"\begin", r"\end", r"\toprule", r"\midrule", r"\bottomrule", r"\textbackslash", r"\textasciicircum",
    r"\textasciitilde", r"\textless", r"\textgreater", r"\textbar", r"\textasciigrave", r"\symbol",
    r"\\", r"\{", r"\}", r"\$", r"\&", r"\#", r"\_", r"\%",
}  # fmt: skip
FITTED = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    truth = [Collective((k * 50 * MS, k * 50 * MS + 7_001), 10 * MS, elems=250_000_000) for k in range(3)]
    traces = [t.step(1, 0, 200 * MS).kernel("gemm", 5 * MS, 9 * MS) for t in traces_of(2, truth)]
    return analysed(tmp_path_factory.mktemp("run"), *traces)


def rows_of(tabular: str) -> list[list[str]]:
    """The cells of every row, headers included, of a tabular that is well formed."""
    comment, first, *lines = tabular.splitlines()
    if comment == "% needs \\usepackage{booktabs,graphicx}":  # it is made as narrow as the page
        assert first == FITTED
        assert lines[-1].endswith("}}")
        first, *lines = *lines[:-1], lines[-1].removesuffix("}")
    else:
        assert comment == "% needs \\usepackage{booktabs}"
    columns = re.fullmatch(r"\\begin\{tabular\}\{((?:[lr]|p\{6cm\})+)\}", first)
    assert columns
    assert (lines[0], lines[-2], lines[-1]) == ("\\toprule", "\\bottomrule", "\\end{tabular}")
    rows = []
    for line in lines[1:-2]:
        if line == "\\midrule":
            continue
        assert line.endswith(" \\\\")
        assert set(_COMMAND.findall(line)) <= COMMANDS, line
        bare = _COMMAND.sub("", line)
        assert not re.search(r"[#_%^~<>|\"`]", bare), line
        assert bare.replace("$-$", "").count("$") == 0
        depth = 0
        for character in bare:
            depth += {"{": 1, "}": -1}.get(character, 0)
            assert depth >= 0
        assert depth == 0
        assert not re.match(r"[\[*]", bare)
        rows.append([cell.strip() for cell in re.split(r"(?<!\\)&", line.removesuffix(" \\\\"))])
    assert {len(row) for row in rows} == {len(re.findall(r"[lr]|p\{6cm\}", columns[1]))}
    return rows


def plain(cell: str) -> str:
    """What a cell shows."""
    names = {"textbackslash": "\\", "textasciicircum": "^", "textasciitilde": "~", "textless": "<", "textgreater": ">",
             "textbar": "|", "textasciigrave": "`"}  # fmt: skip
    shown = re.sub(r"\\(text[a-z]+)\{\}", lambda m: f"\0{ord(names[m[1]])}\0", cell)
    shown = re.sub(r"\\symbol\{(\d+)\}", "\0\\1\0", shown)
    shown = re.sub(r"\\([{}$&#_%])", lambda m: f"\0{ord(m[1])}\0", shown)
    shown = re.sub(r"[{}]", "", shown)
    return re.sub("\0(\\d+)\0", lambda m: chr(int(m[1])), shown)


@pytest.mark.parametrize("name", NAMES)
def test_every_table_has_the_cells_of_the_markdown_form(found, name):
    table = getattr(found, name)
    rows = rows_of(as_latex(name, table))
    _, _, *lines = as_markdown(name, table).splitlines()
    wanted = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
    shown = [[plain(c).replace("$-$", "-") for c in row] for row in rows[-len(table) :]]
    assert [["-" if c == "--" else c for c in row] for row in shown] == wanted


def test_headers_are_stacked_with_the_unit_last(found):
    rows = rows_of(as_latex("breakdown", found.breakdown))[: -len(found.breakdown)]
    columns = [" ".join(filter(None, column)) for column in zip(*rows, strict=True)]
    assert columns[:3] == ["rank", "device", "window (ms)"]
    assert "exposed comm (\\%)" in columns
    assert all(rows[-1])


@pytest.mark.parametrize("name", NASTY)
def test_no_name_is_a_command(name):
    table = calls_table([{"rank": 0, "start_ns": 0, "dur_ns": 5, "process_group": name, "collective": name}])
    rows = rows_of(as_latex("calls", table))
    printed = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    assert plain(for_latex(printed)) == printed
    assert printed in [plain(cell) for cell in rows[-1]]


def test_no_dashes_or_quotes_are_joined():
    for joined in ("--", "''", ",,"):
        name = f"a{joined}b{joined}{joined}c"
        assert joined not in for_latex(name)
        assert plain(for_latex(name)) == name


def test_negative_numbers_have_a_minus_and_na_a_dash():
    row = {"model": "-m", "workers": 2, "batch_size_per_worker": 1, "subtracted_comm_ns": -7_000_000_000}
    cells = rows_of(as_latex("subtraction", SUBTRACTION.frame([row])))[-1]
    assert cells[0] == "-m"
    assert "$-$7.00" in cells
    assert "--" in cells


def test_long_sentences_are_broken_into_lines(found):
    assert "lp{6cm}}\n" in as_latex("verdicts", found.verdicts)


def test_only_what_is_wider_than_a_page_is_made_narrower():
    row = {"model": "resnet18", "workers": 2, "batch_size_per_worker": 1}
    table = SUBTRACTION.frame([row])
    assert FITTED in as_latex("subtraction", table)
    assert FITTED not in as_latex("subtraction", table[["model", "workers"]])


def test_empty_tables():
    rows = rows_of(as_latex("ranks", RANKS.empty()))
    assert [row[0] for row in rows if row[0]] == ["rank"]
    assert as_latex("other", pd.DataFrame()).endswith("\\end{tabular}\n")


def test_the_summary_has_facts_and_tables(found):
    text = summary(found, "latex")
    assert "\\item[ranks] 2 of 2: 0-1\n" in text
    assert text.count("\\begin{tabular}") == text.count("\\paragraph{") == 4
    for tabular in re.findall(r"% needs.*?\\end\{tabular\}\}?\n", text, re.DOTALL):
        rows_of(tabular)


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex here: it would have compiled every nasty name")
def test_it_compiles(found, tmp_path):
    names = [{"rank": 0, "start_ns": 0, "dur_ns": 5, "process_group": name or None} for name in NASTY]
    body = summary(found, "latex") + as_latex("calls", calls_table(names))
    document = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n" + body + "\\end{document}\n"
    (tmp_path / "table.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "table.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
