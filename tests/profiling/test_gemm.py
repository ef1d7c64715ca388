"""`commtrace gemm` on a CPU: every dtype has a figure or a reason, and --peak takes the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from builders import MS, US, Trace

from commtrace import AnalysisError, analyse
from commtrace.analysis.core.schema import records
from commtrace.cli import main


@pytest.mark.slow
def test_what_gemm_measures_is_a_peak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path), "--run-name", "peak", "--device", "cpu"]
    what = ["--dtype", "float32", "--dtype", "float8_e4m3fn", "--dtype", "tf32", "--size", "32", "--size", "64"]
    before = torch.get_float32_matmul_precision()
    assert main(["gemm", *out, *what, "--copy", "1MiB", "--warmup", "1", "--iters", "3"]) == 0
    assert torch.get_float32_matmul_precision() == before
    shown, said = capsys.readouterr()
    assert [line.split()[:3] for line in shown.splitlines()[2:]] == [
        *(["cpu", name, size] for name in ("tf32", "float32", "float8_e4m3fn") for size in ("32", "64")),
        ["cpu", "memory", "1048576"],
    ]
    assert "tf32 was not measured: this device has no TF32" in said
    file = json.loads((tmp_path / "peak" / "gemm.json").read_text())
    assert file["complete"]
    results = {(entry["name"], entry["rows"]): entry for entry in file["results"]}
    product, copy = results["float32", 64], results["memory", None]
    assert len(product["times_ns"]) == 3
    assert product["tflop_per_s"] == pytest.approx(2 * 64**3 / sorted(product["times_ns"])[1] / 1e3)
    assert copy["tb_per_s"] == pytest.approx(2 * 2**20 / sorted(copy["times_ns"])[1] / 1e3)

    run = tmp_path / "run"
    made = Trace(0, 1)
    inputs = {"Input Dims": [[64, 64]] * 2, "Input type": ["float"] * 2}
    made.event("cpu_op", "aten::mm", 0, 20 * US, **inputs).kernel("sgemm", 50 * US, 900 * MS, launch=5 * US)
    made.write(run)
    args = ["compute", "--by", "shape", "--no-cache", str(run), "--format", "json", "--peak", str(tmp_path / "peak")]
    assert main(args) == 0
    shown, said = capsys.readouterr()
    (row,) = json.loads(shown)["rows"]
    best = max(results["float32", size]["tflop_per_s"] for size in (32, 64))
    assert row["peak_frac"] == pytest.approx(2 * 64**3 / 900e-3 / 1e12 / best)
    assert row["peak_from"] == "measured"
    assert "TFLOP/s as measured on" in said
    assert main([*args, "--peak", "fp32=2"]) == 0  # a figure goes before the file
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["peak_frac"], row["peak_from"]) == (pytest.approx(2 * 64**3 / 900e-3 / 2e12), "given and measured")
    (row,) = records(analyse(run, details=True, cache=False, peaks=tmp_path / "peak").shapes)
    assert row["peak_from"] == "measured"

    for content, why in (
        ('{"tool": "commtrace layers", "complete": true, "results": []}', "found one of commtrace layers"),
        ('{"tool": "commtrace gemm", "complete": true, "results": []}', "holds no measurement"),
        ('{"tool": "commtrace gemm", "complete": false, "results": [{"name": "bf17", "tflop_per_s": 1}]}', "bf17"),
        ("[]", "found other JSON"),
    ):
        (tmp_path / "other.json").write_text(content)
        with pytest.raises(AnalysisError, match=why):
            analyse(run, peaks=tmp_path / "other.json")
    assert main([*args, "--peak", str(tmp_path / "nowhere")]) == 1
    assert "nowhere: cannot be read" in capsys.readouterr().err


def test_sizes_that_not_every_dtype_takes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gemm", "--device", "cpu", "--size", "40"]) == 2
    assert "--size 40: expected a multiple of 16" in capsys.readouterr().err
    assert main(["gemm", "--device", "cpu", "--dtype", "int3"]) == 2
    assert "--dtype int3: expected one of bfloat16" in capsys.readouterr().err
