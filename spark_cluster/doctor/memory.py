"""Memory of one node: what is left, who holds it, and what happens when it runs out."""

from __future__ import annotations

import re

from spark_cluster.doctor.check import check
from spark_cluster.doctor.finding import NotSeen, Verdict, fail, ok, warn
from spark_cluster.doctor.observations import Observations
from spark_cluster.facts.parsers import compute_apps

MEMORY = "spark-cluster provision --tags memory --limit {node}"
WARN_KIB = 6 * 2**20
FAIL_KIB = 3 * 2**20
"""Below this a Spark stops answering SSH."""

CALM_SWAPPINESS = 10
MANY_REFUSALS = 5
ENGINE_TITLE = re.compile(r"VLLM::(EngineCor|Worker)|ray::|RayWorker")
CONTAINER_ID = re.compile(r"[0-9a-f]{64}")


@check(
    "memory.available",
    title="there is memory left for the system",
    needs=("meminfo",),
    severity="risks",
    cause="GPU and system share the memory: at the end of it the node answers pings but no SSH",
    fix="spark-cluster vram shows who holds it; lower --gpu-memory-utilization, or "
    "spark-cluster down",
    rows=(18, 20),
)
def available(seen: Observations) -> Verdict:
    memory = seen.memory
    if not memory.total_kib:
        raise NotSeen("/proc/meminfo tells no MemTotal")
    shown = f"{memory.available_kib / 2**20:.1f} of {memory.total_kib / 2**20:.1f} GiB available"
    if memory.available_kib < FAIL_KIB:
        return fail(shown)
    return warn(shown) if memory.available_kib < WARN_KIB else ok(shown)


@check(
    "memory.orphan",
    title="no process of an engine that is gone holds memory",
    needs=("apps", "holders", "containers"),
    severity="blocks",
    cause="its parent died and it did not; it keeps its memory until it is ended",
    fix="spark-cluster exec -b -l {node} -- kill -9 PID",
    rows=(19,),
)
def orphan(seen: Observations) -> Verdict:
    processes = {p.pid: p for p in compute_apps(seen.output("apps"))}
    running = {e.id for e in seen.engines if e.running}
    left = []
    for line in seen.output("holders").splitlines():
        pid, parent, group, *name = line.split(" ", 3)
        process = processes.get(int(pid))
        container = CONTAINER_ID.search(group)
        if process is None or not ENGINE_TITLE.match(process.name):
            continue
        if container is not None and container[0] in running:
            continue
        if parent == "1" or (name and name[0].startswith(("systemd", "containerd-shim"))):
            left.append(process)
    if left:
        shown = ", ".join(f"PID {p.pid} {p.name} {p.used_mib} MiB" for p in left)
        pids = " ".join(str(p.pid) for p in left)
        return fail(shown, fix=f"spark-cluster exec -b -l {{node}} -- kill -9 {pids}")
    held = sum(p.used_mib or 0 for p in processes.values())
    return ok(f"{len(processes)} processes hold {held} MiB" if processes else "nothing is held")


@check(
    "memory.swap",
    title="the node does not thrash in swap when memory runs out",
    needs=("swaps", "swappiness"),
    severity="risks",
    cause="with the memory full the node swaps instead of ending a process: pings, but no SSH",
    fix=MEMORY,
    rows=(20,),
)
def swap(seen: Observations) -> Verdict:
    devices = [line.split()[0] for line in seen.text("swaps").splitlines()[1:] if line.split()]
    swappiness = seen.text("swappiness").strip()
    if not devices:
        return ok("no swap")
    shown = f"{', '.join(devices)} in use, swappiness {swappiness}"
    calm = swappiness.isdigit() and int(swappiness) <= CALM_SWAPPINESS
    return ok(shown) if calm else warn(shown)


@check(
    "memory.earlyoom",
    title="earlyoom ends the engine before the node freezes",
    needs=("units",),
    severity="risks",
    cause="nothing ends a process in time: the kernel does not see what the GPU takes",
    fix=MEMORY,
    rows=(20,),
)
def earlyoom(seen: Observations) -> Verdict:
    unit = seen.units.get("earlyoom", {})
    if not unit:
        raise NotSeen("systemctl tells nothing of earlyoom")
    if unit.get("LoadState") == "not-found":
        return warn("earlyoom is not installed")
    active = unit.get("ActiveState", "?")
    return ok("earlyoom is active") if active == "active" else warn(f"earlyoom is {active}")


@check(
    "memory.refused",
    title="the driver was refused no memory, and the kernel killed nothing",
    needs=("kernel_log",),
    severity="risks",
    cause="the memory that GPU and system share ran out since boot",
    fix="lower --gpu-memory-utilization, end other programs; " + MEMORY,
    rows=(20,),
)
def refused(seen: Observations) -> Verdict:
    log = seen.output("kernel_log")
    refusals = log.count("NV_ERR_NO_MEMORY")
    killed = re.findall(r"Out of memory: Killed process \d+ \(([^)]*)\)", log)
    parts = [f"NV_ERR_NO_MEMORY {refusals} times"] if refusals else []
    if killed:
        parts.append(f"the kernel killed {', '.join(sorted(set(killed)))}")
    if not parts:
        return ok("nothing of it in the kernel's log since boot")
    shown = f"{'; '.join(parts)}, since boot"
    return fail(shown) if refusals >= MANY_REFUSALS else warn(shown)
