# pid, parent's pid, control group, uid, IPC namespace (`own`; the `node`'s; `lingers`: the node's,
# and logind never ends its user), parent's name.
pids=$(nvidia-smi --query-compute-apps=pid --format=csv,noheader) || exit $?
for pid in $pids; do
  [ -r "/proc/$pid/status" ] || continue
  parent=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status")
  uid=$(sed -n 's/^Uid:[[:space:]]*\([0-9]*\).*/\1/p' "/proc/$pid/status")
  ipc=own
  if [ "$(readlink "/proc/$pid/ns/ipc")" = "$(readlink /proc/1/ns/ipc)" ]; then
    ipc=node
    [ "$(loginctl show-user "$uid" -p Linger --value 2>/dev/null)" = yes ] && ipc=lingers
  fi
  printf '%s %s %s %s %s %s\n' "$pid" "$parent" "$(tail -n 1 "/proc/$pid/cgroup")" "$uid" \
    "$ipc" "$(cat "/proc/$parent/comm" 2>/dev/null)"
done
true
