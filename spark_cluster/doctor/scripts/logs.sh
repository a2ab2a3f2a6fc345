# The kept lines of each container's log.
. keep.sh
. engines.sh
engines -a
for name in $names; do
  printf '==> %s\n' "$name"
  docker logs --timestamps --tail "$LOG_LINES" "$name" 2>&1 | keep "$@"
done
true
