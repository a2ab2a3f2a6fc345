#!/bin/sh
case "$1" in
save) [ "$2" = "%s" ] && cat "$0.saved" || { echo "No such image: $2" >&2; exit 1; } ;;
load) cat > "$0.loaded"; cmp -s "$0.loaded" "$0.wanted" || { echo "unexpected EOF"; exit 1; }
    echo "Loaded image: %s"; cat "$0.others" 2>/dev/null || : ;;
image) echo "$*" >> "$0.removed" ;;
esac
