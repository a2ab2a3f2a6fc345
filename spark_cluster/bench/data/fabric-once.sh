# Keeps Ray from coming back with the node: its timer would not. $1: its name; $2: the unit's file.
if command -v docker >/dev/null && docker container inspect "$1" >/dev/null 2>&1; then
    docker update --restart no "$1" >/dev/null || exit
fi
if test -e "$2"; then
    systemctl --quiet disable "$1.service"
fi
