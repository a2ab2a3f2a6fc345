# Ends the Ray of a run, as a container or as a unit; the file of a unit has its labels in JSON.
# $1: name of Ray's container and unit; $2, $3: label and value of the run; $4: the unit's file.
if command -v docker >/dev/null; then
    docker container ls --all --quiet --filter "name=^/?$1$" --filter "label=$2=$3" |
        xargs --no-run-if-empty docker rm --force
fi
if grep --quiet --no-messages --fixed-strings --regexp="\"$2\": \"$3\"" "$4"; then
    systemctl disable --now "$1.service"
fi
