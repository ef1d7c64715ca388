"use strict";
const make = (name, properties, ...inside) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...inside);
  return element;
};
const say = (figure, words) => { figure.querySelector(".readout").textContent = words; };
const number = (value, digits = 3) => value.toLocaleString("en", { maximumFractionDigits: digits });

// Tables: a click on a header sorts by it; a field filters; a button copies what is shown as CSV. Numbers of ranks, steps
// and collectives lead to the step, and names of groups, hosts and kernels to all rows that have them.
const textOf = (cell) => cell.title || cell.textContent;  // the title is the whole text of what is shortened
const valueOf = (row, column) => {
  const text = row.cells[column].textContent;
  const value = Number(text.replaceAll(",", ""));
  return text === "-" ? null : Number.isNaN(value) ? text : value;
};
for (const button of document.querySelectorAll("details th button")) {
  button.addEventListener("click", () => {
    const header = button.parentElement;
    const sorted = header.getAttribute("aria-sort"), isText = header.classList.contains("l");
    const up = sorted ? sorted === "descending" : isText;  // first numbers from the largest, texts from A
    const body = header.closest("table").tBodies[0];
    const rows = [...body.rows].map((row) => [valueOf(row, header.cellIndex), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      return up ? order : -order;
    });
    for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...rows.map(([, row]) => row));
  });
}
// The CSV of the command, rounded as shown: its columns in their units, NA empty, and no formula that a spreadsheet
// would run.
const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
const csvNumber = (text, head) => {
  const plain = text.replaceAll(",", ""), factor = Number(head.dataset.factor || 1);
  if (factor === 1 && !head.dataset.origin) return plain;
  const value = Number((Number(plain) * factor).toPrecision(12));
  return head.dataset.origin ? String(BigInt(head.dataset.origin) + BigInt(Math.round(value))) : String(value);
};
const csvCell = (cell, head) => {
  const text = textOf(cell);
  if (text === "-") return "";
  if (!head.classList.contains("l")) return csvNumber(text, head);
  return quoted(text.replace(/(^|;[ "]*)(?='*[=+\-@\uff1d\uff0b\uff0d\uff20])/g, "$1'"));
};
const csvOf = (details) => {
  const heads = [...details.querySelectorAll("thead th")];
  const rows = [...details.querySelector("tbody").rows].filter((row) => !row.hidden);
  const lines = rows.map((row) => heads.map((head, at) => csvCell(row.cells[at], head)).join(","));
  return [heads.map((head) => head.dataset.column).join(","), ...lines];
};
const copy = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make("textarea", { value: text });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
};
const FINDS = new Set(["process_group", "host", "kernel", "name"]);
const LEADS = { rank: "rank", step: "step", collective_id: "collective", blamed_rank: "rank", origin_rank: "rank" };
const lead = (details) => {
  const columns = [...details.querySelectorAll("thead th")].map((head) => head.dataset.column);
  const heads = columns.map((column) => LEADS[column]);
  const has = (what) => heads.indexOf(what);
  for (const row of details.querySelector("tbody").rows) {
    heads.forEach((what, at) => {
      const text = row.cells[at].textContent;
      if (FINDS.has(columns[at]) && text !== "-") {
        const wanted = `${columns[at]}:"${textOf(row.cells[at]).replaceAll('"', "")}"`;
        row.cells[at].replaceChildren(make("a", { href: `#find=${encodeURIComponent(wanted)}`, textContent: text }));
      }
      if (!what || !/^[0-9,]+$/.test(text) || row.cells[at].firstElementChild) return;
      const number = text.replaceAll(",", ""), other = what === "rank" ? has("step") : what === "step" ? has("rank") : -1;
      const more = other >= 0 && /^[0-9,]+$/.test(row.cells[other].textContent)
        ? `&${what === "rank" ? "step" : "rank"}=${row.cells[other].textContent.replaceAll(",", "")}` : "";
      row.cells[at].replaceChildren(make("a", { href: `#${what}=${number}${more}`, textContent: text }));
    });
  }
};
// Words that a row must have anywhere; name:"value" is a cell of that column.
const filter = (details, words) => {
  const columns = [...details.querySelectorAll("thead th")].map((head) => head.dataset.column);
  const wanted = [...words.toLowerCase().matchAll(/(\w+):"([^"]*)"|\S+/g)].map(([word, column, value]) => {
    if (column === undefined) return (row) => row.textContent.toLowerCase().includes(word);
    const at = columns.indexOf(column);
    return (row) => at >= 0 && textOf(row.cells[at]).replaceAll('"', "").toLowerCase() === value;
  });
  let shown = 0;
  for (const row of details.querySelector("tbody").rows) {
    row.hidden = !wanted.every((fits) => fits(row));
    shown += !row.hidden;
  }
  return shown;
};
for (const details of document.querySelectorAll("details.table")) {
  let ready = false;
  const prepare = () => {
    if (!details.open || ready) return;
    ready = true;
    if (document.querySelector("#stage")) lead(details);
    const rows = details.querySelector("tbody").rows.length;
    const said = make("span", { className: "note" });
    const field = make("input", { type: "search", placeholder: "filter rows" });
    field.setAttribute("aria-label", "Filter the rows of this table");
    field.addEventListener("input", () => {
      const shown = filter(details, field.value);
      said.textContent = field.value ? `${shown} of ${rows} rows` : "";
    });
    const button = make("button", { type: "button", textContent: "Copy as CSV" });
    button.addEventListener("click", async () => {
      const lines = csvOf(details);
      const done = await copy(`${lines.join("\n")}\n`);
      said.textContent = done ? `${lines.length - 1} rows copied` : "The browser does not let this page copy.";
    });
    details.querySelector(".scroll").before(make("p", { className: "tools" }, ...(rows > 5 ? [field] : []), button, said));
  };
  details.addEventListener("toggle", prepare);
  let wasOpen = null;  // before rows were looked for, by a link
  const show = (words) => {
    prepare();
    const field = details.querySelector("input[type=search]");
    if (field) {
      field.value = words;
      field.dispatchEvent(new Event("input"));
    } else filter(details, words);
  };
  details.find = (words) => {
    const shown = filter(details, words);
    if (shown) {
      wasOpen ??= details.open;
      details.open = true;
      show(words);
    } else details.forget();
    return shown;
  };
  details.forget = () => {
    if (wasOpen === null) filter(details, details.querySelector("input[type=search]")?.value ?? "");
    else {
      show("");
      details.open = wasOpen;
      wasOpen = null;
    }
  };
  prepare();
}
const find = () => {
  const words = new URLSearchParams(location.hash.slice(1)).get("find");
  const tables = [...document.querySelectorAll("details.table")];
  if (!words) {
    if (!location.hash) tables.forEach((details) => details.forget());
    return;
  }
  const first = tables.filter((details) => details.find(words) > 0)[0];
  if (first) first.scrollIntoView();
};
window.addEventListener("hashchange", find);

// Several figures of one thing: one at a time.
for (const section of document.querySelectorAll("[data-choose]")) {
  const figures = [...section.querySelectorAll("figure")];
  if (figures.length < 2) continue;
  const buttons = figures.map((figure) => make("button", { type: "button", textContent: figure.querySelector("h3").textContent.replace(/, by .*/, "") }));
  const choose = (chosen) => figures.forEach((figure, at) => {
    figure.hidden = at !== chosen;
    buttons[at].setAttribute("aria-pressed", String(at === chosen));
  });
  buttons.forEach((button, at) => button.addEventListener("click", () => choose(at)));
  figures[0].parentElement.before(make("div", { className: "tools" }, ...buttons));
  choose(0);
}

const dataOf = (figure) => {
  const script = figure.querySelector('script[type="application/json"]');
  return script && JSON.parse(script.textContent);
};

// Heat maps: the value under the pointer, or where the arrow keys went; rows in another order.
const heat = (figure, data) => {
  const cells = figure.querySelector(".cells");
  const wide = Number(cells.dataset.wide), tall = Number(cells.dataset.tall);
  const rows = [...cells.children];
  let order = rows.map((_, at) => at), row = 0, column = 0;
  const tell = () => {
    const values = data.values[order[row]];
    if (!values || column < 0 || column >= data.columns.length) return;
    const value = values[column];
    say(figure, `${data.of[0]} ${data.rows[order[row]]}, ${data.of[1]} ${data.columns[column]}: ${value === null ? "not known" : `${number(value)} ${data.unit}`}`);
  };
  const open = () => {
    const rank = parseInt(data.rows[order[row]], 10), step = data.columns[column];
    if (data.of[0] === "rank" && data.of[1] === "step" && step !== undefined) location.hash = `step=${step}&rank=${rank}`;
  };
  figure.querySelector(".plot").addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(cells.getScreenCTM().inverse());
    row = Math.floor(at.y / tall);
    column = Math.floor(at.x / wide);
    if (row >= 0 && row < rows.length) tell();
  });
  figure.querySelector(".plot").addEventListener("keydown", (event) => {
    if (event.key === "Enter") { open(); return; }
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    row = Math.min(Math.max(row + move[0], 0), rows.length - 1);
    column = Math.min(Math.max(column + move[1], 0), data.columns.length - 1);
    tell();
  });
  cells.addEventListener("click", open);
  const names = Object.keys(data.orders);
  if (names.length < 2) return;
  const select = make("select", {}, ...names.map((name) => make("option", { value: name, textContent: name })));
  select.addEventListener("change", () => {
    order = data.orders[select.value];
    order.forEach((which, place) => rows[which].setAttribute("transform", `translate(0 ${place * tall})`));
  });
  figure.querySelector(".plot").before(make("p", { className: "tools" }, make("label", {}, "rows by ", select)));
};

for (const figure of document.querySelectorAll("figure")) {
  const data = dataOf(figure);
  if (data && data.values) heat(figure, data);
}
find();
