// The nodes live, and the commands that can be asked.
import { facts, SHOWN, shown } from "/answers.js";
import { badge, block, clock, element, figures, gib, number, prose, rate, shape, table } from "/elements.js";

const POINTS = 240;
const AGAIN_MS = 3000;
const LOOK_MS = 30000;
const rows = new Map();
let names = [];
let troubles = {};
let every = 1;
let after = 0;
let drawn = 0;
let looked = -Infinity;
let answered;

// -- the token ------------------------------------------------------------------------------------

// Take the token out of the address bar; this tab keeps it, and no other port of the machine gets it.
function enter() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token === null) return false;
  sessionStorage.setItem("token", token);
  history.replaceState(null, "", location.pathname);
  return true;
}

function get(path) {
  const token = sessionStorage.getItem("token") ?? "";
  return fetch(path, { headers: { Authorization: `Bearer ${token}` } });
}

// Ask a command; what `status` says also goes into the first card.
async function answer(name) {
  const reply = await get(`/ask/${name}`);
  if (!reply.ok) throw new Error(await reply.text());
  const found = await reply.json();
  if (name === "status") serving(found);
  return found;
}

// -- charts ---------------------------------------------------------------------------------------

// Return at most POINTS values of a list, each the mean of those that it stands for.
function fewer(values) {
  if (values.length <= POINTS) return values;
  const made = [];
  for (let i = 0; i < POINTS; i++) {
    const part = values.slice(Math.floor(i * values.length / POINTS),
      Math.floor((i + 1) * values.length / POINTS)).filter((v) => v !== null);
    made.push(part.length ? part.reduce((a, b) => a + b, 0) / part.length : null);
  }
  return made;
}

function place(index, count) {
  return count > 1 ? 100 * index / (count - 1) : 100;
}

function frame(most) {
  const svg = shape("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img" });
  for (const y of [0, 50, 100])
    svg.append(shape("line", { x1: 0, x2: 100, y1: y, y2: y, class: "grid" }));
  const title = shape("title", {});
  title.textContent = `0 to ${most}`;
  svg.append(title);
  return svg;
}

function axis(most, count) {
  const line = element("div", "", "axis");
  const seconds = Math.round(count * every);
  const ago = seconds >= 120 ? `${Math.round(seconds / 60)} min ago` : `${seconds} s ago`;
  line.append(element("span", ago), element("span", `0 to ${most}`), element("span", "now"));
  return line;
}

// entries: [title, value, number of its colour][]
function legend(entries) {
  const list = element("ul", "", "legend");
  for (const [title, value, index] of entries) {
    const item = element("li");
    const text = element("span", `${title} `);
    text.append(element("span", value, "value"));
    item.append(element("i", "", `b${index}`), text);
    list.append(item);
  }
  return list;
}

// Draw lines over time. series: [title, values, shown now][]; top: of a fixed scale
function lines(into, series, unit, top = 0) {
  const count = Math.max(...series.map(([, values]) => values.length));
  const short = series.map(([, values]) => fewer(values));
  const most = top || Math.max(1, ...short.flat().filter((v) => v !== null));
  const shown = unit(most);
  const svg = frame(shown);
  short.forEach((values, index) => {
    let path = "";
    let down = false;
    values.forEach((value, i) => {
      if (value === null) { down = false; return; }
      const x = place(i, values.length).toFixed(2);
      path += `${down ? "L" : "M"}${x} ${(100 - 100 * value / most).toFixed(2)}`;
      down = true;
    });
    svg.append(shape("path", { d: path, class: `edge l${index}` }));
  });
  into.replaceChildren(svg, axis(shown, count), legend(series.map(([t, , now], i) => [t, now, i])));
}

