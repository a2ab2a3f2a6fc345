# Downloads a repository of the hub with the `hf` of a virtual environment.
# The token comes on standard input and lies in a file of root's for as long as the download lasts;
# $work is on a tmpfs, so that after a power cut nothing of it is left.
# Arguments: WORK VENV REPOSITORY REVISION FOLDER
umask 077
work=$1 venv=$2 repository=$3 revision=$4 folder=$5
own=$work/venv.$$ client= teller=

finish() {
    status=$?
    trap '' TERM INT HUP
    trap - EXIT
    rm -rf "$own"
    test -z "$teller" || kill "$teller" 2>/dev/null
    test -z "$client" || kill "$client" 2>/dev/null
    exit "$status"
}

mkdir -p "$work" || exit
for left in "$work"/*; do # of a download that was killed
    kill -0 "${left##*.}" 2>/dev/null || rm -rf "$left"
done
trap finish EXIT
trap 'exit 143' TERM INT HUP
mkdir "$own" && cat >"$own/token" || exit
test ! -s "$own/token" || export HF_TOKEN_PATH="$own/token"

rm -f "$folder/.complete" # from here on the folder is no longer what it was
umask 022
"$venv/bin/hf" download --revision="$revision" --local-dir="$folder" -- "$repository" &
client=$!
# `hf` shows its progress on terminals only.
while sleep 10 >/dev/null 2>&1; do
    echo "$(du -sm "$folder" | cut -f1) MiB of $repository are there"
done &
teller=$!
wait "$client" || exit
client=

# The files first, then the word that all of them are there: a power cut must not swap the two.
sync -f "$folder"
echo "$repository@$revision" >"$folder/.complete.new" && chmod 644 "$folder/.complete.new" &&
    sync "$folder/.complete.new" && mv "$folder/.complete.new" "$folder/.complete" && sync "$folder"
