"""Reports in a real browser: nothing is fetched, nothing fails, and what can be clicked does what it says."""

from pathlib import Path

import pytest
from browsing import found_by, looked_at, needs_browser, with_script
from builders import MS, Collective, analysed, traces_of

from commtrace import analyse

DATA = Path(__file__).parent.parent / "data"
pytestmark = needs_browser


@pytest.fixture(scope="module")
def html() -> str:
    return analyse(DATA / "nccl-two-hosts").report().html


def seen(folder: Path, html: str, code: str = "return 1"):
    page = folder / "page.html"
    page.write_text(with_script(html, code), encoding="utf-8")
    return looked_at(page, folder)


def test_it_is_quiet_and_fetches_nothing(tmp_path, html) -> None:
    found = seen(tmp_path, html)
    assert found.console == []
    assert found.addresses == []
    assert '<figure id="figure-step">' in found.dom


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
def test_one_heat_map_at_a_time_and_rows_in_another_order(tmp_path, html) -> None:
    code = """
      const section = document.querySelector("#steps"), shown = () => [...section.querySelectorAll("figure")].map((f) => !f.hidden);
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
def test_the_step_can_be_stretched(tmp_path, html) -> None:
    code = """
      const figure = document.querySelector("#figure-step"), box = () => figure.querySelector("svg.zoom").getAttribute("viewBox");
      const press = (key) => figure.querySelector(".plot").dispatchEvent(new KeyboardEvent("keydown", { key }));
      const whole = box(); press("+"); const half = box(); press("ArrowRight"); const later = box(); press("0");
      return [whole, half, later, box()].map((text) => text.split(" ").map(Number));
    """  # noqa: E501
    whole, half, later, again = found_by(seen(tmp_path, html, code))
    assert half[2] == pytest.approx(whole[2] / 2)
    assert later[0] > half[0]
    assert again == whole


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
