"""The bare script: the containers of a server, started by `docker run` over ssh and nothing else.

What it starts are the arguments that `up` has written on its containers, so that both start the
same. It waits for Ray's nodes before it starts vLLM, as published scripts do.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_cluster.config.inventory import InventoryNode
from spark_cluster.engine.names import PAUSE, RAY, SERVER
from spark_cluster.engine.ray import RAY_HOME, RAY_TOKEN, TOKEN_FILE
from spark_cluster.node.engine_caches import short
from spark_cluster.resources.container import ARGV, ID
from spark_cluster.resources.unit import secret_path

TOKEN = "5eed" * 16

WAIT = """\
import json, sys, time, urllib.request
def asked(url, body=None, token=None):
    head = {"Content-Type": "application/json", **({"Authorization": "Bearer " + token} if token else {})}
    with urllib.request.urlopen(urllib.request.Request(url, body, head), timeout=60) as answer:
        return answer.read().decode()
def until(true):
    while True:
        try:
            if true():
                return
        except OSError:
            pass
        time.sleep(0.25)
"""  # noqa: E501

NODES = """\
until(lambda: asked("http://127.0.0.1:{port}/api/v0/nodes", token="{token}").count("ALIVE") >= {count})
"""  # noqa: E501

ANSWERS = """\
until(lambda: asked("http://127.0.0.1:{port}/health") is not None)
body = {{"model": "{model}", "messages": [{{"role": "user", "content": "What is the capital of France?"}}],
         "max_tokens": 8, "temperature": 0}}
print(json.loads(asked("http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode()))
      ["choices"][0]["message"]["content"])
"""  # noqa: E501


@dataclass(frozen=True)
class Machine:
    """A node that is reached by the program `ssh`."""

    node: InventoryNode

    def argv(self, script: str) -> list[str]:
        node = self.node
        options = ["-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={node.known_hosts}"]
        key = ["-i", str(node.identity_file)] if node.identity_file else []
        user = [f"{node.user}@{node.address}" if node.user else node.address]
        return ["ssh", *options, *key, *user, f"sudo -n sh -ec {shlex.quote(script)}"]

    def run(self, script: str) -> str:
        """Run a script as root, and return what it prints."""
        done = subprocess.run(self.argv(script), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{self.node.name}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def start_of(self, name: str) -> str:
        """Return the `docker run` of a container that runs there now; empty where it does not."""
        printed = self.run(f"docker container inspect {name} || true").strip() or "[]"
        found: list[dict[str, Any]] = json.loads(printed)
        if not found:
            return ""
        argv = json.loads(found[0]["Config"]["Labels"][ARGV])
        argv = [word.replace(f"/{ID},", f"/{short(found[0]['Image'])},") for word in argv]
        rules = found[0]["HostConfig"].get("DeviceCgroupRules") or ()
        rules = [word for rule in rules for word in ("--device-cgroup-rule", rule)]
        return shlex.join(["docker", "run", "-d", *rules, *argv])


class BareScript:
    """The script for what serves now on some nodes, the head first."""

    def __init__(self, nodes: Sequence[InventoryNode], model: str, port: int, ray: int) -> None:
        self.machines = [Machine(node) for node in nodes]
        names = (PAUSE, RAY, SERVER)
        self._starts = [{n: m.start_of(n) for n in names} for m in self.machines]
        wait = {"port": port, "model": model, "token": TOKEN, "count": len(nodes)}
        self._joined = WAIT + NODES.format(**{**wait, "port": ray})
        self._answers = WAIT + ANSWERS.format(**wait)

    def run(self) -> str:
        """Start it all, and return the answer to one question."""
        files = (TOKEN_FILE, secret_path(SERVER, RAY_TOKEN))
        made = f"mkdir -p {RAY_HOME}; " + "; ".join(
            f"install -D -m 600 /dev/null {file}; printf %s {TOKEN} > {file}" for file in files
        )
        begun = [
            subprocess.Popen(
                machine.argv("; ".join(filter(None, (made, starts[PAUSE], starts[RAY])))),
                stdout=subprocess.DEVNULL,
            )
            for machine, starts in zip(self.machines, self._starts, strict=True)
        ]
        if any([process.wait() for process in begun]):  # noqa: C419  (all are waited for)
            raise RuntimeError("Ray was not started")
        head, starts = self.machines[0], self._starts[0]
        steps = (
            f"python3 -c {shlex.quote(self._joined)}",
            f"{starts[SERVER]} > /dev/null",
            f"python3 -c {shlex.quote(self._answers)}",
        )
        return head.run("; ".join(steps)).strip()
