"""How reports look: nothing is cut without a sign, names of any length fit, and a colour has one meaning."""

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from browsing import found_by, looked_at, needs_browser, with_script
from builders import MS, Collective, analysed, traces_of
from report_pages import ReadPage, assert_self_contained

from commtrace import analyse, compare, plots
from commtrace.analysis.core.schema import plain, records
from commtrace.analysis.core.steps import windows_by_process
from commtrace.analysis.metrics.typical_step import STEP_PARTS
from commtrace.analysis.render.fitting import short_words
from commtrace.analysis.render.people import shown_columns
from commtrace.analysis.render.plots import bars
from commtrace.analysis.render.plots.colours import stylesheet
from commtrace.analysis.render.plots.drawing import legend_places, text_width
from commtrace.analysis.render.plots.scales import covering
from commtrace.analysis.render.units import clock_text
from commtrace.analysis.report.across import comparison_page
from commtrace.analysis.report.device_spans import drawn_spans
from commtrace.analysis.report.first import first_view
from commtrace.analysis.report.page import Head, page
from commtrace.analysis.report.parts import Section, block
from commtrace.analysis.report.run_report import run_figures, step_figure

DATA = Path(__file__).parent.parent / "data"
LONG = "x" * 10_000


@pytest.fixture(scope="module")
def run():
    return analyse(DATA / "nccl-two-hosts")


@pytest.fixture(scope="module")
def of_long_names(tmp_path_factory) -> str:
    """A page of a run whose kernels, operators, hosts, GPU and process groups have names of 10,000 characters."""
    traces = traces_of(2, [Collective((0, 20 * MS), 30 * MS, elems=10**6, args={"Process Group Name": LONG})])
    for trace in traces:
        trace.host = LONG
        trace.step(0, 0, 90 * MS).kernel(LONG, 60 * MS, 5 * MS).kernel(" ".join([LONG[:300]] * 30), 70 * MS, 5 * MS)
        trace.event("cpu_op", LONG, 1 * MS, 2 * MS)
    html: str = analysed(tmp_path_factory.mktemp("long"), *traces).report().html
    return html


def measured(folder: Path, html: str, code: str):
    """What the code finds in the page."""
    target = folder / "page.html"
    target.write_text(with_script(html, code), encoding="utf-8")
    return found_by(looked_at(target, folder))


# Colours


@pytest.mark.slow
def test_waiting_is_one_solid_colour_in_every_picture(run) -> None:
    figures = [*run_figures(run).values(), step_figure(run)]
    assert not any("<pattern" in figure.svg or "url(#" in figure.svg for figure in figures)
    drawn = {figure.name: figure.svg for figure in figures}
    assert 'class="f-wait"' in drawn["time"]
    assert 'class="l-wait"' in drawn["step"]


def test_a_legend_that_is_too_wide_has_lines() -> None:
    entries = [("f-compute", "compute alone")] * 9
    places = legend_places(entries, 40, 660)
    assert {line for line, _ in places} == {0, 1, 2}
    assert all(x >= 40 and x + 15 + text_width("compute alone") <= 660 for _, x in places)


