"""Reports in a real browser: nothing is fetched, nothing fails, and what can be clicked does what it says."""

import csv
import re
from pathlib import Path

import pytest
from browsing import found_by, looked_at, looked_at_address, needs_browser, with_script
from builders import MS, Collective, analysed, traces_of

from commtrace import analyse
from commtrace.analysis.core.schema import records

DATA = Path(__file__).parent.parent / "data"
pytestmark = needs_browser


@pytest.fixture(scope="module")
def html() -> str:
    return analyse(DATA / "nccl-two-hosts").report().html


def seen(folder: Path, html: str, code: str = "return 1"):
    page = folder / "page.html"
    page.write_text(with_script(html, code), encoding="utf-8")
    return looked_at(page, folder)


@pytest.mark.slow
def test_it_is_quiet_and_fetches_nothing(tmp_path, html) -> None:
    found = seen(tmp_path, html)
    assert found.console == []
    assert found.addresses == []
    assert 'aria-label="step' in found.dom


@pytest.mark.slow
def test_the_policy_holds(tmp_path, html) -> None:
    """What a trace might smuggle in is refused: inline handlers, scripts, styles, pictures."""
    smuggled = (
        '<img src="https://example.org/x.png" onerror="document.body.id=\'hit\'">'
        '<script>document.body.id="hit"</script>'
        '<p style="color:red">x</p>'
    )
    found = seen(tmp_path, html.replace("<footer>", f"{smuggled}<footer>"), "return document.body.id")
    assert found_by(found) == ""
    assert found.addresses == []
    assert len(found.console) >= 3


@pytest.mark.slow
def test_tables_are_sorted_by_a_click(tmp_path, html) -> None:
    code = """
      const table = [...document.querySelectorAll("details")].find((d) => d.textContent.includes("Table: breakdown")).querySelector("table");
      const column = [...table.tHead.rows[0].cells].findIndex((c) => c.textContent.startsWith("idle"));
      const values = () => [...table.tBodies[0].rows].map((r) => Number(r.cells[column].textContent.replaceAll(",", "")));
      const button = table.tHead.rows[0].cells[column].firstChild;
      button.click(); const down = values(); const sort = button.parentElement.getAttribute("aria-sort");
      button.click(); return [down, sort, values()];
    """  # noqa: E501
    down, sort, up = found_by(seen(tmp_path, html, code))
    assert down == sorted(down, reverse=True)
    assert up == sorted(up)
    assert sort == "descending"


@pytest.mark.slow
def test_rows_are_filtered_and_numbers_lead_to_their_step(tmp_path, html) -> None:
    code = """
      const details = document.querySelector("[data-table=rank_steps]"); details.open = true;
      details.dispatchEvent(new Event("toggle"));
      const rows = [...details.querySelectorAll("tbody tr")], field = details.querySelector("input[type=search]");
      field.value = "no such words"; field.dispatchEvent(new Event("input")); const none = rows.filter((r) => !r.hidden).length;
      field.value = ""; field.dispatchEvent(new Event("input"));
      return [none, rows.filter((r) => !r.hidden).length === rows.length, rows[0].querySelector("a").getAttribute("href"),
              details.querySelector("th").title.length > 3];
    """  # noqa: E501
    none, all_again, link, explained = found_by(seen(tmp_path, html, code))
    assert none == 0
    assert all_again
    assert explained
    assert link.startswith("#rank=")
    assert "&step=" in link


@pytest.mark.slow
def test_one_heat_map_at_a_time_and_rows_in_another_order(tmp_path, html) -> None:
    code = """
      const section = document.querySelector("#ranks"), shown = () => [...section.querySelectorAll("figure")].map((f) => !f.hidden);
      const first = shown(); section.querySelectorAll(".tools button")[1].click();
      const plot = section.querySelector("figure:not([hidden]) .plot");
      plot.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
      return [first, shown(), section.querySelector("figure:not([hidden]) .readout").textContent];
    """  # noqa: E501
    first, second, told = found_by(seen(tmp_path, html, code))
    assert first[0]
    assert sum(first) == sum(second) == 1
    assert second[1]
    assert told.startswith("rank 0, step ")


@pytest.mark.slow
def test_the_step_can_be_stretched_and_changed(tmp_path, html) -> None:
    code = """
      const stage = document.querySelector("#stage"), plot = stage.querySelector("[tabindex]");
      const labels = () => [...plot.querySelectorAll("text.mid")].map((text) => Number(text.textContent.replaceAll(",", "")));
      const press = (key) => plot.dispatchEvent(new KeyboardEvent("keydown", { key }));
      const whole = labels(); press("+"); const half = labels(); press("ArrowRight"); const later = labels(); press("0");
      const again = labels(); const steps = stage.querySelector("select");
      steps.selectedIndex = steps.selectedIndex ? 0 : 1; steps.dispatchEvent(new Event("change"));
      window.dispatchEvent(new HashChangeEvent("hashchange"));
      return [whole, half, later, again, steps.options[steps.selectedIndex].textContent, plot.querySelector("svg").getAttribute("aria-label")];
    """  # noqa: E501
    whole, half, later, again, chosen, drawn = found_by(seen(tmp_path, html, code))
    assert half[-1] - half[0] < whole[-1] - whole[0]
    assert later[0] >= half[0]
    assert again == whole
    assert drawn.startswith(chosen)


