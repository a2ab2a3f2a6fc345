"""The benchmark's play as a playbook of ours: 50 resources in one document a node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.engine import work
from spark_cluster.config.topology import render
from spark_cluster.resources.base import Resource
from spark_cluster.resources.command import Command
from spark_cluster.resources.directory import Directory
from spark_cluster.resources.file import File
from spark_cluster.resources.group import Group
from spark_cluster.resources.line import Line
from spark_cluster.resources.user import User
from spark_cluster.runner.play import Play

SOURCES = "ENGINE_BENCHMARK_SOURCES"
"""The environment variable that says where the files to copy and render are."""


def main(play: Play) -> None:
    play.apply(play.nodes, list(resources(Path(os.environ[SOURCES]))))


def resources(sources: Path) -> Iterator[Resource]:
    """The play; see work.py."""
    for path in work.DIRECTORIES:
        yield Directory(path, mode=0o755)
    for path, source in work.COPIES:
        yield File(path, content=(sources / source).read_bytes())
    for path, source in work.TEMPLATES:
        yield File(path, content=render(sources, source, **work.VARIABLES))
    for path, line in work.LINES:
        yield Line(path, line=line, create=True)
    for name, gid in work.GROUPS:
        yield Group(name, gid=gid)
    for name, uid, group in work.USERS:
        yield User(name, uid=uid, groups=(group,), shell="/bin/sh")
    for path in work.CHECKS:
        yield Directory(path)
    for name in work.SYSCTLS:
        yield Command(f"read {name}", ("sysctl", "-n", name), reads=True)
