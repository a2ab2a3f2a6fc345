#!/usr/bin/env bash
# Runs the pure tests on a busy machine: beside four busy loops and a program that fills memory.
# No timing decides a test, so each run must be green.
#
#   tests/under_load.sh [RUNS [PYTEST ARGUMENTS...]]     RUNS: 3 by default
#
# PYTHON: the interpreter with the development environment (.venv/bin/python by default).
set -u
cd "$(dirname "$0")/.."
runs=${1:-3}
shift $(($# > 0 ? 1 : 0))
python=${PYTHON:-.venv/bin/python}
loops=4
limit_s=2400 # a run that takes longer hangs; the load ends by itself after all of them
load_pids=()

end_load() {
  [ ${#load_pids[@]} -eq 0 ] || kill "${load_pids[@]}" 2>/dev/null
  wait
}
trap end_load EXIT
trap 'exit 130' INT TERM

for _ in $(seq "$loops"); do
  "$python" -IS -c 'import sys, time
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end: pass' $((runs * limit_s)) &
  load_pids+=($!)
done

# At most 3 GiB, and at most a quarter of what is free.
"$python" -IS -c 'import sys, time
free = next(int(l.split()[1]) for l in open("/proc/meminfo") if l.startswith("MemAvailable"))
held = bytearray(min(3 << 30, free * 1024 // 4))
end, turn = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < end:
    turn = (turn + 1) % 256
    held[::4096] = bytes([turn]) * len(held[::4096])
    time.sleep(0.05)' $((runs * limit_s)) &
load_pids+=($!)

failed=0
for run in $(seq "$runs"); do
  started=$SECONDS
  timeout -k 30 "$limit_s" "$python" -m pytest "${@:-tests}" -m "not lab and not soak" \
    -n auto -p no:cacheprovider &
  tests_pid=$! # waited for, so that a signal to this script ends it at once
  load_pids+=("$tests_pid")
  if wait "$tests_pid"; then
    verdict=green
  else
    verdict="failed (status $?)"
    failed=$((failed + 1))
  fi
  echo "under load, run $run of $runs: $verdict after $((SECONDS - started)) s, load $(cut -d' ' -f1-3 /proc/loadavg)"
done
[ "$failed" -eq 0 ]
