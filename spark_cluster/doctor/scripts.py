"""Small shell scripts that a node runs to answer several questions in one process.

Each prints plain text and ends with status 0 unless what it asks did not answer at all.
"""

from __future__ import annotations

from spark_cluster.engine.names import PAUSE, PROGRAMS
from spark_cluster.engine.runtime import JOURNAL

_FIELDS = "fields='{{{{.Names}}}} {{{{.Image}}}} {{{{.Command}}}}'\n"
_ENGINES = f"""\
{_FIELDS}all=$(docker ps {{all}} --no-trunc --format "$fields") || exit 1
names=$(printf '%s\\n' "$all" | grep -v '^{PAUSE} ' |
  grep -iE '(^|[^a-z])(vllm|ray|sglang)([^a-z]|$)' | cut -d' ' -f1)
"""
"""Containers that look like an engine's, by name, image or command; not only our own."""

TOOLS = 'for tool in "$@"; do command -v "$tool" >/dev/null && echo "$tool"; done; true'

CONTAINERS = (
    _ENGINES.format(all="-a")
    + """\
[ -n "$names" ] || { echo '[]'; exit 0; }
docker container inspect $names
"""
)

IMAGES = (
    _ENGINES.format(all="-a")
    + """\
[ -n "$names" ] || exit 0
docker container inspect -f '{{.Image}}' $names | sort -u |
  xargs docker image inspect
"""
)

LOG_LINES = 20000
"""How many lines at the end of a program's log are looked through."""

KEPT_LINES = 20
"""How many lines with a word are kept, the last ones."""

_KEEP = f"""\
keep() {{
  awk '
    BEGIN {{ for (i = 1; i < ARGC; i++) {{ key[i] = ARGV[i]; ARGV[i] = "" }}; keys = ARGC }}
    {{ for (i = 1; i < keys; i++) if (index($0, key[i])) {{
        kept[i "," count[i]++ % {KEPT_LINES}] = $0; break }} }}
    END {{ for (i = 1; i < keys; i++) for (j = 0; j < {KEPT_LINES}; j++)
        if ((i "," j) in kept) print kept[i "," j] }}' "$@"
}}
"""
"""Of standard input the last lines with each of the words that are asked for."""

LOGS = (
    _KEEP
    + _ENGINES.format(all="-a")
    + f"""\
for name in $names; do
  printf '==> %s\\n' "$name"
  docker logs --timestamps --tail {LOG_LINES} "$name" 2>&1 | keep "$@"
done
true
"""
)
"""The kept lines of each container's log."""

UNIT_LOGS = (
    _KEEP
    + f"""\
folder=$1
shift
journal() {{ {JOURNAL} --lines {LOG_LINES} --output short-iso-precise --utc; }}
for name in {" ".join(PROGRAMS)}; do
  file=$folder/$name.service
  [ -e "$file" ] || continue
  said=$(journal "$file" "$name") || exit 1
  printf '==> %s\\n' "$name"
  printf '%s\\n' "$said" | keep "$@"
done
true
"""
)
"""The kept lines of what our own units (runtime venv; `$1` is their folder) wrote."""

VERSIONS = (
    _ENGINES.format(all="")
    + """\
[ -n "$names" ] || exit 0
installed() (
  pid=$1
  path=$(tr '\\0' '\\n' <"/proc/$pid/environ" | sed -n 's/^PATH=//p')
  set -f; IFS=:; set -- $path; set +f
  for package in ray vllm; do
    for folder; do
      for found in "/proc/$pid/root${folder%/*}"/lib/python3*/*-packages/$package-*.dist-info; do
        [ -d "$found" ] || continue
        version=${found##*/$package-}
        printf '%s=%s\\n' "$package" "${version%.dist-info}"
        continue 3
      done
    done
  done
)
docker container inspect -f '{{.Name}} {{.State.Pid}}' $names | while read -r name pid; do
  name=${name#/}
  versions=$(installed "$pid" 2>/dev/null)
  [ -n "$versions" ] || versions=$(docker exec "$name" python3 -c "$1" </dev/null)
  printf '==> %s\\n%s\\n' "$name" "$versions"
done
true
"""
)
"""Read from the folders that pip writes, in the prefixes of the container's own PATH: a Python in
the container, which is asked where there is none, took 1.8 s on a busy node of the lab."""

