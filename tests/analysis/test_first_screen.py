"""The first screen: numbers are those of the tables, sentences name whom the tables name, yardsticks are fair."""

from pathlib import Path

import pytest
from builders import MS, Collective, analysed, traces_of

from commtrace import analyse
from commtrace.analysis.ceilings.yardsticks import yardstick
from commtrace.analysis.core.schema import records
from commtrace.analysis.render.units import TimeUnit
from commtrace.analysis.report.first import first_view
from commtrace.analysis.show.first_screen import Mfu, first_screen
from commtrace.analysis.show.overview import brief
from commtrace.cli import main
from commtrace.common.wording import bytes_text

DATA = Path(__file__).parent.parent / "data"


def late_run(folder, late=2, *, ranks=4, size=10**7, host=None, device=None):
    """A step in which `late` computes 20 ms longer than the others before one all_reduce."""
    arrivals = {rank: 30 * MS if rank == late else 10 * MS for rank in range(ranks)}
    traces = traces_of(ranks, [Collective(arrivals, 5 * MS, elems=size)])
    for trace in traces:
        trace.host = host(trace.rank) if host else "node"
        if device:
            trace.device_names = (device,) * 8
        trace.step(0, 0, 40 * MS).kernel("gemm", 0, arrivals[trace.rank])
    return analysed(folder, *traces)


@pytest.mark.slow
def test_parts_are_those_of_the_typical_step_and_add_up(tmp_path) -> None:
    run = late_run(tmp_path)
    screen = first_screen(run)
    parts = {part.column: part.ns for part in screen.parts}
    assert parts == {column: run.typical_step.parts[column] for column in parts}
    assert sum(parts.values()) == pytest.approx(run.typical_step.parts["window_ns"])
    assert sum(part.frac for part in screen.parts) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("late", [0, 3])
def test_the_headline_names_the_late_rank_and_leads_to_it(tmp_path, late) -> None:
    run = late_run(tmp_path, late)
    view = first_view(run)
    assert (view.before_culprit, view.culprit) == ("Waiting for ", f"rank {late}")
    step = int(run.rank_steps.sort_values("caused_wait_ns").iloc[-1]["step"])
    assert view.culprit_link == f"#step={step}&rank={late}"
    assert [bar.rank for bar in view.rank_bars if bar.late] == [late]
    assert [line.rank for line, _ in view.map if line.late] == [late]
    assert "computes 20.0 ms per step longer than the others" in view.screen.why


@pytest.mark.slow
def test_the_headline_of_a_run_whose_steps_nobody_delays_has_no_link(tmp_path) -> None:
    traces = traces_of(2, [Collective((10 * MS, 10 * MS), 15 * MS, elems=10**6)])
    for trace in traces:
        trace.step(0, 0, 40 * MS).kernel("gemm", 1 * MS, 9 * MS)
    view = first_view(analysed(tmp_path, *traces))
    assert view.screen.headline == "Exposed transfers take 15.0 ms of every 24.0 ms step"
    assert (view.culprit, view.culprit_link) == ("", "")
    assert view.map == []


@pytest.mark.slow
def test_a_hang_has_no_remedies_and_says_who_never_came() -> None:
    screen = first_screen(analyse(DATA / "nccl-hang"))
    assert "never issued" in screen.headline
    assert screen.remedies == ()


@pytest.mark.slow
def test_bandwidth_stands_beside_the_links_of_the_gpu(tmp_path) -> None:
    [rate] = first_screen(late_run(tmp_path)).rates
    assert rate.what == "all_reduce of 38.1 MiB"
    assert rate.of_yardstick_frac == pytest.approx(rate.fastest_gb_per_s / 450)
    assert rate.beside == f"{rate.fastest_gb_per_s / 450:.0%} of NVLink 4"


@pytest.mark.quick_cases("small calls are limited by latency-options1")
@pytest.mark.parametrize(
    ("why", "options"),
    [
        ("between hosts NVLink is no yardstick", {"host": lambda rank: f"node{rank // 2}"}),
        ("small calls are limited by latency", {"size": 1000}),
        ("nobody knows this device", {"device": "Frobnicator 9"}),
    ],
)
def test_there_is_no_yardstick(tmp_path, why, options) -> None:
    assert why
    assert all(rate.of_yardstick_frac is None for rate in first_screen(late_run(tmp_path, **options)).rates)


