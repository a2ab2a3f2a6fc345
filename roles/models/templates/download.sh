# Downloads a repository of the hub with `hf`: of an image, in a container with a name, or of a
# virtual environment.
# The token comes on standard input and lies in a file of root's for as long as the download lasts;
# $work is on a tmpfs, so that after a power cut nothing of it is left.
# Arguments: WORK NAME IMAGE|/PATH/OF/hf REPOSITORY REVISION FOLDER MAKER [OPTION OF docker run]...
umask 077
work=$1 name=$2 program=$3 repository=$4 revision=$5 folder=$6 maker=$7
shift 7
own=$work/$name.$$ client= teller=
note=$folder/.complete known= foreign=

# The program that fills a folder writes there what it likes, and engines load what they find: the
# folder of another image, or of another repository, is not filled up.
test -L "$note" || test ! -f "$note" || known=$(head -c 500 "$note" | head -n 1)
case $known in
'' | "partial $repository by $maker" | "$repository@"*" by $maker") ;;
*" by "*) foreign=1 ;;
"$repository@"*) ;; # the note of an earlier version
*) foreign=1 ;;
esac
if test -n "$foreign"; then
    echo "$folder has what another recipe put there (\"$known\"; this one: $repository by $maker)" \
        "and may have changed: give \`path\` another folder, or remove this one: rm -r $folder" >&2
    exit 1
fi

finish() {
    status=$?
    trap '' TERM INT HUP
    trap - EXIT
    rm -f "$own/token"
    test -z "$teller" || kill "$teller" 2>/dev/null
    # Its id, not its name: a later download may have taken the name already.
    test ! -s "$own/id" || docker rm --force "$(cat "$own/id")" >/dev/null 2>&1
    test -z "$client" || kill "$client" 2>/dev/null
    rm -rf "$own"
    exit "$status"
}

mkdir -p "$work" || exit
for left in "$work"/*; do # of a download that was killed
    kill -0 "${left##*.}" 2>/dev/null || rm -rf "$left"
done
trap finish EXIT
trap 'exit 143' TERM INT HUP
mkdir "$own" && cat >"$own/token" || exit

case $program in
/*)
    test ! -s "$own/token" || export HF_TOKEN_PATH="$own/token"
    set -- "$program"
    ;;
*)
    if test -s "$own/token"; then
        set -- "$@" --env HF_TOKEN_PATH=/run/secrets/hub-token \
            --mount "type=bind,source=$own/token,target=/run/secrets/hub-token,readonly"
    fi
    set -- docker run --rm --init --name "$name" --cidfile "$own/id" --network host \
        --mount "type=bind,source=$folder,target=$folder" \
        --mount "type=bind,source=$note,target=$note,readonly" "$@" --entrypoint hf "$program"
    docker rm --force "$name" >/dev/null 2>&1 # of a download that was killed
    ;;
esac
umask 022 # the model is no secret; the token is written, and its folder closed
rm -rf "$note" # from here on the folder is no longer what it was
set -C
echo "partial $repository by $maker" >"$note" || exit
set +C
"$@" download --revision="$revision" --exclude='.complete*' --local-dir="$folder" -- "$repository" &
client=$!
# `hf` shows its progress on terminals only.
while sleep 10 >/dev/null 2>&1; do
    echo "$(du -sm "$folder" | cut -f1) MiB of $repository are there"
done &
teller=$!
wait "$client" || {
    failed=$?
    test -s "$own/token" ||
        echo "it had no hub token: for a gated model, --allow-env HF_TOKEN gives the laptop's to" \
            "what the recipe names to download" >&2
    exit "$failed"
}
client=

# The files first, then the word that all of them are there: a power cut must not swap the two.
# The image's program wrote this folder: what it left under these names is neither followed (-C
# makes the file anew, -T takes no folder for a place to move into) nor kept.
sync -f "$folder"
rm -rf "$note.new" "$note"
set -C
echo "$repository@$revision by $maker" >"$note.new" && sync "$note.new" &&
    mv -T "$note.new" "$note" && sync "$folder"
