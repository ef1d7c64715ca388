// The tab: a list of runs, and the report of the one that is chosen.
const make = (name, properties, ...inside) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...inside);
  return element;
};

export async function render() {
  const style = "body{margin:0;display:flex;flex-direction:column;height:100vh;font:14px system-ui,sans-serif;color-scheme:light dark}" +
    "p{margin:0;padding:.5rem .75rem}iframe{border:0;flex:1;width:100%}select{font:inherit;max-width:60vw}";
  const words = make("p", { textContent: "Looking for runs" });
  document.documentElement.lang = "en";
  document.body.replaceChildren(make("style", { textContent: style }), words);
  const answer = await fetch(new URL("./runs", import.meta.url));
  const runs = answer.ok ? await answer.json() : [];
  if (!runs.length) {
    words.textContent = "No run with traces (*.pt.trace.json) below the log directory.";
    return;
  }
  const select = make("select", {}, ...runs.map((run) => make("option", { value: run, textContent: run === "." ? "(log directory)" : run })));
  const state = make("span", { role: "status" });
  const frame = make("iframe", { title: "Report" });
  const show = () => {
    state.textContent = " making the report ...";
    frame.src = new URL(`./report?run=${encodeURIComponent(select.value)}`, import.meta.url).href;
  };
  frame.addEventListener("load", () => { state.textContent = ""; });
  select.addEventListener("change", show);
  words.replaceChildren(make("label", {}, "Run ", select), state);
  document.body.append(frame);
  show();
}
