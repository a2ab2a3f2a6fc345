"""The declaration of a Container's or Unit's program: texts, variables, mounts and secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Protocol

from spark_cluster.node.host import Host
from spark_cluster.node.values import InvalidResource, Missing, Secret
from spark_cluster.resources.base import absolute


class Program(Protocol):
    """The fields that a Container and a Unit have in common."""

    @property
    def command(self) -> tuple[str, ...]: ...
    @property
    def env(self) -> Mapping[str, str]: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def secret_files(self) -> Mapping[str, Secret]: ...
    @property
    def mounts(self) -> tuple[str, ...]: ...


def check_program(
    program: Program, what: str, *, shown_by: str, variable: str = r"[A-Za-z_][A-Za-z0-9_]*"
) -> None:
    """Check what is declared of a program.

    Args:
        what: the resource as messages name it, such as `Unit ray-head`.
        shown_by: the command that would show a secret given in any text but those of secret files.
        variable: pattern of the names of variables.

    Raises:
        InvalidResource: a list is one string, a text is none or a secret, a variable has no valid
            name, a mount is not `SOURCE:TARGET`, or a secret file holds no Secret.
    """
    for name in ("command", "mounts"):
        if isinstance(getattr(program, name), str):
            raise InvalidResource(f"{what}: {name} is a list of strings, not one string")
    for where, value in _texts(program):
        if isinstance(value, Secret):
            raise InvalidResource(
                f"{what}: {where} is a secret, which `{shown_by}` would show; give it in "
                "secret_files and let the program read that file"
            )
        if not isinstance(value, str):
            raise InvalidResource(f"{what}: {where} is {value!r}; write it as text: '{value}'")
        if "\0" in value:
            raise InvalidResource(f"{what}: {where} is {value!r}, which has a NUL character")
    for name in program.env:
        if not re.fullmatch(variable, name):
            raise InvalidResource(f"{what}: {name!r} is not the name of a variable")
    for mount in program.mounts:
        source, target, mode = split_mount(mount)
        if mode not in ("", "ro", "rw"):
            raise InvalidResource(
                f"{what}: mount {mount!r} is not SOURCE:TARGET or SOURCE:TARGET:ro"
            )
        absolute(source, f"{what}: source of mount {mount!r}")
        absolute(target, f"{what}: target of mount {mount!r}")
    for path, secret in program.secret_files.items():
        absolute(path, f"{what}: secret_files")
        if not isinstance(secret, Secret):
            raise InvalidResource(f"{what}: secret_files {path}: wrap the value in Secret(...)")


def split_mount(mount: str) -> tuple[str, str, str]:
    """Return source, target and mode (empty when none is given) of `SOURCE:TARGET[:MODE]`."""
    source, _, rest = mount.partition(":")
    target, _, mode = rest.partition(":")
    return source, target, mode


def need_paths(host: Host, what: str, paths: Iterable[str], hint: str) -> None:
    """Raise Missing for a path that is not on the node and that no earlier resource will make.

    Args:
        what: who needs them, as messages name it.
        hint: what to do about one that is missing; one below /dev its driver makes.
    """
    for path in paths:
        if not host.path(path).exists() and not host.will_provide(f"path:{path}"):
            raise Missing(
                f"path:{path}",
                f"{what}: {path} does not exist on the node",
                hint
                if not path.startswith("/dev/")
                else "its driver makes it; see `spark-cluster doctor`",
            )


def _texts(program: Program) -> Iterable[tuple[str, object]]:
    for number, word in enumerate(program.command):
        yield f"command[{number}]", word
    yield from ((f"env {name}", value) for name, value in program.env.items())
    yield from ((f"label {name}", value) for name, value in program.labels.items())