def contrast(one: str, other: str) -> float:
    """Source: WCAG 2.2, contrast ratio."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("side", [0, 1], ids=["light", "dark"])
def test_words_stand_out_from_their_ground(side) -> None:
    rule = re.findall(r"\.ct\{(--[^}]*)\}", stylesheet())[side]
    colours = dict(pair.removeprefix("--").split(":") for pair in rule.split(";"))
    for words in ("ink", "faint", "link", "wait", "good"):
        assert min(contrast(colours[words], colours[ground]) for ground in ("page", "card")) >= 4.5, words
    pressed = re.search(r"button\[aria-pressed=true\]\{background:var\(--(\w+)\);color:var\(--(\w+)\)", page_style())
    assert pressed
    assert contrast(colours[pressed[1]], colours[pressed[2]]) >= 4.5


def page_style() -> str:
    [style] = ReadPage(page(Head("run", "report", "", []), []).html).styles
    return style


def test_a_legend_names_only_colours_that_occur(run) -> None:
    checked = 0
    for figure in run_figures(run).values():
        shapes = ElementTree.fromstring(figure.svg)
        classes = [each.get("class", "") for each in shapes.iter() if each.tag != "text"]
        squares = [each.get("class") for each in shapes.iter("rect") if each.get("width") == each.get("height") == "11"]
        for square in squares:
            assert classes.count(square) > 1, (figure.name, square)
            checked += 1
    assert checked > 3


@pytest.mark.slow
@needs_browser
def test_the_legend_of_a_step_names_only_colours_that_occur(tmp_path, run) -> None:
    code = """
      const named = [...document.querySelectorAll("#stage .legend i")].map((one) => one.className.slice(2)).sort();
      const drawn = new Set([...document.querySelectorAll("#stage svg [class^=f-]")].map((one) => one.classList[0].slice(2)));
      return [named, [...drawn].sort()];
    """  # noqa: E501
    named, drawn = measured(tmp_path, run.report().html, code)
    assert named == drawn
    assert named


# What is said once


def test_no_picture_stands_twice_and_each_section_says_of_what_its_numbers_are(run) -> None:
    html = run.report().html
    pictures = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    drawn = [re.sub(r"<title>.*?</title>|aria-label=\"[^\"]*\"", "", each) for each in pictures if "<g" in each]
    assert len(drawn) == len(set(drawn))
    # The first screen has the bars of all ranks, and the map of all ranks and steps.
    assert "figure-time" not in html
    assert "figure-heat-caused-wait" not in html
    titles = re.findall(r"<h2>([^<]*)", html)
    assert len(titles) == len(set(titles))
    for section in re.findall(r'<section id="\w+" class="card.*?</section>', html, re.DOTALL):
        if "<figure" in section:
            assert re.search(r"<h2>[^<]+<small>[^<]+</small></h2>", section), section[:80]


@pytest.mark.slow
def test_many_ranks_are_folded_by_host_and_have_their_map(tmp_path) -> None:
    late = {rank: 20 * MS if rank == 37 else 0 for rank in range(40)}
    traces = traces_of(40, [Collective(late, 30 * MS, elems=10**6)])
    for trace in traces:
        trace.host = f"node{trace.rank // 8}"
        trace.step(0, 0, 90 * MS)
    html = analysed(tmp_path, *traces).report().html
    first = html[: html.index('id="steps"')]
    names = re.findall(r'class="name[^"]*" href="#rank=(\d+)">([^<]*)<', first)
    assert names[:5] == names[5:]
    assert [name for _, name in names[:5]] == [f"node{n}, 8 ranks" for n in range(5)]
    assert names[4][0] == "37"
    assert first.count('class="name late"') == 2
    assert "figure-heat-caused-wait" in html
    assert "figure-time" in html


@pytest.mark.slow
@needs_browser
def test_calls_that_hold_up_a_device_are_drawn_where_it_is_idle(tmp_path) -> None:
    """One call of 40 ms on rank 1 stands alone; the ten short ones of rank 0 are drawn as one."""
    traces = traces_of(2, [Collective((70 * MS, 70 * MS), 5 * MS, elems=10**6)])
    for trace in traces:
        trace.step(0, 0, 90 * MS).kernel("gemm", 2 * MS, 3 * MS)
    for number in range(10):
        traces[0].event("cuda_runtime", "cudaFree", (10 + 4 * number) * MS, 3 * MS)
    traces[1].event("cuda_runtime", "cudaFree", 10 * MS, 40 * MS)
    analysed(tmp_path / "run", *traces)
    html = analyse(tmp_path / "run", details=True).report().html
    data = json.loads(re.findall(r'id="steps-data"[^>]*>(.*?)</script>', html)[0])
    drawn = [(rank, data["names"][name], count, ns) for rank, _, _, name, count, ns in data["steps"][0]["events"]]
    assert drawn == [(0, "cudaFree", 10, 30 * MS), (1, "cudaFree", 1, 40 * MS)]
    code = 'return [...document.querySelectorAll("#stage .lane")].map((one) => one.textContent)'
    assert measured(tmp_path, html, code) == ["10 cudaFree, 30 ms", "cudaFree, 40 ms"]


@pytest.mark.slow
@needs_browser
def test_a_page_is_a_few_screens_long_and_no_wider_than_any(tmp_path, run) -> None:
    code = "const e = document.documentElement; return [e.scrollWidth - e.clientWidth, e.scrollHeight]"
    target = tmp_path / "page.html"
    for width, most in ((1280, 5500), (800, 9000), (500, 9000)):
        target.write_text(with_script(run.report().html, code), encoding="utf-8")
        beyond, high = found_by(looked_at(target, tmp_path, width))
        assert beyond == 0
        assert high < most, width


# Long names


def test_no_long_word_is_in_the_text_of_a_page(of_long_names) -> None:
    assert_self_contained(of_long_names)
    read = ReadPage(re.sub(r"<title>[^<]*</title>", "", of_long_names))  # under the pointer
    words = [word for text in read.texts for word in text.split() if "x" * 50 in word]
    assert words
    assert max(map(len, words)) <= 200


@pytest.mark.slow
@needs_browser
def test_long_names_neither_widen_nor_lengthen_the_page(tmp_path, of_long_names) -> None:
    code = "const e = document.documentElement; return [e.scrollWidth - e.clientWidth, e.scrollHeight]"
    beyond, high = measured(tmp_path, of_long_names, code)
    assert beyond == 0
    assert high < 20_000


def test_words_are_shortened_and_sentences_are_not() -> None:
    sentence = "a sentence of many words " * 50
    assert short_words(sentence) == sentence
    assert short_words(f"see {LONG}, then") == f"see {'x' * 99}...{'x' * 97}, then"


# Tables


@pytest.mark.slow
def test_a_shortened_name_is_whole_under_the_pointer(tmp_path) -> None:
    """Two kernels whose names differ in the middle look alike, but are not."""
    names = [f"void at::native::kernel<{'float, ' * 20}{which}{', float' * 20}>(int)" for which in ("one", "two")]
    traces = traces_of(2, [Collective((0, 20 * MS), 30 * MS, elems=10**6)])
    for trace in traces:
        trace.step(0, 0, 90 * MS).kernel(names[0], 60 * MS, 5 * MS).kernel(names[1], 70 * MS, 5 * MS)
    html = analysed(tmp_path, *traces).report().html
    titles = {attributes.get("title") for tag, attributes in ReadPage(html).elements if tag == "td"}
    assert set(names) <= titles


@pytest.mark.parametrize("name", ["rank_steps", "kernels", "collectives", "breakdown", "clocks"])
def test_headers_say_how_to_get_from_what_is_shown_to_the_table(run, name) -> None:
    table = run.table(name)
    shown = block(name, table)
    values, checked = plain(table).columns, 0
    for at, column in enumerate(shown.columns):
        factor, origin = float(shown.factors[at] or 1), int(shown.origins[at] or 0)
        for row, value in zip(shown.rows, values[column], strict=True):
            text = row[at].replace(",", "")
            if not shown.numeric[at] or text == "-":
                continue
            last_digit = 10.0 ** -len(text.partition(".")[2])
            assert abs(float(text) * factor - (value - origin)) <= 0.5000001 * last_digit * factor
            checked += 1
    assert checked > 5


@pytest.mark.slow
def test_headers_name_their_column(run) -> None:
    heads = [a for tag, a in ReadPage(run.report().html).elements if tag == "th" and "data-column" in a]
    factors = {a["data-column"]: a.get("data-factor") for a in heads}
    assert factors["exposed_comm_frac"] == "0.01"
    assert factors["rank"] is None
    assert {factors[name] for name in factors if str(name).endswith("_ns")} <= {None, "1000", "1e+06", "1e+09"}


@pytest.mark.slow
def test_numbers_of_a_column_have_equally_many_decimals() -> None:
    table = analyse(DATA / "nccl-two-hosts").clocks
    table["drift_ppm"] = [6.114032, 0.0, 0.33741, *[0.0] * (len(table) - 3)]
    [drift] = [column for column in shown_columns("clocks", table) if column.name == "drift_ppm"]
    assert drift.texts[:3] == ["6.114", "0.000", "0.337"]


def test_clocks_are_in_one_unit() -> None:
    assert [clock_text(ns) for ns in (0, 12_600, 1_888_000)] == ["0.0 us", "12.6 us", "1.888 ms"]


@pytest.mark.slow
@needs_browser
def test_boxes_that_scroll_show_it_and_charts_stay_readable(tmp_path, run) -> None:
    code = """
      const boxes = [...document.querySelectorAll(".scroll,.plot")];
      const shadows = boxes.filter((box) => !getComputedStyle(box).backgroundImage.includes("gradient")).length;
      const sizes = [...document.querySelectorAll("figure:not([hidden]) .plot svg")].map((svg) => {
        const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
        return scale * parseFloat(getComputedStyle(svg.querySelector("text")).fontSize);
      });
      return [shadows, boxes.length, Math.min(...sizes)]
    """
    without_shadow, boxes, smallest = measured(tmp_path, run.report().html, code)
    assert without_shadow == 0
    assert boxes > 5
    assert smallest >= 12


# Sentences


def test_names_in_backticks_are_code_and_stay_text() -> None:
    hostile = "see `ranks` and `<img src=x onerror=alert(1)>`"
    section = Section("limits", hostile, hostile, words=[hostile])
    html = page(Head("run", "report", hostile, [("note", hostile)]), [section]).html
    assert html.count("<code>ranks</code> and <code>&lt;img src=x onerror=alert(1)&gt;</code>") == 4
    assert not any(tag == "img" for tag, _ in assert_self_contained(html).elements)


@pytest.mark.slow
def test_a_name_in_a_headline_is_code() -> None:
    screen = first_view(analyse(DATA / "nccl-two-hosts"))
    named = replace(screen, before_culprit="", culprit="", rest_of_headline="the CPU is in `aten::<cat>`")
    html = page(Head("run", "report", "", []), [], named).html
    assert "<h1>the CPU is in <code>aten::&lt;cat&gt;</code></h1>" in html


@pytest.mark.slow
def test_no_backtick_is_left_in_a_page(run) -> None:
    read = ReadPage(run.report().html)
    assert not [text for text in read.texts if "`" in text]


def test_what_can_be_clicked_is_not_said_on_paper(run) -> None:
    html = run.report().html
    assert not re.search(r"(?<!class=\"hint\">)Click a", html)
    assert re.search(r"@media print\{.*?\.hint\b[^{]*\{display:none\}", html, re.DOTALL)


@pytest.mark.slow
def test_a_chart_of_some_says_so(tmp_path) -> None:
    ranks = analyse(DATA / "nccl-two-hosts").ranks
    import pandas as pd

    many = pd.concat([ranks.assign(caused_wait_ns=5 * MS)] * 8, ignore_index=True)
    assert bars.causes(many).about.endswith(f" 20 of {len(many)} ranks: those that caused most.")
    assert "ranks: those" not in bars.causes(many.head(10)).about


# The comparison


@pytest.fixture(scope="module")
def compared():
    return compare(DATA / "nccl-straggler", DATA / "nccl-two-hosts")


@pytest.mark.slow
def test_a_comparison_has_a_headline_and_sentences(compared) -> None:
    read = assert_self_contained(comparison_page("A and B", compared).html)
    assert [tag for tag, _ in read.elements].count("h1") == 1
    text = " ".join(read.texts)
    assert re.search(
        r"Steps of B (seem to take [\d.]+ ms \([\d.]+%\) (longer|less) than|are as long as) those of A", text
    )
    assert "Exposed memory" not in text
    assert "exposed memory" not in text


def test_its_picture_has_a_step_of_each_side_and_names_only_what_is_drawn(compared) -> None:
    drawn = plots.before_and_after(compared).svg
    steps = records(compared.typical_steps)
    for row in steps:
        assert f"{row['step_ns'] / 1e6:,.1f} ms" in drawn
    for part, name in STEP_PARTS.items():
        assert (f">{name}<" in drawn) == any(row[part] for row in steps)


def test_no_tick_stands_between_numbers_of_things() -> None:
    assert covering([1.0, 2.0], 0, 100).ticks == [0.0, 1.0, 2.0]
    assert 0.5 in covering([0.5, 2.0], 0, 100).ticks
    assert covering([4.0, 64.0], 0, 100).ticks == [0.0, 20.0, 40.0, 60.0]
    assert covering([0.0, 1.0], 0, 100).ticks == [0.0, 1.0]


def test_a_step_is_drawn_with_idle_time_at_its_ends() -> None:
    """As while a device waits for the first batch of a step."""
    found = analyse(DATA / "nccl-straggler", details=True)
    windows = windows_by_process(found.run.activities)
    drawn = found.of(drawn_spans)
    assert drawn
    for device in drawn:
        [window] = (
            one for (rank, _), own in windows.items() if rank == device.rank for one in own if one.step == device.step
        )
        assert device.end - device.begin >= window.end_ns - window.start_ns
