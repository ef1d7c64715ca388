"""Reports: their tables are the tables, nothing in them is fetched or runs, and names from traces stay names."""

import csv
import io
import json
from decimal import Decimal
from pathlib import Path

import pytest
from builders import MS, Collective, analysed, traces_of, write_run
from report_pages import ReadPage, assert_self_contained
from samples import with_slow
from sweep_builders import Cell, write_sweep
from training_builders import Trained, write_training

from commtrace import analyse, analyse_sweep, analyse_training, compare, plots
from commtrace.analysis.catalog import CATALOG
from commtrace.analysis.errors import NothingMeasured
from commtrace.analysis.render import as_csv
from commtrace.analysis.render.people import cells
from commtrace.analysis.report.across import comparison_page, sweep_page, training_page
from commtrace.analysis.report.first import first_view
from commtrace.analysis.report.layout import orders_of_ranks
from commtrace.analysis.report.parts import MOST_ROWS, block
from commtrace.analysis.report.run_report import run_figures
from commtrace.cli import main

DATA = Path(__file__).parent.parent / "data"
RUNS = with_slow(["nccl-two-hosts", "nccl-pipeline", "gloo-training"], ["nccl-straggler", "nccl-rooted", "nccl-hang"])
HOSTILE = [
    "<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "</style></title><svg onload=alert(1)>",
    "{{ 7 * 7 }} {% raw %}", "\" onmouseover=\"alert(1)", "x" * 10_000, "a\x00b\x1b[31m\r\n\u202eabc", "<!--", "]]>",
    "https://example.org/?a=1&b=2",
]  # fmt: skip


@pytest.fixture(scope="module", params=RUNS)
def run(request):
    return analyse(DATA / request.param)


@pytest.fixture(scope="module")
def html(run) -> str:
    text: str = run.report().html
    return text


@pytest.mark.slow
def test_it_needs_nothing_from_elsewhere(run, html) -> None:
    read = assert_self_contained(html)
    [headline] = list(run.verdicts["headline"].head(1))
    assert headline.replace("`", "") in "".join(read.texts)
    assert len([tag for tag, _ in read.elements if tag == "h1"]) == 1
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.slow
def test_every_table_is_what_people_see_of_the_table_of_that_name(run, html) -> None:
    read = ReadPage(html)
    assert len(read.tables) > 5
    for table in read.tables:
        name = table.title.removeprefix("Table: ")
        whole = run.table(name)
        if name == "verdicts":  # the first row is the headline
            whole = whole.iloc[1:]
        headers, rows, _ = cells(name, whole)
        assert table.headers == [header.replace("_", " ") for header in headers]
        assert table.rows == [[text.replace("`", "") for text in row] for row in rows]  # in a page it is code


@pytest.mark.slow
def test_every_number_is_that_of_the_csv_to_the_last_digit_shown(run, html) -> None:
    units = {"(s)": 1e9, "(ms)": 1e6, "(us)": 1e3, "(ns)": 1.0, "(%)": 0.01}
    checked = 0
    for table in ReadPage(html).tables:
        name = table.title.removeprefix("Table: ")
        exact = list(csv.DictReader(io.StringIO(as_csv(name, run.table(name)))))[name == "verdicts" :]
        for position, header in enumerate(table.headers):
            what, _, unit = header.rpartition(" ")
            column = f"{what.replace(' ', '_')}{'_frac' if unit == '(%)' else '_ns'}"
            if unit not in units or column not in CATALOG[name].schema.columns:
                continue
            least = min((Decimal(row[column]) for row in exact if row[column]), default=Decimal(0))
            first = least if least > 1e15 else 0  # a point in time, which a page counts from the first one on
            for shown, row in zip(table.rows, exact, strict=True):
                text = shown[position].replace(",", "")
                if text == "-":
                    assert row[column] == ""
                    continue
                digits = len(text.partition(".")[2])
                assert abs(float(text) - float(Decimal(row[column]) - first) / units[unit]) <= 0.5000001 * 10**-digits
                checked += 1
    assert checked > 20


