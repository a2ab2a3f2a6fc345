#!/usr/bin/env bash
# Runs the pure tests on a busy machine: next to four busy loops and a program that holds all memory
# but 3 GiB, and touches it again and again. No timing decides a test, so each run must be green.
#
#   tests/under_load.sh [RUNS [PYTEST ARGUMENTS...]]     RUNS: 3 by default
#
# PYTHON: the interpreter with the development environment (.venv/bin/python by default).
# LEAVE_GIB: GiB of memory that are left to the tests (3 by default, which is enough for two workers
#   of pytest; below half of it memory is given back, and the program is the first to be killed).
set -u
cd "$(dirname "$0")/.."
runs=${1:-3}
shift $(($# > 0 ? 1 : 0))
python=${PYTHON:-.venv/bin/python}
leave_gib=${LEAVE_GIB:-3}
loops=4
limit_s=2400 # a run that takes longer hangs; the load ends with this script, however that ends
load_pids=()

end_load() {
  [ ${#load_pids[@]} -eq 0 ] || kill "${load_pids[@]}" 2>/dev/null
  wait
}
trap end_load EXIT
trap 'exit 130' INT TERM

for _ in $(seq "$loops"); do
  "$python" -IS tests/load.py loop $$ &
  load_pids+=($!)
done
"$python" -IS tests/load.py memory "$leave_gib" $$ &
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
