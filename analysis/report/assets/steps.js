
{
// Steps: every rank on one clock. The address says what is shown: #step=11&rank=1&collective=23.
const holder = document.querySelector("#steps-data");
const data = JSON.parse(holder?.textContent || "null");
const NS = "http://www.w3.org/2000/svg";
const svg = (name, attributes, ...inside) => {
  const element = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...inside);
  return element;
};
const ms = (ns, digits = 3) => `${number(ns / 1e6, digits)} ms`;
const exact = (ns) => (ns / 1e6).toLocaleString("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 });
const scaled = (bytes) => {
  if (bytes === null) return "unknown size";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; bytes >= 1024 && unit < units.length - 1; unit += 1) bytes /= 1024;
  return `${Number(bytes.toPrecision(3)).toLocaleString("en")} ${units[unit]}`;
};

const viewer = () => {
  const stage = document.querySelector("#stage"), panel = document.querySelector("#call");
  const stepOf = new Map(), collectives = {}, lates = {}, behinds = {};
  // What the page holds, or a server answered: gaps and lengths become starts and ends, numbers of names become names.
  const take = ({ steps: taken, behind, names }) => {
    const name = (number) => (number === null ? null : names[number]);
    for (const step of taken || []) {
      for (const rank of step.ranks) {
        let at = 0;
        for (const kind of ["compute", "copies"]) {
          at = 0;
          rank[kind] = rank[kind].map((gap) => (at += gap));
        }
        at = 0;
        rank.start = rank.start.map((gap) => (at += gap));
      }
      for (const [id, [collective, size, group, ranks, seq, last, of, busbw]] of Object.entries(step.collectives)) {
        collectives[id] = { collective: name(collective), size, group: name(group), ranks: name(ranks), seq, last, step: of, busbw };
      }
      for (const [id, [rank, by, caused, because, origin, , kernel, operator, extra]] of Object.entries(step.late)) {
        lates[id] = { rank, by, caused, because, origin, kernel: name(kernel), operator: name(operator), extra };
      }
      step.events = step.events.map(([rank, from, to, of, count, ns]) => ({ rank, from, to, ns, words: `${count > 1 ? `${count} ` : ""}${name(of)}` }));
      stepOf.set(step.step, step);
    }
    for (const [id, each] of Object.entries(behind || {})) {
      for (const rank of each ? each.ranks : []) {
        for (const event of [...rank.cpu, ...rank.device]) event[0] = name(event[0]);
      }
      behinds[id] = each;
    }
  };
  take(data);
  const isLive = holder.dataset.live === "yes";
  const ask = async (address) => {
    const answer = await fetch(address);
    if (!answer.ok) throw new Error(`${answer.status}`);
    take(await answer.json());
  };
  const title = (step) => (step === data.whole ? "the window" : `step ${step}`);
  const describe = (id) => {
    const { collective, size } = collectives[id] || {};
    return `${collective || "communication"}${size === null || size === undefined ? "" : ` of ${scaled(size)}`}`;
  };
  // Waiting in each collective of a step, all ranks together.
  const waited = (step) => {
    const sums = new Map();
    for (const rank of step.ranks) {
      rank.of.forEach((id, at) => sums.set(id, (sums.get(id) || 0) + Math.max(rank.wait[at], 0)));
    }
    return [...sums].sort((a, b) => b[1] - a[1]);
  };

  let state = {}, step = null, begin = 0, span = 1, geometry = null;
  const read = () => {
    const wanted = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
    const numbers = {};
    for (const key of ["step", "rank", "collective"]) if (/^-?\d{1,15}$/.test(wanted[key] || "")) numbers[key] = Number(wanted[key]);
    if (/^[\d,\s-]{1,200}$/.test(wanted.ranks || "")) numbers.ranks = wanted.ranks;
    if (/^\d{1,15}-\d{1,15}$/.test(wanted.zoom || "")) numbers.zoom = wanted.zoom;
    return numbers;
  };
  const addressOf = (of) => Object.entries(of).filter(([, value]) => value !== null && value !== undefined)
    .map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&");
  const go = (changes) => {
    const text = addressOf({ ...state, zoom: null, ...changes });
    if (location.hash.slice(1) === text) follow(); else location.hash = text;
  };

  // Tools
  const readout = make("p", { className: "readout" });
  readout.setAttribute("aria-live", "polite");
  const steps = make("select", {}, ...data.all.map((each) => make("option", { value: each, textContent: title(each) })));
  steps.setAttribute("aria-label", "Step");
  steps.addEventListener("change", () => go({ step: Number(steps.value), collective: null }));
  const waits = make("select", {});
  waits.setAttribute("aria-label", "Collectives with most waiting");
  waits.addEventListener("change", () => go({ collective: waits.value ? Number(waits.value) : null }));
  const range = make("input", { type: "search", placeholder: "all ranks", size: 12 });
  range.setAttribute("aria-label", "Ranks to show, such as 0-7,12");
  range.addEventListener("input", () => { draw(); keep(); });
  const zooming = [["Zoom in", () => zoom(0.5, atCall())], ["Zoom out", () => zoom(2, atCall())], ["Whole step", () => whole()]]
    .map(([words, act]) => { const button = make("button", { type: "button", textContent: words }); button.addEventListener("click", act); return button; });
  const beside = (by) => {
    const next = data.all[data.all.indexOf(step.step) + by];
    if (next !== undefined) go({ step: next, collective: null });
  };
  const [before, after] = [["\u25c0", "Step before", -1], ["\u25b6", "Next step", 1]].map(([text, label, by]) => {
    const button = make("button", { type: "button", textContent: text });
    button.setAttribute("aria-label", label);
    button.addEventListener("click", () => beside(by));
    return button;
  });
  const tools = make("p", { className: "tools" });
  if (data.all.length > 1) tools.append(before, steps, after);
  tools.append(waits, range, ...zooming);
  const picture = make("div", { tabIndex: 0 });
  picture.setAttribute("role", "group");
  picture.setAttribute("aria-label", "The step on every rank");
  const legend = make("ul", { className: "legend" });
  const KINDS = { compute: "compute", memory: "copies", wait: "waiting for others", transfer: "moving data", unsplit: "either of both", cpu: "CPU in a long call" };
  stage.append(tools, picture, readout, legend);

  const ranksShown = () => {
    const wanted = new Set();
    for (const part of range.value.split(/[\s,]+/).filter(Boolean)) {
      const [low, high] = part.split("-").map(Number);
      for (let rank = low; rank <= (part.includes("-") ? high : low) && rank - low < 100000; rank += 1) wanted.add(rank);
    }
    const chosen = step.ranks.filter((rank) => wanted.has(rank.rank));
    return chosen.length ? chosen : step.ranks;
  };
  // Which ranks and which part of the step are shown belongs to the address, but is no step in its history.
  const keep = () => {
    const zoomed = span < step.long ? `${Math.round(begin)}-${Math.round(begin + span)}` : null;
    state = { ...state, ranks: range.value.trim() || null, zoom: zoomed };
    history.replaceState(null, "", `#${addressOf(state)}`);
  };
  const show = (from, long) => {
    span = Math.min(Math.max(long, 1000), step.long);
    begin = Math.min(Math.max(from, 0), step.long - span);
    draw();
    keep();
  };
  const whole = () => show(0, step.long);
  const zoom = (factor, share = 0.5) => show(begin + share * span * (1 - Math.min(factor, step.long / span)), span * factor);
  // Where the chosen call is in the picture, which first moves there if need be: buttons zoom towards it.
  const atCall = () => {
    const row = step.ranks.find((each) => each.rank === state.rank) || step.ranks.find((each) => each.of.includes(state.collective));
    const call = row ? row.of.indexOf(state.collective) : -1;
    if (call < 0) return 0.5;
    const middle = row.start[call] + row.dur[call] / 2;
    if (middle < begin || middle > begin + span) begin = Math.min(Math.max(middle - span / 2, 0), step.long - span);
    return Math.min(Math.max((middle - begin) / span, 0), 1);
  };

  // Bars of one kind in a row, as one path; bars narrower than a pixel grow into one.
  const path = (pairs, y, high, left, wide) => {
    const commands = [];
    let open = null;
    for (const [start, end] of pairs) {
      if (end < begin || start > begin + span) continue;
      const x = Math.max((start - begin) / span, 0) * wide, to = Math.min((end - begin) / span, 1) * wide;
      if (open && x - open[1] < 0.5) { open[1] = Math.max(open[1], to); continue; }
      if (open) commands.push(open);
      open = [x, to];
    }
    if (open) commands.push(open);
    return commands.map(([x, to]) => `M${(left + x).toFixed(1)} ${y}h${Math.max(to - x, 0.6).toFixed(1)}v${high}h-${Math.max(to - x, 0.6).toFixed(1)}z`).join("");
  };
  const couples = (flat) => Array.from({ length: flat.length / 2 }, (_, at) => [flat[2 * at], flat[2 * at + 1]]);
  const ticks = (low, high) => {
    const rough = (high - low) / 6, unit = 10 ** Math.floor(Math.log10(rough));
    const apart = [1, 2, 5, 10].map((factor) => factor * unit).find((each) => each >= rough);
    const found = [];
    for (let at = Math.ceil(low / apart) * apart; at <= high; at += apart) found.push(at);
    return found;
  };
  const draw = () => {
    if (!step) return;
    const rows = ranksShown();
    const width = Math.max(stage.clientWidth, 320), left = 14 + 8 * Math.max(...rows.map((row) => row.name.length + 5));
    const tall = Math.min(Math.max(760 / rows.length, 5), 40), high = tall * rows.length, wide = width - left - 12;
    geometry = { rows, left, wide, tall };
    const drawing = svg("svg", { viewBox: `0 0 ${width} ${high + 40}`, height: high + 40, role: "img", "aria-label": `${title(step.step)} on every rank` });
    for (const at of ticks(begin / 1e6, (begin + span) / 1e6)) {
      const x = left + ((at * 1e6 - begin) / span) * wide;
      drawing.append(svg("path", { class: "grid", d: `M${x} 0V${high}` }), svg("text", { class: "faint mid", x, y: high + 16 }, `${number(at, 4)}`));
    }
    drawing.append(svg("text", { class: "faint end", x: width - 12, y: high + 34 }, `ms since ${step.step === data.whole ? "the window" : "the step"} began`));
    const half = Math.max(tall * 0.42, 2), drawn = new Set(), labels = [];
    rows.forEach((row, place) => {
      const y = place * tall + tall * 0.06;
      if (place % Math.ceil(14 / tall) === 0) {
        const text = svg("text", { class: `rank end${row.rank === state.rank ? " chosen" : ""}`, x: left - 8, y: y + Math.min(tall / 2 + 4, tall) }, `rank ${row.name}`);
        text.addEventListener("click", () => go({ rank: row.rank, collective: null }));
        drawing.append(text);
      }
      const bars = { compute: couples(row.compute), memory: couples(row.copies), wait: [], transfer: [], unsplit: [] };
      row.start.forEach((start, at) => {
        const end = start + row.dur[at], wait = row.wait[at];
        if (wait < 0) bars.unsplit.push([start, end]);
        else {
          if (wait > 0) bars.wait.push([start, start + wait]);
          bars.transfer.push([start + wait, end]);
        }
      });
      // What its CPU was in for long, which is why compute is missing there; of several devices, once.
      const isFirst = rows.findIndex((other) => other.rank === row.rank) === place;
      for (const { from, to, words, ns } of isFirst ? step.events.filter((event) => event.rank === row.rank) : []) {
        const x = left + (Math.max(from - begin, 0) / span) * wide, until = left + (Math.min(to - begin, span) / span) * wide;
        if (until <= left || x >= left + wide) continue;
        drawing.append(svg("rect", { class: "f-cpu event", x, y, width: Math.max(until - x, 1), height: half }));
        drawn.add("cpu");
        const text = `${words}, ${ms(ns, 1)}`;
        if (until - x > 6.5 * text.length + 6 && half > 11) labels.push(svg("text", { class: "lane", x: x + 4, y: y + half / 2 + 4, "pointer-events": "none" }, text));
      }
      for (const [kind, pairs] of Object.entries(bars)) {
        const d = path(pairs, (kind === "compute" || kind === "memory" ? y : y + half).toFixed(1), half.toFixed(1), left, wide);
        if (d) {
          drawing.append(svg("path", { class: `f-${kind}`, d }));
          drawn.add(kind);
        }
      }
    });
    drawing.append(...labels);
    legend.replaceChildren(...Object.entries(KINDS).filter(([kind]) => drawn.has(kind))
      .map(([kind, words]) => make("li", {}, make("i", { className: `b-${kind}` }), words)));
    mark(drawing, rows, left, wide, tall);
    picture.replaceChildren(drawing);
  };
  // The chosen collective: its call on every rank, and when the last one arrived.
  const mark = (drawing, rows, left, wide, tall) => {
    const chosenRow = rows.findIndex((row) => row.rank === state.rank);
    if (chosenRow >= 0) drawing.prepend(svg("rect", { class: "band", x: 0, y: chosenRow * tall, width: left + wide + 12, height: tall }));
    if (state.collective === undefined) return;
    let last = -Infinity;
    rows.forEach((row, place) => row.of.forEach((id, at) => {
      if (id !== state.collective) return;
      last = Math.max(last, row.start[at]);
      const from = left + ((row.start[at] - begin) / span) * wide, to = from + Math.max((row.dur[at] / span) * wide, 3);
      const x = Math.max(from, left), width = Math.min(to, left + wide) - x;
      if (width <= 0) return;
      const frame = svg("rect", { class: "pick", x, y: place * tall + tall * 0.46, width, height: tall * 0.46 });
      frame.style.strokeWidth = Math.min(1.5, tall / 16);  // frames of hundreds of ranks must not hide what they frame
      drawing.append(frame);
    }));
    const x = left + ((last - begin) / span) * wide;
    if (x > left && x < left + wide) drawing.append(svg("path", { class: "thin", "stroke-dasharray": "4 3", d: `M${x} 0V${tall * rows.length}` }));
  };

  const under = (event) => {
    const box = picture.getBoundingClientRect();
    const { rows, left, wide, tall } = geometry;
    const share = (event.clientX - box.left - left) / wide, place = Math.floor((event.clientY - box.top) / tall);
    const row = rows[place];
    if (!row || share < 0 || share > 1) return { share };
    const at = begin + share * span, near = span / 300;
    const call = row.start.findLastIndex((start, which) => start - near <= at && at <= start + row.dur[which] + near);
    return { share, row, at, call };
  };
  const told = (row, call) => {
    const wait = row.wait[call], dur = row.dur[call];
    const parts = wait < 0 ? `${ms(dur)}, not split into waiting and transfer` : `waits ${ms(wait)}, moves data ${ms(dur - wait)}`;
    return `${describe(row.of[call])}: ${parts}`;
  };
  let held = null, moved = false;
  picture.addEventListener("pointermove", (event) => {
    const { row, at, call, share } = under(event);
    if (held && event.buttons) {
      if (Math.abs(share - held.share) > 0.004) moved = true;
      if (moved) { begin = Math.min(Math.max(held.begin - (share - held.share) * span, 0), step.long - span); draw(); }
      return;
    }
    if (!row) return;
    const long = step.events.find((each) => each.rank === row.rank && each.from <= at && at <= each.to);
    const said = [call < 0 ? "" : told(row, call), long ? `CPU in ${long.words}, ${ms(long.ns)}` : ""].filter(Boolean);
    readout.textContent = [`rank ${row.name}, ${ms(at)}`, ...said].join(": ");
  });
  picture.addEventListener("pointerdown", (event) => { held = { share: under(event).share, begin }; moved = false; });
  picture.addEventListener("click", (event) => {
    held = null;
    if (moved) { keep(); return; }
    const { row, call } = under(event);
    if (row && call >= 0) go({ rank: row.rank, collective: row.of[call] });
  });
  picture.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.min(Math.max(under(event).share, 0), 1));
  }, { passive: false });
  picture.addEventListener("keydown", (event) => {
    const act = { "+": () => zoom(0.5, atCall()), "=": () => zoom(0.5, atCall()), "-": () => zoom(2, atCall()), "0": whole,
      ArrowLeft: () => show(begin - span / 8, span), ArrowRight: () => show(begin + span / 8, span) }[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });

  // The chosen collective in words and as a table, and what the late rank did before.
  const BECAUSE = ["it computed longer", "it copied longer", "other communication held it up", "it waited for a batch", "its CPU gave it work later", "its first traced step began later"];
  const words = (id) => {
    const late = lates[id];
    if (!late) {
      const last = collectives[id]?.last;
      return last === null || last === undefined ? "Who came last is not known." : `Rank ${last} came last, by no more than clocks are uncertain, or than chance explains.`;
    }
    const waitedFor = late.caused === null ? "" : ` The others waited ${ms(late.caused)} together.`;
    const measured = late.extra.map((ns, at) => [ns, at]).filter(([ns]) => ns > 0).sort((a, b) => b[0] - a[0]).slice(0, 2)
      .map(([ns, at]) => `${BECAUSE[at]} (${ms(ns)})`);
    const known = ["compute", "memory", "comm", "data", "cpu", "start"].indexOf(late.because);
    const reasons = measured.length || known < 0 ? measured : [BECAUSE[known]];
    const from = late.origin !== null && late.origin !== late.rank ? ` That began with rank ${late.origin}.` : "";
    const where = late.because === "compute" && late.kernel !== null ? ` Most of it in ${late.kernel}.` : late.operator !== null ? ` Its CPU was in ${late.operator}.` : "";
    return `Rank ${late.rank} came ${ms(late.by)} late.${waitedFor}${reasons.length ? ` Beside the others, ${reasons.join(" and ")}.` : " Why is not known."}${reasons.length ? where : ""}${from}`;
  };
  const table = (id) => {
    const rows = step.ranks.flatMap((row) => row.of.map((of, at) => [of, row, at]).filter(([of]) => of === id));
    const first = Math.min(...rows.map(([, row, at]) => row.start[at]));
    rows.sort(([, a, i], [, b, j]) => b.start[j] - a.start[i]);
    const cells = rows.map(([, row, at]) => [
      make("a", { href: `#step=${step.step}&rank=${row.rank}`, textContent: row.name }),
      exact(row.start[at] - first), row.wait[at] < 0 ? "-" : exact(row.wait[at]), row.wait[at] < 0 ? "-" : exact(row.dur[at] - row.wait[at]),
    ]);
    const head = ["rank", "arrived after the first (ms)", "waits (ms)", "moves data (ms)"];
    return make("div", { className: "scroll" }, make("table", {},
      make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { textContent: text })))),
      make("tbody", {}, ...cells.map((row) => make("tr", {}, ...row.map((cell) => make("td", {}, cell)))))));
  };
  const lanes = (behind) => {
    const width = Math.max(stage.clientWidth, 320), left = 14 + 8 * 9, wide = width - left - 12, tall = 15;
    const deep = behind.ranks.map((rank) => Math.max(0, ...rank.cpu.map((each) => each[3])) + 1);
    const high = deep.reduce((sum, each) => sum + each * tall + 62, 0);
    const drawing = svg("svg", { viewBox: `0 0 ${width} ${high + 24}`, height: high + 24, role: "img", "aria-label": "CPU and device before the collective" });
    const x = (ns) => left + (Math.min(Math.max(ns, 0), behind.long) / behind.long) * wide;
    let y = 4;
    behind.ranks.forEach((rank, which) => {
      const late = which === 0, bottom = y + deep[which] * tall + 44;
      drawing.append(svg("text", { class: "lane", x: 2, y: y + 11, "font-weight": 600 }, `rank ${rank.rank}${late ? ", late" : ""}`));
      drawing.append(svg("text", { class: "lane faint", x: 2, y: y + 26 }, "CPU"));
      for (const [of, start, dur, depth] of rank.cpu) {
        const from = x(start), long = Math.max(x(start + dur) - from, 0.7), top = y + depth * tall;
        const bar = svg("rect", { class: `f-${depth % 2 ? "b" : "a"}`, x: from, y: top, width: long, height: tall - 2, opacity: 0.55 }, svg("title", {}, `${of}: ${ms(dur)}`));
        drawing.append(bar);
        if (long > 46) drawing.append(svg("text", { class: "lane", x: from + 3, y: top + 11, "pointer-events": "none" }, of.slice(0, Math.floor(long / 7))));
      }
      let at = y + deep[which] * tall + 2;
      drawing.append(svg("text", { class: "lane faint", x: 2, y: at + 11 }, "launches"));
      drawing.append(svg("path", { class: "thin", d: rank.launches.map((ns) => `M${x(ns).toFixed(1)} ${at + 2}v10`).join("") }));
      at += 16;
      drawing.append(svg("text", { class: "lane faint", x: 2, y: at + 12 }, "device"));
      for (const [of, start, dur, kind] of rank.device) {
        drawing.append(svg("rect", { class: `f-${kind === "comm" ? "transfer" : kind}`, x: x(start), y: at, width: Math.max(x(start + dur) - x(start), 0.7), height: 16 }, svg("title", {}, `${of}: ${ms(dur)}`)));
      }
      const arrived = late ? behind.at : behind.arrived;
      if (arrived !== null) drawing.append(svg("path", { class: "thin", "stroke-dasharray": "4 3", d: `M${x(arrived)} ${y}V${bottom}` }));
      y = bottom + 18;
    });
    for (const at of ticks(0, behind.long / 1e6)) drawing.append(svg("text", { class: "faint mid", x: x(at * 1e6), y: high + 16 }, number(at, 4)));
    return drawing;
  };
  const explain = async () => {
    const id = state.collective;
    if (id === undefined) { panel.replaceChildren(); return; }
    if (!collectives[id]) {
      panel.replaceChildren(make("p", { className: "say", textContent: `No collective of ${title(step.step)} has the number ${id}.` }));
      return;
    }
    const { size, group, ranks, seq, busbw } = collectives[id] || { size: null, group: null, ranks: null, seq: null, busbw: null };
    const facts = [size === null ? null : `${size.toLocaleString("en")} bytes`, group === null ? null : `group ${group}${ranks === null ? "" : `, ranks ${ranks}`}`,
      seq === null ? null : `number ${seq}`, busbw === null ? null : `${number(busbw, 1)} GB/s of bus bandwidth`].filter(Boolean).join(" \u00b7 ");
    const section = make("div", { className: "panel" }, make("h3", { textContent: describe(id) }), make("p", { className: "note", textContent: facts }), make("p", { className: "say", textContent: words(id) }), table(id));
    panel.replaceChildren(section);
    if (!lates[id]) return;
    if (isLive && !(id in behinds)) {
      const waiting = make("p", { className: "note", textContent: "reading what its CPU did \u2026" });
      section.append(waiting);
      await ask(`behind?collective=${id}`).catch(() => {});
      waiting.remove();
      if (state.collective !== id) return;
    }
    const behind = behinds[id];
    if (behind) {
      const [late, other] = behind.ranks;
      section.append(make("h3", { id: "behind", textContent: `What rank ${late.rank} did before it came${other ? `, beside rank ${other.rank}, which waited` : ""}` }),
        make("p", { className: "note", textContent: "The thread that launches, its operators and annotations as they are nested; each launch; the device. Dashed: the rank arrives. Times in ms." }), lanes(behind));
    } else {
      section.append(make("p", { className: "note", textContent: "The page holds what CPUs did before the collectives with most waiting only; commtrace serve shows all." }));
    }
  };

  // From the address to what is shown. A rank alone, or with a step, leads to the collective for which the others
  // waited most for it.
  let asked = 0;
  const follow = async (isFirst = false) => {
    const wanted = read(), isLed = document.activeElement?.closest("a") && !document.activeElement.closest("#steps");
    if (!isFirst && !Object.keys(wanted).length && location.hash) return;  // another part of the page
    asked += 1;
    const mine = asked;
    let at = wanted.step ?? collectives[wanted.collective]?.step;
    if (isLive && at === undefined && wanted.collective !== undefined) {
      await ask(`step?collective=${wanted.collective}`).catch(() => {});
      at = collectives[wanted.collective]?.step;
    }
    const missing = wanted.step !== undefined && !data.all.includes(wanted.step)
      ? `There is no step ${wanted.step} here: the steps are ${data.all[0]} to ${data.all[data.all.length - 1]}.` : "";
    if (!data.all.includes(at)) at = step && wanted.step === undefined ? step.step : FIRST;
    if (!data.all.includes(at)) at = data.all[0];
    if (!stepOf.has(at)) {
      readout.textContent = `reading ${title(at)} \u2026`;
      const failed = await ask(`step?n=${at}`).then(() => "", () => "The server has ended: start commtrace serve again.");
      readout.textContent = failed;
      if (failed || mine !== asked) return;
    }
    const changed = !step || step.step !== at;
    step = stepOf.get(at);
    state = { ...wanted, step: at };
    if (state.rank !== undefined && state.collective === undefined) {
      const caused = Object.entries(lates).filter(([id, late]) => late.rank === state.rank && collectives[id].step === at)
        .sort((a, b) => (b[1].caused || 0) - (a[1].caused || 0));
      const own = step.ranks.find((row) => row.rank === state.rank);
      const longest = own && own.wait.length ? own.of[own.wait.indexOf(Math.max(...own.wait))] : undefined;
      state.collective = caused.length ? Number(caused[0][0]) : longest;
    }
    if (changed || wanted.zoom) {
      const [from, to] = (wanted.zoom || `0-${step.long}`).split("-").map(Number);
      span = Math.min(Math.max(to - from, 1000), step.long);
      begin = Math.min(from, step.long - span);
    }
    if (wanted.ranks !== undefined) range.value = wanted.ranks;
    else if (isFirst) range.value = holder.dataset.ranks || "";
    if (state.rank !== undefined && !ranksShown().some((row) => row.rank === state.rank)) range.value += `,${state.rank}`;
    steps.value = String(at);
    const most = waited(step).slice(0, 25);
    const others = state.collective !== undefined && !most.some(([id]) => id === state.collective) ? [[state.collective, 0]] : [];
    waits.replaceChildren(make("option", { value: "", textContent: "longest waits \u2026" }), ...[...most, ...others].filter(([id, ns]) => ns > 0 || id === state.collective)
      .map(([id, ns]) => make("option", { value: id, textContent: `${describe(id)}: ${ms(ns, 2)} waited${lates[id] ? `, for rank ${lates[id].rank}` : ""}` })));
    waits.hidden = waits.options.length < 2;
    waits.value = state.collective === undefined ? "" : String(state.collective);
    before.disabled = at === data.all[0];
    after.disabled = at === data.all[data.all.length - 1];
    range.hidden = step.ranks.length < 5;
    draw();
    explain();
    const isThere = state.rank === undefined || step.ranks.some((row) => row.rank === state.rank);
    readout.textContent = missing || (isThere ? "" : `Rank ${state.rank} did nothing in ${title(at)}, or has no trace.`);
    if (Object.keys(wanted).length) document.querySelector("#steps").scrollIntoView();
    if (isLed && !isFirst) picture.focus({ preventScroll: true });
  };
  const FIRST = Number(holder.dataset.first);
  // An open page keeps its server alive, which says when it has to be asked again.
  const beat = async () => {
    const again = await fetch("alive").then((answer) => answer.json()).catch(() => null);
    if (again) setTimeout(beat, 1000 * again.again_s);
  };
  if (isLive) beat();
  window.addEventListener("hashchange", () => follow());
  window.addEventListener("resize", () => { draw(); explain(); });
  follow(true);
};
if (data && data.all.length) viewer();
}