@pytest.mark.slow
def test_the_ceiling_goes_before_the_yardstick(tmp_path) -> None:
    run = late_run(tmp_path / "run")
    ceiling = tmp_path / "ceiling.txt"
    ceiling.write_text(
        "# Collective test starting: all_reduce_perf\n# nThread 1 nGpus 1 minBytes 40000000\n"
        "#  Rank  0 Group  0 Pid 1 on node device 0 [0x01] X\n#  Rank  1 Group  0 Pid 2 on node device 1 [0x02] X\n"
        "#  Rank  2 Group  0 Pid 3 on node device 2 [0x03] X\n#  Rank  3 Group  0 Pid 4 on node device 3 [0x04] X\n"
        "    40000000      10000000     float     sum      -1   5000.0   8.00   12.00       0\n",
        encoding="utf-8",
    )
    with_ceiling = analyse(tmp_path / "run", ceiling=ceiling)
    [rate] = first_screen(with_ceiling).rates
    [row] = [row for row in records(with_ceiling.bandwidth_ceiling) if row["of_ceiling_frac"] is not None]
    assert rate.of_yardstick_frac == row["of_ceiling_frac"]
    assert rate.beside.endswith("of the ceiling")
    assert first_screen(run).rates[0].beside.endswith("of NVLink 4")


@pytest.mark.parametrize(
    ("device", "link"),
    [
        ("NVIDIA H100 80GB HBM3", "NVLink 4"), ("NVIDIA H100 PCIe", "PCIe 5"), ("NVIDIA GH200 480GB", "NVLink 4"),
        ("NVIDIA A100-SXM4-40GB", "NVLink 3"), ("NVIDIA A100-PCIE-40GB", "PCIe 4"), ("NVIDIA A10G", "PCIe 4"),
        ("Tesla V100-SXM2-16GB", "NVLink 2"), ("Tesla T4", "PCIe 3"), ("NVIDIA B200", "NVLink 5"),
        ("AMD Instinct MI300X", "Infinity Fabric"), ("NVIDIA A1000 Laptop", None), (None, None), ("", None),
    ],
)  # fmt: skip
def test_links_by_the_name_of_the_device(device, link) -> None:
    known = yardstick(device)
    assert (None if known is None else known.name) == link


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (192, "192 B"), (1023, "1,023 B"), (2304, "2.25 KiB"), (150_994_944, "144 MiB"), (1 << 30, "1 GiB"),
     (5 << 40, "5 TiB"), (5 << 50, "5,120 TiB"), (None, "unknown size")],
)  # fmt: skip
def test_sizes_are_scaled(size, text) -> None:
    assert bytes_text(size) == text


def test_times_of_a_step_share_a_unit() -> None:
    short, long = TimeUnit.of(300_000), TimeUnit.of(42_000_000)
    assert (short.text(140_000), long.text(140_000), long.between(1, 2)) == ("140 us", "0.1 ms", "")


# On a terminal and to paste


@pytest.mark.slow
def test_a_paragraph_and_a_small_table_to_paste(tmp_path) -> None:
    text = brief(late_run(tmp_path))
    paragraph, table, about = text.strip().split("\n\n")
    assert paragraph.startswith("**Waiting for rank 2 ")
    assert "\n" not in paragraph
    assert 3 <= len(table.splitlines()) <= 9
    assert about.endswith(f"`commtrace {tmp_path.name}`")


@pytest.mark.slow
def test_markdown_of_the_command_is_that_paragraph_and_all_of_it_with_all(tmp_path, capsys) -> None:
    late_run(tmp_path / "run")
    assert main(["summary", "--format", "markdown", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.startswith("**Rank 2 ")
    assert main(["summary", "--all", "--format", "markdown", str(tmp_path / "run")]) == 0
    assert "### " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("name", ["nccl-straggler", "nccl-two-hosts", "gloo-training"])
def test_the_screen_fits(name, width, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([str(DATA / name)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 34
    assert max(map(len, lines[:-2])) <= 100


@pytest.mark.slow
def test_a_folder_of_runs_has_a_line_for_each(tmp_path, capsys) -> None:
    late_run(tmp_path / "slow")
    late_run(tmp_path / "below" / "slower", 0)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "rank0.pt.trace.json").write_text("no trace", encoding="utf-8")
    assert main([str(tmp_path)]) == 1
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[2:]}
    assert lines["slow"].split(maxsplit=1)[1].startswith("Rank 2 ")
    assert lines["below/slower"].split(maxsplit=1)[1].startswith("Rank 0 ")
    assert lines["broken"].split(maxsplit=1)[1].startswith("error: ")


@pytest.mark.parametrize(
    ("least", "most", "said"),
    [
        (0.2234, 0.2234, "22.3% of the dense peak."),
        (0.0004, 0.0004, "under 0.1% of the dense peak."),
        (0.2231, 0.2234, "22.3% of the dense peak."),
        (0.2234, 0.2712, "22.3 to 27.1% of the dense peak: FLOPs of some kernels are not known."),
        (0.0004, 0.0942, "0.04 to 9.4% of the dense peak: FLOPs of some kernels are not known."),
    ],
)
def test_an_mfu_in_words(least, most, said) -> None:
    assert Mfu(least, most, "dense peak").said == f"MFU is {said}"
