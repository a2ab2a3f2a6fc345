# The kept lines of what our own units (runtime venv; $1 is their folder) wrote.
. keep.sh
. journal.sh
folder=$1
shift
for name in $PROGRAMS; do
  file=$folder/$name.service
  [ -e "$file" ] || continue
  said=$(journal "$file" "$name") || exit 1
  printf '==> %s\n' "$name"
  printf '%s\n' "$said" | keep "$@"
done
true
