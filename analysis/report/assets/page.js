"use strict";
const make = (name, properties, ...inside) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...inside);
  return element;
};
const say = (figure, words) => { figure.querySelector(".readout").textContent = words; };
const number = (value, digits = 3) => value.toLocaleString("en", { maximumFractionDigits: digits });

// Tables: a click on a header sorts by it.
const valueOf = (row, column) => {
  const text = row.cells[column].textContent;
  const value = Number(text.replaceAll(",", ""));
  return text === "-" ? null : Number.isNaN(value) ? text : value;
};
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const header = button.parentElement;
    const up = header.getAttribute("aria-sort") === "descending";
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

// Several figures of one thing: one at a time.
for (const section of document.querySelectorAll("[data-choose]")) {
  const figures = [...section.querySelectorAll("figure")];
  if (figures.length < 2) continue;
  const buttons = figures.map((figure) => make("button", { type: "button", textContent: figure.querySelector("h3").textContent }));
  const choose = (chosen) => figures.forEach((figure, at) => {
    figure.hidden = at !== chosen;
    buttons[at].setAttribute("aria-pressed", String(at === chosen));
  });
  buttons.forEach((button, at) => button.addEventListener("click", () => choose(at)));
  figures[0].before(make("div", { className: "tools" }, ...buttons));
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
  figure.querySelector(".plot").addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(cells.getScreenCTM().inverse());
    row = Math.floor(at.y / tall);
    column = Math.floor(at.x / wide);
    if (row >= 0 && row < rows.length) tell();
  });
  figure.querySelector(".plot").addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    row = Math.min(Math.max(row + move[0], 0), rows.length - 1);
    column = Math.min(Math.max(column + move[1], 0), data.columns.length - 1);
    tell();
  });
  const names = Object.keys(data.orders);
  if (names.length < 2) return;
  const select = make("select", {}, ...names.map((name) => make("option", { value: name, textContent: name })));
  select.addEventListener("change", () => {
    order = data.orders[select.value];
    order.forEach((which, place) => rows[which].setAttribute("transform", `translate(0 ${place * tall})`));
  });
  figure.querySelector(".plot").before(make("p", { className: "tools" }, make("label", {}, "rows by ", select)));
};

// One step: drag to move, Ctrl and the wheel, buttons or keys to zoom; what is under the pointer.
const step = (figure, data) => {
  const zoomed = figure.querySelector("svg.zoom"), plot = figure.querySelector(".plot");
  const whole = zoomed.viewBox.baseVal.width, high = zoomed.viewBox.baseVal.height;
  const axis = [...zoomed.parentElement.querySelectorAll(":scope > text.mid")];
  const box = zoomed.getBBox ? { x: Number(zoomed.getAttribute("x")), width: Number(zoomed.getAttribute("width")) } : null;
  const hatch = zoomed.querySelector("pattern");
  const calls = data.rows.map((row) => { let at = 0; return row.start.map((gap) => (at += gap)); });
  let begin = 0, span = whole;
  const show = () => {
    span = Math.min(Math.max(span, 50), whole);
    begin = Math.min(Math.max(begin, 0), whole - span);
    zoomed.setAttribute("viewBox", `${begin} 0 ${span} ${high}`);
    if (hatch) hatch.setAttribute("patternTransform", `scale(${span / whole} 1)`);
    const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(span * data.ns / 1e6 / 20))));
    axis.forEach((text) => {
      const share = (Number(text.getAttribute("x")) - box.x) / box.width;
      text.textContent = number((begin + share * span) * data.ns / 1e6, digits);
    });
  };
  const zoom = (factor, share = 0.5) => {
    const at = begin + share * span;
    span *= factor;
    begin = at - share * Math.min(Math.max(span, 50), whole);
    show();
  };
  const point = (event) => {
    const frame = zoomed.getBoundingClientRect();
    const scale = zoomed.parentElement.getBoundingClientRect();
    const pixels = scale.width / zoomed.parentElement.viewBox.baseVal.width;
    const left = scale.left + box.x * pixels, top = scale.top + Number(zoomed.getAttribute("y")) * pixels;
    void frame;
    return [(event.clientX - left) / (box.width * pixels), (event.clientY - top) / (high * pixels)];
  };
  const actions = { "+": () => zoom(0.5), "-": () => zoom(2), "0": () => { begin = 0; span = whole; show(); },
    ArrowLeft: () => { begin -= span / 8; show(); }, ArrowRight: () => { begin += span / 8; show(); } };
  plot.addEventListener("keydown", (event) => {
    const action = actions[event.key === "=" ? "+" : event.key];
    if (!action || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    action();
  });
  plot.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, point(event)[0]);
  }, { passive: false });
  let held = null;
  zoomed.addEventListener("pointerdown", (event) => { held = [point(event)[0], begin]; });
  window.addEventListener("pointerup", () => { held = null; });
  plot.addEventListener("pointermove", (event) => {
    const [x, y] = point(event);
    if (held) { begin = held[1] - (x - held[0]) * span; show(); return; }
    const row = Math.floor(y * data.rows.length), at = begin + x * span;
    if (row < 0 || row >= data.rows.length || x < 0 || x > 1) return;
    const own = data.rows[row];
    const near = span / 300;
    const found = calls[row].findLastIndex((start, which) => start - near <= at && at <= start + own.dur[which] + near);
    say(figure, `rank ${own.name}, ${number(at * data.ns / 1e6, 4)} ms` + (found < 0 ? "" : `: ${told(data, own, found)}`));
  });
  const told = (of, row, which) => {
    const [collective, size, group, last] = of.collectives[row.of[which]] || [];
    const ms = (ticks) => `${number(ticks * of.ns / 1e6, 4)} ms`;
    const parts = row.wait[which] < 0 ? `${ms(row.dur[which])}, not split` : `waits ${ms(row.wait[which])}, moves data ${ms(row.dur[which] - row.wait[which])}`;
    return `${collective || "communication"}${size === null ? "" : ` of ${number(size)} bytes`}${group === null ? "" : `, group ${group}`}: ${parts}${last === null ? "" : `; last to arrive: rank ${last}`}`;
  };
  const labels = { "+": "Zoom in", "-": "Zoom out", ArrowLeft: "Earlier", ArrowRight: "Later", "0": "Whole step" };
  plot.before(make("p", { className: "tools" }, ...Object.entries(labels).map(([key, words]) => {
    const button = make("button", { type: "button", textContent: words });
    button.addEventListener("click", actions[key]);
    return button;
  })));
};

for (const figure of document.querySelectorAll("figure")) {
  const data = dataOf(figure);
  if (data && data.values) heat(figure, data);
  else if (data && data.ns) step(figure, data);
}

// Paper shows everything.
let closed = [];
window.addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open]),figure[hidden]")];
  closed.forEach((element) => { element.open = true; element.hidden = false; });
});
window.addEventListener("afterprint", () => {
  closed.forEach((element) => { if (element.matches("figure")) element.hidden = true; else element.open = false; });
});
