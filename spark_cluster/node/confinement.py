"""What a container of ours may do and gets of the GPU, whatever its image and what runs in it.

Of Docker's fourteen default capabilities an engine needs one: root in the container reads models
and writes folders that belong to other users (DAC_OVERRIDE). RDMA locks memory (IPC_LOCK), which
Docker does not give by itself. Tried with vLLM and Ray over two nodes in the lab. A program of
another user has no capability, so the user that an image names does not count: secrets, caches and
ports of an engine are root's.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from spark_cluster.node.values import ResourceError

if TYPE_CHECKING:
    from spark_cluster.node.host import Host


READ_OTHERS = "DAC_OVERRIDE"
ENGINE = (READ_OTHERS, "IPC_LOCK")
"""Capabilities of an engine's container."""

USER = "0:0"
DROPPED = ("ALL",)
SECURITY = ("no-new-privileges",)
"""Values of `--user`, `--cap-drop` and `--security-opt`."""


def options(*capabilities: str) -> tuple[str, ...]:
    """Return the options of `docker run` for a container of root with these capabilities only."""
    return (
        *("--user", USER),
        *(word for one in DROPPED for word in ("--cap-drop", one)),
        *(word for one in capabilities for word in ("--cap-add", one)),
        *(word for one in SECURITY for word in ("--security-opt", one)),
    )


# How containers get the GPU: CDI specifications, and systemd's rules for their devices.
#
# The scripts are for a node's `sh`; doctor, the role `containers` and the agent run them. They
# execute nothing that a container can write.

FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""Where Docker looks for CDI specifications; a device that both describe is taken from the second
(source: cdi-spec)."""

_LOOK = """\
export LC_ALL=C
missing() {
  for spec; do
    [ -f "$spec" ] && grep -qsF nvidia.com/gpu "$spec" || continue
    printf '%s\\n' "$spec"
    head -c 4194304 "$spec" | grep -aoE '(^|[^A-Za-z])(hostPath|path)"?: *"?/[^",}]*' |
      awk '
        { of_host = /hostPath/; sub(/^[^\\/]*/, ""); sub(/[[:space:]]+$/, "") }
        of_host { host[$0]; next } { path[$0] }
        END {
          for (h in host) print h
          for (p in path) {
            inside = 0
            for (h in host) if (substr(h, length(h) - length(p) + 1) == p) inside = 1
            if (!inside) print p
          }
        }' | sort |
      while read -r path; do
        [ -e "$path" ] || printf '%s\\t%s\\n' "$spec" "$path"
      done | head -n 50
  done
}
look() {
  every=$(missing "$1"/*.yaml "$1"/*.json "$2"/*.yaml "$2"/*.json)
  stale=$(missing "$1/nvidia.yaml" "$2/nvidia.yaml" | grep '\t' | cut -f 1 | sort -u)
}
look "$1" "$2"
""".replace("'\t'", "\"$(printf '\\t')\"")
"""`every`: a line for each specification of the GPU in the folders `$1` and `$2`, and one for each
path of the node that it names and that is not there, behind a tab. A `path` is the container's
where a `hostPath` ends with it. `stale`: those of NVIDIA's toolkit that name such a path."""

SPECIFICATIONS = (
    _LOOK
    + """\
printf '%s\\n' "$every"
for node in /dev/nvidia[0-9]*; do
  [ ! -e "$node" ] ||
    find -L "$1" "$2" -maxdepth 1 -type f '(' -name '*.yaml' -o -name '*.json' ')' \\
      -exec cat {} + 2>/dev/null |
    grep -qw -- "$node" || printf '\\t%s\\n' "$node"
done
"""
)
"""Prints `every`, and behind a tab each GPU that no specification names."""

DESCRIBED = _LOOK + '{ [ -n "$every" ] && [ -z "$stale" ]; } || ! timeout 20 nvidia-smi -L'
"""Ends with 0 where a specification describes the driver that is there, or where that does not
answer: then a reboot is pending, and a run after it describes what is there."""

DESCRIBE = (
    _LOOK
    + """\
systemctl restart nvidia-cdi-refresh.service 2>/dev/null
look "$1" "$2"
[ -n "$every" ] || stale=$1/nvidia.yaml
for spec in $stale; do nvidia-ctk cdi generate --output="$spec" || exit 1; done
"""
)
"""Has the toolkit's own service (from 1.18 on) describe the GPU in `$2`, and describes it in each
place that is still wrong, or in `$1` where no specification is there (source: nvidia-docs-cdi)."""

CONTROL = "/dev/nvidiactl"
"""The device that every process opens before it uses the GPU."""

ACCESS = f"""\
export LC_ALL=C
[ -e {CONTROL} ] && command -v docker >/dev/null || exit 0
containers=$(docker ps -q --no-trunc --filter status=running) || exit 1
[ -n "$containers" ] || exit 0
number=$(printf '%d:%d' "0x$(stat -c %t {CONTROL})" "0x$(stat -c %T {CONTROL})")
fields='{{{{.Name}}}} {{{{.State.Pid}}}} {{{{json .HostConfig.DeviceRequests}}}}'
docker container inspect -f "$fields" $containers | grep -E '^[^ ]+ [0-9]+ .*gpu' |
while read -r name pid _; do
  group=$(sed -n 's/^0:://p' "/proc/$pid/cgroup" 2>/dev/null)
  [ -n "$group" ] || continue
  said=$(timeout -s KILL 5 sh -c 'echo $$ >"$1/cgroup.procs" && exec 3<"$2"' \
    sh "/sys/fs/cgroup$group" {CONTROL} 2>&1 </dev/null)
  rules=$(systemctl show -p DevicePolicy -p DeviceAllow -- "${{group##*/}}" 2>/dev/null)
  state=kept
  case $rules in
    *"/dev/char/$number "* | *"={CONTROL} "* | *char-nvidia*) ;;
    *DevicePolicy=strict*) state=unknown-to-systemd ;;
  esac
  case $said in *"{CONTROL}: Operation not permitted"*) state=lost ;; esac
  printf '%s %s %s\\n' "${{name#/}}" "$state" "${{group##*/}}"
