// Elements and units. All that nodes and commands say is put into the page as text, never as markup.
const SVG = "http://www.w3.org/2000/svg";

export function element(tag, text = "", kind = "") {
  const made = document.createElement(tag);
  if (text !== "") made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

export function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

export function number(value, digits = 0) {
  return value === null || value === undefined ? "–" : value.toFixed(digits);
}

export function gib(mib) {
  return mib === null || mib === undefined ? "–" : (mib / 1024).toFixed(1);
}

export function mib(value) {
  return value === null || value === undefined ? "?" : value.toLocaleString("en-US");
}

export function clock(moment) {
  return moment.toLocaleTimeString([], { hour12: false });
}

export function day(moment) {
  return moment.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}

export function rate(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  for (const [unit, size] of [["GB/s", 1e9], ["MB/s", 1e6], ["kB/s", 1e3]])
    if (bytes >= size) return `${(bytes / size).toFixed(1)} ${unit}`;
  return `${bytes.toFixed(0)} B/s`;
}

export function figures(list, into) {
  into.replaceChildren(...list.map(([title, value, unit = ""]) => {
    const box = element("div");
    box.append(element("dt", title));
    const shown = element("dd", value);
    if (unit) shown.append(" ", element("small", unit));
    box.append(shown);
    return box;
  }));
}

export function badge(state, into) {
  into.textContent = state;
  into.className = `badge ${state.replace(/\W/g, "")}`;
}

// kind "cards": on a phone each row is a card.
export function table(title, heads, lists, kind = "") {
  const made = element("table", "", kind);
  const kinds = heads.map((_, index) => lists.every((cells) =>
    typeof cells[index] === "string" && /^[\d,.?]*$/.test(cells[index])) ? "number" : "");
  const top = element("tr");
  top.append(...heads.map((head, index) => {
    const cell = element("th", head, kinds[index]);
    cell.scope = "col";
    return cell;
  }));
  made.append(top);
  for (const cells of lists) {
    const line = element("tr");
    line.append(...cells.map((cell, index) => {
      const shown = cell instanceof Node ? cell : element("td", cell ?? "", kinds[index]);
      shown.dataset.head = heads[index];
      return shown;
    }));
    made.append(line);
  }
  const box = element("div", "", "scroll");
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", title);
  box.append(made);
  return box;
}

// Text whose commands, between backticks or the whole of it, are code.
export function prose(text) {
  if (text.startsWith("spark-cluster ") && !text.includes("`")) return [code(text)];
  return text.split(/`([^`]+)`/).map((part, index) => index % 2 ? code(part) : part);
}

// A command, which is wrapped between its words only: a browser breaks a line after any hyphen.
function code(text) {
  const made = element("code");
  made.append(...text.split(/(?= )/).map((word) => element("span", word)));
  return made;
}

export function block(text, title) {
  const made = element("pre", text);
  made.tabIndex = 0;
  made.setAttribute("role", "region");
  made.setAttribute("aria-label", title);
  return made;
}

export function paragraph(text, kind = "") {
  const made = element("p", "", kind);
  made.append(...prose(text));
  return made;
}