VERSIONS_CODE = """\
import importlib.metadata as metadata
for name in ("ray", "vllm"):
    try:
        print(f"{name}={metadata.version(name)}")
    except metadata.PackageNotFoundError:
        pass
"""


HOLDERS = """\
pids=$(nvidia-smi --query-compute-apps=pid --format=csv,noheader) || exit $?
for pid in $pids; do
  [ -r "/proc/$pid/status" ] || continue
  parent=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status")
  uid=$(sed -n 's/^Uid:[[:space:]]*\\([0-9]*\\).*/\\1/p' "/proc/$pid/status")
  ipc=own
  if [ "$(readlink "/proc/$pid/ns/ipc")" = "$(readlink /proc/1/ns/ipc)" ]; then
    ipc=node
    [ "$(loginctl show-user "$uid" -p Linger --value 2>/dev/null)" = yes ] && ipc=lingers
  fi
  printf '%s %s %s %s %s %s\\n' "$pid" "$parent" "$(tail -n 1 "/proc/$pid/cgroup")" "$uid" \\
    "$ipc" "$(cat "/proc/$parent/comm" 2>/dev/null)"
done
true
"""
"""pid, parent's pid, control group, uid, IPC namespace (`own`; the `node`'s; `lingers`: the node's,
and logind never ends its user), parent's name."""

EARLYOOM = """\
pid=$(systemctl show -p MainPID --value earlyoom.service) || exit 1
[ "${pid:-0}" -eq 0 ] || cat "/proc/$pid/cmdline"
"""
"""How earlyoom was started, with NUL between its words."""

KERNEL = (
    _KEEP
    + f"""\
boot=$1
shift
log=$(journalctl --quiet --dmesg --boot "$boot" --lines {LOG_LINES} --no-pager \\
  --output short-iso-precise --utc 2>&1) || {{ printf '%s\\n' "$log" >&2; exit 1; }}
printf '%s\\n' "$log" | keep "$@" | sort -s -k 1,1
"""
)
"""What the kernel itself logged in a boot (`$1`: 0 or -1), the kept lines by time.

`--dmesg` asks for `_TRANSPORT=kernel`, which journald sets: anyone may log as `kernel`."""

PSTORE = (
    _KEEP
    + """\
folder=$1 archive=$2
shift 2
booted=$(sed -n 's/^btime //p' /proc/stat)
{
  find "$folder" -type f -name '*dmesg*'
  find "$archive" -type f -name '*dmesg*' -newermt "@$booted"
} 2>/dev/null | sort | head -n 20 | while IFS= read -r file; do tail -c 65536 "$file"; done |
  keep "$@"
"""
)
"""What the kernel kept of a crash beyond the reboot: records of the firmware (`$1`), and those that
systemd-pstore took from there during this boot (`$2`)."""

MODELS = """\
hub=.cache/huggingface/hub/models--
caches=$1
shift
for folder in /srv/models/* "/root/$hub"* /home/*/"$hub"* \\
    "$caches"/huggingface/hub/models--* "$@"; do
  [ -d "$folder" ] || continue
  printf '==> %s\\n' "$folder"
  find -L "$folder" -name blobs -prune -o -type f -printf '%s %P\\n' | sort -k 2 | head -n 2000
done
true
"""
"""Files of every model that the node keeps, `$1` being the folder of the caches; a link whose
target is missing is none."""

SSH_FOLDER = 'stat -c "%F %U %a" "$(getent passwd "$1" | cut -d: -f6)/.ssh"'


def shell(script: str, *words: str) -> tuple[str, ...]:
    """The argument list of a script; `words` are its `$1`, `$2` ..."""
    return ("sh", "-c", script, "doctor", *words)
