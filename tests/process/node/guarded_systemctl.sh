#!/bin/sh
echo "$@" >> {root}/asked
case "$1" in show) cat {root}/unit-state ;; stop) echo failed > {root}/unit-state ;; esac
