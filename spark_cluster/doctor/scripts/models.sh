# Files of every model that the node keeps, $1 being the folder of the caches; a link whose
# target is missing is none.
hub=.cache/huggingface/hub/models--
caches=$1
shift
for folder in /srv/models/* "/root/$hub"* /home/*/"$hub"* \
    "$caches"/huggingface/hub/models--* "$@"; do
  [ -d "$folder" ] || continue
  printf '==> %s\n' "$folder"
  find -L "$folder" -name blobs -prune -o -type f -printf '%s %P\n' | sort -k 2 | head -n 2000
done
true
