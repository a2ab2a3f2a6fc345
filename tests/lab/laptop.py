"""A laptop with a project for the lab's nodes, for tests that run the command line as users do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from commandline import WAIT_S

from spark_cluster.lab import Lab, LabNode
from spark_cluster.lab.layout import USER

CHECKOUT = Path(__file__).parents[2]


class CommandLine:
    """`spark-cluster` in a project with an inventory of the lab's nodes."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text("".join(n.layout.known_hosts.read_text() for n in lab.nodes))
        self.settings: dict[str, Any] = {}
        self.identity: Path = lab.key_path
        (folder / "home").mkdir()

    def write(self) -> None:
        roles = ["head", "worker"]
        document = {
            "ssh": {
                "user": USER,
                "identity_file": str(self.identity),
                "known_hosts": str(self.known_hosts),
            },
            "nodes": {
                node.name: {"address": node.address, "roles": [role]}
                for node, role in zip(self.lab.nodes, roles, strict=True)
            },
            "settings": self.settings,
        }
        (self.folder / "inventory.yaml").write_text(json.dumps(document))

    def __call__(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        self.write()
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder / "home"),
            "PYTHONPATH": str(CHECKOUT),
            **more,
        }
        return subprocess.run(
            [sys.executable, "-m", "spark_cluster", *words],
            check=False, capture_output=True, text=True, cwd=self.folder, env=environment,
            stdin=subprocess.DEVNULL, timeout=WAIT_S,
        )  # fmt: skip

    def provision(self, *words: str, status: int = 0, **more: str) -> dict[str, Any]:
        done = self("provision", "--json", *words, **more)
        assert done.returncode == status, done.stderr + done.stdout
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def changed(self, *words: str) -> int:
        """Return how much a run changed; and the next one has nothing left to do."""
        count = int(self.provision(*words)["changed"])
        assert self.provision(*words)["changed"] == 0
        return count


def root(node: LabNode, shell: str) -> str:
    return node.run(["sh", "-c", shell]).stdout.strip()


def as_user(node: LabNode, *argv: str) -> str:
    return node.ssh(list(argv)).stdout.strip()
