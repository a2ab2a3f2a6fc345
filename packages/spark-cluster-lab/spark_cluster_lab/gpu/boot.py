"""A node's process 1 before it is systemd: it puts the node's file system together and enters it.

`python -m spark_cluster_lab.gpu.boot STATE NUMBER TERMINAL`, started by the node's supervisor in
the node's network. All mounts are in the node's own mount namespace: they are gone when it is.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import uuid
from pathlib import Path
from typing import NoReturn

from spark_cluster.errors import Failed
from spark_cluster_lab import cgroup
from spark_cluster_lab.gpu import mounts, seed
from spark_cluster_lab.gpu.description import Description, read
from spark_cluster_lab.gpu.layout import GpuLayout, GpuNodeLayout
from spark_cluster_lab.machine import SYSTEM_PATH, which
from spark_cluster_lab.network import BOOT_ID
from spark_cluster_lab.shell import run

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x00020000, 0x02000000, 0x04000000
CLONE_NEWIPC, CLONE_NEWPID = 0x08000000, 0x20000000
MS_REC, MS_PRIVATE, MNT_DETACH = 0x4000, 1 << 18, 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP = 1, 24
OLD_ROOT = "run/machine"
PAYLOAD = "payload"
"""The group of the node's systemd, below that of its supervisor."""

FILES = ("null", "zero", "full", "random", "urandom", "tty", "fuse")
LINKS = {
    "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2",
    "ptmx": "pts/ptmx",
}  # fmt: skip
READ_ONLY = ("sys", "sysrq-trigger", "irq", "bus", "fs")
"""Of /proc: they are the machine's and would change it. The network's settings are the node's."""

DROPPED = {"sys_module": 16, "sys_rawio": 17, "sys_time": 25, "mknod": 27}
"""What would change the machine's own clock, kernel or memory, or make another GPU's device."""

MODIFY = "ModifyDeviceFiles: 1"

ANSWERS_WITHIN_S = 5.0
"""Seconds that a mount of the machine gets to answer: that of a server which is off never does."""


