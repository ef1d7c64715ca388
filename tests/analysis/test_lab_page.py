"""The pages on folders of `lab` and of `layers`: answers, pictures and tables, and what they say of gaps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from builders import MS, Collective, traces_of
from machine_builders import NO_GPU, VGG, layer, ratio, write_capacity, write_layers, write_swap
from report_pages import assert_self_contained
from sweep_builders import Cell, write_json, write_sweep
from training_builders import Trained, write_training

from commtrace import cli
from commtrace.analysis.errors import DamagedMeasurement, NothingMeasured
from commtrace.analysis.lab.files import read_lab, read_layers
from commtrace.analysis.report.lab import lab_page, layers_page
from commtrace.contract.lab import ExperimentName


def task(folder: str, status: str = "done", reason: str | None = None) -> dict[str, Any]:
    arguments = ["sweep", "--workers", "1,2", "--name", folder]
    return {"folder": folder, "arguments": arguments, "status": status, "reason": reason, "dur_s": 7.0, "expected_s": 5}


TASKS = {
    "batch-size": ["batch-size"],
    "speedup": ["speedup"],
    "communication": ["speedup"],
    "all-reduce": ["all-reduce"],
    "large-batch": ["small-batch", "large-batch"],
    "layers": ["layers-vgg16"],
    "swap": ["swap-cpu"],
    "capacity": ["capacity"],
}


def write_lab(folder: Path, **fates: tuple[str, str]) -> Path:
    """lab.json; `fates` are status and reason of other tasks than those that are done."""
    experiments = [
        {"name": name, "tasks": [task(each, *fates.get(each.replace("-", "_"), ("done",))) for each in folders]}
        for name, folders in TASKS.items()
    ]
    folder.mkdir(exist_ok=True, parents=True)
    facts = {"schema_version": 1, "created_utc": "2026-11-25T20:00:00+00:00", "machine": "vm: 2 cores", "options": []}
    write_json(folder / "lab.json", {**facts, "experiments": experiments})
    return folder


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    folder = write_lab(tmp_path / "lab")
    sizes = [Cell(1, 8, 10.0), Cell(1, 32, 4.0), Cell(1, 128, 5.0), Cell(1, 512, status="out_of_data", reason="less")]
    write_sweep(folder / "batch-size", sizes)
    traces = traces_of(2, [Collective((10 * MS, 20 * MS), 30 * MS, elems=10**6)])
    for trace in traces:
        trace.step(0, 0, 90 * MS).kernel("gemm", 40 * MS, 5 * MS)
    write_sweep(folder / "speedup", [Cell(1, epoch_s=10), Cell(2, epoch_s=6, traced=traces, steps=20)])
    rows = [
        {"collective": "all_reduce", "size": size, "in_place": {"time": us, "alg_bw": size / us / 1e3, "nwrong": 0}}
        for size, us in ((4096, 100.0), (1 << 20, 1000.0))
    ]
    comms = {"tool": "commtrace comms", "schema_version": 1, "world_size": 2, "complete": True, "results": rows}
    (folder / "all-reduce").mkdir()
    write_json(folder / "all-reduce" / "comms.json", comms)
    write_training(folder / "small-batch", Trained(1, 32, [(0.9, 0.7), (0.4, 0.85)], planned=2))
    write_training(folder / "large-batch", Trained(1, 512, [(1.9, 0.3), (1.4, 0.45)], planned=2))
    write_layers(folder / "layers-vgg16", VGG)
    write_swap(folder / "swap-cpu", 0.97, 0.95, 0.99)
    write_capacity(folder / "capacity")
    return folder


ANSWERS = """
An epoch is fastest with a batch of 32: 4 s, 2.50 times as fast as with 8; 512 is out of data, not of memory
resnet18 ddp, 2 workers: an epoch is 1.67 times as fast as with one (T1 / TN: they share its work)
are compute and
Between 2 ranks an all_reduce of 1 MiB takes 1.0 ms, a bus bandwidth of 1.05 GB/s; one of 4 KiB takes 100 us.
After 2 epochs small-batch (32 a step, rate 0.1) is right on 85.0% of the test images
features.0 (Conv2d) keeps most for the backward pass (1.0 MB) and classifier.0 (Linear) has most parameters (411.0 MB)
take 0.970 times as long as those of vgg16 (95 % interval 0.950 to 0.990): vgg16-swapped is faster.
138 convolutions and 62 linear layers fit on 2 devices.
""".strip().splitlines()


def test_every_experiment_has_question_answer_table_picture_and_command(lab) -> None:
    html = lab_page(lab).html
    read = assert_self_contained(html)
    assert len(ANSWERS) == html.count('<p class="verdict">') - 1 == html.count("To measure it alone:")
    for answer in ANSWERS:
        assert answer in html
    assert "8 of 8 experiments measured on vm: 2 cores" in html
    assert html.count("<figure ") == 9
    assert [table.title for table in read.tables] == [
        "Table: timings", "Table: scaling", "Table: subtraction", "Table: all_reduce", "Table: training",
        "Table: layers of layers-vgg16", "Table: ratio of times", "Table: both models", "Table: capacity",
    ]  # fmt: skip
    assert "<code>commtrace sweep --workers 1,2 --name batch-size</code>" in html
    assert f"<code>commtrace table subtraction {lab}/speedup</code>" in html


def test_every_name_of_an_experiment_has_a_section() -> None:
    assert [*TASKS] == [*get_args(ExperimentName)]


def test_what_was_not_measured_is_na_with_its_reason(tmp_path) -> None:
    lab = write_lab(tmp_path / "lab", speedup=("failed", "no memory; see speedup.log"), swap_cpu=("open", None))
    write_swap(lab / "swap-cpu", 1.1)
    content = json.loads((lab / "lab.json").read_text())
    content["experiments"][3] |= {"tasks": [], "impossible": "this machine has one GPU, and it needs two"}
    write_json(lab / "lab.json", content)
    html = lab_page(lab).html
    assert html.count("NA: it was not measured.") == 6
    assert html.count("speedup: failed: no memory; see speedup.log") == 2
    assert "NA: this machine has one GPU, and it needs two." in html
    assert "swap-cpu: not measured yet" in html
    assert "4 of 8 experiments measured" in html


def test_every_picture_has_a_name_of_its_own(lab) -> None:
    page = lab_page(lab)
    assert {"speedup", "epoch-time", "subtraction", "bandwidth", "loss", "layers"} < {*page.figures}
    assert page.html.count('<svg role="img"') == len(page.figures)


def test_a_damaged_file_spoils_one_experiment(lab) -> None:
    (lab / "layers-vgg16" / "layers.json").write_text("{")
    html = lab_page(lab).html
    assert "is damaged" in html
    assert html.count("NA: it cannot be read.") == 1


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((1.2, 1.1, 1.3), "vgg16 is faster."),
        ((1.0, 0.9, 1.1), "these measurements do not tell which is faster."),
        ((1.0,), "the interval is NA: 10 pairs are too few."),
    ],
)
def test_a_ratio_says_no_more_than_its_interval(tmp_path, numbers, said) -> None:
    page = layers_page("swap", read_layers(write_swap(tmp_path / "swap", *numbers)))
    assert said in page.html
    assert "Time of vgg16-swapped / time of vgg16" in page.html


def test_layers_have_bars_of_memory_and_power(tmp_path) -> None:
    layers = [
        *VGG[:2],
        layer("fc", "Linear(4, 4)", 1_000_000, 2_000_000, power=212.4),
        layer("big", "Conv2d()", 0, None),
    ]
    page = layers_page("run", read_layers(write_layers(tmp_path / "run", layers)))
    assert_self_contained(page.html)
    assert "fc (Linear) draws most power (212 W)." in page.html
    assert "<title>fc Linear: power 212.400</title>" in page.html
    assert "The whole model: parameters 553 MB, activation 7 MB, peak 573 MB." in page.html
    assert "out of memory: 7 GB" in page.html
    assert ">(model) VGG<" not in page.html


def test_power_that_is_not_known_is_no_zero(tmp_path) -> None:
    html = layers_page("run", read_layers(write_layers(tmp_path / "run", VGG))).html
    assert html.count(">NA</text>") == 1
    assert ": power 0" not in html
    assert f"NA: power: {NO_GPU}." in html


def test_a_measurement_that_was_stopped_says_so(tmp_path) -> None:
    folder = write_layers(tmp_path / "run", VGG[:2], reason="interrupted by SIGINT")
    assert "run is not complete: interrupted by SIGINT" in layers_page("run", read_layers(folder)).html


def test_names_from_files_are_inert(tmp_path) -> None:
    bad = "</title><script>alert(1)</script>"
    layers = [layer(bad, bad, 1, 1), layer(f"{bad}2", bad, 1, 1)]
    assert_self_contained(layers_page("run", read_layers(write_layers(tmp_path / "run", layers))).html)
    lab = write_lab(tmp_path / "lab", speedup=("failed", bad))
    assert_self_contained(lab_page(lab).html)


def test_the_command_writes_both_pages(lab, tmp_path, capsys) -> None:
    for folder, said in ((lab, "8 of 8 experiments"), (lab / "layers-vgg16", "report on layers")):
        output = tmp_path / "page.html"
        assert cli.main(["report", str(folder), "--output", str(output)]) == 0
        assert said in output.read_text()
    assert cli.main(["report", str(lab), str(lab)]) == 2
    assert "one lab at a time, found 2" in capsys.readouterr().err


@pytest.mark.slow
def test_times_that_something_disturbed_are_not_to_be_trusted(lab) -> None:
    assert "not to be trusted" not in lab_page(lab).html
    for path in (lab / "speedup" / "resnet18-ddp-w1-b32").glob("*.meta.json"):
        content = json.loads(path.read_text())
        epoch = next(one for one in content["epochs"] if one["phase"] == "timed")
        epoch |= {"step_p10_ns": 10**6, "step_median_ns": 10**6, "step_p90_ns": 3 * 10**6}
        write_json(path, content)
    html = lab_page(lab).html
    not_trusted = "NA: these times are not to be trusted: in resnet18-ddp-w1-b32 steps differ by up to 200%"
    assert html.count(f'<p class="verdict">{not_trusted}') == 2
    assert "times as fast as with one" not in html


def test_accuracies_say_how_much_is_chance(lab) -> None:
    # 10,000 images: 1.96 x sqrt(2 x 0.25 / 10,000) = 1.4 points
    assert (
        "with 10,000 test images, accuracies that differ by less than 1.4 points may differ by chance"
        in lab_page(lab).html
    )


def test_folders_elsewhere_are_not_read(lab) -> None:
    content = json.loads((lab / "lab.json").read_text())
    for name in ("../lab", "/etc", ".."):
        content["experiments"][0]["tasks"][0]["folder"] = name
        write_json(lab / "lab.json", content)
        with pytest.raises(DamagedMeasurement, match="expected names of folders beside it"):
            read_lab(lab)


def test_a_comparison_of_one_model_is_damaged(tmp_path) -> None:
    with pytest.raises(DamagedMeasurement, match="compares two models, but lists 4"):
        read_layers(write_layers(tmp_path / "run", VGG, ratio(1.0)))


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, NothingMeasured),
        ("{", DamagedMeasurement),
        ("[]", DamagedMeasurement),
        ('{"schema_version": 99, "complete": true, "layers": [], "experiments": []}', DamagedMeasurement),
        (
            '{"complete": true, "layers": [{"layer": 1}], "experiments": [{"name": "x", "tasks": []}]}',
            DamagedMeasurement,
        ),
    ],
)
def test_files_that_cannot_be_used_are_errors(tmp_path, content, error) -> None:
    for name, read in (("lab.json", read_lab), ("layers.json", read_layers)):
        if content is not None:
            (tmp_path / name).write_text(content)
        with pytest.raises(error, match=name):
            read(tmp_path)
