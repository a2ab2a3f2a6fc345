# Kind, owner and mode of a user's ~/.ssh.
stat -c "%F %U %a" "$(getent passwd "$1" | cut -d: -f6)/.ssh"
