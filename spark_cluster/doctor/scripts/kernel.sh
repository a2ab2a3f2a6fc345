# What the kernel itself logged in a boot ($1: 0 or -1), the kept lines by time.
#
# `--dmesg` asks for `_TRANSPORT=kernel`, which journald sets: anyone may log as `kernel`.
. keep.sh
boot=$1
shift
log=$(journalctl --quiet --dmesg --boot "$boot" --lines "$LOG_LINES" --no-pager \
  --output short-iso-precise --utc 2>&1) || { printf '%s\n' "$log" >&2; exit 1; }
printf '%s\n' "$log" | keep "$@" | sort -s -k 1,1
