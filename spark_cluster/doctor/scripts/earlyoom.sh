# How earlyoom was started, with NUL between its words.
pid=$(systemctl show -p MainPID --value earlyoom.service) || exit 1
[ "${pid:-0}" -eq 0 ] || cat "/proc/$pid/cmdline"