def main() -> None:
    """Entry point."""
    layout, number, terminal = GpuLayout(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
    node = layout.nodes(number)[-1]
    described = read(node.description)
    if described is None:
        raise Failed("its description is missing", where=node.name)
    isolate()
    own_cgroup(node)
    assemble(layout, node, described, Path(terminal))
    socket.sethostname(node.name)
    with node.leader.open("w") as leader:
        identity = process()
        change_root(node.root)
        seed.fill(Path("/"), node, described)
        drop_capabilities()  # before others enter what they find in the file
        leader.write(identity)
    become_systemd()


def isolate() -> None:
    """Go on as process 1 of new namespaces; the process that was stays behind and ends like it.

    Not with unshare(1): AppArmor's profile of that program takes the capabilities of what it starts
    (`unshare-userns-restrict` of Ubuntu 25.04).
    """
    libc("unshare", CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID)
    libc("mount", None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
    child = os.fork()
    if child == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    end_like(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def end_like(status: int) -> NoReturn:
    """End with an exit status, or by a signal if it is negative: that is how process 1 reboots."""
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def own_cgroup(node: GpuNodeLayout) -> None:
    """Join the node's own group and take it for the top of the tree."""
    for group in cgroup.groups(node.group):
        payload = group / PAYLOAD
        payload.mkdir(exist_ok=True)
        (payload / "cgroup.procs").write_text("0")
    libc("unshare", CLONE_NEWCGROUP)


def process() -> str:
    """Return the machine's number of this process and its start, in ticks since the machine's."""
    pid = Path("/proc/self").readlink().name
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2]
    return f"{pid} {after_name.split()[19]}\n"


# --- file systems ------------------------------------------------------------------------------


def assemble(layout: GpuLayout, node: GpuNodeLayout, found: Description, terminal: Path) -> None:
    """Mount everything that the node sees below its root."""
    root = node.root
    root.mkdir(parents=True, exist_ok=True)
    overlay(node, found)
    own_file_systems(root)
    for point in found.mounts:
        show(Path(point), root)
    hide(root, layout.state)
    for share in found.shares:
        bind(Path(share), root, read_only=True)
    for name in (*FILES, *found.devices):
        if Path("/dev", name).exists():
            bind(Path("/dev", name), root)
    bind(terminal, root, Path("/dev/console"))
    only_its_devices(root)


def overlay(node: GpuNodeLayout, found: Description) -> None:
    """Mount the node's root: the machine's own, below what the node has written."""
    storage = node.directory
    if found.in_memory:
        storage = node.disk
        storage.mkdir(exist_ok=True)
        mount("tmpfs", "tmpfs", storage, "mode=755")
    upper, work = storage / "upper", storage / "work"
    for path in (upper, work):
        path.mkdir(exist_ok=True)
    options = f"lowerdir=/,upperdir={upper},workdir={work}"
    mount("overlay", "spark-cluster-gpu-lab", node.root, options)


def own_file_systems(root: Path) -> None:
    """Mount what a booted system has of the kernel's, the node's own."""
    mount("proc", "proc", root / "proc", "nosuid,nodev,noexec")
    mount("sysfs", "sysfs", root / "sys", "ro,nosuid,nodev,noexec")
    mount("cgroup2", "cgroup2", root / "sys/fs/cgroup", "nosuid,nodev,noexec")
    for name in READ_ONLY:
        place = root / "proc" / name
        if place.exists():
            run(["mount", "--bind", place, place])
            run(["mount", "-o", "remount,bind,ro", place])
    network = root / "proc/sys/net"
    run(["mount", "--bind", network, network])
    run(["mount", "-o", "remount,bind,rw", network])
    mount("tmpfs", "tmpfs", root / "run", "mode=755,nosuid,nodev")
    mount("tmpfs", "tmpfs", root / "tmp", "mode=1777,nosuid,nodev")
    dev = root / "dev"
    mount("tmpfs", "tmpfs", dev, "mode=755,nosuid")
    for name in ("pts", "shm", "mqueue"):
        (dev / name).mkdir()
    mount("devpts", "devpts", dev / "pts", "newinstance,ptmxmode=0666,mode=0620,gid=5")
    mount("tmpfs", "tmpfs", dev / "shm", "mode=1777,nosuid,nodev")
    mount("mqueue", "mqueue", dev / "mqueue", "nosuid,nodev,noexec")
    for name, target in LINKS.items():
        (dev / name).symlink_to(target)
    put(root, "boot-id", f"{uuid.uuid4()}\n", BOOT_ID)


def only_its_devices(root: Path) -> None:
    """Keep the driver's libraries from making device files of the GPUs that the node has not."""
    params = root / "proc/driver/nvidia/params"
    if not params.exists():
        return
    text = params.read_text().replace(MODIFY, MODIFY.replace("1", "0"))
    put(root, "nvidia-params", text, Path("/proc/driver/nvidia/params"))


def put(root: Path, name: str, text: str, target: Path) -> None:
    """Have a file of the kernel's read as a text of the node's."""
    file = root / "run" / name
    file.write_text(text)
    file.chmod(0o444)
    bind(file, root, target, read_only=True)


def show(point: Path, root: Path) -> None:
    """Show a mount of the machine in the node, unless it is one that does not answer."""
    print(f"showing {point}", flush=True)  # the console's last words if even that hangs
    try:
        run(["stat", "--", point], timeout=ANSWERS_WITHIN_S)
        bind(point, root, read_only=True, limit=ANSWERS_WITHIN_S)
    except (Failed, OSError) as error:
        print(f"{point} {mounts.NOT_SHOWN}: {' '.join(str(error).split())}", flush=True)


def hide(root: Path, folder: Path) -> None:
    """Cover a folder of the machine with an empty one."""
    place = below(root, folder)
    place.mkdir(parents=True, exist_ok=True)
    mount("tmpfs", "tmpfs", place, "mode=755,size=1m")


def bind(
    source: Path,
    root: Path,
    target: Path | None = None,
    *,
    read_only: bool = False,
    limit: float | None = None,
) -> None:
    """Show a file or folder of the machine in the node, at the same place by default.

    Args:
        limit: seconds that each step may take.
    """
    place = below(root, target or source)
    if source.is_dir():
        place.mkdir(parents=True, exist_ok=True)
    elif not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    run(["mount", "--bind", source, place], timeout=limit)
    if read_only:
        run(["mount", "-o", "remount,bind,ro", place], timeout=limit)


def below(root: Path, path: Path) -> Path:
    """Return where an absolute path is in the node.

    >>> below(Path("/nodes/gpu1/root"), Path("/srv/models"))
    PosixPath('/nodes/gpu1/root/srv/models')
    """
    return root / path.relative_to("/")


def mount(kind: str, source: str, place: Path, options: str) -> None:
    """Mount a file system."""
    run(["mount", "-t", kind, source, "-o", options, place])


# --- entering it -------------------------------------------------------------------------------


def change_root(root: Path) -> None:
    """Make the node's root this process's, and let go of the machine's."""
    old = root / OLD_ROOT
    old.mkdir(parents=True)
    run(["pivot_root", root, old])
    os.chdir("/")
    place = Path("/", OLD_ROOT)
    libc("umount2", str(place).encode(), MNT_DETACH)
    place.rmdir()


def drop_capabilities() -> None:
    """Have no program from here on get what would change the machine."""
    for number in DROPPED.values():
        prctl(PR_CAPBSET_DROP, number)


def become_systemd() -> None:
    """Run systemd in place of this process; it inherits nothing of what was dropped either."""
    dropped = ",".join(f"-{name}" for name in DROPPED)
    environment = {"container": "spark-cluster-gpu-lab", "PATH": SYSTEM_PATH}
    program = str(seed.systemd())
    words = ["setpriv", f"--inh-caps={dropped}", program]
    os.execve(which("setpriv") or "setpriv", words, environment)  # noqa: S606  it is systemd now


def prctl(option: int, value: int) -> None:
    """Change a property of this process, prctl(2)."""
    libc("prctl", option, *map(ctypes.c_ulong, (value, 0, 0, 0)))


def libc(name: str, *arguments: object) -> None:
    """Call a function of the C library that Python has not.

    Raises:
        OSError: it failed.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