def late_on_cpu(folder):
    """Rank 1 launches 20 ms late: its CPU is in `aten::nonzero` for most of them."""
    traces = traces_of(3, [Collective((10 * MS, 30 * MS, 11 * MS), 5 * MS, elems=10**7)])
    for trace in traces:
        trace.host = "node"
        trace.step(0, 0, 60 * MS).kernel("gemm", 2 * MS, 3 * MS)
        if trace.rank == 1:
            trace.event("cpu_op", "aten::nonzero", 11 * MS, 18 * MS)
    analysed(folder, *traces)
    return analyse(folder, details=True)


@pytest.mark.slow
def test_from_the_headline_to_the_operator_of_the_late_rank(tmp_path) -> None:
    """One click: the link of the headline leads to the step, its collective, and what the late rank's CPU did."""
    run = late_on_cpu(tmp_path / "run")
    [late] = run.lateness.to_dict("records")
    page = tmp_path / "page.html"
    code = """
      const link = document.querySelector("h1 a"); location.hash = link.getAttribute("href");
      window.dispatchEvent(new HashChangeEvent("hashchange"));
      const panel = document.querySelector("#call");
      return [link.textContent, panel.querySelector(".say").textContent,
              [...panel.querySelectorAll("tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent)),
              [...panel.querySelectorAll("svg title")].map((title) => title.textContent), location.hash];
    """
    page.write_text(with_script(run.report().html, code), encoding="utf-8")
    who, says, rows, events, address = found_by(looked_at(page, tmp_path))
    assert who == "Rank 1"
    assert address == "#step=0&rank=1"
    assert (
        f"Rank 1 came {late['late_ns'] / 1e6:g} ms late. The others waited {late['caused_wait_ns'] / 1e6:g} ms" in says
    )
    assert "aten::nonzero: 18 ms" in events
    expected = run.participation.sort_values("arrived_ns", ascending=False)
    first = int(expected["arrived_ns"].min())
    assert [[int(row[0]), *(float(cell.replace(",", "")) for cell in row[1:])] for row in rows] == [
        [
            row["rank"],
            pytest.approx((row["arrived_ns"] - first) / 1e6, abs=1e-6),
            pytest.approx(row["wait_ns"] / 1e6, abs=1e-6),
            pytest.approx(row["transfer_ns"] / 1e6, abs=1e-6),
        ]
        for row in expected.to_dict("records")
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "address", ["#step=999", "#rank=77", "#collective=12345", "#step=x&rank=%3Cb%3E", "#bandwidth"]
)
def test_addresses_that_lead_nowhere_do_no_harm(tmp_path, html, address) -> None:
    page = tmp_path / "page.html"
    page.write_text(html, encoding="utf-8")
    found = looked_at_address(f"{page.as_uri()}{address}", tmp_path)
    assert found.console == []
    assert 'aria-label="step' in found.dom


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("#step=999", "There is no step 999 here: the steps are"),
        ("#rank=77", "Rank 77 did nothing in step"),
        ("#collective=12345", "has the number 12345."),
    ],
)
def test_what_is_not_there_is_said(tmp_path, html, address, said) -> None:
    page = tmp_path / "page.html"
    page.write_text(html, encoding="utf-8")
    assert said in looked_at_address(f"{page.as_uri()}{address}", tmp_path).dom


@pytest.mark.slow
def test_rows_are_copied_as_the_command_writes_them(tmp_path, html) -> None:
    run = analyse(DATA / "nccl-two-hosts")
    code = """
      const details = document.querySelector("[data-table=breakdown]"); details.open = true;
      return [csvOf(details), csvOf(document.querySelector("[data-table=kernels]"))];
    """
    breakdown, kernels = ([*csv.reader(lines)] for lines in found_by(seen(tmp_path, html, code)))
    heads = breakdown[0]
    assert heads == [name for name in run.breakdown if name in heads]  # some are left out for people
    assert len(heads) > 5
    for row, exact in zip(breakdown[1:], records(run.breakdown), strict=True):
        for name, text in zip(heads, row, strict=True):
            if isinstance(exact[name], str):
                assert text == exact[name]
            else:
                assert float(text) == pytest.approx(exact[name], rel=0.01, abs=0.06e6 if name.endswith("_ns") else 0.06)
    at = kernels[0].index("name")
    assert [row[at] for row in kernels[1:]] == run.kernels["name"].tolist()


