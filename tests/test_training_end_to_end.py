"""What `profiling train --epochs` writes, `analysis training` reads: only this holds the two together."""

import csv
import io
import json

import pytest

from commtrace import cli as analysis_cli

ALONE = ["--parallel", "single", "--device", "cpu", "--wait", "1", "--warmup", "1", "--active", "1", "--steps", "3"]


@pytest.mark.slow
def test_trainings_of_two_batch_sizes_are_compared(tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("torch")
    import tiny_model

    from commtrace import cli as profiling_cli
    from commtrace.profiling.workloads import models

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in tiny_model.REPLACED.items():
        monkeypatch.setitem(models.MODELS, name, value)
    for size in (8, 40):
        options = ["--epochs", "2", "--batch-size", str(size), "--dataset-samples", "80", "--run-name", f"b{size}"]
        assert profiling_cli.main(["train", *ALONE, *options, "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert analysis_cli.main(["table", "training", str(tmp_path), "--format", "csv"]) == 0
    small, large = sorted(
        csv.DictReader(io.StringIO(capsys.readouterr().out)), key=lambda row: row["run"], reverse=True
    )
    assert (small["run"], small["global_batch_size"], small["baseline"]) == ("b8", "8", "b8")
    assert (large["run"], large["global_batch_size"], large["data"]) == ("b40", "40", "synthetic")
    for row in (small, large):
        last = json.loads((tmp_path / row["run"] / "training.json").read_text())["epochs"][1]
        assert (float(row["test_loss"]), int(row["epoch_ns"])) == (last["test"]["loss"], last["step_ns"])
        assert float(row["test_accuracy_frac"]) == last["test"]["accuracy"]
        assert row["note"] == ""
    assert analysis_cli.main(["breakdown", str(tmp_path / "b8")]) == 0, "its traces are read as before"
    assert "left out" not in capsys.readouterr().err
