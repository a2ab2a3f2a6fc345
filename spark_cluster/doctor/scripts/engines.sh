# Names of the containers that look like an engine's, by name, image or command; not only our own.
# With -a also of those that do not run.
engines() {
  all=$(docker ps "$@" --no-trunc --format '{{.Names}} {{.Image}} {{.Command}}') || exit 1
  names=$(printf '%s\n' "$all" | grep -v "^$PAUSE " |
    grep -iE '(^|[^a-z])(vllm|ray|sglang)([^a-z]|$)' | cut -d' ' -f1)
}
