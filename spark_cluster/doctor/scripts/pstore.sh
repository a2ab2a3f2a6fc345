# What the kernel kept of a crash beyond the reboot: records of the firmware ($1), and those that
# systemd-pstore took from there during this boot ($2).
. keep.sh
folder=$1 archive=$2
shift 2
booted=$(sed -n 's/^btime //p' /proc/stat)
{
  find "$folder" -type f -name '*dmesg*'
  find "$archive" -type f -name '*dmesg*' -newermt "@$booted"
} 2>/dev/null | sort | head -n 20 | while IFS= read -r file; do tail -c 65536 "$file"; done |
  keep "$@"
