"""A node's docker that keeps its containers in a file: a command, and the same within the tests'
own process for programs that ask by `local_server.output`. An interpreter for each question would
take most of the time of those tests. What would drop this machine's caches or guard its memory is
only written down, in the file `memory`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

SCRIPT = """\
#!{python} -IS
import sys
sys.path.insert(0, {here!r})
from kept_docker import answer
said = answer({folder!r}, sys.argv[1:])
sys.exit("no") if said is None else print(said)
"""


class KeptDocker:
    """The docker of a folder.

    Attributes:
        known: its containers by their names, what was done (`acts`), and whether it is `down`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def known(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "containers.json").read_text())
        return found

    @property
    def acts(self) -> list[str]:
        done: list[str] = self.known["acts"]
        return done

    def has(self, **known: Any) -> None:
        """Have it know this besides what it knows, None: no more; `_` stands for `-` in names."""
        path = self.folder / "containers.json"
        before = self.known if path.exists() else {"acts": []}
        after = {**before, **{name.replace("_", "-"): about for name, about in known.items()}}
        path.write_text(json.dumps({n: about for n, about in after.items() if about is not None}))


def container(labels: dict[str, str], status: str = "running", **about: Any) -> dict[str, Any]:
    """Return what docker tells of a container."""
    state = {"Status": status, "StartedAt": "t", "Error": ""}
    return {"Id": "one", "RestartCount": 0, "State": state, "Config": {"Labels": labels}, **about}


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the command into `bin` of a folder, on PATH, and let this process ask without it."""
    from factories import put

    from spark_cluster.node import local_server

    here = str(Path(__file__).parent)
    script = SCRIPT.format(python=sys.executable, here=here, folder=str(folder))
    put(folder / "bin/docker", script, 0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin", prepend=os.pathsep)
    run = local_server.output

    def output(argv: Sequence[str], limit_s: float = local_server.COMMAND_S) -> str | None:
        if argv[0] == "docker":
            return answer(str(folder), argv[1:])
        if done := _of_memory(argv):
            with (folder / "memory").open("a") as log:
                log.write(f"{done}\n")
            return ""
        return run(argv, limit_s)

    monkeypatch.setattr(local_server, "output", output)


def _of_memory(argv: Sequence[str]) -> str:
    """Return what a command does for the node's memory, in words; empty for another one."""
    if "spark_cluster.node.load_watch:reclaim" in argv:
        return "prepare"
    unit = next((word for word in argv if "load-guard" in word), "").removeprefix("--unit=")
    name = unit.removeprefix("spark-cluster-load-guard-").removesuffix(".service")
    return f"{'guard' if argv[0] == 'systemd-run' else 'end'} {name}" if name else ""


def answer(folder: str, words: Sequence[str]) -> str | None:
    """Return what docker prints, None where it fails.

    Args:
        folder: of `containers.json`: the containers by their names; `acts`, the stops and starts;
            `fails`, those that fail; `down` where the daemon is.
    """
    file = Path(folder) / "containers.json"
    known = json.loads(file.read_text())
    if known.get("down"):
        return None
    name = words[-1].replace("name=^/?", "").rstrip("$")
    if "{{.Names}}" in words:  # all servers of several models
        return "\n".join(found for found in known if found.startswith("spark-vllm-"))
    if words[:2] == ["container", "ls"]:
        return "1" if name in known else ""
    if words[:2] == ["container", "inspect"]:
        return json.dumps([known[name]])
    if words[0] == "top":
        return "PID\n7"
    assert words[0] in ("stop", "start")
    if words[0] in known.get("fails", ()):
        return None
    known[name]["State"]["Status"] = {"stop": "exited", "start": "running"}[words[0]]
    known[name]["State"]["StartedAt"] = f"2026-11-20T10:00:{len(known['acts']):02}Z"
    known["acts"].append(f"{words[0]} {name}")
    whole = file.with_suffix(".new")
    whole.write_text(json.dumps(known))
    whole.replace(file)
    return ""
