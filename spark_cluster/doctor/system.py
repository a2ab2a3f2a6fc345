"""Checks of one node's memory and disk, of its SSH folder and of Tailscale."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from spark_cluster.config.fact_gathering import compute_apps, free_blocks
from spark_cluster.doctor.check import check
from spark_cluster.doctor.observations import NotSeen, Observations, Verdict, fail, ok, warn
from spark_cluster.engine.names import RAY, SERVER, TITLE
from spark_cluster.issues.rules_flags import SYSTEM_UID_MAX
from spark_cluster.node.load_watch import SSH_STOPS_KIB

GIB = 2**30
LOW_DISK = 50 * GIB
FULL_DISK = 5 * GIB


@check("system.disk", needs=("os",), effect="risks")
def disk(seen: Observations) -> Verdict:
    """there is room on the disk"""
    seen.text("os")
    free, total = seen.facts.disk_free_bytes, seen.facts.disk_total_bytes
    shown = f"{free / GIB:.0f} of {total / GIB:.0f} GiB free"
    if free < FULL_DISK:
        return fail(shown)
    return warn(shown) if free < min(LOW_DISK, total // 20) else ok(shown)


@check("system.tailscale-ssh", needs=("tools", "tailscale"), effect="risks")
def tailscale_ssh(seen: Observations) -> Verdict:
    """nothing stands between the nodes and their sshd"""
    if not seen.has("tailscale"):
        return ok("Tailscale is not installed")
    done = seen.ran("tailscale")
    try:
        on = bool(json.loads(done.stdout)["RunSSH"])
    except (ValueError, LookupError, TypeError):
        raise NotSeen(f"tailscale debug prefs: {done.output[:200] or done.status}") from None
    return warn("Tailscale SSH is on") if on else ok("Tailscale SSH is off")


@check("system.ssh-folder", needs=("ssh_folder",), effect="blocks", link=True)
def ssh_folder(seen: Observations) -> Verdict:
    """the login user can keep keys"""
    done = seen.ran("ssh_folder")
    if done.status != 0 and "No such file" in done.output:
        return fail(f"{seen.user} has no ~/.ssh")
    words = done.stdout.split()
    if done.status != 0 or len(words) < 3:
        raise NotSeen(f"~/.ssh: {done.output[:200] or f'status {done.status}'}")
    owner, mode = words[-2:]
    if owner != seen.user or int(mode, 8) & 0o022:
        return fail(f"~/.ssh belongs to {owner}, mode {mode}: sshd refuses it")
    return ok(f"~/.ssh of {owner}, mode {mode}")


@check("system.remove-ipc", needs=("remove_ipc", "holders"), effect="risks")
def remove_ipc(seen: Observations) -> Verdict:
    """no engine loses its semaphores when a user logs out"""
    said = seen.output("remove_ipc").split()
    if said == ["b", "false"]:
        return ok("RemoveIPC=no")
    if said != ["b", "true"]:
        raise NotSeen(f"logind does not say whether RemoveIPC is in force: {' '.join(said)[:200]}")
    rows = (line.split(" ", 5) for line in seen.output("holders").splitlines())
    lost = {
        pid: uid for pid, _, _, uid, ipc, *_ in rows if int(uid) > SYSTEM_UID_MAX and ipc == "node"
    }
    if not lost:
        return ok("RemoveIPC=yes, which concerns no process on the GPU")
    shown = ", ".join(f"PID {pid} of uid {uid}" for pid, uid in lost.items())
    return warn(
        f"RemoveIPC=yes, and semaphores of {shown} are the node's", USER=next(iter(lost.values()))
    )


# Checks of one node's memory: what is left, what holds it, what happens when it runs out.

WARN_KIB = 6 * 2**20

CALM_SWAPPINESS = 10
MANY_REFUSALS = 5
OWN_UNIT = re.compile(rf"/({SERVER}|{RAY})\.service$")
CONTAINER_ID = re.compile(r"[0-9a-f]{64}")


@check("memory.available", needs=("meminfo",), effect="risks")
def available(seen: Observations) -> Verdict:
    """there is memory left for the system"""
    memory = seen.memory
    if not memory.total_kib:
        raise NotSeen("/proc/meminfo has no MemTotal")
    shown = f"{memory.available_kib / 2**20:.1f} of {memory.total_kib / 2**20:.1f} GiB available"
    if memory.available_kib < SSH_STOPS_KIB:
        return fail(shown)
    return warn(shown) if memory.available_kib < WARN_KIB else ok(shown)


@check("memory.orphan", needs=("apps", "holders", "containers"), effect="blocks")
def orphan(seen: Observations) -> Verdict:
    """no orphaned engine process holds memory"""
    processes = {p.pid: p for p in compute_apps(seen.output("apps"))}
    running = {e.id for e in seen.engines if e.running}
    left = []
    for line in seen.output("holders").splitlines():
        pid, parent, group, _, _, *name = line.split(" ", 5)
        process = processes.get(int(pid))
        container = CONTAINER_ID.search(group)
        if process is None or not TITLE.match(process.name):
            continue
        if container is not None and container[0] in running:
            continue
        if OWN_UNIT.search(group):  # of the runtime venv: systemd ends all of it with the unit
            continue
        if parent == "1" or (name and name[0].startswith(("systemd", "containerd-shim"))):
            left.append(process)
    if left:
        shown = ", ".join(f"PID {p.pid} {p.name} {p.used_mib} MiB" for p in left)
        pids = " ".join(str(p.pid) for p in left)
        return fail(shown, PID=pids)
    held = sum(p.used_mib or 0 for p in processes.values())
    return ok(f"{len(processes)} processes hold {held} MiB" if processes else "nothing is held")


@check("memory.swap", needs=("swaps", "swappiness"), effect="risks")
def swap(seen: Observations) -> Verdict:
    """the node does not thrash in swap when memory runs out"""
    devices = _swap_devices(seen)
    swappiness = seen.text("swappiness").strip()
    if not devices:
        return ok("no swap")
    shown = f"{', '.join(devices)} in use, swappiness {swappiness}"
    calm = swappiness.isdigit() and int(swappiness) <= CALM_SWAPPINESS
    return ok(shown) if calm else warn(shown)


@check(
    "memory.fragmentation",
    needs=("buddyinfo", "page_size", "meminfo", "containers"),
    effect="risks",
)
def fragmentation(seen: Observations) -> Verdict:
    """free memory has large blocks, as a load needs them"""
    memory, serving = seen.memory, any(engine.running for engine in seen.engines)
    size = seen.output("page_size").strip()
    blocks = free_blocks(seen.text("buddyinfo"), int(size)) if size.isdecimal() else None
    if blocks is None:
        raise NotSeen(f"/proc/buddyinfo has no zone, or {size[:20]!r} is no page size")
    if not blocks.fragmented:
        return ok(str(blocks))
    if serving:
        return ok(f"{blocks}, while an engine runs")
    if 2 * memory.cached_kib > memory.available_kib:
        cached = f"{memory.cached_kib / 2**20:.1f} GiB of page cache"
        return ok(f"{blocks}, next to {cached} that a start drops")
    return warn(str(blocks))


@check("memory.earlyoom", needs=("units", "swaps"), effect="risks")
def earlyoom(seen: Observations) -> Verdict:
    """earlyoom ends the engine before the node freezes"""
    unit = seen.units.get("earlyoom", {})
    if not unit:
        raise NotSeen("systemctl reports nothing about earlyoom")
    if unit.get("LoadState") == "not-found":
        return warn("earlyoom is not installed", "no-earlyoom")
    active = unit.get("ActiveState", "?")
    if active != "active":
        return warn(f"earlyoom is {active}", "no-earlyoom")
    limit = _swap_limit(seen.output("earlyoom").split("\0")) if _swap_devices(seen) else ""
    if limit:
        return warn(f"earlyoom waits until swap is used up, too: {limit}", "earlyoom-swap")
    return ok("earlyoom is active")


def _swap_limit(argv: Sequence[str]) -> str:
    """Return the option of earlyoom that keeps it from acting while swap is free; or nothing.

    `-s 100` alone still leaves SIGKILL at half of it (source: earlyoom-manual).
    """
    words = [word.strip() for word in argv]
    flags = [re.fullmatch(r"-([sS])(.*)", word) for word in words]
    given = {
        flag[1]: flag[2] or next(iter(words[at + 1 :]), "") for at, flag in enumerate(flags) if flag
    }
    if "S" in given:
        return f"-S {given['S']}"
    percent = given.get("s", "10")
    if percent == "100":
        return "-s 100 (SIGKILL below 50 %)"
    return "" if percent == "100,100" else f"-s {percent}"


def _swap_devices(seen: Observations) -> list[str]:
    return [line.split()[0] for line in seen.text("swaps").splitlines()[1:] if line.split()]


@check("memory.refused", needs=("kernel_log",), effect="risks")
def refused(seen: Observations) -> Verdict:
    """no allocation of the driver failed, and the kernel killed no process"""
    log = seen.output("kernel_log")
    refusals = log.count("NV_ERR_NO_MEMORY")
    killed = re.findall(r"Out of memory: Killed process \d+ \(([^)]*)\)", log)
    parts = [f"NV_ERR_NO_MEMORY {refusals} times"] if refusals else []
    if killed:
        parts.append(f"the kernel killed {', '.join(sorted(set(killed)))}")
    if not parts:
        return ok("the kernel's log since boot has no such entry")
    shown = f"{'; '.join(parts)}, since boot"
    return fail(shown) if refusals >= MANY_REFUSALS else warn(shown)
