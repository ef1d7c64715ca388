"""The profile for torch's compiler, as torch's own loader reads it."""

import json
from pathlib import Path
from typing import Any

import pytest
from builders import MS, US, Collective, traces_of

from commtrace import analyse, cli
from commtrace.analysis.errors import NothingMeasured
from commtrace.analysis.exports.inductor import inductor_profile

DATA = Path(__file__).parent / "data"
GEMM = {
    "Input Dims": [[8, 16], [16, 4], []],
    "Input Strides": [[16, 1], [4, 1], []],
    "Input type": ["float", "float", ""],
}


def loaded(path: Path) -> Any:
    guided = pytest.importorskip("torch._inductor.fx_passes.profile_guided_estimation")
    found = guided.ProfileData()
    found.load(str(path))
    return found


def written(folder: Path, out: Path, *options: str) -> Any:
    assert cli.main(["export", "inductor", str(folder), "--output", str(out), *options]) == 0
    return loaded(out)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nccl-straggler", "nccl-two-hosts"])
def test_torch_looks_up_our_transfers(name: str, tmp_path: Path) -> None:
    profile = written(DATA / name, tmp_path / "x.json")
    found = analyse(DATA / name)
    known = found.calls.merge(found.participation[["call_id", "transfer_ns"]], on="call_id")
    known = known.dropna(subset=["dtype", "out_elems", "transfer_ns", "pg_ranks"])
    sizes = known.groupby(["collective", "pg_ranks", "dtype", "out_elems"])["transfer_ns"].median()
    assert len(sizes) == len(profile.collectives) > 0
    names = {"float32": "Float", "bfloat16": "BFloat16"}
    for (collective, ranks, dtype, elems), transfer in sizes.items():
        group = tuple(map(int, ranks.split()))
        took, source = profile.lookup_collective(collective, group, elems, names[dtype])
        assert source == "profile"
        assert took == pytest.approx(transfer / 1e6, abs=1e-6)


def two_ranks(folder: Path) -> None:
    """Rank 1 comes 20 ms late to two all_reduce of 5 and 7 ms; each rank has an operator."""
    calls = [
        Collective((0, 20 * MS), 5 * MS, elems=1000),
        Collective((40 * MS, 60 * MS), 7 * MS, elems=1000),
    ]
    for trace in traces_of(2, calls):
        trace.event("cpu_op", "aten::mm", 80 * MS, 50 * US, **{"External id": 77}, **GEMM)
        trace.kernel("gemm", 81 * MS, (1 + trace.rank) * MS, external_id=77)
        trace.write(folder, f"x{trace.rank}.json")


@pytest.mark.slow
def test_waiting_is_not_in_it_and_operators_are(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    profile = written(tmp_path, tmp_path / "out.txt")
    [(name, ranks, dtype)] = profile.get_collective_keys()
    assert (name, ranks) == ("all_reduce", (0, 1))
    assert profile.lookup_collective(name, ranks, 1000, dtype)[0] == pytest.approx(6.0)
    torch = pytest.importorskip("torch")
    shapes, strides = ((8, 16), (16, 4)), ((16, 1), (4, 1))
    assert profile.lookup_op("aten::mm", shapes, strides, torch.float32) == pytest.approx(1.0)


@pytest.mark.slow
def test_the_rank_whose_operators_are_taken_can_be_chosen(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    profile = written(tmp_path, tmp_path / "out.txt", "--rank", "1")
    assert [op.duration_us for op in profile.ops] == [2000.0]
    with pytest.raises(NothingMeasured, match="has no trace of rank 7; there are 0, 1"):
        inductor_profile(analyse(tmp_path), 7)


@pytest.mark.slow
def test_what_is_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(DATA / "nccl-straggler", tmp_path / "x.json")
    said = capsys.readouterr().err
    assert "32 calls of collectives left out: the trace has no size" in said
    assert "no operator has shapes; capture with record_shapes=True" in said


@pytest.mark.slow
def test_a_lone_rank_has_no_transfers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    two_ranks(tmp_path)
    (tmp_path / "x1.json").unlink()
    assert cli.main(["export", "inductor", str(tmp_path), "-o", str(tmp_path / "out.txt")]) == 1
    assert "shows no collective whose size and transfer are known" in capsys.readouterr().err
    assert not (tmp_path / "out.txt").exists()


@pytest.mark.slow
def test_it_is_named_after_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["export", "inductor", str(DATA / "nccl-straggler")]) == 0
    assert json.loads((tmp_path / "nccl-straggler.inductor.json").read_text())["traceEvents"]