def test_figures_have_their_table_a_title_and_a_place_in_the_page(run, html) -> None:
    covered = first_view(run).covers
    for name, figure in run_figures(run).items():
        assert figure.table_name in CATALOG
        assert (f'<figure id="figure-{name}">' in html) == (name not in covered)
        assert f"Table: {figure.table_name}" in html
        assert 'role="img" aria-label="' in figure.svg


@pytest.mark.slow
@pytest.mark.parametrize("name", with_slow(HOSTILE[1:3], [HOSTILE[0], *HOSTILE[3:]]))
def test_hostile_names_are_inert(tmp_path, name) -> None:
    """As a kernel, an operator of the CPU, a host, a process group and a collective."""
    traces = traces_of(2, [Collective((0, 20 * MS), 30 * MS, elems=10**6, args={"Process Group Name": name})])
    for trace in traces:
        trace.host = name
        trace.step(0, 0, 90 * MS).kernel(name, 60 * MS, 5 * MS).kernel("gemm", 70 * MS, 5 * MS)
        trace.event("cpu_op", name, 1 * MS, 2 * MS)
    result = analysed(tmp_path, *traces)
    html = result.report().html
    read = assert_self_contained(html)
    assert "\x00" not in html
    assert "\u202e" not in html
    assert all(json.loads(text) for kind, text in read.scripts if kind == "application/json")
    for figure in run_figures(result).values():
        assert_inert(figure._repr_html_())


def assert_inert(html: str) -> None:
    read = ReadPage(html)
    assert {tag for tag, _ in read.elements} <= {
        *("div", "style", "svg", "g", "text", "rect", "path", "circle", "pattern", "title"),
    }  # fmt: skip
    assert not any(key.startswith("on") for _, attributes in read.elements for key in attributes)


@pytest.mark.slow
def test_the_culprit_is_in_the_figures(tmp_path) -> None:
    arrivals = {0: 0, 1: 0, 2: 20 * MS, 3: 0}
    result = analyse(write_run(tmp_path, 4, [Collective(arrivals, 5 * MS, elems=10**6)] * 1))
    assert run_figures(result)["waits"].data.startswith('{"rows":["2"')


@pytest.mark.slow
@pytest.mark.parametrize("late", [0, 2, 3])
def test_heat_maps_open_on_waiting_caused_and_each_accuses_whom_its_caption_says(tmp_path, late) -> None:
    """The late rank is the bright row of waiting caused and of lateness, and the dark one of waiting itself."""
    collectives = [
        Collective({rank: begin + (20 * MS if rank == late else 0) for rank in range(4)}, 5 * MS, elems=10**6)
        for begin in (0, 50 * MS)
    ]
    traces = traces_of(4, collectives)
    for trace in traces:
        trace.step(0, 0, 45 * MS).step(1, 45 * MS, 50 * MS)
    result = analysed(tmp_path, *traces)
    maps = {name: figure for name, figure in run_figures(result).items() if name.startswith("heat-")}
    assert next(iter(maps)) == "heat-caused-wait"
    assert set(maps) == {"heat-caused-wait", "heat-exposed-wait", "heat-exposed-comm", "heat-late", "heat-window"}
    assert len({figure.about for figure in maps.values()}) == len(maps)
    order = {}
    for name, figure in maps.items():
        assert f"The frame marks rank {late}, for which the others wait most." in figure.about
        assert figure.svg.count('class="frame"') == 1
        order[name] = [sum(row) for row in json.loads(figure.data)["values"]]
    assert result.culprits == [late]
    for name in ("heat-caused-wait", "heat-late"):
        assert order[name].index(max(order[name])) == late
    for name in ("heat-exposed-wait", "heat-exposed-comm"):
        assert order[name].index(min(order[name])) == late
        assert "a pale row" in maps[name].about or "usually has less" in maps[name].about


@pytest.mark.slow
def test_no_rank_is_marked_and_no_map_of_zeros_is_drawn_where_nobody_is_late(tmp_path) -> None:
    traces = traces_of(2, [Collective((10 * MS, 10 * MS), 5 * MS, elems=10**6)])
    for trace in traces:
        trace.step(0, 0, 40 * MS)
    result = analysed(tmp_path, *traces)
    maps = {name: figure for name, figure in run_figures(result).items() if name.startswith("heat-")}
    assert set(maps) == {"heat-exposed-comm"}  # nor one of steps that take equally long
    assert not any("rame" in figure.svg or "rame" in figure.about for figure in maps.values())


