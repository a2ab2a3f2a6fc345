# Of standard input the last lines with each of the words that are asked for.
keep() {
  awk -v kept_lines="$KEPT_LINES" '
    BEGIN { for (i = 1; i < ARGC; i++) { key[i] = ARGV[i]; ARGV[i] = "" }; keys = ARGC }
    { for (i = 1; i < keys; i++) if (index($0, key[i])) {
        kept[i "," count[i]++ % kept_lines] = $0; break } }
    END { for (i = 1; i < keys; i++) for (j = 0; j < kept_lines; j++)
        if ((i "," j) in kept) print kept[i "," j] }' "$@"
}
