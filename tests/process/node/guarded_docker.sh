#!/bin/sh
echo "$@" >> {root}/asked
case "$*" in
  "container ls"*) ! test -e {root}/running || cat {root}/running ;;
  stop*) rm -f {root}/running ;;
esac
