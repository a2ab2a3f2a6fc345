// What commands say, as elements. All of it is put into the page as text, never as markup.
import { badge, block, day, element, figures, mib, paragraph, table } from "/elements.js";

export function facts(found) {
  const models = found.models ?? [];
  const of = (key) => [...new Set(models.map((one) => one[key]))].filter(Boolean).join(", ") || found[key];
  const replicas = found.replicas?.length ?? 0;
  const ranks = found.data_parallel > 1 ? `, ${found.data_parallel} data-parallel ranks` : "";
  const size = replicas ? `${replicas} replicas` : found.tp && `TP=${found.tp}${ranks}`;
  const access = found.access && (found.access.api_key ? "with an API key" : "without a key");
  return [
    ["model", of("model")], ["recipe", of("recipe")], ["size", size],
    ["address", found.endpoint, access ?? ""], ["since", found.since && day(new Date(found.since))],
  ].filter(([, value]) => value);
}

function status(found) {
  const state = element("span");
  badge(found.state, state);
  const title = element("dl", "", "figures facts");
  figures(facts(found), title);
  const containers = found.nodes.flatMap((one) => {
    if (!one.reachable) return [[one.name, "", element("td", "unreachable", "fail"), ""]];
    const present = Object.entries(one.containers).filter(([, c]) => c.status !== "absent");
    return present.map(([name, c]) => [one.name, name, c.status, `${c.restarts}`]);
  });
  const behind = found.models ?? found.replicas;
  const lines = [...found.problems.map((problem) => paragraph(problem, "notice bad")),
    ...(found.tuned.length ? [paragraph(`started with tuned kernels: ${found.tuned.join(", ")}`)] : [])];
  if (containers.length)
    lines.push(table("Containers", ["node", "container", "state", "restarts"], containers));
  if (behind.length)
    lines.push(table("Servers", ["server", "node", "state", "address"],
      behind.map((one) => [one.model ?? "replica", one.node, one.state, one.url])));
  if (found.ray?.nodes)
    lines.push(paragraph(`Ray: ${found.ray.nodes} nodes, ${found.ray.gpus} GPUs`, "dim"));
  return [state, title, ...lines];
}

function vram(found) {
  return [element("p", "MiB; available and total are the machine's memory, which the GPU shares", "dim"),
    table("GPU memory, MiB", ["node", "process", "used", "available", "total", "pid"],
      found.nodes.flatMap((one) => [
        ...one.processes.map((p) => [
          one.name, p.model ? `${p.name} (${p.model})` : p.name, mib(p.used_mib), "", "", `${p.pid}`]),
        [one.name, element("td", "all processes", "dim"), mib(one.used_mib), mib(one.mem_available_mib),
          mib(one.mem_total_mib), ""],
      ]))];
}

function doctor(found) {
  const bad = found.checks.filter((check) => check.status !== "ok");
  const fine = found.checks.length - bad.length;
  const made = [element("p", `${fine} of ${found.checks.length} checks are ok`, "dim")];
  if (bad.length) made.push(table("Findings", ["status", "check", "node", "found"], bad.map((c) => {
    const cell = element("td");
    cell.append(paragraph(c.found), ...(c.cause ? [paragraph(c.cause, "dim")] : []),
      ...(c.fix ? [paragraph(c.fix, "fix")] : []));
    return [element("td", c.status, c.status), c.id, c.node ?? "", cell];
  }), "cards"));
  return made;
}

function changes(found) {
  return [table("Runs", ["run", "when", "command", "by", "changes"], found.runs.slice(0, 50).map((run) => [
    run.run, run.since === null ? "" : day(new Date(1000 * run.since)), run.command, run.user,
    Object.entries(run.nodes).map(([n, what]) => `${n}: ${what.changes}`).join(", ")]), "cards")];
}

function logs(found) {
  if (!found.logs.length) return [element("p", "no container of spark-cluster is on these nodes", "dim")];
  return found.logs.flatMap((log) => [
    element("h3", `${log.node} ${log.container}`),
    block(log.text.replace(/\x1b\[[0-9;?]*[A-Za-z]/g, ""), `Log of ${log.container} on ${log.node}`)]);
}

export const SHOWN = { status, vram, doctor, history: changes, logs };

export function shown(name, found) {
  try {
    return SHOWN[name](found);
  } catch (error) {
    return [block(JSON.stringify(found, null, 2), name)];
  }
}
