"""`report --figure`: every picture of a page as a file by itself, SVG or PNG, and what is refused."""

import re
import xml.etree.ElementTree as ET
from html import unescape

import pytest
from builders import MS, Collective, traces_of
from machine_builders import VGG, write_capacity, write_layers, write_swap
from sweep_builders import Cell, write_sweep
from training_builders import Trained, write_training

from commtrace.analysis.render.plots import figure as module
from commtrace.analysis.render.plots.colours import paper_stylesheet
from commtrace.analysis.render.plots.figure import Figure
from commtrace.cli import main

SVG = "{http://www.w3.org/2000/svg}"
NAMES = {
    "sweep": ["speedup", "epoch-time", "subtraction"],
    "csv": ["speedup", "epoch-time", "subtraction"],
    "layers": ["layers"],
    "swap": ["time-ratio"],
    "capacity": ["capacity"],
    "training": ["loss", "accuracy"],
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A folder of everything that a page is made of but runs, small."""
    folder = tmp_path_factory.mktemp("measured")
    cells = [Cell(workers, batch=batch, epoch_s=10 / workers) for batch in (32, 128) for workers in (1, 2)]
    csv = folder / "csv.csv"
    csv.write_text(
        "model,parallel,workers,batch_size_per_rank,epoch_s,dataset_samples,parameters\n"
        + "".join(f"resnet18,ddp,{c.workers},{c.batch},{c.epoch_s},50000,11173962\n" for c in cells)
    )
    return {
        "sweep": write_sweep(folder / "sweep", cells),
        "csv": csv,
        "layers": write_layers(folder / "layers", VGG),
        "swap": write_swap(folder / "swap", 0.957, 0.602, 2.043),
        "capacity": write_capacity(folder / "capacity"),
        "training": write_training(folder / "training", Trained()),
    }


def ran(capsys, *arguments, code=0):
    assert main([str(a) for a in arguments]) == code
    return capsys.readouterr()


def assert_stands_alone(text):
    """It is well-formed, has a size, a title, light colours and no more CSS than any program knows."""
    root = ET.fromstring(text)
    assert root.tag == f"{SVG}svg"
    x, y, width, height = map(float, root.get("viewBox").split())
    assert (float(root.get("width")), float(root.get("height"))) == (width, height)
    assert x < 0
    assert y < 0
    for unknown in ("var(", "color-mix", "@media", "system-ui", "http://"):
        assert unknown not in text.replace("http://www.w3.org/2000/svg", "")
    title = "".join(each.text for each in root.iter(f"{SVG}text") if "bold" in (each.get("style") or ""))
    assert title.replace(" ", "") == unescape(root.get("aria-label")).replace(" ", "")
    ground = root.find(f"{SVG}rect")
    assert (ground.get("fill"), ground.get("width")) == ("#fff", f"{width:g}")
    return root


@pytest.mark.parametrize("kind", NAMES)
def test_every_figure_of_a_page_is_a_file_by_itself(capsys, measured, tmp_path, kind):
    listed = ran(capsys, "report", measured[kind], "--figure", "list").out.splitlines()
    assert [line.split()[0] for line in listed] == NAMES[kind]
    files = [tmp_path / f"{name}.svg" for name in NAMES[kind]]
    options = [word for file in files for word in ("--figure", file)]
    assert ran(capsys, "report", measured[kind], *options).out == ""
    assert sorted(tmp_path.iterdir()) == sorted(files)  # no page
    for file in files:
        assert_stands_alone(file.read_text())


def test_axes_have_their_units(capsys, measured, tmp_path):
    ran(capsys, "report", measured["sweep"], "--figure", tmp_path / "epoch-time.svg")
    words = [each.text for each in assert_stands_alone((tmp_path / "epoch-time.svg").read_text()).iter(f"{SVG}text")]
    assert {"samples per worker and step", "epoch (s), logarithmic"} <= set(words)


@pytest.mark.slow
def test_the_figures_of_a_run_and_one_step(capsys, tmp_path):
    traces = [t.step(1, 0, 90 * MS) for t in traces_of(2, [Collective((0, 20 * MS), 30 * MS, elems=10**6)])]
    run = tmp_path / "run"
    for trace in traces:
        trace.write(run)
    output = tmp_path / "page.html"
    options = ["--figure", tmp_path / "time.svg", "--figure", tmp_path / "step.svg", "-o", output]
    ran(capsys, "report", run, *options)
    assert output.read_text().startswith("<!doctype html>")
    assert_stands_alone((tmp_path / "time.svg").read_text())
    root = assert_stands_alone((tmp_path / "step.svg").read_text())
    assert root.find(f".//{SVG}svg").get("class") == "zoom"  # its own coordinates are kept


@pytest.mark.slow
def test_trainings_with_traces_are_compared_and_one_of_them_is_a_run(capsys, tmp_path):
    trainings = [write_training(tmp_path / f"batch-{batch}", Trained(batch=batch)) for batch in (32, 512)]
    for run in trainings:
        for trace in traces_of(2, [Collective((0, 20 * MS), 30 * MS, elems=10**6)]):
            trace.write(run)
    several = ran(capsys, "report", *trainings, "--figure", "list").out
    assert [line.split()[0] for line in several.splitlines()] == ["loss", "accuracy"]
    assert "step " in ran(capsys, "report", trainings[0], "--figure", "list").out


def test_capacity_draws_what_each_device_holds(capsys, measured, tmp_path):
    """61 + 62 on one GPU, 84 + 0 and 54 + 62 on two: bars as long as the layers are many."""
    ran(capsys, "report", measured["capacity"], "--figure", tmp_path / "capacity.svg")
    root = assert_stands_alone((tmp_path / "capacity.svg").read_text())
    lengths = {}
    for path in root.iter(f"{SVG}path"):
        if (hint := path.find(f"{SVG}title")) is not None:
            begin, end = re.match(r"M([\d.]+) \d+H([\d.]+)", path.get("d")).groups()
            lengths.setdefault(hint.text, []).append(float(end) - float(begin))
    assert set(lengths) == {
        *("device 0: 61 convolutions", "device 0: 62 linear layers"),
        *("device 0: 84 convolutions", "device 1: 54 convolutions", "device 1: 62 linear layers"),
    }
    each = lengths["device 0: 84 convolutions"][0] / 84
    assert lengths["device 1: 54 convolutions"][0] == pytest.approx(54 * each, abs=0.2)
    assert "does not fit" in [text.text for text in root.iter(f"{SVG}text")]


@pytest.mark.parametrize(
    ("file", "because"),
    [("speed.svg", "has no figure speed; it has speedup, epoch-time, subtraction"),
     ("speedup.pdf", "ends with .svg or .png, such as speedup.svg"), ("speedup", "such as speedup.svg")],
)  # fmt: skip
def test_what_is_no_figure_is_refused_with_what_there_is(capsys, measured, tmp_path, file, because):
    error = ran(capsys, "report", measured["sweep"], "--figure", tmp_path / file, code=2).err
    assert "--figure" in error
    assert because in error
    assert list(tmp_path.iterdir()) == []


def test_no_input_is_overwritten(capsys, measured, tmp_path):
    link = tmp_path / "speedup.svg"
    link.hardlink_to(measured["csv"])
    assert "which is read" in ran(capsys, "report", measured["csv"], "--figure", link, code=2).err


def test_png_is_drawn_with_its_colours(capsys, measured, tmp_path):
    pytest.importorskip("resvg_py")
    ran(capsys, "report", measured["capacity"], "--figure", tmp_path / "capacity.png")
    content = (tmp_path / "capacity.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = int.from_bytes(content[16:20]), int.from_bytes(content[20:24])
    assert (width, height) == (2 * 588, 2 * (_height(measured, tmp_path, capsys)))


def _height(measured, tmp_path, capsys):
    ran(capsys, "report", measured["capacity"], "--figure", tmp_path / "capacity.svg")
    return float(ET.fromstring((tmp_path / "capacity.svg").read_text()).get("height"))


def test_png_without_its_library_says_what_to_install(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    error = ran(capsys, "report", "/no/such/run", "--figure", tmp_path / "time.png", code=1).err
    assert "resvg-py is not installed, and a figure as PNG needs it: pip install" in error


def test_amounts_have_the_colour_of_what_is_measured():
    """The last rule that fits an amount names its colour, since a cell is within a group of its kind."""
    sheet = paper_stylesheet()
    assert ".h0{fill:#b3261e;fill-opacity:0.05}" in sheet
    assert ".of-compute .h11,.h11.of-compute{fill:#3b6ea8}" in sheet
    assert sheet.index(".h11{") < sheet.index(".of-compute .h11")


def test_a_long_title_from_a_trace_is_broken_and_escaped():
    svg = '<svg role="img" aria-label="x" viewBox="0 0 200 50" width="200"><text x="0" y="9">a</text></svg>'
    drawn = Figure("one", "<script>\x1b " + "word " * 20, "", svg, "table", None).alone
    root = ET.fromstring(drawn)
    titles = [each for each in root.iter(f"{SVG}text") if each.get("style")]
    assert len(titles) > 2
    assert all(len(each.text) * 8 <= 208 for each in titles)
    assert titles[0].text.startswith("<script>\\x1b")
    assert float(titles[0].get("y")) < float(titles[-1].get("y")) < 9