// Draw the memory of a node by process, over time, one above the other.
function memory(into, list) {
  const total = list.at(-1).mem_total_mib;
  let known = [];
  const readings = list.map((row) => (known = row.processes ?? known));
  const largest = new Map();
  for (const processes of readings)
    for (const p of processes)
      largest.set(p.name, Math.max(largest.get(p.name) ?? 0, p.used_mib ?? 0));
  const kinds = [...largest.entries()].sort((a, b) => b[1] - a[1]).slice(0, 4).map(([n]) => n);
  const of = (processes, wanted) => processes.filter((p) => wanted(p.name))
    .reduce((sum, p) => sum + (p.used_mib ?? 0), 0);
  const layers = kinds.map((kind) => [
    kind.split("/").at(-1).slice(0, 40), fewer(readings.map((r) => of(r, (n) => n === kind))),
  ]);
  const rest = list.map((row, i) => row.mem_available_mib === null || total === null ? null
    : Math.max(0, total - row.mem_available_mib - of(readings[i], () => true)));
  const most = total ?? Math.max(1, ...largest.values());
  const svg = frame(`${gib(most)} GiB`);
  const stack = [...layers];
  while (stack.length < 4) stack.push(null);
  stack.push(["all else", fewer(rest)]);
  const base = new Array(Math.min(list.length, POINTS)).fill(0);
  const entries = [];
  stack.forEach((layer, index) => {
    if (layer === null) return;
    const [title, values] = layer;
    const low = base.map((b, i) => `${place(i, base.length).toFixed(2)} ${(100 - 100 * b / most).toFixed(2)}`);
    values.forEach((value, i) => { base[i] += value ?? 0; });
    const high = base.map((b, i) => `${place(i, base.length).toFixed(2)} ${(100 - 100 * b / most).toFixed(2)}`);
    svg.append(shape("path", { d: `M${high.join("L")}L${low.reverse().join("L")}Z`, class: `area f${index} l${index}` }));
    entries.push([title, `${gib(values.at(-1))} GiB`, index]);
  });
  into.replaceChildren(svg, axis(`${Math.round(most / 1024)} GiB`, list.length), legend(entries));
}

// -- nodes and engine -----------------------------------------------------------------------------

function card(name) {
  let found = document.querySelector(`[data-node="${CSS.escape(name)}"]`);
  if (found) return found;
  found = element("article", "", "card");
  found.dataset.node = name;
  found.append(element("h2", name), element("div", "", "notices"), element("dl", "", "figures"));
  const charts = element("div", "", "charts");
  for (const [kind, title] of [["memory", "memory by process"], ["link", "traffic"], ["power", "GPU"]]) {
    const figure = element("figure");
    figure.append(element("figcaption", title), element("div", "", `chart ${kind}`));
    charts.append(figure);
  }
  found.append(charts);
  document.querySelector("#nodes").append(found);
  return found;
}

function node(name) {
  const box = card(name);
  const list = rows.get(name) ?? [];
  const trouble = troubles[name] ?? "";
  const last = list.at(-1);
  box.classList.toggle("silent", trouble !== "");
  const notices = trouble ? [[trouble, true]] : (last?.warnings ?? []).map((text) => [text, false]);
  box.querySelector(".notices").replaceChildren(...notices.map(([text, bad]) =>
    element("p", text, bad ? "notice bad" : "notice")));
  if (!last) return;
  figures([
    ["GPU", number(last.utilisation), "%"],
    ["SM clock", number(last.sm_clock_mhz), "MHz"],
    ["power", number(last.power_w), "W"],
    ["temperature", number(last.temperature_c), "°C"],
    ["memory free", gib(last.mem_available_mib), `of ${number(last.mem_total_mib / 1024)} GiB`],
  ], box.querySelector(".figures"));
  memory(box.querySelector(".memory"), list);
  const sum = (row, kind) => {
    const parts = [row[`rdma_${kind}_bytes_s`], row[`link_${kind}_bytes_s`]].filter((v) => v !== null && v !== undefined);
    return parts.length ? parts.reduce((a, b) => a + b, 0) : row[`net_${kind}_bytes_s`];
  };
  lines(box.querySelector(".link"), [
    ["in", list.map((r) => sum(r, "rx")), rate(sum(last, "rx"))],
    ["out", list.map((r) => sum(r, "tx")), rate(sum(last, "tx"))],
  ], rate);
  lines(box.querySelector(".power"), [
    ["GPU", list.map((r) => r.utilisation), `${number(last.utilisation)} %`],
  ], (most) => `${most} %`, 100);
}

// The first card: what `status` says, last asked by this page.
function serving({ document: status, error, command, seconds }) {
  const shown = document.querySelector("#serving");
  const found = status ?? { state: "not known", problems: [error] };
  badge(found.state, shown);
  figures(facts(found), document.querySelector("#served"));
  document.querySelector("#problems").replaceChildren(
    ...(found.problems ?? []).map((problem) => element("p", problem, "notice bad")));
  const next = found.state === "stopped" ? "Nothing is served: `spark-cluster up` starts it. " : "";
  const took = command ? `\`${command}\` took ${seconds} s.` : "";
  document.querySelector("#asked-status").replaceChildren(
    ...prose(`${next}Read at ${clock(new Date())}: ${took}`));
}

// Ask for the status when the page opens, and when the engine has come or gone; not too often.
function look(answers) {
  if (answers === answered || Date.now() - looked < LOOK_MS) return;
  [answered, looked] = [answers, Date.now()];
  answer("status").catch((error) => serving({ error: error.message }));
}