@pytest.mark.slow
def test_another_step_can_be_drawn_and_one_that_is_not_there_is_an_error(tmp_path) -> None:
    result = analyse(DATA / "nccl-straggler")
    steps = sorted(set(result.rank_steps["step"]))
    assert f'id="steps-data" data-first="{steps[0]}"' in result.report(step=steps[0]).html
    with pytest.raises(NothingMeasured, match=f"no step 999; its steps are {steps[0]} to {steps[-1]}"):
        result.report(step=999)


@pytest.mark.slow
def test_long_tables_show_the_worst_rows_and_say_so() -> None:
    table = analyse(DATA / "nccl-straggler").breakdown_steps
    import pandas as pd

    many = pd.concat([table] * (2 * MOST_ROWS // len(table) + 1), ignore_index=True)
    found = block("breakdown_steps", many, largest="exposed_comm_ns")
    assert len(found.rows) == MOST_ROWS
    assert found.note.startswith(f"1,000 of {len(many):,} rows, those with the largest exposed_comm_ns")


@pytest.mark.slow
def test_ranks_stand_by_their_place_in_the_layout(tmp_path) -> None:
    """2 x 2: neighbours in one kind of group, every second rank in the other."""
    groups = [{0: 0, 1: 0}, {2: 0, 3: 0}, {0: 50 * MS, 2: 50 * MS}, {1: 50 * MS, 3: 50 * MS}]
    made = [Collective(ranks, 5 * MS, elems=10, group=str(n)) for n, ranks in enumerate(groups)]
    result = analyse(write_run(tmp_path, 4, made))
    orders = orders_of_ranks(result.calls, result.clocks)
    assert orders == {"rank": [0, 1, 2, 3], "groups of 2, every 2": [0, 2, 1, 3]}


# Other reports


@pytest.mark.slow
def test_of_a_sweep(tmp_path) -> None:
    traces = [t.step(0, 0, 90 * MS) for t in traces_of(2, [Collective((0, 20 * MS), 30 * MS, elems=10**6)])]
    folder = write_sweep(tmp_path / "sweep", [Cell(1, epoch_s=10), Cell(2, epoch_s=4.5, traced=traces, steps=20)])
    page = sweep_page("sweep", analyse_sweep(folder))
    read = assert_self_contained(page.html)
    assert {table.title for table in read.tables} == {"Table: scaling", "Table: subtraction", "Table: timings"}
    assert main(["report", str(folder), "-o", str(tmp_path / "r.html")]) == 0
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == page.html


@pytest.mark.parametrize(
    ("samples", "title"),
    [
        (50_000, "Speedup by workers: T1 / TN, fixed work (the workers share an epoch)"),
        (100_000, "Speedup by workers: N x T1 / TN, fixed work per worker (each does an epoch)"),
    ],
)
def test_a_picture_of_speedups_says_which_and_of_what_work(tmp_path, samples, title) -> None:
    cells = [Cell(1, epoch_s=10), Cell(2, epoch_s=12, samples=samples)]
    figure = plots.speedup(analyse_sweep(write_sweep(tmp_path / "sweep", cells)))
    assert figure.title == title
    assert f"speedup, {title.partition(': ')[2].partition(',')[0]}" in figure.svg
    assert "The batch size per worker stays" in figure.about


def test_a_picture_of_both_kinds_of_work_says_which_line_is_which(tmp_path) -> None:
    cells = [Cell(1), Cell(2, 32, 6.0), Cell(1, 64), Cell(2, 64, 12.0, samples=100_000)]
    figure = plots.speedup(analyse_sweep(write_sweep(tmp_path / "sweep", cells)))
    assert figure.title == "Speedup by workers"
    for said in ("resnet18, ddp, batch 32: T1 / TN", "resnet18, ddp, batch 64: N x T1 / TN"):
        assert said in figure.svg
    assert "T1 / TN is speedup at fixed work (the workers share an epoch). N x T1 / TN is speedup at" in figure.about


def test_epoch_times_by_batch_size_end_where_memory_or_data_end(tmp_path) -> None:
    cells = [
        *(Cell(1, batch, seconds) for batch, seconds in ((32, 21.1), (128, 6.35), (512, 2.38))),
        Cell(1, 2048, status="out_of_memory"),
        *(Cell(4, batch, seconds) for batch, seconds in ((32, 7.0), (128, 2.4))),
        Cell(4, 32_768, status="out_of_data"),
        Cell(8, 32, status="out_of_memory"),
    ]
    sweep = analyse_sweep(write_sweep(tmp_path / "sweep", cells))
    figure = plots.epoch_time(sweep)
    assert figure.svg.count("<circle") == 5
    assert figure.svg.count(">out of memory<") == figure.svg.count(">out of data<") == 1
    for said in ("resnet18, ddp, 1 worker, batch 512: 2.38 s", ">2,048<", ">32,768<", "resnet18, ddp, 4 workers"):
        assert said in figure.svg
    assert "out of memory or out of data: the batch would be larger than an epoch." in figure.about
    assert 'id="figure-epoch-time"' in sweep_page("sweep", sweep).html


@pytest.mark.slow
def test_of_two_sides(tmp_path) -> None:
    a, b = DATA / "nccl-straggler", DATA / "nccl-two-hosts"
    read = assert_self_contained(comparison_page("A and B", compare(a, b)).html)
    assert "Table: comparison" in {table.title for table in read.tables}


def test_of_trainings(tmp_path) -> None:
    write_training(tmp_path / "small", Trained(1, 128, [(0.9, 0.70), (0.43, 0.849)], planned=2))
    write_training(tmp_path / "diverged", Trained(4, 512, [(2.5, 0.1), (None, 0.1)], planned=2))
    page = training_page(tmp_path.name, analyse_training(tmp_path))
    read = assert_self_contained(page.html)
    assert [table.title for table in read.tables] == ["Table: training", "Table: training_epochs"]
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "r.html")]) == 0
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == page.html


