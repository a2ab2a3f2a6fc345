# Read from the folders that pip writes, in the prefixes of the program's own PATH: a Python in
# the container, which is asked where there is none, took 1.8 s on a busy node of the lab. Of our own
# units (runtime venv), too.
. engines.sh
installed() (
  pid=$1
  path=$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^PATH=//p')
  set -f; IFS=:; set -- $path; set +f
  for package in ray vllm; do
    for folder; do
      for found in "/proc/$pid/root${folder%/*}"/lib/python3*/*-packages/$package-*.dist-info; do
        [ -d "$found" ] || continue
        version=${found##*/$package-}
        printf '%s=%s\n' "$package" "${version%.dist-info}"
        continue 3
      done
    done
  done
)
for name in $PROGRAMS; do
  pid=$(systemctl show -p MainPID --value "$name.service" 2>/dev/null)
  [ "${pid:-0}" -gt 0 ] || continue
  printf '==> %s\n%s\n' "$name" "$(installed "$pid" 2>/dev/null)"
done
command -v docker >/dev/null || exit 0
engines
[ -n "$names" ] || exit 0
docker container inspect -f '{{.Name}} {{.State.Pid}}' $names | while read -r name pid; do
  name=${name#/}
  versions=$(installed "$pid" 2>/dev/null)
  [ -n "$versions" ] || versions=$(docker exec "$name" python3 -c "$1" </dev/null)
  printf '==> %s\n%s\n' "$name" "$versions"
done
true
