"""`table layers` and `table capacity`: what was measured of a machine, in every format, and what is said of gaps."""

import json

import pytest
from machine_builders import VGG, write_capacity, write_layers, write_swap

from commtrace import analyse_machine
from commtrace.cli import main


def ran(capsys, *arguments, code=0):
    assert main([str(a) for a in arguments]) == code
    return capsys.readouterr()


def test_layers_have_their_memory_as_the_file_has_it(capsys, tmp_path):
    folder = write_layers(tmp_path, VGG)
    content = json.loads(ran(capsys, "table", "layers", folder, "-f", "json").out)
    assert content["table"] == "layers"
    assert [row["parameters_bytes"] for row in content["rows"]] == [553_000_000, 7_168, 0, 411_000_000]
    shown = ran(capsys, "table", "layers", folder, "--columns", "layer,forward_ns,note").out
    assert shown.count("power: NVML knows NVIDIA GPUs only") == 4
    assert " 2,000.000 " in shown  # us, as fine as a small layer needs it
    assert list(analyse_machine(folder).layers["layer"]) == [entry["layer"] for entry in VGG]


def test_two_models_are_compared_by_pass(capsys, tmp_path):
    folder = write_swap(tmp_path, 0.957, 0.602, 2.043)
    lines = ran(capsys, "table", "layers", "--by", "ratio", folder, "-f", "csv").out.splitlines()
    assert lines[1] == "forward,0.957,0.602,2.043,10"
    assert list(analyse_machine(folder).time_ratios["ratio"]) == [0.957] * 3


def test_one_model_has_no_ratios(capsys, tmp_path):
    error = ran(capsys, "table", "layers", "--by", "ratio", write_layers(tmp_path, VGG), code=1).err
    assert "run `commtrace layers` with --against" in error


def test_the_capacity_table_of_a_report(capsys, tmp_path):
    """61 + 62 layers on one GPU, 84 + 0 and 54 + 62 on two."""
    folder = write_capacity(tmp_path)
    columns = "devices,split,conv_layers,linear_layers,step_ns,peak_bytes"
    assert ran(capsys, "table", "capacity", "--columns", columns, folder, "-f", "markdown").out.splitlines()[2:] == [
        "| 1 | 61+62 | 61 | 62 | 250.0 | - |",
        "| 2 | 84+0, 54+62 | 138 | 62 | 410.5 | 1,000,000 |",
        "| 3 | - | - | - | - | - |",
    ]
    assert list(analyse_machine(folder).capacity["fits"]) == [True, True, False]


@pytest.mark.parametrize(("table", "write"), [("layers", write_layers), ("capacity", write_capacity)])
def test_what_was_stopped_or_is_not_there_says_so(capsys, tmp_path, table, write):
    error = ran(capsys, "table", table, tmp_path, code=1).err
    assert f"{table}.json: is not there; expected what `commtrace {table}` writes" in error
    arguments = {"layers": VGG} if table == "layers" else {}
    assert (
        "note: not all was measured: ^C" in ran(capsys, "table", table, write(tmp_path, reason="^C", **arguments)).err
    )


def test_a_damaged_file_names_the_field(capsys, tmp_path):
    path = write_capacity(tmp_path) / "capacity.json"
    path.write_text(path.read_text().replace('"fits": true', '"fits": 7'))
    assert "capacities[0].fits" in ran(capsys, "table", "capacity", tmp_path, code=1).err
