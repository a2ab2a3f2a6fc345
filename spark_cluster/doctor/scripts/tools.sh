# Which of the programs are there.
for tool in "$@"; do command -v "$tool" >/dev/null && echo "$tool"; done; true
