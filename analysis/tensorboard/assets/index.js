// The tab: a list of runs that fills as they are read, the report of one, or two reports side by side.
const make = (name, properties, ...inside) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...inside);
  return element;
};
const COLUMNS = [
  { key: "run", title: "Run" },
  { key: "verdict", title: "Class" },
  { key: "headline", title: "What limits it" },
  { key: "step_ns", title: "Step, ms", number: true, help: "Length of a typical step" },
  { key: "exposed_comm_ns", title: "Exposed communication, ms", number: true, share: "exposed_comm_frac", help: "Time of a step in which devices communicate and do not compute" },
  { key: "gain_ns", title: "First remedy, ms", number: true, share: "gain_frac", help: "By how much its first remedy would shorten a step; - where that is not known" },
];
const STATES = { waiting: "waiting ...", reading: "reading ..." };
const OFTEN_MS = 1000, SELDOM_MS = 15000;
const named = (run) => (run === "." ? "(log directory)" : run);
const ms = (ns) => (ns / 1e6).toLocaleString("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 });
// TensorBoard sets a base address, against which a bare #... would lead away from this page.
const linkTo = (...runs) => `${location.pathname}${location.search}#${runs.map((run) => `run=${encodeURIComponent(run)}`).join("&")}`;
const chosen = () => new URLSearchParams(location.hash.slice(1)).getAll("run").slice(0, 2);

const sorting = { key: null, down: false };
const lines = new Map(); // run -> its line in the table: what it shows, and its box
let picked = []; // of runs ticked, the last two

const cells = (row) => COLUMNS.map(({ key, number, share }) => {
  if (key === "run") return make("th", { scope: "row" }, make("a", { href: linkTo(row.run), textContent: named(row.run) }));
  if (key === "verdict") return make("td", {}, ...(row.verdict ? [make("span", { className: "tag", textContent: row.verdict })] : []));
  if (key === "headline") return make("td", { className: "says", textContent: STATES[row.state] ?? row.why ?? row.headline });
  const cell = make("td", { className: `number${key === "gain_ns" && row[key] ? " gain" : ""}` });
  if (number && row[key] != null) cell.append(`${key === "gain_ns" ? "\u2212" : ""}${ms(row[key])}`);
  else if (row.state === "ready") cell.append("-");
  if (share && row[key] != null) cell.append(" ", make("small", { textContent: `${Math.round(100 * row[share])}%` }));
  if (key === "gain_ns" && row.remedy) cell.title = row.remedy;
  return cell;
});

const ordered = (rows) => {
  const { key, down } = sorting;
  if (key === null) return rows;
  return [...rows].sort((one, other) => {
    const [a, b] = [one[key], other[key]];
    if (a == null || b == null) return (a == null) - (b == null);
    const order = typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
    return down ? -order : order;
  });
};

// TensorBoard may be dark while the system is light. A frame is as dark as the element that holds it.
const follow = () => {
  const holder = window.frameElement;
  if (!holder) return;
  const outside = holder.ownerDocument.body;
  const turn = () => { holder.style.colorScheme = outside.classList.contains("dark-mode") ? "dark" : "light"; };
  new MutationObserver(turn).observe(outside, { attributeFilter: ["class"] });
  turn();
};

export async function render() {
  document.documentElement.lang = "en";
  document.head.append(make("link", { rel: "stylesheet", href: new URL("./style.css", import.meta.url).href }));
  document.body.className = "ct";
  follow();
  let rows = [], last = null;

  const state = make("span", { role: "status", textContent: "Looking for runs ..." });
  const beside = make("button", { type: "button", textContent: "Side by side", disabled: true, title: "Tick two runs" });
  const body = make("tbody");
  const heads = COLUMNS.map(({ key, title, number, help }) => {
    const button = make("button", { type: "button", textContent: title, title: help ?? "" });
    const head = make("th", { scope: "col", className: number ? "number" : "" }, button);
    button.addEventListener("click", () => {
      sorting.down = sorting.key === key ? !sorting.down : Boolean(number);
      sorting.key = key;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
      show();
    });
    return head;
  });
  const table = make("table", { hidden: true }, make("thead", {}, make("tr", {}, make("td"), ...heads)), body);
  const list = make("section", { className: "list" }, table);
  list.setAttribute("aria-label", "Runs");
  const listHead = make("header", {}, make("h1", { textContent: "Runs" }), beside, state);
  const back = make("button", { type: "button", textContent: "\u2190 All runs" });
  const reportHead = make("header", { hidden: true }, back);
  const reports = make("section", { className: "reports", hidden: true });

  const line = (row) => {
    const box = make("input", { type: "checkbox" });
    box.setAttribute("aria-label", `Put ${named(row.run)} beside another run`);
    box.addEventListener("change", () => {
      picked = [...picked.filter((run) => run !== row.run), ...(box.checked ? [row.run] : [])].slice(-2);
      for (const [run, other] of lines) other.box.checked = picked.includes(run);
      beside.disabled = picked.length < 2;
    });
    return { box, said: "", element: make("tr", {}, make("td", {}, box)) };
  };

  const show = () => {
    const focused = document.activeElement;
    for (const row of rows) {
      if (!lines.has(row.run)) lines.set(row.run, line(row));
      const known = lines.get(row.run), said = JSON.stringify(row);
      if (said === known.said) continue;
      const heldFocus = known.element.querySelector("a") === focused && focused !== null;
      known.element.className = STATES[row.state] ? "unready" : row.state;
      known.element.replaceChildren(known.element.firstChild, ...cells(row));
      if (heldFocus) known.element.querySelector("a").focus();
      known.said = said;
    }
    for (const run of [...lines.keys()]) if (!rows.some((row) => row.run === run)) lines.delete(run);
    const wanted = ordered(rows).map((row) => lines.get(row.run).element);
    if (wanted.length !== body.rows.length || wanted.some((element, at) => body.rows[at] !== element)) {
      const holder = document.activeElement;
      body.replaceChildren(...wanted);
      if (body.contains(holder)) holder.focus();
    }
    table.hidden = !rows.length;
    const unready = rows.filter((row) => STATES[row.state]).length;
    const many = `${rows.length} ${rows.length === 1 ? "run" : "runs"}`;
    const says = !rows.length ? "No run with traces (*.pt.trace.json) below the log directory."
      : unready ? `${rows.length - unready} of ${many} read` : many;
    if (state.textContent !== says) state.textContent = says;
    return unready;
  };

  const pane = (run, at, runs) => {
    const words = make("span", { className: "faint", textContent: " making the report ..." });
    words.setAttribute("role", "status");
    const frame = make("iframe", { title: `Report on ${named(run)}`, src: new URL(`./report?run=${encodeURIComponent(run)}`, import.meta.url).href });
    const head = make("p", {}, make("b", { textContent: named(run) }), words);
    frame.addEventListener("load", () => {
      words.textContent = "";
      head.hidden = runs.length === 1; // the report says its name itself
    });
    return make("div", { className: "pane" }, head, frame);
  };

  const turn = () => {
    const runs = chosen();
    listHead.hidden = list.hidden = runs.length > 0;
    reportHead.hidden = reports.hidden = !runs.length;
    reports.replaceChildren(...runs.map(pane));
    if (runs.length) back.focus();
    else if (last !== null) (lines.get(last)?.element.querySelector("a") ?? beside).focus();
    last = runs[0] ?? null;
  };
  addEventListener("hashchange", turn);
  back.addEventListener("click", () => { location.hash = ""; });
  beside.addEventListener("click", () => { location.hash = new URL(linkTo(...picked), location.href).hash; });

  const ask = async () => {
    let unready = 0;
    try {
      const answer = await fetch(new URL("./runs", import.meta.url));
      if (!answer.ok) throw new Error(answer.statusText);
      rows = await answer.json();
      unready = show();
    } catch {
      state.textContent = "TensorBoard does not answer.";
    }
    setTimeout(ask, unready ? OFTEN_MS : SELDOM_MS);
  };
  document.body.replaceChildren(listHead, list, reportHead, reports);
  turn();
  await ask();
}