@pytest.mark.slow
def test_a_run_of_recordings_that_was_trained_for_epochs_is_a_run(tmp_path) -> None:
    traced = write_run(tmp_path / "traced", 2, [Collective((0, 20 * MS), 30 * MS, elems=10**6)])
    assert main(["pack", str(traced), "-o", str(tmp_path / "packed")]) == 0
    write_training(tmp_path / "packed", Trained(1, 128, [(0.9, 0.70)], planned=1))
    packed = [path.rename(path.with_name(f"host_{n}.0000.pt.trace.ctrace"))
              for n, path in enumerate(sorted((tmp_path / "packed").glob("*.ctrace")))]  # fmt: skip
    assert len(packed) == 2
    assert main(["report", str(tmp_path / "packed"), "-o", str(tmp_path / "r.html")]) == 0
    assert "Table: breakdown" in (tmp_path / "r.html").read_text(encoding="utf-8")


# The command


@pytest.mark.slow
def test_the_command_writes_a_file_named_after_the_run(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(DATA / "nccl-straggler")]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("nccl-straggler.html: ")
    assert captured.err == ""
    assert_self_contained((tmp_path / "nccl-straggler.html").read_text(encoding="utf-8"))


def test_a_trace_is_not_overwritten(tmp_path, capsys) -> None:
    folder = write_run(tmp_path, 2, [Collective((0, 20 * MS), 30 * MS, elems=10**6)])
    trace = next(folder.glob("*.json*"))
    before = trace.read_bytes()
    assert main(["report", str(folder), "-o", str(trace)]) == 2
    assert trace.read_bytes() == before


@pytest.mark.slow
def test_in_a_notebook_and_in_a_file(tmp_path) -> None:
    result = analyse(DATA / "nccl-straggler")
    page = result.report()
    assert page._repr_html_().startswith("<iframe")
    page.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page.html
    figure = run_figures(result)["time"]
    figure.save(tmp_path / "time.svg")
    assert (tmp_path / "time.svg").read_text(encoding="utf-8").startswith("<svg")
    figure.save(tmp_path / "time.html")
    assert figure.svg in (tmp_path / "time.html").read_text(encoding="utf-8")
    assert "nccl-straggler" in repr(page)