@pytest.mark.slow
def test_no_formula_is_copied(tmp_path) -> None:
    names = ["=1+1", "@SUM(A1)", "a;=2", "'+3", "plain-name"]
    [trace] = traces_of(1, [])
    trace.step(0, 0, 90 * MS)
    for at, name in enumerate(names):
        trace.kernel(name, at * MS, MS)
    html = analysed(tmp_path / "run", trace).report().html
    lines = found_by(seen(tmp_path, html, 'return csvOf(document.querySelector("[data-table=kernels]"))'))
    rows = [*csv.DictReader(lines)]
    assert {row["name"] for row in rows} == {"'=1+1", "'@SUM(A1)", "a;'=2", "''+3", "plain-name"}


@pytest.mark.slow
def test_the_address_says_which_part_and_which_ranks_are_shown(tmp_path, html) -> None:
    code = """
      const stage = document.querySelector("#stage"), plot = stage.querySelector("[tabindex]");
      plot.dispatchEvent(new KeyboardEvent("keydown", { key: "+" }));
      const range = stage.querySelector("input"); range.value = "0-2"; range.dispatchEvent(new Event("input"));
      return [location.hash, [...plot.querySelectorAll("text.mid")].map((text) => text.textContent)];
    """
    address, labels = found_by(seen(tmp_path, html, code))
    page = tmp_path / "again.html"
    page.write_text(html, encoding="utf-8")
    dom = looked_at_address(f"{page.as_uri()}{address}", tmp_path).dom
    shown = re.search(r'<div tabindex="0" role="group" aria-label="The step on every rank">.*?</div>', dom, re.DOTALL)
    assert re.findall(r'class="faint mid"[^>]*>([^<]+)<', shown[0]) == labels
    assert re.findall(r">rank (\d+)", shown[0]) == ["0", "1", "2"]


@pytest.mark.slow
def test_hostile_names_run_nothing(tmp_path) -> None:
    name = "<script>document.body.id='hit'</script><img src=x onerror=\"document.body.id='hit'\">"
    traces = traces_of(2, [Collective((0, 20 * MS), 30 * MS, elems=10**6, args={"Process Group Name": name})])
    for trace in traces:
        trace.host = name
        trace.step(0, 0, 90 * MS).kernel(name, 60 * MS, 5 * MS)
    found = seen(tmp_path, analysed(tmp_path / "run", *traces).report().html, "return document.body.id")
    assert found_by(found) == ""
    assert found.console == []
    assert found.addresses == []


@pytest.mark.slow
def test_a_notebook_shows_the_first_screen_as_high_as_it_is(tmp_path) -> None:
    shown = analyse(DATA / "nccl-two-hosts")._repr_html_()
    code = """
      const measure = () => { const frame = document.querySelector("iframe");
        document.title = JSON.stringify([frame.clientHeight, frame.contentDocument.documentElement.offsetHeight]); };
      addEventListener("load", () => setTimeout(measure, 200));
    """
    page = tmp_path / "notebook.html"
    page.write_text(f"<!doctype html><title></title>{shown}<script>{code}</script>", encoding="utf-8")
    found = looked_at(page, tmp_path)
    assert found.console == []
    assert found.addresses == []
    high, needed = found_by(found)
    assert high == needed > 300


@pytest.mark.slow
def test_a_group_leads_to_all_rows_that_have_it(tmp_path, html) -> None:
    code = """
      const table = document.querySelector("[data-table=verdicts]");
      table.open = true; table.dispatchEvent(new Event("toggle")); table.open = false;
      const cell = table.querySelector("tbody a[href^='#find=']");
      location.hash = cell.getAttribute("href"); window.dispatchEvent(new HashChangeEvent("hashchange"));
      const shown = [...document.querySelectorAll("details.table[open] tbody tr")].filter((row) => !row.hidden);
      const has = shown.every((row) => {
        const at = [...row.closest("table").querySelectorAll("thead th")].findIndex((head) => head.dataset.column === "process_group");
        return row.cells[at].textContent === cell.textContent;
      });
      const open = document.querySelectorAll("details.table[open]").length;
      location.hash = ""; window.dispatchEvent(new HashChangeEvent("hashchange"));
      const hidden = [...document.querySelectorAll("details.table tbody tr")].filter((row) => row.hidden).length;
      return [cell.textContent, shown.length, has, open > document.querySelectorAll("details.table[open]").length, hidden];
    """  # noqa: E501
    group, shown, all_have_it, closed_again, hidden = found_by(seen(tmp_path, html, code))
    assert group
    assert shown
    assert all_have_it
    assert closed_again
    assert not hidden