function engine() {
  const name = names.find((n) => (rows.get(n) ?? []).some((r) => r.running !== null));
  const list = rows.get(name) ?? [];
  const last = list.at(-1);
  look((last?.running ?? null) !== null);
  document.querySelector("#load").hidden = name === undefined;
  if (name === undefined) return;
  const percent = (share) => share === null ? "–" : (100 * share).toFixed(0);
  figures([
    ["on", name],
    ["running", number(last.running)], ["waiting", number(last.waiting)],
    ["KV cache", percent(last.kv_usage), "%"],
    ["tokens/s", number(last.generation_tps, 1)], ["prompt tokens/s", number(last.prompt_tps, 1)],
    ...(last.acceptance === null ? [] : [["drafts accepted", percent(last.acceptance), "%"]]),
  ], document.querySelector("#engine-figures"));
  const plain = (most) => most.toFixed(most < 10 ? 1 : 0);
  lines(document.querySelector("#tokens"), [
    ["generated", list.map((r) => r.generation_tps), number(last.generation_tps, 1)],
    ["prompts", list.map((r) => r.prompt_tps), number(last.prompt_tps, 1)],
  ], plain);
  lines(document.querySelector("#queue"), [
    ["running", list.map((r) => r.running), number(last.running)],
    ["waiting", list.map((r) => r.waiting), number(last.waiting)],
  ], plain);
}

function draw() {
  drawn = 0;
  for (const name of names) node(name);
  engine();
}

function soon() {
  if (!drawn) drawn = setTimeout(draw, 250);
}

function take(message) {
  if (message.last > after) document.querySelector("#sampled").textContent = `last sample ${clock(new Date())}`;
  ({ nodes: names, every, last: after, troubles } = message);
  const named = names.join(", ") + (message.options ? ` (${message.options})` : "");
  document.querySelector("#cluster").textContent = named;
  document.title = `${named} · spark-cluster`;
  for (const name of names) {
    const list = [...(rows.get(name) ?? []), ...message.rows[name]];
    rows.set(name, list.slice(-Math.max(1, Math.round(1800 / every))));
  }
  soon();
}

async function follow() {
  const state = document.querySelector("#state");
  const lost = (text) => {
    state.textContent = text;
    state.className = "lost";
  };
  for (;;) {
    let pause = AGAIN_MS;
    try {
      const reply = await get(`/samples/${after}`);
      if (!reply.ok) return lost(await reply.text());
      take(await reply.json());
      state.textContent = "live";
      state.className = "";
      pause = 1000 * every;
    } catch (error) {
      console.debug(error);
      lost("no connection: has `spark-cluster dashboard` ended?");
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

// -- answers of commands --------------------------------------------------------------------------

async function ask(name, button) {
  const asked = document.querySelector("#asked");
  const box = document.querySelector("#answer");
  button.setAttribute("aria-busy", "true");
  button.disabled = true;
  asked.textContent = `asking: ${name}`;
  try {
    const found = await answer(name);
    asked.textContent = `${found.command} took ${found.seconds} s`;
    box.replaceChildren(...(found.error ? [block(found.error, name)] : shown(name, found.document)));
    for (const log of box.querySelectorAll("pre")) log.scrollTop = log.scrollHeight;
  } catch (error) {
    asked.textContent = `no answer: ${error.message}`;
    box.replaceChildren();
  } finally {
    button.removeAttribute("aria-busy");
    button.disabled = false;
  }
}

async function runs() {
  const reply = await get("/runs");
  const found = reply.ok ? await reply.json() : [];
  if (!found.length) return;
  document.querySelector("#runs").replaceChildren(table("Benchmark runs",
    ["run", "suite", "state", "cells", "servers", "report"],
    found.map((run) => {
      const link = element("td", run.report ? "" : "bench report makes it", run.report ? "" : "dim");
      if (run.report) {
        const to = element("a", "open");
        to.href = run.report;
        to.target = "_blank";
        to.rel = "noopener";
        link.append(to);
      }
      const state = element("td", run.error ?? run.status, run.error ? "wide" : run.status);
      return [run.name, run.suite ?? "", state,
        run.cells === undefined ? "" : `${run.cells}${run.failed ? `, ${run.failed} failed` : ""}`,
        (run.servers ?? []).join(", "), link];
    })));
}

for (const name of Object.keys(SHOWN)) {
  const button = element("button", name);
  button.type = "button";
  button.addEventListener("click", () => ask(name, button));
  document.querySelector("#questions").append(button);
}
enter();
window.addEventListener("hashchange", () => enter() && location.reload());
follow();
runs();
