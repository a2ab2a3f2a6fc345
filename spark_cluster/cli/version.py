"""The program itself: `version` and `completion`."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from spark_cluster import __version__
from spark_cluster.cli.app import App
from spark_cluster.cli.options import Command
from spark_cluster.config.project import INVENTORY
from spark_cluster.errors import SparkClusterError

LIBRARIES = ("paramiko", "ruamel.yaml", "pydantic", "click")
"""What reads files and talks to nodes: the usual suspects when one laptop differs from another."""

_SSH_TIMEOUT_S = 5


@dataclass(frozen=True)
class Versions:
    """The installation, the laptop and the project, as `--json` prints them.

    Attributes:
        version: of spark-cluster.
        program: folder that the package is imported from.
        python: version and path of the interpreter.
        system: operating system, release and architecture of the laptop.
        ssh: what `ssh -V` prints; empty where OpenSSH's client is not installed.
        libraries: name to version; empty text for one that is not installed.
        project: the project folder.
        inventory: the inventory file that commands would read; None when there is none.
        inventory_error: why there is none.
    """

    version: str
    program: str
    python: str
    system: str
    ssh: str
    libraries: dict[str, str]
    project: str
    inventory: str | None
    inventory_error: str = ""


@click.command(cls=Command)
def version(app: App) -> None:
    """Show the versions, the system and the files in use, for a bug report.

    No node is contacted, and the inventory is located but not read.
    """
    found = versions(app)
    app.show(found, "\n".join(_lines(found)))


def versions(app: App) -> Versions:
    """Return the versions and files that this laptop has now.

    Raises:
        UsageError: the folder given with --project does not exist.
    """
    inventory, error = _inventory(app)
    return Versions(
        version=__version__,
        program=str(Path(__file__).parents[1]),
        python=f"{platform.python_version()} ({sys.executable})",
        system=f"{_system()}, {platform.machine()}",
        ssh=_ssh_version(),
        libraries={name: _library(name) for name in LIBRARIES},
        project=str(app.project.folder),
        inventory=inventory,
        inventory_error=error,
    )


def _inventory(app: App) -> tuple[str | None, str]:

    try:
        path = app.project.resolve("inventories", str(app.cluster.named or f"./{INVENTORY}"))
    except SparkClusterError as error:
        return None, error.message
    return str(path.absolute()), ""


def _library(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _system() -> str:
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):  # not Linux, or a minimal image
        return platform.platform()
    return f"{name}, {platform.system()} {platform.release()}"


def _ssh_version() -> str:
    ssh = shutil.which("ssh")
    if ssh is None:
        return ""
    try:
        done = subprocess.run(
            [ssh, "-V"], check=False, capture_output=True, text=True, timeout=_SSH_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{ssh} -V failed: {error}"
    return (done.stderr or done.stdout).strip()


def _lines(found: Versions) -> list[str]:
    rows = {
        "spark-cluster": f"{found.version} ({found.program})",
        "Python": found.python,
        "system": found.system,
        "ssh": found.ssh or "not installed",
        **{name: version or "not installed" for name, version in found.libraries.items()},
        "project": found.project,
        "inventory": found.inventory or f"none ({found.inventory_error})",
    }
    width = max(map(len, rows))
    return [f"{name:<{width}}  {value}" for name, value in rows.items()]


PROGRAM = "spark-cluster"
VARIABLE = "_SPARK_CLUSTER_COMPLETE"
"""The variable in which click looks for a shell's request, derived from the program's name."""

SHELLS: dict[str, type[ShellComplete]] = {
    "bash": BashComplete,
    "zsh": ZshComplete,
    "fish": FishComplete,
}


@dataclass(frozen=True)
class Completion:
    """The completion script of one shell."""

    shell: str
    script: str


@click.command(cls=Command)
def completion(
    ctx: click.Context, app: App, *, shell: Annotated[str, click.Choice(list(SHELLS))]
) -> None:
    """Print the completion script for SHELL, to be loaded by its start-up file.

    \b
    echo 'eval "$(spark-cluster completion bash)"' >> ~/.bashrc
    echo 'eval "$(spark-cluster completion zsh)"' >> ~/.zshrc
    spark-cluster completion fish > ~/.config/fish/completions/spark-cluster.fish

    bash must be 4.4 or newer.
    """
    script = SHELLS[shell](ctx.find_root().command, {}, PROGRAM, VARIABLE).source()
    app.show(Completion(shell, script), script)
