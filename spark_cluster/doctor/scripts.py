"""Small shell scripts that a node runs to answer several questions in one process.

Each prints plain text and ends with status 0 unless what it asks did not answer at all.
"""

from __future__ import annotations

from spark_cluster.inference.process import PAUSE, PROGRAMS
from spark_cluster.inference.runtime import JOURNAL

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
  xargs docker image inspect -f '{{.Id}} {{.Architecture}}'
"""
)

LOG_LINES = 20000
"""How many lines at the end of a program's log are looked through."""

_KEEP = """\
keep() {
  awk '
    BEGIN { for (i = 1; i < ARGC; i++) { key[i] = ARGV[i]; ARGV[i] = "" }; keys = ARGC }
    { for (i = 1; i < keys; i++) if (index($0, key[i])) {
        kept[i "," count[i]++ % 20] = $0; break } }
    END { for (i = 1; i < keys; i++) for (j = 0; j < 20; j++)
        if ((i "," j) in kept) print kept[i "," j] }' "$@"
}
"""
"""Of standard input the last 20 lines with each of the words that are asked for."""

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
  printf '%s %s %s %s\\n' "$pid" "$parent" "$(tail -n 1 "/proc/$pid/cgroup")" \\
    "$(cat "/proc/$parent/comm" 2>/dev/null)"
done
true
"""
"""pid, parent's pid, control group, parent's name."""

EARLYOOM = """\
pid=$(systemctl show -p MainPID --value earlyoom.service) || exit 1
[ "${pid:-0}" -eq 0 ] || cat "/proc/$pid/cmdline"
"""
"""How earlyoom was started, with NUL between its words."""

KERNEL = """\
log=$(journalctl -b -t kernel --no-pager -o short-iso 2>&1) || { echo "$log" >&2; exit 1; }
printf '%s\\n' "$log" | grep -aE "$1" | tail -n 200
true
"""

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