done
true
"""
"""Prints each running container that was started with `--gpus` or CDI, its state, and its unit:
`lost` where its control group may not open the driver's device, `unknown-to-systemd` where systemd
takes it away with its next reload, else `kept`. It is this script that opens the device, after it
has joined the control group; nothing in the container runs (source: nvidia-container-toolkit-48).
"""

LOOK_S = 20.0
"""Seconds that `ACCESS` may take before a run goes on without it."""

_SCOPE = re.compile(r"docker-[0-9a-f]{64}\.scope\Z")
"""Unit of a container; a privileged one can give control groups other names."""


def states(printed: str) -> list[tuple[str, str, str]]:
    """Return container, state and unit of each line that `ACCESS` printed."""
    rows = (line.split() for line in printed.splitlines())
    return [(row[0], row[1], row[2]) for row in rows if len(row) == 3]


def to_be_told(printed: str) -> list[tuple[str, str]]:
    """Return container and unit of those of whose GPU systemd does not know."""
    rows = states(printed)
    return [(name, unit) for name, state, unit in rows if state != "kept" and _SCOPE.match(unit)]


def devices(host: Host) -> dict[str, str]:
    """Return the driver's devices on this node: path to `MAJOR:MINOR`."""
    found = {}
    for node in sorted(host.path("/dev").glob("nvidia*")):
        status = node.stat()
        if stat.S_ISCHR(status.st_mode):
            number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
            found[f"/dev/{node.name}"] = number
    return found


def keep(host: Host) -> None:
    """Tell systemd of the GPU of containers, before something makes it apply its own rules again.

    Installing a package, enabling a unit and `systemctl daemon-reload` do that. What a container
    has lost so before, it can open again. It holds as long as the container runs.
    """
    if not host.path(CONTROL).exists():
        return
    try:
        printed = host.run(("sh", "-c", ACCESS), timeout=LOOK_S).stdout
    except ResourceError as error:  # Docker hangs, which this run may be there to repair
        host.note(f"containers may lose the GPU when systemd reloads: {error.message}")
        return
    for name, unit in to_be_told(printed):
        rules = (f"DeviceAllow={node} rw" for node in devices(host))
        done = host.run(("systemctl", "set-property", "--runtime", unit, *rules))
        if done.status:
            host.note(
                f"the next reload of systemd takes the GPU from container {name}, and that could "
                f"not be prevented ({done.stderr.strip()}): `docker restart {name}` gives it back"
            )
