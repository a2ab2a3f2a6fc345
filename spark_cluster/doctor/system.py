"""Checks of one node's disk, SSH folder and Tailscale, and of what logind removes."""

from __future__ import annotations

from spark_cluster.doctor.check import check
from spark_cluster.doctor.observations import NotSeen, Observations, Verdict, fail, ok, warn
from spark_cluster.node.processes import SYSTEM_UID_MAX
from spark_cluster.node.replies import at, decoded

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
    on = at(decoded(done.stdout), "RunSSH")
    if on is None:
        raise NotSeen(f"tailscale debug prefs: {done.said[:200] or done.status}")
    return warn("Tailscale SSH is on") if on else ok("Tailscale SSH is off")


@check("system.ssh-folder", needs=("ssh_folder",), effect="blocks", link=True)
def ssh_folder(seen: Observations) -> Verdict:
    """the login user can keep keys"""
    done = seen.ran("ssh_folder")
    if done.status != 0 and "No such file" in done.said:
        return fail(f"{seen.user} has no ~/.ssh")
    words = done.stdout.split()
    if done.status != 0 or len(words) < 3:
        raise NotSeen(f"~/.ssh: {done.said[:200] or f'status {done.status}'}")
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
